"""An aggregate that others made: one figure for the group, and who bears it (domain: terminal states)."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.metering.rules.foreign_aggregate import StampedRow, settle_others
from metering_dagster.metering.rules.statuses import RawStatus, Reason
from tests.metering.builders import a_key, a_row

MADE = "2026-11-28T11:05:00.000Z"
BEFORE, AFTER = "2026-11-28T10:30:00.000Z", "2026-11-28T11:20:00.500Z"


def pending(second, quantity, at=None, **differences):
    """A row that waits, last written at this time."""
    stated = Decimal(quantity) if isinstance(quantity, str | int) else quantity
    return StampedRow(a_row(second, stated, **differences), created_at=BEFORE, updated_at=at)


def final(second, quantity, status=RawStatus.AGGREGATED, late_by=None, **differences):
    """A row that ended before."""
    row = a_row(second, Decimal(quantity) if isinstance(quantity, str | int) else quantity, **differences)
    return StampedRow(replace(row, pending=None, status=status.value), BEFORE, MADE, late_by)


def settled(quantity, *rows, made_at=MADE):
    """Seconds that are `Aggregated`, and what those are late by that are late."""
    billed = Decimal(quantity) if type(quantity) is int else quantity
    found = settle_others(a_key(), billed, made_at, rows)

    def second(row):
        return int(row.sort_key[-2:])

    return [second(row) for row in found.aggregated], {second(row): late_by for row, late_by in found.late}


@pytest.mark.case("aggregate_made_by_others")
@pytest.mark.parametrize(("rows", "aggregated", "late"), [
    (["4"], [1], {}), (["1.5", "2.5"], [1, 2], {}), (["5"], [], {1: 1}), (["3", "2"], [], {1: 1, 2: 0}),
    (["3"], [], {1: -1}), (["0"], [], {1: -4}),
])  # fmt: skip
def test_the_missing_part_of_an_aggregate_of_others(rows, aggregated, late):
    waiting = [pending(second, quantity) for second, quantity in enumerate(rows, 1)]
    assert settled(10, final(0, 6), *waiting) == (aggregated, late)


@pytest.mark.case("others_committed_then_late")
def test_rows_written_after_the_aggregate_are_late_where_that_explains_the_figure():
    assert settled(5, pending(0, 5, BEFORE), pending(1, 1, AFTER)) == ([0], {1: 1})
    standing = [final(0, 5), final(1, 1, RawStatus.LATE, late_by=Decimal(1))]
    assert settled(5, *standing, pending(2, 2, AFTER)) == ([], {2: 2})


@pytest.mark.case("others_committed_then_late")
def test_a_counted_row_that_is_gone_or_overwritten_shows_in_the_figure():
    assert settled(5, pending(1, 1, AFTER)) == ([], {1: -4})
    assert settled(5, pending(0, 8, AFTER)) == ([], {0: 3})
    assert settled(5, pending(0, 2, AFTER)) == ([], {0: -3})


@pytest.mark.case("others_committed_then_late")
@pytest.mark.parametrize("stamp", [None, "soon", MADE, True, Decimal(-1)])
def test_stamps_that_are_missing_equal_or_unreadable_explain_nothing(stamp):
    """Then all pending rows are late, in the order of their keys each up to its quantity, the rest on the last."""
    without = StampedRow(a_row(1, Decimal(1)), created_at=None, updated_at=stamp)
    assert settled(5, pending(0, 5, BEFORE), without) == ([], {0: 1, 1: 0})
    assert settled(5, pending(0, 5, BEFORE), pending(1, 1, AFTER), made_at=stamp if stamp != MADE else None) == (
        [], {0: 1, 1: 0},
    )  # fmt: skip


def test_a_row_without_updated_at_goes_by_its_creation():
    new = StampedRow(a_row(1, Decimal(1)), created_at=AFTER)
    assert settled(5, pending(0, 5, BEFORE), new) == ([0], {1: 1})


def test_what_is_beyond_the_rows_quantities_is_on_the_last():
    """As where a row that was counted was deleted and another one overwritten."""
    gone = final(0, 1, RawStatus.LATE, late_by=Decimal(-9))
    assert settled(1, gone, pending(1, 2), pending(2, 3)) == ([], {1: 2, 2: 12})


@pytest.mark.case("others_counted_what_we_refuse")
@pytest.mark.parametrize("rows", [
    [StampedRow(a_row(0, "5")), pending(1, 3)],
    [StampedRow(replace(a_row(0, "5"), pending=None, status="Aggregated")), pending(1, 3)],
    [pending(0, 5, timestamp="2026-11-28T10:00:00Z"), pending(1, 3, timestamp="2026-11-28T10:00:01Z")],
    [pending(0, 5, allocations=[]), pending(1, 3)],
    [pending(0, 5, allocations="of another shape"), pending(1, 3, timestamp="2026-11-28T11:00:00", account="1")],
    [pending(0, 9), pending(1, -1)],
])  # fmt: skip
def test_what_another_pipeline_counted_is_settled_and_not_judged(rows):
    aggregated, late = settled(8, *rows)
    assert (len(aggregated), late) == (sum(each.row.pending is not None for each in rows), {})
    assert settle_others(a_key(), Decimal(8), MADE, rows).rejected == ()


@pytest.mark.parametrize(("stored", "reason"), [
    ("abc", Reason.NON_NUMERIC_QUANTITY), (None, Reason.MISSING_QUANTITY), (True, Reason.NON_NUMERIC_QUANTITY),
    ("1_000", Reason.NON_NUMERIC_QUANTITY), ("NaN", Reason.NON_NUMERIC_QUANTITY), ("", Reason.NON_NUMERIC_QUANTITY),
    ("1E999", Reason.NON_NUMERIC_QUANTITY), ("1" * 39, Reason.NON_NUMERIC_QUANTITY),
])  # fmt: skip
def test_a_pending_row_without_a_readable_number_is_rejected_and_in_no_sum(stored, reason):
    found = settle_others(a_key(), Decimal(5), MADE, [StampedRow(a_row(0, stored)), pending(1, 5)])
    assert [(row.sort_key[-2:], why) for row, why in found.rejected] == [("00", reason)]
    assert [row.sort_key[-2:] for row in found.aggregated] == ["01"]


def test_a_row_whose_key_names_no_time_is_rejected():
    nameless = pending(0, 5, sort_key=f"{a_key().prefix}:99:99")
    found = settle_others(a_key(), Decimal(5), MADE, [nameless])
    assert found.rejected == ((nameless.row, Reason.MALFORMED_TIMESTAMP),)


@pytest.mark.parametrize("quantity", [None, "many", True, []])
def test_an_aggregate_without_a_readable_quantity_makes_pending_rows_late(quantity):
    assert settled(quantity, pending(0, 2), pending(1, 3)) == ([], {0: 2, 1: 3})


def test_an_aggregate_whose_quantity_is_text_is_read_as_others_do():
    assert settled("8", pending(0, 5), pending(1, 3)) == ([0, 1], {})
    assert settle_others(a_key(), "8.0", MADE, [pending(0, 8)]).late == ()


def test_whatever_others_have_stored_can_be_added_up():
    strange = [final(0, Decimal("9E+125")), final(1, Decimal("1E-130"))]
    aggregated, late = settled(1, *strange, pending(2, 1))
    assert (aggregated, list(late)) == ([], [2])


quantities = st.integers(-3, 9).map(Decimal)
stamps = st.sampled_from([None, BEFORE, MADE, AFTER, "soon"])


@given(
    st.lists(st.tuples(quantities, stamps), min_size=1, max_size=5),
    st.lists(quantities, max_size=3),
    st.lists(st.tuples(quantities, st.one_of(st.none(), quantities)), max_size=3),
    quantities,
)
def test_each_pending_row_ends_and_the_figure_is_borne_exactly(waiting, aggregated_before, late_before, billed):
    rows = [pending(second, quantity, at) for second, (quantity, at) in enumerate(waiting)]
    rows += [final(10 + n, quantity) for n, quantity in enumerate(aggregated_before)]
    rows += [final(20 + n, quantity, RawStatus.LATE, late_by=by) for n, (quantity, by) in enumerate(late_before)]
    found = settle_others(a_key(), billed, MADE, rows)
    ended = [row.sort_key for row in found.aggregated] + [row.sort_key for row, _ in found.late]
    assert sorted(ended) == sorted(row.row.sort_key for row in rows if row.row.pending is not None)
    used = sum(q for q, _ in waiting) + sum(aggregated_before) + sum(q for q, _ in late_before)
    stated = sum(q if by is None else by for q, by in late_before)
    assert sum(by for _, by in found.late) == used - billed - stated
    # What is late now is never late again: the group visited once more has nothing to bear.
    after = [StampedRow(replace(row, pending=None, status="Aggregated")) for row in found.aggregated]
    after += [StampedRow(replace(row, pending=None, status="LateUsage"), late_by=by) for row, by in found.late]
    after += [each for each in rows if each.row.pending is None]
    again = settle_others(a_key(), billed, MADE, [*after, pending(30, 0, AFTER)])
    assert sum(by for _, by in again.late) == 0
