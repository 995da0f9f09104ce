"""Calls of any records: as few as the limits allow, and a refusal costs no more than the records that deserve it."""

import json
from datetime import timedelta
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.core.hours import floor_hour
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.batching import Batch, Lane, Products, cut_batches
from metering_dagster.metering.rules.usage_record import api_record, identity
from tests.metering.builders import DECIMAL, INTEGER, LICENSE, NOW, a_key, an_aggregate, longest_allocations

SLACK = 2_000
"""More than what a request holds beside its records: their list's name and the product code."""
licenses = st.sampled_from([LICENSE, f"{LICENSE}x", "prod-1"])
records = st.builds(
    lambda license, number, back, buckets: Aggregate(
        a_key(license_arn=license, dimension=f"d{number}", hour=floor_hour(NOW) - timedelta(hours=back)),
        Decimal(buckets), longest_allocations(buckets) if buckets else None, None,
    ),
    licenses, st.integers(0, 30), st.integers(1, 3), st.sampled_from([0, 0, 0, 0, 0, 120, 240]),
)  # fmt: skip
modes = st.sampled_from([DECIMAL, INTEGER])


def request_bytes(records, quantities) -> int:
    shaped = [api_record(aggregate, quantities) for aggregate in records]
    return len(json.dumps(shaped, default=lambda instant: int(instant.timestamp())))


@settings(max_examples=40)
@given(st.lists(records, max_size=90), st.dictionaries(st.just((LICENSE, a_key().account)), st.just("p")), modes)
def test_a_call_is_closed_only_where_the_next_record_does_not_fit(some, codes, quantities):
    batches = cut_batches(some, Products(codes), frozenset(), NOW, quantities)
    before: dict[tuple[Lane, str], Batch] = {}
    for batch in batches:
        closed = before.get((batch.lane, batch.owner))
        before[batch.lane, batch.owner] = batch
        if closed is None:
            continue
        following = batch.records[0]
        known = {identity(api_record(one, quantities)) for one in closed.records}
        assert (
            len(closed.records) == 25
            or identity(api_record(following, quantities)) in known
            or request_bytes([*closed.records, following], quantities) + SLACK >= 1_000_000
        )


@settings(max_examples=40)
@given(st.lists(records, max_size=30, unique_by=lambda one: one.key), st.data())
def test_the_same_calls_come_of_the_same_records_in_any_order(some, data):
    order = data.draw(st.permutations(range(len(some))))
    cut, again = (
        cut_batches(these, Products({}), frozenset(), NOW, DECIMAL) for these in (some, [some[n] for n in order])
    )
    assert cut == again


@given(st.integers(1, 25).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_halving_finds_the_bad_records_and_no_others_in_few_calls(drawn):
    """The service refuses a call that holds any bad record; whatever it takes is billed once."""
    number, bad = drawn
    all_of_them = [an_aggregate(dimension=f"d{n}") for n in range(number)]
    taken, alone, calls = [], [], 0
    waiting = [Batch(Lane.PRODUCT, "p", tuple(all_of_them))]
    while waiting:
        batch = waiting.pop()
        calls += 1
        if not any(all_of_them.index(one) in bad for one in batch.records):
            taken += batch.records
        elif len(batch.records) == 1:
            alone += batch.records
        else:
            first, second = batch.halves()
            assert first.records + second.records == batch.records
            assert abs(len(first.records) - len(second.records)) <= 1
            assert {(half.lane, half.owner) for half in (first, second)} == {(batch.lane, batch.owner)}
            waiting += [first, second]
    assert sorted(all_of_them.index(one) for one in alone) == sorted(bad)
    assert sorted(all_of_them.index(one) for one in taken) == sorted(set(range(number)) - bad)
    assert calls <= 1 + 10 * len(bad), "each bad record is halved out in 5 steps of two calls"
