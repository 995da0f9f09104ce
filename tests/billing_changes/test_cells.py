"""Whose a row is, what makes a cell, and when two looks saw the same."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from metering_dagster.billing_changes.rules.cells import (
    Claims,
    Group,
    Piece,
    Side,
    Signal,
    Subscription,
    TenantScope,
    cells_of,
    digest,
    key_of,
    newest_of_days,
    states_of_days,
)

DAY = date(2026, 9, 1)
TEN, ELEVEN = datetime(2026, 9, 2, 10, tzinfo=UTC), datetime(2026, 9, 2, 11, tzinfo=UTC)
SCOPE = TenantScope("tenant-1")
TENANT = Subscription("tenant-1", "integration-1", "account-1", "Shop", "azure", is_resource_group=False)
GROUP = Subscription("sub-2", "integration-1", "rg-prod", "Production", "azure", is_resource_group=True)


def a_side(stamp: datetime | None = TEN, rows: int = 1, amount: str = "1.5", currency: str = "USD") -> Side:
    stamps = 0 if stamp is None else rows * ((stamp - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
    return Side(rows, rows if stamp is None else 0, stamp, stamps, ((currency, Decimal(amount)),))


def a_piece(side: Side | None = None, owner: TenantScope | Group = SCOPE, signal: Signal = Signal.FACTS) -> Piece:
    return Piece(signal, DAY, owner, side or a_side())


def the_cell(pieces: list[Piece], *subscriptions: Subscription):
    (cell,) = cells_of(pieces, Claims(subscriptions or [TENANT])).values()
    return cell


@pytest.mark.case("both_tables")
def test_the_later_time_of_both_tables_wins_and_both_signals_are_named():
    cell = the_cell([a_piece(a_side(TEN)), a_piece(a_side(ELEVEN), signal=Signal.DAILY)])
    assert cell.last_ingested_at == ELEVEN
    assert set(cell.sides) == {Signal.DAILY, Signal.FACTS}


@pytest.mark.case("resource_group_case")
def test_spellings_of_a_resource_group_are_one_cell_and_none_is_dropped():
    pieces = [a_piece(a_side(at), Group("Integration-1", name)) for name, at in (("RG-Prod", TEN), ("rg-prod", ELEVEN))]
    cell = the_cell(pieces, GROUP)
    assert (cell.last_ingested_at, cell.facts and cell.facts.rows) == (ELEVEN, 2)


@pytest.mark.case("two_subscriptions_one_resource_group")
def test_each_subscription_that_names_a_resource_group_has_its_cell():
    other = Subscription("sub-3", "integration-1", "RG-PROD", "The same", "azure", is_resource_group=True)
    cells = cells_of([a_piece(owner=Group("integration-1", "rg-prod"))], Claims([GROUP, other]))
    assert [cell.subscription for cell in cells.values()] == [GROUP, other]


@pytest.mark.parametrize(
    "owner", [TenantScope("tenant-9"), Group("integration-9", "rg-prod"), Group("integration-1", "rg")]
)
def test_what_nobody_claims_makes_no_cell(owner):
    assert cells_of([a_piece(owner=owner)], Claims([TENANT, GROUP])) == {}


@pytest.mark.case("no_subscriptions")
def test_without_subscriptions_there_is_nothing_to_ask_for():
    claims = Claims([])
    assert (claims.tenants, claims.groups, cells_of([a_piece()], claims)) == ([], [], {})


def test_a_cell_costs_what_its_daily_row_says_and_else_what_its_facts_add_up_to():
    facts = [a_piece(a_side(amount="2")), a_piece(a_side(amount="3"))]
    assert the_cell(facts).amounts == (("USD", Decimal(5)),)
    daily = a_piece(a_side(amount="6"), signal=Signal.DAILY)
    assert the_cell([*facts, daily]).amounts == (("USD", Decimal(6)),)


def test_amounts_of_different_currencies_are_never_added():
    pieces = [a_piece(a_side(amount="2")), a_piece(a_side(amount="3", currency="EUR"))]
    assert the_cell(pieces).amounts == (("EUR", Decimal(3)), ("USD", Decimal(2)))


def test_one_stamp_that_moves_is_another_state_also_where_it_is_not_the_newest():
    def state(*stamps: datetime) -> str:
        return states_of_days([the_cell([a_piece(a_side(stamp)) for stamp in stamps])])[DAY]

    assert state(TEN, ELEVEN) == state(ELEVEN, TEN)
    assert state(TEN, ELEVEN) != state(TEN + timedelta(microseconds=1), ELEVEN)
    assert state(TEN, ELEVEN) != state(ELEVEN)
    assert state(ELEVEN) != state(ELEVEN, ELEVEN)


@pytest.mark.case("null_stamp")
def test_a_row_without_a_stamp_counts():
    with_one = the_cell([a_piece(), a_piece(a_side(None))])
    assert with_one.facts is not None
    assert with_one.facts.unstamped == 1
    assert states_of_days([with_one]) != states_of_days([the_cell([a_piece()])])
    assert the_cell([a_piece(a_side(None))]).last_ingested_at is None


def test_claims_are_told_apart_by_what_they_claim_and_not_by_their_names():
    renamed = Subscription(**vars(TENANT) | {"name": "Another name"})
    assert Claims([TENANT]).digest == Claims([renamed]).digest
    assert Claims([TENANT]).digest != Claims([TENANT, GROUP]).digest


@pytest.mark.parametrize("stamps", [(TEN, ELEVEN), (ELEVEN, TEN)])
def test_the_newest_stamp_of_a_day_is_that_of_all_its_cells(stamps):
    other = Subscription("tenant-2", "integration-1", "account-2", "Mail", "azure", is_resource_group=False)
    owners = (SCOPE, TenantScope("tenant-2"))
    pieces = [a_piece(a_side(stamp), owner) for stamp, owner in zip(stamps, owners, strict=True)]
    assert newest_of_days(cells_of(pieces, Claims([TENANT, other]))) == {DAY: ELEVEN}


def test_a_digest_is_short_and_tells_where_a_text_ends():
    assert len(digest(["a"])) == 12
    assert digest(["ab", "c"]) != digest(["a", "bc"])


def test_identifiers_are_compared_without_case_and_blanks_at_their_end():
    assert key_of("RG-Prod  ") == "rg-prod"
    assert key_of(" a\t") == " a\t"
