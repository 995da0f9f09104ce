"""Cases: allocations, and hours and records that are large."""

import math
from functools import partial

import pytest

from tests.items import (
    DIMENSION,
    OTHER_LICENSE,
    a_usage,
    an_aggregate,
    an_allocation,
    longest_allocations,
    some_usage,
)

MEGABYTE = 1_000_000


def buckets(record):
    """The allocations of a billed record: tags and quantity."""
    return {
        tuple((tag["Key"], tag["Value"]) for tag in entry.get("Tags", [])): entry["AllocatedUsageQuantityAsDecimal"]
        for entry in record.allocations
    }


@pytest.mark.case("allocations")
def test_allocations_add_up_by_tags_and_the_rest_is_untagged(world):
    world.put(
        a_usage(0, "5", allocations=[an_allocation("3", team="a"), an_allocation("2", team="b")]),
        a_usage(1, "1", allocations=[an_allocation("1", team="b")]),
        a_usage(2, "4"),
    )
    assert world.meter().success
    (record,) = world.bill()
    assert record.quantity == "10"
    assert buckets(record) == {(("team", "a"),): "3", (("team", "b"),): "3", (): "4"}
    world.judge()


@pytest.mark.case("allocations")
def test_an_untagged_bucket_of_a_row_joins_the_rows_without_allocations(world):
    world.put(
        a_usage(0, "5", allocations=[an_allocation("3", team="a"), an_allocation("2")]),
        a_usage(1, "0.5"),
    )
    world.visit()
    (record,) = world.bill()
    assert buckets(record) == {(("team", "a"),): "3", (): "2.5"}


@pytest.mark.case("allocations")
def test_numbers_and_the_api_s_strings_are_the_same_in_allocations(world):
    world.put(
        a_usage(0, "3", allocations={"L": [{"M": {
            "AllocatedUsageQuantity": {"N": "3.0"},
            "Tags": {"L": [{"M": {"Key": {"S": "team"}, "Value": {"S": "a"}}}]},
        }}]}),
        a_usage(1, "1", allocations=[an_allocation("1", team="a")]),
    )  # fmt: skip
    world.visit()
    (record,) = world.bill()
    assert buckets(record) == {(("team", "a"),): "4"}


@pytest.mark.case("allocations")
@pytest.mark.parametrize(("allocations", "reason"), [
    ([{}], "MalformedAllocations"), ({"S": "x"}, "MalformedAllocations"), ({"L": [{"N": "1"}]}, "MalformedAllocations"),
    ([an_allocation("-1", team="a")], "InvalidAllocation"), ([an_allocation("1.0000001")], "InvalidAllocation"),
    ([an_allocation("1", **{f"k{n}": "v" for n in range(6)})], "TooManyTags"),
    ([an_allocation("1", team="")], "MissingTagKeyOrValue"), ([an_allocation("1", team="ü")], "InvalidTag"),
    ([an_allocation("2", team="a")], "AllocationSumMismatch"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_a_row_with_faulty_allocations_is_rejected(world, allocations, reason):
    world.put(a_usage(0, "1", allocations=allocations))
    world.visit()
    assert world.row(0)["meteringStatusReason"] == reason
    assert world.calls() == []


@pytest.mark.case("request_over_1_mb")
@pytest.mark.parametrize(("make", "records"), [(partial(a_usage, 0), 7), (an_aggregate, 25)], ids=["raw", "direct"])
def test_a_request_stays_under_a_megabyte_however_large_its_records(world, make, records):
    allocations = longest_allocations(100)
    dimensions = [f"d{number:02}" for number in range(records)]
    for dimension in dimensions:  # 25 of them would pass what one write takes
        world.put(make("100", dimension=dimension, allocations=allocations))
    world.visit()
    calls = world.calls()
    assert max(call.bytes for call in calls) < MEGABYTE
    assert len(calls) == math.ceil(records / 5)
    assert {call.outcome for call in calls} == {"ok"}
    assert world.billed() == dict.fromkeys(dimensions, "100")
    world.judge()


@pytest.mark.case("aggregate_over_400_kb")
def test_an_aggregate_that_no_item_can_hold_rejects_its_rows_and_no_others(world):
    rows = [a_usage(second, "100", allocations=longest_allocations(100, start=second * 100)) for second in range(5)]
    for row in rows:
        world.put(row)
    world.put(a_usage(0, "2", dimension="other"))
    outcome = world.meter()
    assert outcome.success
    assert {world.row(second)["meteringStatusReason"] for second in range(5)} == {"AggregateTooLarge"}
    assert outcome.metadata["aggregated_usage"]["rejected"] == {"AggregateTooLarge": 5}
    assert world.billed() == {"other": "2"}


@pytest.mark.case("aggregate_over_400_kb")
def test_an_aggregate_of_almost_400_kb_is_billed(world):
    for second in range(2):
        world.put(a_usage(second, "105", allocations=longest_allocations(105, start=second * 105)))
    world.visit()
    assert world.billed() == {DIMENSION: "210"}
    assert len(world.bill()[0].allocations) == 210
    world.judge()


@pytest.mark.case("many_pages")
def test_an_hour_of_many_pages_is_found_and_billed_whole(world):
    world.put(*some_usage(*["1"] * 3_000), *some_usage(*["2"] * 2_000, license=OTHER_LICENSE))
    world.with_pages_of(700)
    visit = world.visit()
    assert visit.discovery.rows == 5_000
    assert sorted(record.quantity for record in world.bill()) == ["3000", "4000"]
    assert world.row_statuses() == {"Aggregated": 5_000}
    world.judge()


@pytest.mark.case("many_pages")
def test_pages_may_end_within_a_license_and_a_group(world):
    for license in (OTHER_LICENSE, "legacy"):
        world.put(*(a_usage(second, "1", license=license, dimension=f"d{second % 4}") for second in range(20)))
    world.put(*(an_aggregate("3", dimension=f"direct{number}") for number in range(7)))
    world.with_pages_of(3)
    outcome = world.meter()
    assert outcome.success
    shown = outcome.metadata["pending_usage"]
    assert (shown["rows"], shown["groups"], shown["licenses"], shown["pending_aggregates"]) == (40, 8, 2, 7)
    assert len(world.bill()) == 15
    assert world.row_statuses() == {"Aggregated": 40}
