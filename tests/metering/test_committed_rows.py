"""After a commit: lost clean-up, repeated put, late usage, overwritten second, others' aggregates."""

import zlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.metering.rules.committed_rows import CountedRow, allocations_digest, count, decode, encode, settle
from metering_dagster.metering.rules.quantities import Allocation, merge, total
from tests.metering.builders import a_usage, an_allocation

TEN = [a_usage(0, Decimal(3)), a_usage(1, Decimal(3)), a_usage(2, Decimal(3)), a_usage(3, Decimal(1))]


def committed(*usages):
    """What is remembered of a commit of these rows, as it comes back from its memory."""
    return total(usage.quantity for usage in usages), decode(encode(count(usages)))


def settled(*usages, of=None):
    return settle(*(of or committed(*TEN)), usages)


@pytest.mark.case("crash_between_commit_and_cleanup")
def test_late_row_is_told_from_lost_cleanup():
    late = a_usage(1800, Decimal(5))
    settlement = settled(*TEN, late)
    assert settlement.aggregated == tuple(TEN)
    assert [(row.usage, row.late_by) for row in settlement.late] == [(late, 5)]
    assert (settlement.total, settlement.count) == (10, 4)


@pytest.mark.case("late_row_after_commit")
def test_a_row_that_was_not_counted_is_late_by_its_quantity():
    settlement = settled(a_usage(1200, Decimal(5)))
    assert (settlement.aggregated, settlement.total) == ((), 10)
    assert [row.late_by for row in settlement.late] == [5]


@pytest.mark.case("seller_repeats_a_put")
@pytest.mark.parametrize("form", ["3", "3.0", "0.3E+1"])
def test_a_counted_row_that_is_put_again_is_aggregated_again(form):
    settlement = settled(a_usage(1, Decimal(form)))
    assert (len(settlement.aggregated), settlement.late) == (1, ())


@pytest.mark.case("seller_overwrites_a_counted_second")
@pytest.mark.parametrize(("counted", "now", "late_by"), [("4", "9", "5"), ("4", "1.5", "-2.5"), ("4", "0", "-4")])
def test_a_counted_second_that_was_overwritten_is_late_by_the_difference(counted, now, late_by):
    settlement = settled(a_usage(7, Decimal(now)), of=committed(a_usage(7, Decimal(counted))))
    assert settlement.aggregated == ()
    assert [row.late_by for row in settlement.late] == [Decimal(late_by)]


def test_a_counted_second_with_other_allocations_is_late_by_nothing():
    before = a_usage(7, Decimal(4), allocations=[an_allocation("4", team="a")])
    for now in (a_usage(7, Decimal(4), allocations=[an_allocation("4", team="b")]), a_usage(7, Decimal(4))):
        settlement = settled(now, of=committed(before))
        assert (settlement.aggregated, [row.late_by for row in settlement.late]) == ((), [0])


def test_the_same_allocations_in_another_order_and_form_are_the_same():
    before = a_usage(7, Decimal(4), allocations=[an_allocation("1", team="a"), an_allocation("3.0", x="1", y="2")])
    again = a_usage(7, Decimal(4), allocations=[an_allocation(Decimal(3), y="2", x="1"), an_allocation("1", team="a")])
    assert settled(again, of=committed(before)).late == ()


def test_no_allocations_have_no_digest_and_others_have_32_digits():
    assert allocations_digest(None) == ""
    assert len(allocations_digest((Allocation((), Decimal(1)),))) == 32


tag_sets = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.text('xyz"\\, ', min_size=1, max_size=3), max_size=3
)
allocations = st.lists(st.tuples(tag_sets, st.integers(0, 10**16)), min_size=1, max_size=5).map(
    lambda parts: merge(Allocation(tuple(sorted(tags.items())), Decimal(q).scaleb(-6)) for tags, q in parts)
)
quantities = st.integers(0, 10**16 - 1).map(lambda n: Decimal(n).scaleb(-6))
counted_rows = st.dictionaries(
    st.integers(0, 3599), st.builds(CountedRow, quantities, st.one_of(st.just(""), allocations.map(allocations_digest)))
)


@given(counted_rows)
def test_what_was_counted_is_remembered_without_loss(rows):
    assert decode(encode(rows)) == rows


@given(allocations, allocations)
def test_digests_are_equal_for_equal_allocations_alone(one, other):
    assert (allocations_digest(one) == allocations_digest(other)) == (one == other)


def test_a_full_hour_is_remembered_in_little():
    assert len(encode(count([a_usage(second, Decimal(second % 7)) for second in range(3600)]))) < 20_000


def test_the_memory_is_json_without_a_blank():
    remembered = encode(count([a_usage(7, Decimal("1.50")), a_usage(5, Decimal(2))]))
    assert zlib.decompress(remembered) == b'[[5,"2",""],[7,"1.5",""]]'


seconds_with_quantities = st.dictionaries(st.integers(0, 9), st.integers(0, 3), max_size=10)


def usages_of(rows):
    return [a_usage(second, Decimal(quantity)) for second, quantity in rows.items()]


@given(seconds_with_quantities, seconds_with_quantities)
def test_a_settlement_parts_the_pending_rows_in_two(counted, pending):
    usages = usages_of(pending)
    settlement = settle(*committed(*usages_of(counted)), usages)
    late = [row.usage for row in settlement.late]
    assert sorted([*settlement.aggregated, *late], key=lambda u: u.second) == sorted(usages, key=lambda u: u.second)
    assert {u.second for u in settlement.aggregated} == {s for s, q in pending.items() if counted.get(s) == q}
    assert all(row.late_by == row.usage.quantity - counted.get(row.usage.second, 0) for row in settlement.late)
    assert (settlement.total, settlement.count) == (sum(counted.values()), len(counted))
