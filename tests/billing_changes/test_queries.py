"""What is read of the billing tables, on either engine: the stamps and whose they are."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from metering_dagster.billing_changes.rules.cells import (
    Cell,
    Claims,
    Group,
    Side,
    Signal,
    TenantScope,
    cells_of,
    states_of_days,
)
from metering_dagster.billing_changes.stores.queries import BillingSnapshot
from tests.billing_changes.filling import BillingTables, queries_of, resource_group, tenant

DAY = date(2026, 11, 20)
TEN = datetime(2026, 11, 20, 10, tzinfo=UTC)
ELEVEN, TWELVE = TEN + timedelta(hours=1), TEN + timedelta(hours=2)
MOMENT = timedelta(microseconds=1)


def both(start: datetime) -> dict[Signal, datetime]:
    return dict.fromkeys(Signal, start)


def cells_since(billing: BillingTables, start: datetime, first_day: date = DAY) -> list[Cell]:
    with billing.database().reading() as reading:
        return list(cells_of(reading.pieces_since(both(start), first_day), reading.claims()).values())


def cells_exactly(billing: BillingTables, *days: date, amounts: bool = True) -> list[Cell]:
    with billing.database().reading() as reading:
        claims = reading.claims()
        return list(cells_of(reading.pieces_of(days or [DAY], claims, amounts=amounts), claims).values())


@pytest.mark.case("same_amount_again")
def test_a_cell_fetched_again_with_the_same_amount_is_found(billing):
    billing.subscribe(tenant("t1"))
    billing.daily("t1", DAY, TEN, 5)
    assert cells_since(billing, ELEVEN) == []
    billing.daily("t1", DAY, ELEVEN, 5)
    (cell,) = cells_since(billing, ELEVEN)
    assert cell.last_ingested_at == ELEVEN


@pytest.mark.case("both_tables")
def test_both_tables_make_one_cell_and_the_later_time_wins(billing):
    billing.subscribe(tenant("t1"))
    billing.fact("t1", DAY, TEN)
    billing.daily("t1", DAY, ELEVEN)
    (cell,) = cells_since(billing, TEN)
    assert cell.last_ingested_at == ELEVEN
    assert set(cell.sides) == {Signal.DAILY, Signal.FACTS}
    (exactly,) = cells_exactly(billing, amounts=False)
    assert exactly.state == cell.state


@pytest.mark.case("frozen_column")
def test_only_the_column_that_tells_of_an_ingest_counts(billing):
    billing.subscribe(tenant("t1"), tenant("t2"), tenant("t3"))
    billing.daily("t1", DAY, TEN)
    billing.fact("t2", DAY, TEN)
    billing.daily("t3", DAY, TEN - MOMENT)
    billing.run("UPDATE cmdb_cloud_billing_daily SET updated_at = '2026-11-20 12:00:00.000000' WHERE scope_id = 't3'")
    assert [cell.subscription.id for cell in cells_since(billing, TEN)] == ["t1", "t2"]


def test_the_start_is_closed_to_the_microsecond(billing):
    billing.subscribe(tenant("t1"))
    stamp = TEN + timedelta(microseconds=148_758)
    billing.daily("t1", DAY, stamp)
    assert len(cells_since(billing, stamp)) == 1
    assert cells_since(billing, stamp + MOMENT) == []


def test_days_before_the_first_are_left_out(billing):
    billing.subscribe(tenant("t1"))
    billing.daily("t1", DAY, TEN)
    billing.daily("t1", DAY - timedelta(days=1), TEN)
    assert [cell.day for cell in cells_since(billing, TEN, DAY)] == [DAY]


@pytest.mark.case("resource_group_case")
def test_spellings_of_a_resource_group_are_one_cell(billing):
    billing.subscribe(resource_group("rg-prod"))
    billing.fact("t1", DAY, TEN, group="RG-Prod", service="vm")
    billing.fact("t1", DAY, ELEVEN, group="rg-prod", service="disk")
    for cells in (cells_since(billing, TEN), cells_exactly(billing)):
        (cell,) = cells
        assert cell.last_ingested_at == ELEVEN
        assert cell.facts is not None
        assert cell.facts.rows == 2


@pytest.mark.case("two_subscriptions_one_resource_group")
def test_two_subscriptions_of_one_resource_group_both_have_the_cell(billing):
    billing.subscribe(resource_group("rg-prod", id="a"), resource_group("RG-PROD", id="b"))
    billing.fact("t1", DAY, TEN, group="Rg-Prod")
    for cells in (cells_since(billing, TEN), cells_exactly(billing)):
        assert [cell.subscription.id for cell in cells] == ["a", "b"]


def test_the_same_name_in_another_integration_is_another_group(billing):
    billing.subscribe(resource_group("rg", "azure"))
    billing.fact("t1", DAY, TEN, group="rg", integration="other")
    assert cells_since(billing, TEN) == cells_exactly(billing) == []


def test_a_fact_without_a_resource_group_is_its_tenants_only(billing):
    billing.subscribe(tenant("t1"), resource_group(""))
    billing.fact("t1", DAY, TEN, group=None)
    for cells in (cells_since(billing, TEN), cells_exactly(billing)):
        assert [cell.subscription.id for cell in cells] == ["t1"]


@pytest.mark.parametrize("name", ["rg-ünïcode", "RG-\U0001f680-prod", "Straße", "rg (1)_a.b", "rg'\"\\%_"])
def test_any_character_of_a_name_is_found(billing, name):
    billing.subscribe(resource_group(name))
    billing.fact("t1", DAY, TEN, group=name)
    for cells in (cells_since(billing, TEN), cells_exactly(billing)):
        assert [cell.subscription.external_id for cell in cells] == [name]


def test_blanks_at_the_end_of_a_name_do_not_count(billing):
    billing.subscribe(resource_group("rg-prod"))
    billing.fact("t1", DAY, TEN, group="rg-prod  ")
    assert len(cells_since(billing, TEN)) == len(cells_exactly(billing)) == 1


def test_names_that_differ_in_an_accent_are_two_groups(billing):
    billing.subscribe(resource_group("rg-cafe", id="a"), resource_group("rg-café", id="b"))
    billing.fact("t1", DAY, TEN, group="rg-cafe", service="vm")
    billing.fact("t1", DAY, ELEVEN, group="rg-café", service="disk")
    for cells in (cells_since(billing, TEN), cells_exactly(billing)):
        assert {cell.subscription.external_id: cell.last_ingested_at for cell in cells} == {
            "rg-cafe": TEN,
            "rg-café": ELEVEN,
        }


@pytest.mark.case("no_subscriptions")
@pytest.mark.parametrize("disabled", [False, True])
def test_without_subscriptions_nothing_is_asked_of_the_cells(billing, disabled):
    if disabled:
        billing.subscribe(tenant("t1"), resource_group("rg"), enabled=False)
    billing.daily("t1", DAY, TEN)
    database = billing.database()
    with queries_of(database) as queries, database.reading() as reading:
        claims = reading.claims()
        assert claims.subscriptions == []
        assert reading.pieces_of([DAY], claims, amounts=True) == []
    assert ["cmdb_billing_subscriptions" in query for query, _ in queries] == [True]
    assert cells_since(billing, TEN) == []


@pytest.mark.case("no_subscriptions")
@pytest.mark.parametrize(("one", "expected"), [(tenant("t1"), "t1"), (resource_group("rg"), "rg:rg")])
def test_with_one_kind_of_subscription_that_kind_is_found_by_bounded_queries(billing, one, expected):
    billing.subscribe(one)
    billing.fact("t1", DAY, TEN)
    billing.daily("t2", DAY, TEN)
    database = billing.database()
    with queries_of(database) as queries, database.reading() as reading:
        claims = reading.claims()
        exactly = cells_of(reading.pieces_of([DAY], claims, amounts=False), claims)
        since = cells_of(reading.pieces_since(both(TEN), DAY), claims)
    assert [cell.subscription.id for cell in exactly.values()] == [expected]
    assert [cell.subscription.id for cell in since.values()] == [expected]
    assert all("WHERE" in query for query, _ in queries)


def test_no_days_are_no_query(billing):
    billing.subscribe(tenant("t1"), resource_group("rg"))
    database = billing.database()
    with queries_of(database) as queries, database.reading() as reading:
        assert reading.pieces_of([], reading.claims(), amounts=True) == []
    assert len(queries) == 1


@pytest.mark.case("null_stamp")
def test_rows_without_a_stamp_are_counted_and_named(billing):
    billing.subscribe(tenant("t1"))
    billing.fact("t1", DAY, None, service="vm")
    billing.fact("t1", DAY, TEN, service="disk")
    billing.fact("t1", DAY - timedelta(days=1), None)
    billing.daily("t2", DAY, None)
    (cell,) = cells_exactly(billing)
    assert cell.facts is not None
    assert (cell.facts.rows, cell.facts.unstamped, cell.facts.newest) == (2, 1, TEN)
    with billing.database().reading() as reading:
        odd = reading.invalid_stamps(DAY)
    assert (odd.unstamped, odd.future) == (2, 0)
    assert {(one.signal, one.owner, one.rows, one.newest) for one in odd.examples} == {
        (Signal.FACTS, Group("azure", "rg"), 1, None),
        (Signal.DAILY, TenantScope("t2"), 1, None),
    }


def test_stamps_ahead_of_the_databases_clock_are_counted_and_named(billing):
    now = billing.now()
    ahead = now + timedelta(hours=2)
    for number in range(7):
        billing.daily(f"t{number}", DAY, ahead)
    billing.daily("past", DAY, now)
    with billing.database().reading() as reading:
        odd = reading.invalid_stamps(DAY)
    assert (odd.unstamped, odd.future, len(odd.examples)) == (0, 7, 5)
    assert {one.newest for one in odd.examples} == {ahead}


def test_amounts_are_exact_and_kept_apart_by_currency(billing):
    billing.subscribe(tenant("t1"), resource_group("rg"))
    for number in range(10):
        billing.fact("t1", DAY, TEN, "0.1", service=f"s{number}")
    billing.fact("t1", DAY, TEN, "-123456.000001", service="refund")
    billing.fact("t1", DAY, ELEVEN, "7.5", service="else", currency="EUR")
    billing.daily("t1", DAY, TEN, "99999999.999999")
    for cell in cells_exactly(billing):
        assert cell.facts is not None
        assert cell.facts.amounts == (("EUR", Decimal("7.5")), ("USD", Decimal("-123455.000001")))
        assert cell.facts.rows == 12
        assert cell.facts.newest == ELEVEN
    (of_tenant,) = (cell for cell in cells_exactly(billing) if cell.subscription.id == "t1")
    assert of_tenant.amounts == (("USD", Decimal("99999999.999999")),)


def test_amounts_do_not_change_what_is_told_of_rows_and_stamps(billing):
    billing.subscribe(tenant("t1"), resource_group("rg"))
    billing.fact("t1", DAY, TEN, service="vm", currency="EUR")
    billing.fact("t1", DAY, ELEVEN, service="disk")
    assert states_of_days(cells_exactly(billing, amounts=True)) == states_of_days(cells_exactly(billing, amounts=False))


def test_more_stamps_than_a_64_bit_sum_holds_are_added_up(billing):
    billing.subscribe(tenant("t1"))
    billing.fact("t1", DAY, TEN, service="s")
    doubled = (
        "INSERT INTO cmdb_cost_facts (scope_id, integration_id, resource_group, service, date, amount, currency, "
        "updated_at) SELECT scope_id, integration_id, resource_group, {}, date, amount, currency, updated_at "
        "FROM cmdb_cost_facts"
    )
    for number in range(13):
        service = f"service || '-{number}'" if billing.is_sqlite else f"CONCAT(service, '-{number}')"
        billing.run(doubled.format(service))
    (cell,) = cells_exactly(billing)
    assert cell.facts == Side(
        rows=8192, newest=TEN, stamps=8192 * int(TEN.timestamp()) * 1_000_000, amounts=(("USD", Decimal(8192)),)
    )


def test_checksums_tell_which_days_moved(billing):
    other = DAY + timedelta(days=1)
    billing.daily("t1", DAY, TEN)
    billing.fact("t1", DAY, TEN, group="rg-a")
    billing.fact("t1", other, TEN, group=None)

    def checksums() -> dict[date, str]:
        with billing.database().reading() as reading:
            return reading.checksums(DAY)

    before = checksums()
    assert set(before) == {DAY, other}
    assert checksums() == before
    billing.fact("t1", DAY, TEN + MOMENT, group="rg-a")
    moved = checksums()
    assert moved[DAY] != before[DAY]
    assert moved[other] == before[other]
    billing.fact("t1", other, None, group="rg-b")
    assert checksums()[other] != before[other]


def test_checksums_of_a_day_are_the_same_however_much_lies_before_it(billing):
    billing.daily("t1", DAY, TEN)
    billing.fact("t1", DAY, TEN, group="rg-a")
    billing.fact("t1", DAY, TEN + MOMENT, group=None)
    billing.fact("t2", DAY, None, group="rg-b")

    def checksums() -> tuple[dict[date, str], list[str]]:
        database = billing.database()
        with queries_of(database) as queries, database.reading() as reading:
            return reading.checksums(DAY), [query for query, _ in queries if "cells" in query]

    walked, at_once = checksums()
    assert not any(" IN (" in query for query in at_once)
    for scope, group in (("t1", "rg-a"), ("t2", "rg-b"), ("t1", None)):
        billing.fact(scope, DAY - timedelta(days=900), TEN, group=group)
    billing.daily("t1", DAY - timedelta(days=900), TEN)
    jumped, in_chunks = checksums()
    assert all(" IN (" in query for query in in_chunks)
    assert jumped == walked


def test_groups_of_a_day_are_those_of_its_facts(billing):
    billing.fact("t1", DAY, TEN, group="rg-b")
    billing.fact("t1", DAY, TEN, group="rg-a")
    billing.fact("t1", DAY, TEN, group="rg-a", service="disk")
    billing.fact("t1", DAY, TEN, group=None)
    billing.fact("t1", DAY - timedelta(days=1), TEN, group="rg-old")
    with billing.database().reading() as reading:
        assert reading.groups_of(DAY) == [Group("azure", "rg-a"), Group("azure", "rg-b")]


def test_tenants_of_a_day_are_those_of_both_tables(billing):
    billing.fact("t2", DAY, TEN)
    billing.fact("t1", DAY, TEN)
    billing.fact("t1", DAY, TEN, service="disk")
    billing.daily("t1", DAY, TEN)
    billing.daily("t3", DAY, TEN)
    billing.daily("t4", DAY - timedelta(days=1), TEN)
    with billing.database().reading() as reading:
        assert reading.tenants_of(DAY) == [TenantScope("t1"), TenantScope("t2"), TenantScope("t3")]


def test_a_tenant_is_the_same_one_in_another_case_for_the_poll_and_for_the_exact_look(billing):
    billing.subscribe(tenant("t1"))
    billing.fact("T1", DAY, TEN)
    billing.daily("t1", DAY, TEN)
    (polled,), (exactly,) = cells_since(billing, TEN), cells_exactly(billing, amounts=False)
    assert polled.state == exactly.state
    assert set(exactly.sides) == set(Signal)


def test_one_reading_sees_one_state_of_the_tables(billing):
    billing.subscribe(tenant("t1"))
    if billing.is_sqlite:
        billing.run("PRAGMA journal_mode = wal")  # else the writer waits for the reader
    with billing.database().reading() as reading:
        claims = reading.claims()
        billing.daily("t1", DAY, TEN)
        assert reading.pieces_of([DAY], claims, amounts=False) == []
    assert len(cells_exactly(billing)) == 1


def test_the_clock_is_read_before_the_snapshot_is_taken(billing):
    with billing.database().reading() as first:
        pass
    with billing.database().reading() as second:
        pass
    assert first.now < second.now
    assert first.now.utcoffset() == timedelta(0)


def test_columns_and_tables_beyond_ours_do_not_matter(billing):
    for table in ("cmdb_cost_facts", "cmdb_cloud_billing_daily", "cmdb_billing_subscriptions"):
        billing.run(f"ALTER TABLE {table} ADD COLUMN note VARCHAR(10)")
    billing.subscribe(tenant("t1"))
    billing.daily("t1", DAY, TEN)
    assert len(cells_since(billing, TEN)) == 1


def test_pieces_of_rows_that_nobody_claims_are_given_all_the_same(billing):
    billing.fact("t9", DAY, TEN, group="rg-9")
    with billing.database().reading() as reading:
        pieces = reading.pieces_since(both(TEN), DAY)
    assert {piece.owner for piece in pieces} == {TenantScope("t9"), Group("azure", "rg-9")}
    assert cells_of(pieces, Claims([])) == {}


def test_a_table_without_a_start_is_not_asked(billing):
    billing.daily("t1", DAY, TEN)
    billing.fact("t1", DAY, TEN)
    with billing.database().reading() as reading:
        assert isinstance(reading, BillingSnapshot)
        pieces = reading.pieces_since({Signal.DAILY: TEN}, DAY)
    assert {piece.signal for piece in pieces} == {Signal.DAILY}
