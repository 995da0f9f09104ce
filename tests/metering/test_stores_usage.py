"""The usage table by itself: pages, conditions, odd types."""

from datetime import timedelta
from decimal import Decimal

import pytest

from metering_dagster.core.hours import parse_bucket
from metering_dagster.metering.rules.raw_row import GroupKey
from metering_dagster.metering.rules.statuses import RawStatus
from metering_dagster.metering.stores.usage_table import IndexedRow, RowEnd
from tests.conftest import MINISTACK
from tests.contracts.engines import deviates
from tests.items import ACCOUNT, DIMENSION, HOUR, LICENSE, OTHER_LICENSE, a_usage, an_allocation, some_usage

KEY = GroupKey(LICENSE, ACCOUNT, DIMENSION, parse_bucket(HOUR))
ODD = [
    {"NULL": True}, {"BOOL": False}, {"S": ""}, {"S": "5"}, {"B": b"\x00\xff"}, {"L": []}, {"M": {}},
    {"L": [{"NULL": True}, {"M": {"a": {"L": [{"N": "1.50"}, {"BOOL": True}]}}}]},
    {"SS": ["b", "a"]}, {"NS": ["2", "1"]}, {"BS": [b"x"]}, {"N": "5.00"}, {"N": "1E+100"}, {"N": "-0"}, {"N": "1E-20"},
]  # fmt: skip


@pytest.fixture
def usage(world):
    return world.deployment.tables.usage


def test_every_page_of_the_index_is_read(world, usage):
    world.put(
        *some_usage(*["1"] * 23), *some_usage(*["1"] * 17, license=OTHER_LICENSE), a_usage(0, hour="2026-11-28T09")
    )
    world.with_pages_of(4)
    assert len(list(usage.pending_rows(HOUR))) == 40
    assert usage.count_pending(HOUR) == 40
    assert len(list(usage.pending_rows(HOUR, [OTHER_LICENSE]))) == 17
    assert sorted(count for _, count in usage.pending_groups(HOUR)) == [17, 23]
    assert len(usage.group_rows(KEY)) == 23


@pytest.mark.lengthy
def test_every_page_of_a_megabyte_is_read(world, usage, request):
    license, dimension = LICENSE.ljust(1_000, "x"), "d" * 255
    world.put(*some_usage(*["1"] * 800, license=license, dimension=dimension))
    asked = []
    usage.client.meta.events.register("before-call.dynamodb.Query", lambda **_: asked.append(1))
    assert len({row.sort_key for row in usage.pending_rows(HOUR)}) == 800
    if request.node.callspec.params["engine"] != "ministack":  # which answers with all of it at once
        assert len(asked) >= 2
    assert usage.count_pending(HOUR) == 800
    assert [count for _, count in usage.pending_groups(HOUR)] == [800]
    assert len(usage.group_rows(GroupKey(license, ACCOUNT, dimension, KEY.hour))) == 800


def test_groups_come_license_after_license_each_once(world, usage):
    licenses = [f"{LICENSE}{letter}" for letter in "cab"]
    for license in licenses:
        world.put(*(a_usage(n, license=license, dimension=f"d{n % 5}", account=str(n % 3)) for n in range(60)))
    world.with_pages_of(7)
    groups = list(usage.pending_groups(HOUR))
    assert [key.license_arn for key, _ in groups] == sorted(key.license_arn for key, _ in groups)
    assert len({key for key, _ in groups}) == len(groups) == 45
    assert {count for _, count in groups} == {4}


def test_a_row_is_only_ended_as_long_as_it_is_what_was_read(world, usage):
    world.put(*some_usage("1", "2", "3"))
    rows = usage.group_rows(KEY)
    world.put(a_usage(1, "9"))
    world.delete(a_usage(2))
    ends = [RowEnd(row, RawStatus.AGGREGATED, "why") for row in rows]
    assert usage.write(ends, world.clock.now) == [True, False, False]
    assert world.row(0)["meteringStatus"] == "Aggregated"
    assert world.row(1)["quantity"] == 9
    assert "meteringStatus" not in world.row(1)
    assert world.row(2) == {}


def test_refused_rows_do_not_stop_their_neighbors_in_any_transaction(world, usage):
    world.put(*some_usage(*["1"] * 250))
    rows = usage.group_rows(KEY)
    changed = {0, 57, 99, 100, 101, 249}
    world.put(*(a_usage(second, "2") for second in changed))
    written = usage.write([RowEnd(row, RawStatus.AGGREGATED, "why") for row in rows], world.clock.now)
    assert {place for place, ok in enumerate(written) if not ok} == changed
    assert world.row_statuses() == {"Aggregated": 244, "pending": 6}


@pytest.mark.parametrize("name", ["quantity", "usageAllocations", "customerIdentifier", "dimension", "timestamp"])
def test_a_row_of_any_odd_type_is_read_and_ended(world, usage, name):
    values = [value for value in ODD if name != "dimension" or value != {"S": ""}]
    rows = [a_usage(second) for second, _ in enumerate(values)]
    for row, value in zip(rows, values, strict=True):
        row.values[name] = value
    world.put(*rows)
    ends = [RowEnd(row, RawStatus.REJECTED, "why") for row in usage.group_rows(KEY)]
    assert usage.write(ends, world.clock.now) == [True] * len(values)
    assert world.row_statuses() == {"RejectedClientSide": len(values)}


def test_a_legacy_row_of_any_odd_type_stops_no_neighbor(world):
    for number, value in enumerate(ODD):
        world.put(
            a_usage(0, "1", license="legacy", dimension=f"d{number}", customerIdentifier=value),
            a_usage(1, "1", license="legacy", dimension=f"d{number}", customerIdentifier="somebody"),
        )
    world.put(a_usage(0, "2", license="legacy", dimension="good"))
    world.visit()
    assert ("good", "2") in {(record.dimension, record.quantity) for record in world.bill()}


def test_allocations_are_compared_as_a_whole(world, usage, request):
    deviates(request, MINISTACK, "takes any two lists for equal")
    allocations = [an_allocation("1", team="a"), an_allocation("2", team="b")]
    world.put(a_usage(0, "3", allocations=allocations), a_usage(1, "3", allocations=allocations))
    rows = usage.group_rows(KEY)
    world.put(a_usage(1, "3", allocations=allocations[::-1]))
    ends = [RowEnd(row, RawStatus.AGGREGATED, "why") for row in rows]
    assert usage.write(ends, world.clock.now) == [True, False]


def test_an_end_stamps_the_time_and_leaves_the_seller_s_own_attributes(world, usage):
    world.put(a_usage(0, "1", note="mine", createdAt="2026-11-28T10:00:00Z"))
    (row,) = usage.group_rows(KEY)
    usage.write([RowEnd(row, RawStatus.LATE, "why")], world.clock.now)
    item = world.row(0)
    assert (item["note"], item["createdAt"], item["updatedAt"]) == (
        "mine",
        "2026-11-28T10:00:00Z",
        "2026-11-28T12:20:00Z",
    )
    assert (item["meteringStatus"], item["meteringStatusReason"]) == ("LateUsage", "why")
    assert "meteringPending" not in item


def test_a_refiled_row_is_pending_without_a_status(world, usage):
    world.put(a_usage(0, "1", meteringStatus="RejectedClientSide", meteringStatusReason="why"))
    (row,) = usage.group_rows(KEY)
    usage.write([RowEnd(row, None, pending="2026-11-28T11")], world.clock.now)
    item = world.row(0)
    assert item["meteringPending"] == "2026-11-28T11"
    assert "meteringStatus" not in item
    assert "meteringStatusReason" not in item
    assert [row.sort_key for row in usage.pending_rows("2026-11-28T11")] == [row.sort_key]


def test_rows_that_are_gone_are_left_out(world, usage):
    world.put(*some_usage(*["1"] * 150))
    wanted = [IndexedRow(LICENSE, row.sort_key, None, None) for row in usage.group_rows(KEY)]
    world.delete(a_usage(7))
    assert len(usage.rows(wanted)) == 149
    assert usage.rows([]) == []


def test_a_batch_that_is_read_in_part_is_asked_for_again(world, usage):
    world.put(*some_usage(*["1"] * 50))
    wanted = [IndexedRow(LICENSE, row.sort_key, None, None) for row in usage.group_rows(KEY)]
    asked = []

    def leave_some(params, **_):
        asked.append(len(params["RequestItems"][usage.name]["Keys"]))

    def answer_in_part(parsed, **_):
        if len(asked) == 1:
            items = parsed["Responses"][usage.name]
            left = [{n: i[n] for n in ("licenseArn", "customerAWSAccountId_dimension_timestamp")} for i in items[30:]]
            parsed["Responses"][usage.name] = items[:30]
            parsed["UnprocessedKeys"] = {usage.name: {"Keys": left, "ConsistentRead": True}}

    events = usage.client.meta.events
    events.register("provide-client-params.dynamodb.BatchGetItem", leave_some)
    events.register("after-call.dynamodb.BatchGetItem", answer_in_part)
    assert len(usage.rows(wanted)) == 50
    assert asked == [50, 20]


def test_a_group_s_prefix_reads_its_rows_consistently_and_exactly(world, usage):
    world.put(
        *some_usage("1", "2.50"), a_usage(0, "4", dimension=f"{DIMENSION}#x"), a_usage(0, "8", hour="2026-11-28T11")
    )
    assert [row.quantity for row in usage.group_rows(KEY)] == [Decimal(1), Decimal("2.50")]
    later = GroupKey(LICENSE, ACCOUNT, DIMENSION, KEY.hour + timedelta(hours=1))
    assert [row.quantity for row in usage.group_rows(later)] == [8]
