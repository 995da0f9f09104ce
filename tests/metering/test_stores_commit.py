"""The aggregated table by itself: commits of any size, rivals, what is pending."""

import multiprocessing
import os
import threading
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

import pytest

from metering_dagster.core.hours import parse_bucket
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.aggregate_group import judge_group
from metering_dagster.metering.rules.group_steps import Commit
from metering_dagster.metering.rules.raw_row import GroupKey
from metering_dagster.metering.rules.statuses import RecordStatus
from metering_dagster.metering.rules.usage_record import RecordEnd
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Mode, Settings
from tests.items import (
    ACCOUNT,
    DIMENSION,
    HOUR,
    LICENSE,
    OTHER_LICENSE,
    a_usage,
    an_aggregate,
    an_allocation,
    longest_allocations,
    some_usage,
)

KEY = GroupKey(LICENSE, ACCOUNT, DIMENSION, parse_bucket(HOUR))
READY_SECONDS = 60


def commit_of(tables, key, now):
    """The commit that a visit would make of this group."""
    verdict = judge_group(key, tables.usage.group_rows(key), now, Quantities.DECIMAL, last_call=True)
    return Commit(verdict.aggregate, verdict.usages)


@pytest.fixture
def tables(world):
    return world.deployment.tables


@pytest.mark.lengthy
@pytest.mark.parametrize("rows", [1, 97, 98, 99, 100, 250, 3_600])
def test_a_group_of_any_size_is_committed_with_all_its_rows(world, tables, rows):
    world.put(*some_usage(*["1"] * rows))
    commit = commit_of(tables, KEY, world.clock.now)
    (done,) = tables.aggregated.commit([commit], world.clock.now)
    assert (done.written, done.unfinished) == (True, 0)
    assert world.row_statuses() == {"Aggregated": rows}
    stored = world.aggregate()
    assert (stored["quantity"], stored["meteringPending"], stored["hourBucket"]) == (rows, HOUR, HOUR)
    assert (stored["createdAt"], stored["updatedAt"]) == ("2026-11-28T12:20:00Z",) * 2
    remembered = tables.aggregated.committed([KEY])[KEY]
    assert remembered.quantity == rows
    assert {counted.quantity for counted in remembered.counted.values()} == {1}
    assert len(remembered.counted) == rows


@pytest.mark.lengthy
@pytest.mark.parametrize("rows", [1, 98, 99, 250])
def test_the_first_commit_wins(world, tables, rows):
    world.put(*some_usage(*["1"] * rows))
    commit = commit_of(tables, KEY, world.clock.now)
    assert [done.written for done in tables.aggregated.commit([commit], world.clock.now)] == [True]
    before = world.dump()
    assert [done.written for done in tables.aggregated.commit([commit], world.clock.now)] == [False]
    assert world.dump() == before


def test_a_refused_group_does_not_stop_its_neighbors(world, tables):
    keys = [replace(KEY, dimension=f"d{number:02}") for number in range(40)]
    world.put(*(a_usage(second, "1", dimension=key.dimension) for key in keys for second in range(5)))
    commits = [commit_of(tables, key, world.clock.now) for key in keys]
    world.put(an_aggregate("9", dimension="d00", status="Success"), a_usage(4, "2", dimension="d19"))
    world.delete(a_usage(0, dimension="d39"))
    written = [done.written for done in tables.aggregated.commit(commits, world.clock.now)]
    assert {place for place, ok in enumerate(written) if not ok} == {0, 19, 39}
    assert world.row_statuses() == {"Aggregated": 37 * 5, "pending": 14}
    assert world.record_statuses() == {"pending": 37, "Success": 1}


def test_a_changed_row_beyond_the_first_transaction_is_left_and_counted(world, tables):
    world.put(*some_usage(*["1"] * 250))
    commit = commit_of(tables, KEY, world.clock.now)
    world.put(a_usage(98, "2"), a_usage(249, "2"))
    (done,) = tables.aggregated.commit([commit], world.clock.now)
    assert (done.written, done.unfinished) == (True, 2)
    assert world.row_statuses() == {"Aggregated": 248, "pending": 2}


def test_allocations_and_their_groups_are_committed_as_they_are(world, tables):
    world.put(
        a_usage(0, "3", allocations=[an_allocation("1.5", team="a"), an_allocation("1.5")]),
        a_usage(1, "2"),
        *(a_usage(second, "1", dimension="plain") for second in range(3)),
    )
    commits = [commit_of(tables, key, world.clock.now) for key in (KEY, replace(KEY, dimension="plain"))]
    assert all(done.written for done in tables.aggregated.commit(commits, world.clock.now))
    assert world.aggregate()["usageAllocations"] == [
        {"AllocatedUsageQuantity": Decimal("3.5")},
        {"AllocatedUsageQuantity": Decimal("1.5"), "Tags": [{"Key": "team", "Value": "a"}]},
    ]
    assert "usageAllocations" not in world.aggregate(dimension="plain")


@pytest.mark.lengthy
def test_large_groups_are_cut_into_transactions_of_less_than_four_megabytes(world, tables):
    keys = [replace(KEY, dimension=f"d{number}") for number in range(12)]
    for key in keys:
        world.put(a_usage(0, "90", dimension=key.dimension, allocations=longest_allocations(90)))
    commits = [commit_of(tables, key, world.clock.now) for key in keys]
    sizes = []
    tables.usage.client.meta.events.register(
        "before-call.dynamodb.TransactWriteItems", lambda params, **_: sizes.append(len(params["body"]))
    )
    assert all(done.written for done in tables.aggregated.commit(commits, world.clock.now))
    assert len(sizes) > 1
    assert max(sizes) < 4_000_000


@pytest.mark.lengthy
def test_two_threads_commit_each_group_once(world, tables):
    keys = [replace(KEY, dimension=f"d{number:02}") for number in range(20)]
    world.put(*(a_usage(second, "1", dimension=key.dimension) for key in keys for second in range(20)))
    commits = [commit_of(tables, key, world.clock.now) for key in keys]
    start, written = threading.Barrier(2), {}

    def rival(name, order):
        start.wait(timeout=READY_SECONDS)
        done = tables.aggregated.commit(order, world.clock.now)
        written[name] = {c.aggregate.key for c, d in zip(order, done, strict=True) if d.written}

    threads = [threading.Thread(target=rival, args=(n, order)) for n, order in enumerate((commits, commits[::-1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written[0] | written[1] == set(keys)
    assert not written[0] & written[1]
    assert world.row_statuses() == {"Aggregated": 400}
    assert {item["quantity"] for item in world.aggregates()} == {20}


def commit_in_another_process(names, now, dimensions, start, answers):
    """Commit these groups of the hour, all at the same moment as the rival does."""
    settings = Settings(names["usage"], names["aggregated"], names["subscribers"], Mode.LIVE)
    tables, when = Deployment(settings).tables, datetime.fromisoformat(now)
    commits = [commit_of(tables, replace(KEY, dimension=dimension), when) for dimension in dimensions]
    start.wait(timeout=READY_SECONDS)
    answers.put((os.getpid(), [done.written for done in tables.aggregated.commit(commits, when)]))


@pytest.mark.other_processes
def test_two_processes_commit_each_group_once(world):
    dimensions = [f"d{number:02}" for number in range(20)]
    world.put(*(a_usage(second, "1", dimension=dimension) for dimension in dimensions for second in range(20)))
    spawn = multiprocessing.get_context("spawn")
    start, answers = spawn.Barrier(2), spawn.SimpleQueue()
    arguments = (world.names, world.clock.now.isoformat(), dimensions, start, answers)
    rivals = [spawn.Process(target=commit_in_another_process, args=arguments) for _ in range(2)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join(READY_SECONDS)
    assert [rival.exitcode for rival in rivals] == [0, 0]
    (one, its), (other, others) = answers.get(), answers.get()
    assert one != other
    assert [a + b for a, b in zip(its, others, strict=True)] == [1] * 20
    assert world.row_statuses() == {"Aggregated": 400}


def test_what_was_counted_is_never_pending(world, tables):
    world.put(*some_usage("1", "2"))
    tables.aggregated.commit([commit_of(tables, KEY, world.clock.now)], world.clock.now)
    items = world.client.scan(TableName=world.names["aggregated"])["Items"]
    ours = [item for item in items if "#" in item["licenseArn"]["S"]]
    assert len(ours) == 1
    assert "meteringPending" not in ours[0]
    assert int(ours[0]["ttl"]["N"]) > KEY.hour.timestamp() + 30 * 3600
    index = world.client.scan(TableName=world.names["aggregated"], IndexName="metering_pending")["Items"]
    assert [item["licenseArn"]["S"] for item in index] == [LICENSE]
    assert [stored.license_arn for stored in tables.aggregated.pending(HOUR)] == [LICENSE]
    assert tables.aggregated.count_pending(HOUR) == 1


def test_deleting_the_aggregate_does_not_open_the_group_again(world, tables):
    world.put(*some_usage("1", "2"))
    commit = commit_of(tables, KEY, world.clock.now)
    tables.aggregated.commit([commit], world.clock.now)
    world.delete(an_aggregate())
    world.put(*some_usage("1", "2"))
    assert not tables.aggregated.commit([commit], world.clock.now)[0].written
    assert tables.aggregated.committed([KEY])[KEY].quantity == 3


@pytest.mark.parametrize("quantity", [None, {"S": "ten"}, {"NULL": True}, {"BOOL": True}, "1E+100"], ids=str)
def test_an_aggregate_of_others_of_any_type_counts_as_committed(world, tables, quantity):
    world.put(an_aggregate(quantity), *some_usage("1"))
    assert tables.aggregated.committed([KEY])[KEY].counted is None
    world.visit()
    assert world.row(0)["meteringStatus"] == "LateUsage"
    assert world.aggregate()["meteringStatus"] == "RejectedClientSide"


def test_pending_reads_every_page_and_believes_the_base_table(world, tables):
    world.put(*(an_aggregate("1", dimension=f"d{number:03}") for number in range(230)))
    world.put(*(an_aggregate("1", dimension="x", license=OTHER_LICENSE, status="Success") for _ in range(1)))
    world.with_pages_of(70)
    world.meanwhile(lambda: world.put(an_aggregate("1", dimension="d007", status="Success")), "BatchGetItem")
    found = [stored.dimension for stored in tables.aggregated.pending(HOUR)]
    assert len(found) == len(set(found)) == 229
    assert "d007" not in found
    assert len(list(tables.aggregated.pending(HOUR, [OTHER_LICENSE]))) == 0


@pytest.mark.lengthy
def test_pending_reads_more_than_a_megabyte_at_a_time(world, tables):
    allocations = longest_allocations(200)
    for number in range(4):  # of more than 350 KB each: an index page holds two, and one batch asks for all
        world.put(an_aggregate("200", dimension=f"d{number}", allocations=allocations))
    found = list(tables.aggregated.pending(HOUR))
    assert [stored.dimension for stored in found] == [f"d{number}" for number in range(4)]
    assert {len(stored.allocations) for stored in found} == {200}
    assert tables.aggregated.count_pending(HOUR) == 4


@pytest.mark.parametrize(("change", "written"), [
    ({}, True), ({"quantity": "11"}, False), ({"status": "Success"}, False), ({"quantity": None}, False),
    ({"hour": "2026-11-28T11"}, True),
], ids=str)  # fmt: skip
def test_an_end_is_written_only_where_the_record_is_still_what_was_sent(world, tables, change, written):
    world.put(an_aggregate("10"))
    end = RecordEnd(LICENSE, KEY.prefix, HOUR, tables_quantity(tables), RecordStatus.SUCCESS, record_id="id-1")
    world.put(an_aggregate(**{"quantity": "10", **change}))
    assert tables.aggregated.record([end], world.clock.now) == [written]


def tables_quantity(tables):
    """The quantity as it was read."""
    (stored,) = tables.aggregated.pending(HOUR)
    return stored.quantity


def test_a_missing_quantity_mended_meanwhile_saves_the_record(world):
    world.put(an_aggregate(None))
    world.meanwhile(lambda: world.put(an_aggregate("10")))
    world.visit()
    assert world.billed() == {DIMENSION: "10"}
    world.judge()


def test_an_end_of_a_deleted_record_does_not_bring_it_back(world, tables):
    world.put(an_aggregate("10"))
    (stored,) = tables.aggregated.pending(HOUR)
    world.delete(an_aggregate())
    end = RecordEnd(LICENSE, KEY.prefix, HOUR, stored.quantity, RecordStatus.SUCCESS)
    assert tables.aggregated.record([end], world.clock.now) == [False]
    assert world.aggregates() == []


def test_a_new_end_forgets_the_reason_of_the_last(world, tables):
    world.put(an_aggregate("10", meteringStatusReason="InvalidTagException"))
    world.visit()
    stored = world.aggregate()
    assert stored["meteringStatus"] == "Success"
    assert "meteringStatusReason" not in stored


@pytest.mark.parametrize(("changes", "reason"), [
    ({"quantity": "-1"}, "NegativeQuantity"), ({"quantity": None}, "MissingQuantity"),
    ({"quantity": {"S": "1"}}, "NonNumericQuantity"), ({"quantity": "0.0000001"}, "TooManyDecimals"),
    ({"quantity": "1E+100"}, "QuantityTooLarge"), ({"hourBucket": "2026-11-28T11"}, "SortKeyMismatch"),
    ({"customerAWSAccountId": "1"}, "SortKeyMismatch"), ({"allocations": {"S": "x"}}, "MalformedAllocations"),
    ({"allocations": [an_allocation("3")]}, "AllocationSumMismatch"),
    ({"allocations": [an_allocation("5", a="b"), an_allocation("5", a="b")]}, "MalformedAllocations"),
    ({"account": "x" * 12}, "InvalidCustomerAWSAccountId"), ({"license": "arn:nothing"}, "InvalidLicenseArn"),
], ids=str)  # fmt: skip
def test_a_direct_submit_that_breaks_the_contract_is_rejected_and_its_neighbor_billed(world, changes, reason):
    bad = an_aggregate(**{"quantity": "10", **changes})
    world.put(bad, an_aggregate("2", dimension="other"))
    world.visit()
    assert world.item(bad)["meteringStatus"] == "RejectedClientSide"
    assert world.item(bad)["meteringStatusReason"] == reason
    assert world.billed() == {"other": "2"}


def test_a_direct_submit_of_zero_is_sent_once_the_lock_is_over(world):
    world.put(an_aggregate("0"))
    world.visit()
    assert world.billed() == {DIMENSION: "0"}
    world.judge()
