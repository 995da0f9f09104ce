"""What a reviewer who knew nothing of the code has broken: the whole kind of each must hold."""

from datetime import UTC, datetime

import pytest

from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules import own_item_keys
from metering_dagster.metering.rules.raw_row import GroupKey
from tests.items import DIMENSION, HOUR, LICENSE, a_usage, an_aggregate, filled_up, some_usage
from tests.metering.test_cases_answers import moves_to
from tests.metering.test_cases_healing import LEGACY, MADE, restore, twins
from tests.world import LAST_CALL, World

UNTIL = "2026-11-29T12:00:00Z"


@pytest.mark.case("region_changed")
def test_a_region_that_refuses_the_caller_takes_no_hour(world: World):
    """No call that was refused as such has billed anything, so the hour may go to another Region."""
    home = world.deployment.marketplace.region
    world.put(*some_usage("3", "4"))
    world.sandbox.configure(disabled_regions=["eu-west-1"])
    moves_to(world, "eu-west-1")
    assert "DisabledApiException" in world.meter().message
    moves_to(world, home)
    assert world.meter().success
    assert world.billed() == {DIMENSION: "7"}


@pytest.mark.case("region_changed")
def test_a_claim_on_which_another_process_relies_is_not_released(world: World):
    regions, others = world.deployment.submitter().regions, None
    assert regions is not None
    others = type(regions)(regions.client, regions.table, regions.shape)
    hour, now = datetime(2026, 11, 28, 10, tzinfo=UTC), world.clock.now
    assert (regions.claim(hour, "eu-west-1", now), others.claim(hour, "eu-west-1", now)) == ("eu-west-1", "eu-west-1")
    regions.release(hour)
    third = type(regions)(regions.client, regions.table, regions.shape)
    assert third.claim(hour, "us-east-1", now) == "eu-west-1"
    fresh = datetime(2026, 11, 28, 9, tzinfo=UTC)
    assert regions.claim(fresh, "eu-west-1", now) == "eu-west-1"
    regions.release(fresh)
    assert third.claim(fresh, "us-east-1", now) == "us-east-1"


@pytest.mark.case("others_counted_what_we_refuse")
@pytest.mark.parametrize("rows", [
    [a_usage(0, {"S": "5"}), a_usage(1, "3")],
    [a_usage(0, "5", timestamp="2026-11-28T17:00:00"), a_usage(1, "3")],
    [a_usage(0, "5", allocations={"S": "odd"}), a_usage(1, "3")],
])  # fmt: skip
def test_at_the_last_call_too_what_others_counted_is_settled_and_not_judged(world: World, rows: list):
    world.at(LAST_CALL)
    world.put(*rows, an_aggregate("8", status="Success", createdAt=MADE))
    assert world.meter(partitions_until=UNTIL).success
    assert world.row_statuses() == {"Aggregated": 2}


def test_a_commit_of_others_in_between_costs_no_bad_row_its_settling(world: World):
    """The bad rows beside a commit are rejected after it, and not at all where it is refused."""
    world.at(LAST_CALL)
    world.put(a_usage(0, {"S": "5"}), a_usage(1, "3"))
    world.meanwhile(lambda: world.put(an_aggregate("8", status="Success", createdAt=MADE)))
    assert world.meter(partitions_until=UNTIL).success
    assert world.row_statuses() == {"Aggregated": 2}
    assert world.bill() == []


@pytest.mark.parametrize("ended", ["kept", "deleted"])
def test_a_held_group_without_its_commit_goes_at_its_last_call(world: World, ended: str):
    aggregated = {"filed": None, "meteringStatus": "Aggregated"}
    bad = a_usage(2, {"S": "x"})
    world.put(a_usage(0, "5", **aggregated), a_usage(1, "3", **aggregated), bad)
    world.meter()
    assert world.row(2)["meteringStatus"] == "RejectedClientSide"
    assert world.row_statuses()["pending"] == 2
    if ended == "deleted":
        world.delete(bad)
    world.at(LAST_CALL)
    world.meter(partitions_until=UNTIL)
    assert world.billed() == {DIMENSION: "8"}


def test_a_raw_row_that_fills_its_item_ends(world: World):
    """Whatever does not fit is left out: the row is billed, and pending no more."""
    world.put(filled_up(a_usage(0, "5"), 20), a_usage(1, "2"))
    first = world.meter()
    second = world.meter()
    assert world.billed() == {DIMENSION: "7"}
    assert "meteringPending" not in world.row(0)
    assert first.success or second.success


@pytest.mark.parametrize("other", [
    (("P", "1", "x#y"), ("P#1", "x", "y")), (("P", "1", "a#2026"), ("P#1", "a", "2026")),
])  # fmt: skip
def test_groups_whose_parts_hold_a_hash_never_share_a_commit(other):
    hour = datetime(2026, 11, 28, 10, tzinfo=UTC)
    first, second = (own_item_keys.commit_key(GroupKey(*parts, hour)) for parts in other)
    assert first.range_key != second.range_key
    one = own_item_keys.identity_key("P", "a", "b#c", HOUR)
    assert one != own_item_keys.identity_key("P", "a#b", "c", HOUR)


def test_what_was_put_back_and_breaks_the_contract_by_now_says_that_it_may_have_been_billed(world: World):
    world.put(a_usage(0, "7.5"))
    world.visit()
    world.delete(an_aggregate())
    world.configure(quantities=Quantities.INTEGER)
    world.at(LAST_CALL)
    world.visit()
    record = world.aggregate()
    assert record["meteringStatusReason"].startswith("NonIntegerQuantity; ")
    assert "billed before" in record["meteringStatusReason"]


@pytest.mark.case("legacy_twins")
def test_after_a_restore_no_row_that_was_aggregated_is_rejected_as_a_twin(world: World):
    first, second = twins()
    world.put(first)
    world.visit()
    restore(world, [])
    world.put(second)
    world.visit()
    world.put(a_usage(7, "1", license=LEGACY, customerIdentifier="customer-a"))
    left = world.visit().aggregation
    assert world.item(first)["meteringStatus"] == "Aggregated"
    assert left.left_groups == 1
    assert len(world.bill()) == 1


def test_a_commit_whose_answer_was_lost_is_sent_in_the_same_run_though_the_index_is_behind(world: World, monkeypatch):
    """Together it fails though it is written; alone it is refused. Its record is waited for all the same."""
    world.put(*some_usage("3", "4"))
    table = world.deployment.tables.aggregated
    commit, awaited = table.commit, []

    def losing(commits, now):
        done = commit(commits, now)
        if len(losing.lost) < 1:
            losing.lost.append(commits)
            raise OSError("the answer was lost")
        return done

    losing.lost = []
    monkeypatch.setattr(table, "commit", losing)
    wait = table.await_visible
    monkeypatch.setattr(table, "await_visible", lambda keys, bucket: awaited.extend(keys) or wait(keys, bucket))
    assert world.meter().success
    assert [key.dimension for key in awaited] == [DIMENSION]
    assert world.billed() == {DIMENSION: "7"}


def test_one_row_that_cannot_be_read_at_discovery_costs_no_other_group_its_bill(world: World, monkeypatch):
    from metering_dagster.metering.stores import usage_table

    world.put(a_usage(0, "1", dimension="good"), a_usage(0, "1", dimension="odd", hour="2026-11-28T09", filed=HOUR))
    read = usage_table._row

    def raising(item):
        if "#odd#" in item["customerAWSAccountId_dimension_timestamp"]["S"]:
            raise ArithmeticError(f"odd {LICENSE}")
        return read(item)

    monkeypatch.setattr(usage_table, "_row", raising)
    outcome = world.meter()
    assert not outcome.success
    assert world.billed() == {"good": "1"}
    assert "could not be read: ArithmeticError" in outcome.message
