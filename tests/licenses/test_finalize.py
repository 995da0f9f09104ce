"""A window that is over is closed once, whoever is at it; what is lost by it is told first."""

from decimal import Decimal

import pytest
from botocore.exceptions import ClientError

from metering_dagster.licenses.services import finalization
from metering_dagster.licenses.services.finalization import close_windows
from metering_dagster.licenses.stores.open_windows import ClosingStore
from metering_dagster.settings import Mode
from tests.items import (
    ACCOUNT,
    HOUR,
    LICENSE,
    OTHER_ACCOUNT,
    OTHER_LICENSE,
    a_deprovisioning,
    a_subscriber,
    a_usage,
    an_aggregate,
    some_usage,
)
from tests.world import World

OVER, NOT_YET = "2026-11-28T12:20:00Z", "2026-11-28T12:20:01Z"
"""The world's instant is 12:20."""
LONG_AGO = "2026-11-28T11:20:00Z"
MARKS = {"deprovisioningPendingFlag", "deprovisioningExpiry"}


def is_closed(world: World, **which: str) -> bool:
    row = world.item(a_subscriber(**which))
    closed = row["subscriptionStatus"] == "inactive"
    assert closed == (not MARKS & set(row))
    return closed


def a_store(world: World) -> ClosingStore:
    subscribers = world.deployment.tables.subscribers
    return ClosingStore(subscribers.client, subscribers.name)


def test_a_window_is_closed_at_its_expiry_and_not_before(world):
    world.put(a_deprovisioning(OVER, productCode="p"), a_deprovisioning(NOT_YET, OTHER_LICENSE))
    outcome = world.finalize()
    assert outcome.success
    assert is_closed(world)
    assert not is_closed(world, license=OTHER_LICENSE)
    row = world.item(a_subscriber())
    assert (row["updatedAt"], row["productCode"]) == ("2026-11-28T12:20:00Z", "p")
    shown = outcome.shown["result"]
    assert (shown["open_windows"], shown["closed"], shown["changed_meanwhile"], shown["lost_quantity"]) == (2, 1, 0, 0)
    assert outcome.evaluations == ()
    assert (outcome.tags["metering/lane"], outcome.tags["dagster/priority"]) == ("deprovision", "90")


@pytest.mark.parametrize(("updated_at", "closed"), [
    (LONG_AGO, True), ("2026-11-28T11:20:01Z", False), ("a while ago", True), (None, True),
])  # fmt: skip
def test_where_the_expiry_is_no_instant_the_last_write_counts_and_else_it_is_over(world, updated_at, closed):
    world.put(a_deprovisioning("soon", updatedAt=updated_at))
    outcome = world.finalize()
    assert is_closed(world) is closed
    assert ("is no instant: its window closed without it" in outcome.said) is closed


@pytest.mark.case("finaliser_race")
def test_two_finalizers_write_once_and_a_window_set_anew_stays_open(world):
    anew = a_deprovisioning("2026-11-28T13:00:00Z", OTHER_LICENSE)
    world.put(a_deprovisioning(OVER), a_deprovisioning(OVER, OTHER_LICENSE), a_usage(0))
    store, tables = a_store(world), world.deployment.tables
    rival = []

    def both_at_once(*_: object) -> None:
        world.put(anew)
        rival.append(close_windows(store, tables, lambda *_: None))

    mine = close_windows(store, tables, both_at_once)  # told after all is read, before anything is written
    assert [window.buyer for window in rival[0].closed] == [(LICENSE, ACCOUNT)]
    assert rival[0].left_to_others == []
    assert mine.closed == []
    assert {window.buyer[0] for window in mine.left_to_others} == {LICENSE, OTHER_LICENSE}
    assert is_closed(world)
    assert world.item(anew)["deprovisioningExpiry"] == "2026-11-28T13:00:00Z"
    assert not is_closed(world, license=OTHER_LICENSE)


def test_the_loser_of_a_race_says_so(world):
    world.put(a_deprovisioning(OVER))
    closed = a_subscriber(subscriptionStatus="inactive", updatedAt="2026-11-28T12:19:59Z")
    world.meanwhile(lambda: world.put(closed), "UpdateItem", table="subscribers")
    shown = world.finalize().shown["result"]
    assert (shown["closed"], shown["changed_meanwhile"]) == (0, 1)
    assert world.item(a_subscriber())["updatedAt"] == "2026-11-28T12:19:59Z"


def test_a_row_written_anew_stays_open_where_it_was_its_last_write_that_counted(world):
    world.put(a_deprovisioning("soon", updatedAt=LONG_AGO))
    (window,) = a_store(world).open_windows()
    world.put(a_deprovisioning("soon", updatedAt="2026-11-28T12:19:00Z"))
    assert not a_store(world).finalize(window, world.clock.now)
    assert not is_closed(world)


def test_what_is_lost_is_told_by_masked_license_and_hour_in_a_failed_check(world):
    world.put(
        a_deprovisioning(OVER), a_deprovisioning(OVER, account=OTHER_ACCOUNT), a_deprovisioning(OVER, OTHER_LICENSE)
    )
    world.put(*some_usage("1.5", "2"), a_usage(7, {"S": "abc"}), an_aggregate("10", dimension="direct"))
    world.put(a_usage(0, "4", account=OTHER_ACCOUNT), a_usage(0, "8", hour="2026-11-28T12"))
    world.put(
        a_usage(0, "9", license="arn:aws:license-manager::1:license:l-active"), a_usage(0, "9", hour="2026-11-27T12")
    )
    outcome = world.finalize()
    assert outcome.success
    assert is_closed(world)
    assert is_closed(world, account=OTHER_ACCOUNT)
    assert is_closed(world, license=OTHER_LICENSE)
    assert outcome.shown["result"]["lost_quantity"] == 25.5
    told = {evaluation.partition: evaluation for evaluation in outcome.evaluations}
    assert set(told) == {HOUR, "2026-11-28T12"}
    check = told[HOUR]
    assert (check.asset_key.to_user_string(), check.check_name, check.passed) == (
        "metered_usage",
        "all_subscribed",
        False,
    )
    assert check.metadata["lost_quantity"].value == 17.5
    assert (check.metadata["lost_rows"].value, check.metadata["lost_records"].value) == (4, 1)
    assert "a quantity of 17.5" in check.description
    lines = [line.data for line in check.metadata["losses"].records]
    assert [(line["license"], line["account"], line["hour"]) for line in lines] == [
        ("****cdef", "****6666", HOUR), ("****cdef", "****9999", HOUR),
    ]  # fmt: skip
    assert [Decimal(line["quantity"]) for line in lines] == [Decimal("13.5"), Decimal(4)]
    assert [line["without a quantity"] for line in lines] == [1, 0]
    assert len({line["digest"] for line in lines}) == 2
    assert world.record_statuses() + world.row_statuses() == {"pending": 8}, (
        "the hours' own runs and the age-out end it"
    )


def test_what_waits_for_the_months_grace_is_lost_by_a_window_that_closes_before_it(world):
    """On a month's last evening those hours are past their window, and open again too late for this license."""
    world.at("2026-12-31T22:20:00Z")
    world.put(a_deprovisioning("2026-12-31T22:20:00Z"), a_usage(0, "5", hour="2026-12-30T20"),
              a_usage(0, "7", hour="2026-12-30T18"))  # fmt: skip
    outcome = world.finalize()
    assert {each.partition: each.metadata["lost_quantity"].value for each in outcome.evaluations} == {
        "2026-12-30T20": 5
    }


def test_zeros_and_rows_that_an_aggregate_counts_already_are_no_loss(world):
    world.put(a_deprovisioning(OVER), a_usage(0, "0", hour="2026-11-28T11"))
    world.put(an_aggregate("6"), *some_usage("2", "4"))
    assert world.finalize().shown["result"]["lost_quantity"] == 6


def test_the_loss_is_in_the_log_before_anything_is_written(world):
    world.put(a_deprovisioning(OVER), a_usage(0, "1"))
    told = []
    store = a_store(world)
    store.client.meta.events.register("before-call.dynamodb.UpdateItem", lambda **_: told.append("write"))
    close_windows(store, world.deployment.tables, lambda bucket, losses: told.append((bucket, losses[0].quantity)))
    assert told == [(HOUR, 1), "write"]


def test_windows_are_closed_as_they_are_told_the_oldest_expiry_first(world, monkeypatch):
    """So a run that is ended has got somewhere, and its last word on an hour names all that it lost there."""
    monkeypatch.setattr(finalization, "_PORTION", 1)
    world.put(a_deprovisioning(OVER), a_deprovisioning("2026-11-28T12:19:59Z", OTHER_LICENSE))
    world.put(a_usage(0, "2"), a_usage(0, "3", license=OTHER_LICENSE))
    store, seen = a_store(world), []
    events = store.client.meta.events
    events.register("before-call.dynamodb.UpdateItem", lambda **_: seen.append("closes one"))

    def tell(bucket, losses):
        seen.append((bucket, [loss.quantity for loss in losses]))
        if len(losses) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        close_windows(store, world.deployment.tables, tell)
    assert seen == [(HOUR, [3]), "closes one", (HOUR, [3, 2])]
    assert is_closed(world, license=OTHER_LICENSE)
    assert not is_closed(world)


@pytest.mark.parametrize(("operation", "step"), [("UpdateItem", "closed"), ("BatchGetItem", "judged")])
def test_trouble_with_one_window_leaves_that_one_open_and_no_other(world, operation, step):
    licenses = [f"{LICENSE}{number}" for number in range(7)]
    world.put(*(a_deprovisioning(OVER, license) for license in licenses))
    world.put(*(a_usage(0, "2", license=license) for license in licenses))
    tables = world.deployment.tables
    client = tables.subscribers.client if operation == "UpdateItem" else tables.usage.client

    def fail(params, **_):
        if licenses[3] in repr(params) and world.names["aggregated"] not in repr(params):
            raise ValueError(f"no idea what {licenses[3]} of {ACCOUNT} is")

    client.meta.events.register(f"provide-client-params.dynamodb.{operation}", fail)
    outcome = world.finalize()
    assert not outcome.success
    assert [license for license in licenses if not is_closed(world, license=license)] == [licenses[3]]
    assert "1 flush windows are over and still open" in outcome.message
    assert "The window of license ****def3, account ****6666" in outcome.message
    assert f"could not be {step}: ValueError: no idea what ****def3" in outcome.message
    assert "6 windows were closed in this run" in outcome.message
    assert (outcome.failed_with["closed"], outcome.failed_with["still_open"]) == (6, 1)
    client.meta.events.unregister(f"provide-client-params.dynamodb.{operation}", fail)
    assert world.finalize().shown["result"]["closed"] == 1


def test_where_aws_refuses_the_caller_no_further_window_is_tried(world):
    world.put(*(a_deprovisioning(OVER, f"{LICENSE}{number}") for number in range(30)))
    tried = []

    def refuse(**_):
        tried.append(1)
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not allowed"}}, "UpdateItem")

    world.deployment.tables.subscribers.client.meta.events.register("provide-client-params.dynamodb.UpdateItem", refuse)
    outcome = world.finalize()
    assert "30 flush windows are over and still open: no further one was tried: CallerError" in outcome.message
    assert "AccessDeniedException" in outcome.message
    assert len(tried) <= 8


def test_an_outage_is_not_tried_window_by_window(world):
    world.put(*(a_deprovisioning(OVER, f"{LICENSE}{number:02}") for number in range(60)))
    tried = []

    def fail(**_):
        tried.append(1)
        raise ClientError({"Error": {"Code": "InternalServerError", "Message": "away"}}, "UpdateItem")

    world.deployment.tables.subscribers.client.meta.events.register("provide-client-params.dynamodb.UpdateItem", fail)
    outcome = world.finalize()
    assert "60 flush windows are over and still open" in outcome.message
    assert 20 <= len(tried) < 28


def test_a_check_of_another_run_of_the_hour_is_answered_beside_it(world, instance):
    import dagster as dg

    world.put(a_usage(0, "1"))
    assert world.meter(instance=instance).checks["all_subscribed"].passed
    world.put(a_deprovisioning(OVER), a_usage(5, "1", dimension="later"))
    world.finalize(instance=instance)
    key = dg.AssetCheckKey(dg.AssetKey("metered_usage"), "all_subscribed")
    (record,) = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.status.value == "FAILED"
    assert record.event.dagster_event.asset_check_evaluation_data.partition == HOUR


def test_shadow_mode_closes_nothing_and_says_so(world):
    world.configure(mode=Mode.SHADOW)
    world.put(a_deprovisioning(OVER), a_usage(0, "1"))
    before = world.dump()
    outcome = world.finalize()
    assert outcome.success
    assert "writes to no table" in outcome.shown["result"]["notes"]
    assert world.dump() == before


def test_a_row_without_the_flag_is_left_alone_whatever_it_says(world):
    row = a_deprovisioning(OVER, deprovisioningPendingFlag=None)
    world.put(row)
    before = world.item(row)
    assert world.finalize().shown["result"]["open_windows"] == 0
    assert world.item(row) == before


def test_a_table_that_is_not_there_fails_in_words(world):
    world.configure(subscribers_table="nowhere")
    outcome = world.finalize()
    assert not outcome.success
    assert "the subscribers table nowhere (SUBSCRIBERS_TABLE)" in outcome.message


def test_after_the_end_the_license_is_out_of_every_flush(world):
    world.put(a_deprovisioning(OVER), a_usage(0, "1"))
    world.finalize()
    assert world.flush().shown["planned"]["windows"] == 0
    assert world.row_statuses() == {"pending": 1}


def test_an_updated_at_that_is_null_keeps_no_window_open(world):
    world.put(a_deprovisioning("no instant", updatedAt={"NULL": True}))
    assert world.finalize().success
    assert world.item(a_subscriber())["subscriptionStatus"] == "inactive"
