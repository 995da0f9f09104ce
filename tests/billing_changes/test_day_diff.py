"""What is reported of a day's cells beside what was reported before."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.cells import Cell, Claims, Signal, states_of_days
from metering_dagster.billing_changes.rules.day_diff import DayReport, money_differences
from tests.billing_changes.day_reports import DAY, ELEVEN, TEN, TWELVE, a_cell, a_report, a_side, a_subscription, row_of

LATER = TWELVE + timedelta(hours=1)
MOMENT = timedelta(microseconds=1)


def test_in_a_first_report_all_is_touched_and_nothing_changed():
    found = a_report(a_cell())
    row = row_of(found)
    assert (row.touched, row.changed, row.vanished, row.amounts_before) == (True, False, False, None)
    assert (found.since, row.reported_at, row.last_ingested_at) == (None, TWELVE, TEN)


def test_the_same_cells_again_touch_nothing_and_keep_when_they_were_reported():
    first = a_report(a_cell())
    again = a_report(a_cell(), at=LATER, before=first)
    row = row_of(again)
    assert (row.touched, row.changed, row.reported_at) == (False, False, TWELVE)
    assert row.signals == row_of(first).signals
    assert (again.since, again.read_at, again.state) == (TWELVE, LATER, first.state)


@pytest.mark.case("same_amount_again")
def test_a_cell_fetched_again_with_the_same_amount_is_touched_and_not_changed():
    again = a_report(a_cell(a_side(ELEVEN)), at=LATER, before=a_report(a_cell(a_side(TEN))))
    row = row_of(again)
    assert (row.touched, row.changed, row.reported_at, row.last_ingested_at) == (True, False, LATER, ELEVEN)
    assert (row.amount, row.amount_before) == (10, 10)


@pytest.mark.case("both_tables")
def test_the_later_stamp_of_both_tables_wins_and_both_are_named():
    row = row_of(a_report(a_cell(daily=a_side(ELEVEN), facts=a_side(TEN))))
    assert (row.last_ingested_at, row.signals) == (ELEVEN, (Signal.DAILY, Signal.FACTS))


def test_only_the_table_that_moved_is_named():
    before = a_report(a_cell(daily=a_side(TEN), facts=a_side(TEN)))
    row = row_of(a_report(a_cell(daily=a_side(TEN), facts=a_side(ELEVEN)), at=LATER, before=before))
    assert row.signals == (Signal.FACTS,)


def test_an_amount_that_moved_is_told_with_the_one_before():
    row = row_of(a_report(a_cell(a_side(ELEVEN, EUR="12.5")), at=LATER, before=a_report(a_cell())))
    assert (row.changed, row.amount, row.amount_before, row.currency) == (True, Decimal("12.5"), 10, "EUR")


def test_an_amount_of_the_facts_that_moved_under_the_same_daily_amount_counts():
    before = a_report(a_cell(daily=a_side(), facts=a_side(EUR="9")))
    row = row_of(a_report(a_cell(daily=a_side(), facts=a_side(ELEVEN, EUR="11")), at=LATER, before=before))
    assert (row.changed, row.amount, row.amount_before) == (True, 10, 10)


def test_an_amount_that_moved_without_a_stamp_touches_all_the_same():
    row = row_of(a_report(a_cell(a_side(TEN, EUR="12")), at=LATER, before=a_report(a_cell(a_side(TEN)))))
    assert (row.touched, row.changed, row.signals) == (True, True, (Signal.DAILY,))


def test_a_row_more_with_the_same_newest_stamp_touches():
    before = a_report(a_cell(facts=a_side(TEN, rows=2)))
    assert row_of(a_report(a_cell(facts=a_side(TEN, rows=3)), at=LATER, before=before)).touched


def test_a_row_that_lost_its_stamp_touches():
    assert row_of(a_report(a_cell(a_side(None)), at=LATER, before=a_report(a_cell()))).touched


@pytest.mark.case("deleted_cell")
def test_a_cell_that_is_gone_is_told_as_vanished_once_and_kept():
    first = a_report(a_cell())
    gone = a_report(at=LATER, before=first)
    row = row_of(gone)
    assert (row.touched, row.changed, row.vanished, row.reported_at) == (True, True, True, LATER)
    assert (row.amount, row.amount_before, row.currency, row.last_ingested_at) == (None, 10, "EUR", TEN)
    assert gone.state == ""
    still = row_of(a_report(at=LATER + MOMENT, before=gone))
    assert (still.touched, still.changed, still.vanished, still.reported_at) == (False, False, True, LATER)


def test_a_cell_that_vanished_and_is_back_is_touched():
    gone = a_report(at=LATER, before=a_report(a_cell()))
    row = row_of(a_report(a_cell(), at=LATER + MOMENT, before=gone))
    assert (row.touched, row.changed, row.vanished, row.amount_before) == (True, True, False, None)


def test_cells_of_a_subscription_that_went_are_reported_as_vanished():
    (row,) = a_report(at=LATER, before=a_report(a_cell()), subscriptions=[]).rows
    assert (row.vanished, row.touched, row.cell.subscription) == (True, True, a_cell().subscription)


def test_a_subscription_that_came_is_new_on_its_old_days():
    before = a_report(a_cell())
    came = a_cell(subscription=a_subscription("t2"))
    row = row_of(a_report(a_cell(), came, at=LATER, before=before), "t2")
    assert (row.touched, row.changed, row.amounts_before) == (True, True, None)


def test_a_new_name_touches_nothing_and_is_shown():
    renamed = a_subscription(name="Another")
    row = row_of(a_report(a_cell(subscription=renamed), at=LATER, before=a_report(a_cell())))
    assert (row.touched, row.cell.subscription.name) == (False, "Another")


def test_a_vanished_cell_carries_its_subscriptions_new_name():
    row = row_of(a_report(at=LATER, before=a_report(a_cell()), subscriptions=[a_subscription(name="Another")]))
    assert (row.vanished, row.cell.subscription.name) == (True, "Another")


def test_amounts_of_several_currencies_are_never_one_amount():
    row = row_of(a_report(a_cell(a_side(EUR="10", USD="-3"))))
    assert (row.amount, row.currency) == (None, "EUR+USD")


def test_an_amount_in_another_currency_than_before_is_not_set_beside_it():
    row = row_of(a_report(a_cell(a_side(ELEVEN, USD="10")), at=LATER, before=a_report(a_cell())))
    assert (row.changed, row.amount, row.amount_before, row.currency) == (True, None, None, "EUR+USD")


def test_an_amount_without_a_currency_is_an_amount():
    row = row_of(a_report(a_cell(a_side(**{"": "10"}))))
    assert (row.amount, row.currency) == (10, "")


def test_moved_money_is_added_up_by_currency_with_and_without_signs():
    cells = [a_cell(subscription=a_subscription(id)) for id in ("a", "b", "c")]
    moved = [a_cell(a_side(ELEVEN, **amounts), subscription=cell.subscription)
             for cell, amounts in zip(cells, ({"EUR": "12.5"}, {"EUR": "-1"}, {"USD": "7"}), strict=True)]  # fmt: skip
    found = money_differences(a_report(*moved, at=LATER, before=a_report(*cells)).rows)
    assert found == {"EUR": (Decimal("-18.5"), Decimal("23.5")), "USD": (7, 7)}


@pytest.mark.parametrize("had", [["old"], ["old", "other"]])
def test_a_claim_that_comes_or_goes_moves_no_money_of_a_group_that_others_claim(had: list[str]):
    claims = {id: a_subscription(id, external_id="rg", is_resource_group=True) for id in ("old", "other")}
    before = a_report(*(a_cell(facts=a_side(), subscription=claims[id]) for id in had))
    now = a_report(a_cell(facts=a_side(), subscription=claims["other"]), at=LATER, before=before)
    assert row_of(now, "old").vanished
    assert money_differences(now.rows) == {}


def test_in_a_first_report_no_money_moved():
    assert money_differences(a_report(a_cell()).rows) == {}


def test_rows_are_ordered_by_external_id_then_id():
    labels = [("t3", "b"), ("t2", "a"), ("t1", "b")]
    cells = [a_cell(subscription=a_subscription(id, external_id=external)) for id, external in labels]
    assert [row.cell.subscription.id for row in a_report(*cells).rows] == ["t2", "t1", "t3"]


def test_a_database_clock_that_was_set_back_does_not_set_back_when_things_were_reported():
    first = a_report(a_cell(a_side(TEN)), at=LATER)
    row = row_of(a_report(a_cell(a_side(ELEVEN)), at=TWELVE, before=first))
    assert row.reported_at == LATER + MOMENT


def test_what_was_reported_last_counts_also_after_its_subscription_went():
    other = a_subscription("t2")
    first = a_report(a_cell(), at=TWELVE)
    both = a_report(a_cell(), a_cell(subscription=other), at=LATER, before=first)
    without = a_report(a_cell(), at=TWELVE, before=both, subscriptions=[a_subscription()])
    row = row_of(a_report(a_cell(a_side(ELEVEN)), at=TWELVE, before=without))
    assert row.reported_at > max(one.reported_at for one in without.rows) > LATER


def test_the_state_is_that_of_the_cells_alone():
    cell = a_cell()
    assert a_report(cell).state == states_of_days([cell])[DAY]
    assert a_report().state == ""


SIDES = st.none() | st.builds(
    a_side,
    st.sampled_from([None, TEN, ELEVEN]),
    st.integers(1, 2),
    EUR=st.sampled_from(["0", "1", "-2.5"]),
)
CELLS = st.lists(
    st.builds(
        lambda id, daily, facts: Cell(a_subscription(id), DAY, daily, facts) if daily or facts else None,
        st.sampled_from("abc"), SIDES, SIDES,
    ),
    max_size=4,
)  # fmt: skip
DATABASES = st.lists(CELLS.map(lambda cells: {cell.key: cell for cell in cells if cell}), min_size=1, max_size=6)


@given(DATABASES, st.lists(st.integers(-90, 90), min_size=6, max_size=6))
def test_whoever_goes_by_reported_at_gets_every_cell_that_differs_from_what_they_got_last(databases, clock):
    """The promise to named consumers, whatever the database's clock does."""
    from metering_dagster.billing_changes.rules.day_diff import report

    claims = Claims(a_subscription(id) for id in "abc")
    before: DayReport | None = None
    mark, got = None, {}
    for cells, minutes in zip(databases, clock, strict=False):
        before = report(DAY, cells, claims, TWELVE + timedelta(minutes=minutes), before)
        new = [row for row in before.rows if mark is None or row.reported_at > mark]
        for row in new:
            got[row.key] = row.cell
        mark = max([row.reported_at for row in new] + ([mark] if mark else []), default=mark)
        held = {key: (cell.daily, cell.facts) for key, cell in got.items() if cell.sides}
        assert held == {key: (cell.daily, cell.facts) for key, cell in cells.items()}


@given(DATABASES)
def test_a_cell_is_touched_exactly_if_it_differs_from_the_report_before(databases):
    before = None
    for cells in databases:
        earlier = {row.key: (row.cell.daily, row.cell.facts) for row in before.rows} if before else {}
        found = a_report(*cells.values(), before=before, at=LATER)
        for row in found.rows:
            assert row.touched == (earlier.get(row.key) != (row.cell.daily, row.cell.facts))
        assert replace(found, since=None) == replace(a_report(*cells.values(), before=before, at=LATER), since=None)
        before = found
