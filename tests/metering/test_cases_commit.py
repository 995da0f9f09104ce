"""Cases: what is found after a group was committed, and what changes while it is."""

import threading

import pytest

from metering_dagster.core.hours import parse_bucket
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.aggregate_group import judge_group
from metering_dagster.metering.rules.group_steps import Commit
from metering_dagster.metering.rules.raw_row import GroupKey
from metering_dagster.metering.services.aggregation import aggregate
from tests.items import ACCOUNT, DIMENSION, HOUR, LICENSE, a_usage, an_aggregate, an_allocation, some_usage
from tests.world import LAST_CALL

TEN_OF_FOUR = "Aggregated total quantity 10 from 4 raw usage records"


class KilledError(BaseException):
    """Stands for the end of the process: nothing catches it."""


def killed() -> None:
    raise KilledError


def commit_without_clean_up(world) -> None:
    """Commit the group as we do it, and have all its raw rows pending again, as if we had died before any was ended."""
    before = world.client.scan(TableName=world.names["usage"])["Items"]
    tables, key = world.deployment.tables, GroupKey(LICENSE, ACCOUNT, DIMENSION, parse_bucket(HOUR))
    verdict = judge_group(key, tables.usage.group_rows(key), world.clock.now, Quantities.DECIMAL, last_call=False)
    (done,) = tables.aggregated.commit([Commit(verdict.aggregate, verdict.usages)], world.clock.now)
    assert done.written
    for row in before:
        world.client.put_item(TableName=world.names["usage"], Item=row)


@pytest.mark.case("crash_between_commit_and_cleanup")
def test_rows_left_by_a_crash_are_told_from_late_ones(world):
    world.put(*some_usage("3", "3", "3", "1"))
    commit_without_clean_up(world)
    assert world.row_statuses() == {"pending": 4}
    outcome = world.meter()
    assert outcome.success
    assert outcome.metadata["aggregated_usage"]["cleaned_rows"] == 4
    assert outcome.metadata["aggregated_usage"]["late_rows"] == 0
    assert {row["meteringStatusReason"] for row in world.rows()} == {TEN_OF_FOUR}
    assert world.row_statuses() == {"Aggregated": 4}
    assert world.billed() == {DIMENSION: "10"}
    world.judge()


@pytest.mark.case("crash_between_commit_and_cleanup")
@pytest.mark.parametrize("transaction", [1, 2, 3])
def test_a_crash_at_any_transaction_of_a_large_group_is_healed_by_the_next_tick(world, transaction):
    world.put(*some_usage(*["1"] * 250))
    world.meanwhile(killed, at=transaction)
    with pytest.raises(KilledError):
        world.visit()
    assert world.row_statuses()["pending"] == {1: 250, 2: 152, 3: 52}[transaction]
    world.configure()
    visit = world.visit()
    assert visit.aggregation.late_rows == 0
    assert world.billed() == {DIMENSION: "250"}
    assert {row["meteringStatusReason"] for row in world.rows()} == {
        "Aggregated total quantity 250 from 250 raw usage records"
    }
    world.judge()


@pytest.mark.case("crash_between_commit_and_cleanup")
def test_a_crash_between_billing_and_writing_it_down_bills_once(world):
    world.put(*some_usage("3", "3", "3", "1"))
    world.meanwhile(killed, at=2)  # the first commits
    with pytest.raises(KilledError):
        world.visit()
    assert world.billed() == {DIMENSION: "10"}
    assert world.record_statuses() == {"pending": 1}
    world.configure()
    world.visit()
    assert world.billed() == {DIMENSION: "10"}
    world.judge()


@pytest.mark.case("late_row_after_commit")
def test_a_row_that_comes_after_the_commit_is_late_and_told(world):
    world.put(*some_usage("4", "6"))
    world.visit()
    world.put(a_usage(1200, "5"))
    outcome = world.meter()
    assert outcome.success
    assert world.row(1200)["meteringStatus"] == "LateUsage"
    assert "Late by 5" in world.row(1200)["meteringStatusReason"]
    assert outcome.metadata["aggregated_usage"]["late_rows"] == 1
    assert outcome.metadata["aggregated_usage"]["late_quantity"] == 5
    assert "late by 5" in outcome.metadata["aggregated_usage"]["notes"]
    assert world.billed() == {DIMENSION: "10"}
    world.judge()


@pytest.mark.case("late_row_after_commit")
def test_a_bad_row_that_comes_after_the_commit_is_rejected_and_not_late(world):
    world.put(*some_usage("4", "6"))
    world.visit()
    world.put(a_usage(30, {"S": "abc"}))
    world.visit()
    assert world.row(30)["meteringStatusReason"] == "NonNumericQuantity"
    world.judge()


@pytest.mark.case("seller_overwrites_a_counted_second")
@pytest.mark.parametrize(("now", "late", "over_billed"), [("9", 5, 0), ("1", 0, 3)])
def test_an_overwritten_second_is_late_by_the_difference(world, now, late, over_billed):
    world.put(a_usage(7, "4"), a_usage(8, "6"))
    world.visit()
    world.put(a_usage(7, now))
    outcome = world.meter()
    assert world.row(7)["meteringStatus"] == "LateUsage"
    assert outcome.metadata["aggregated_usage"]["late_quantity"] == late
    assert outcome.metadata["aggregated_usage"]["over_billed_quantity"] == over_billed
    assert world.billed() == {DIMENSION: "10"}
    world.judge()


@pytest.mark.case("seller_overwrites_a_counted_second")
def test_a_second_with_other_allocations_of_the_same_quantity_is_late_by_nothing(world):
    world.put(a_usage(7, "4", allocations=[an_allocation("4", team="a")]))
    world.visit()
    world.put(a_usage(7, "4", allocations=[an_allocation("4", team="b")]))
    visit = world.visit()
    assert world.row(7)["meteringStatus"] == "LateUsage"
    assert (visit.aggregation.late, visit.aggregation.over_billed) == (0, 0)
    world.judge()


@pytest.mark.case("overwrite_between_read_and_finalise")
def test_a_row_rewritten_before_the_commit_is_folded_again(world):
    world.put(*some_usage("3", "3", "3", "1"))
    world.meanwhile(lambda: world.put(a_usage(3, "2")))
    assert world.meter().success
    assert world.billed() == {DIMENSION: "11"}
    assert world.row(3)["quantity"] == 2
    world.judge()


@pytest.mark.case("overwrite_between_read_and_finalise")
@pytest.mark.parametrize("change", [
    {"quantity": "2"}, {"allocations": [an_allocation("1", team="a")]}, {"customerIdentifier": "somebody"},
    {"filed": "2026-11-28T11"},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_a_commit_hangs_on_all_that_a_row_says(world, change):
    world.put(*some_usage("1", "1", "1"))
    world.meanwhile(lambda: world.put(a_usage(2, **{"quantity": "1", **change})))
    visit = world.visit()
    assert visit.aggregation.committed == 1
    assert world.billed() == {DIMENSION: "4" if "quantity" in change else "3"}
    world.judge()


@pytest.mark.case("overwrite_between_read_and_finalise")
def test_a_row_rewritten_after_the_commit_of_a_large_group_is_late(world):
    world.put(*some_usage(*["1"] * 150))
    world.meanwhile(lambda: world.put(a_usage(149, "5")), at=2)
    assert world.meter().success
    assert world.billed() == {DIMENSION: "150"}
    assert world.row(149)["meteringStatus"] == "LateUsage"
    assert "Late by 4" in world.row(149)["meteringStatusReason"]
    world.judge()


@pytest.mark.case("overwrite_between_read_and_finalise")
def test_a_row_deleted_meanwhile_is_not_brought_back(world):
    rows = some_usage("3", "3", "4")
    world.put(*rows)
    world.meanwhile(lambda: world.delete(rows[2]))
    world.visit()
    assert world.row(2) == {}
    assert world.billed() == {DIMENSION: "6"}
    world.judge()


@pytest.mark.case("overwrite_between_read_and_finalise")
def test_a_bad_row_mended_before_it_is_rejected_is_not_rejected(world):
    world.put(a_usage(0, "1"), a_usage(1, {"S": "abc"}))
    world.meanwhile(lambda: world.put(a_usage(1, "2")))
    visit = world.visit()
    assert visit.aggregation.rejected == {}
    assert world.billed() == {DIMENSION: "3"}
    world.judge()


@pytest.mark.case("overwrite_between_read_and_finalise")
def test_attributes_mended_before_their_row_is_rejected_save_it(world):
    world.put(a_usage(1, "2", customerAWSAccountId="000000000000"))
    world.meanwhile(lambda: world.put(a_usage(1, "2")))
    visit = world.visit()
    assert visit.discovery.changed == 1
    assert world.billed() == {DIMENSION: "2"}
    world.judge()


@pytest.mark.case("overwrite_between_read_and_finalise")
def test_a_group_that_never_holds_still_is_left_to_the_next_tick_and_told(world):
    world.put(*some_usage("1", "1"), a_usage(0, "7", dimension="quiet"))
    for attempt in range(1, 9):
        world.meanwhile(lambda attempt=attempt: world.put(a_usage(1, str(attempt + 1))), at=attempt)
    outcome = world.meter()
    assert not outcome.success
    assert outcome.allows_retries
    assert "1 groups" in outcome.message
    assert outcome.failed_with["committed_groups"] == 1
    assert world.row_statuses() == {"pending": 2, "Aggregated": 1}
    world.configure()
    assert world.meter().success
    world.judge()


@pytest.mark.case("same_hour_twice_at_once")
def test_two_visits_of_one_hour_at_once_commit_and_bill_once(world):
    dimensions = [f"d{number:02}" for number in range(30)]
    world.put(*(a_usage(second, "1", dimension=d) for d in dimensions for second in range(6)))
    both = threading.Barrier(2)
    failures = []

    def meet(**_):
        if not both.broken:
            both.wait(timeout=10)

    def run(deployment):
        try:
            part, _ = deployment.slice_of(parse_bucket(HOUR))
            visits.append(aggregate(deployment.tables, part))
            deployment.submitter().submit(part)
        except Exception as error:  # noqa: BLE001  # told below
            failures.append(error)
            both.abort()

    visits = []
    deployments = [world.deployment]
    world.configure()
    deployments.append(world.deployment)
    for deployment in deployments:
        deployment.tables.usage.client.meta.events.register_first(
            "before-call.dynamodb.TransactWriteItems", _once(meet)
        )
    threads = [threading.Thread(target=run, args=(deployment,)) for deployment in deployments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(visit.committed for visit in visits) == 30
    assert world.row_statuses() == {"Aggregated": 180}
    assert world.billed() == dict.fromkeys(dimensions, "6")
    assert all(call.outcome == "ok" for call in world.calls())
    world.judge()


def _once(action):
    done = threading.Event()

    def hook(**event):
        if not done.is_set():
            done.set()
            action(**event)

    return hook


@pytest.mark.case("same_hour_twice_at_once")
def test_two_runs_of_one_hour_at_once_are_both_green(world):
    dimensions = [f"d{number:02}" for number in range(10)]
    world.put(*(a_usage(second, "1", dimension=d) for d in dimensions for second in range(3)))
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(world.meter())) for _ in range(2)]
    assert world.deployment.tables
    assert world.deployment.quota
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.message for outcome in outcomes] == ["", ""]
    assert sum(outcome.metadata["aggregated_usage"]["committed_groups"] for outcome in outcomes) == 10
    assert world.billed() == dict.fromkeys(dimensions, "3")
    world.judge()


@pytest.mark.case("seller_repeats_a_put")
def test_a_repeated_put_of_a_counted_row_is_no_late_usage(world):
    world.put(*some_usage("3", "3", "3", "1"))
    world.visit()
    world.put(a_usage(3, "1"))
    outcome = world.meter()
    assert world.row(3)["meteringStatus"] == "Aggregated"
    assert world.row(3)["meteringStatusReason"] == TEN_OF_FOUR
    assert outcome.metadata["aggregated_usage"]["late_rows"] == 0
    assert outcome.metadata["metered_usage"]["records"] == 0
    assert len(world.calls()) == 1
    world.judge()


@pytest.mark.case("seller_repeats_a_put")
def test_a_repeated_put_in_another_form_of_the_same_number_is_the_same_row(world):
    allocations = [an_allocation("2", team="a"), an_allocation("3", team="b")]
    world.put(a_usage(3, "5", allocations=allocations))
    world.visit()
    world.put(a_usage(3, "5.0", allocations=allocations[::-1]))
    world.visit()
    assert world.row_statuses() == {"Aggregated": 1}
    world.judge()


@pytest.mark.case("seller_repeats_a_put")
def test_a_repeated_put_is_known_as_long_as_the_hour_is_billable(world):
    world.put(*some_usage("3", "1"))
    world.visit()
    world.at(LAST_CALL)
    world.put(a_usage(0, "3"))
    assert world.visit().aggregation.cleaned == 1
    world.judge()


@pytest.mark.case("aggregate_made_by_others")
@pytest.mark.parametrize(("pending", "status"), [("4", "Aggregated"), ("5", "LateUsage"), ("3", "LateUsage")])
def test_the_missing_part_of_an_aggregate_of_others_is_told_from_late_usage(world, pending, status):
    world.put(
        an_aggregate("10", status="Success"),
        a_usage(0, "6", filed=None, meteringStatus="Aggregated"),
        a_usage(1, pending),
    )
    visit = world.visit()
    assert world.row(1)["meteringStatus"] == status
    assert visit.aggregation.late_rows == (status == "LateUsage")
    assert world.bill() == []
    assert world.aggregate()["quantity"] == 10


@pytest.mark.case("aggregate_made_by_others")
def test_the_other_pipelines_crash_is_healed_as_ours(world):
    world.put(an_aggregate("10"), *some_usage("3", "3", "3", "1"))
    assert world.meter().success
    assert {row["meteringStatusReason"] for row in world.rows()} == {TEN_OF_FOUR}
    assert world.billed() == {DIMENSION: "10"}
    world.judge()


@pytest.mark.case("aggregate_made_by_others")
def test_the_missing_part_may_be_filed_in_several_places(world):
    world.at("2026-11-28T13:20:00Z")
    world.put(
        an_aggregate("10", status="Success"),
        a_usage(0, "6", filed=None, meteringStatus="Aggregated"),
        a_usage(1, "3"),
        a_usage(2, "1", filed="2026-11-28T11"),
    )
    visit = world.visit("2026-11-28T11")
    assert world.row_statuses() == {"Aggregated": 3}
    assert visit.discovery.settled.late_rows == 0
    assert {world.row(second)["meteringStatusReason"] for second in (1, 2)} == {
        "Aggregated total quantity 10 from 3 raw usage records"
    }
