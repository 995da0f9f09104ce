"""A flush bills what a deprovisioning license used, in time, and touches nobody else."""

import pytest

from metering_dagster.devstack.sandbox import faults
from metering_dagster.ledger.rules.entries import EntryKind
from metering_dagster.ledger.stores.files import Ledger
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

EXPIRY = "2026-11-28T13:15:00Z"
"""Of a window that is open at the world's instant, 12:20, and far from its end."""
LAST_MINUTES = "2026-11-28T13:06:00Z"
LAST_HOUR, CURRENT_HOUR = "2026-11-28T11", "2026-11-28T12"


def billed_hours(world: World) -> list[str]:
    return sorted(record.hour for record in world.bill())


@pytest.mark.case("deprovision_in_time")
def test_what_a_license_used_last_is_billed_before_its_window_closes(world):
    world.configure(lock_hours=6)
    # The marketplace knows the deprovisioning as well: an hour later it takes nothing more.
    world.put(a_deprovisioning("2026-11-28T15:20:00Z"), a_subscriber(OTHER_LICENSE, OTHER_ACCOUNT))
    others = [
        a_usage(0, "1", license=OTHER_LICENSE, account=OTHER_ACCOUNT, hour=f"2026-11-28T{h}") for h in (12, 13, 14)
    ]
    world.put(*others)
    usage = {"13:10": "1", "14:05": "2", "15:12": "4"}
    seen = {}
    minutes = [h * 60 + m for h in (14, 15) for m in range(0, 60, 5) if 14 * 60 + 20 <= h * 60 + m < 15 * 60 + 20]
    for minute in minutes:
        clock = f"{minute // 60}:{minute % 60:02}"
        for at in [at for at in usage if at <= clock]:
            hour, past = at.split(":")
            world.put(a_usage(int(past) * 60, usage.pop(at), hour=f"2026-11-28T{hour}"))
        world.at(f"2026-11-28T{clock}:00Z")
        assert world.flush().success
        for record in world.bill():
            seen.setdefault(record.hour, clock)
    assert seen["2026-11-28T13"] <= "14:30"
    assert "15:00" <= seen["2026-11-28T14"] <= "15:10"
    assert "15:12" <= seen["2026-11-28T15"] < "15:20"
    assert {record.license_arn for record in world.bill()} == {LICENSE}
    assert sorted((record.hour[-2:], record.quantity) for record in world.bill()) == [
        ("13", "1"),
        ("14", "2"),
        ("15", "4"),
    ]
    assert [world.item(item).get("meteringPending") for item in others] == [f"2026-11-28T{h}" for h in (12, 13, 14)]


def test_every_billable_hour_goes_at_once_lock_or_no_lock(world):
    world.configure(lock_hours=20)
    hours = ["2026-11-27T13", "2026-11-28T04", HOUR, LAST_HOUR]
    world.put(
        a_deprovisioning(EXPIRY), *(a_usage(0, "1", hour=hour) for hour in (*hours, "2026-11-27T12", CURRENT_HOUR))
    )
    world.put(an_aggregate("5", hour=LAST_HOUR, dimension="direct"))
    outcome = world.flush()
    assert outcome.success
    assert billed_hours(world) == sorted([*hours, LAST_HOUR])
    assert world.row_statuses() == {"Aggregated": 4, "pending": 2}
    assert set(outcome.observed) == set(hours)


def test_an_hour_that_was_flushed_is_observed_and_not_materialized(world):
    world.put(a_deprovisioning(EXPIRY), *some_usage("1", "2"))
    outcome = world.flush()
    assert outcome.metadata == {}
    assert outcome.evaluations == ()
    assert outcome.observed[HOUR]["billed_quantity"] == 3
    assert outcome.observed[HOUR]["pending_rows_after"] == 0
    assert outcome.shown["planned"] == {
        "mode": "live", "windows": 1, "unreadable_expiries": 0, "hours_looked_at": 23, "hours_with_pending": 1,
    }  # fmt: skip
    assert outcome.tags["metering/lane"] == "deprovision"
    assert outcome.tags["dagster/priority"] == "100"
    (entry,) = Ledger(world.settings.ledger_uri).read_hour(HOUR)
    assert (entry.outcome, entry.license_arn, entry.quantity) == ("Success", LICENSE, 3)


def test_others_are_left_alone_be_it_in_the_same_hour_or_of_the_same_license(world):
    theirs = [
        a_usage(0, "1", license=OTHER_LICENSE), a_usage(0, "1", account=OTHER_ACCOUNT),
        a_usage(0, "1", account=OTHER_ACCOUNT, sort_key=f"{OTHER_ACCOUNT}#d#never"),
        a_usage(0, "1", sort_key="no key at all"),
        an_aggregate("7", license=OTHER_LICENSE), an_aggregate("7", account=OTHER_ACCOUNT),
    ]  # fmt: skip
    world.put(a_deprovisioning(EXPIRY), *theirs, a_usage(0, "1"))
    before = [world.item(item) for item in theirs]
    outcome = world.flush()
    assert [world.item(item) for item in theirs] == before
    assert [(record.license_arn, record.customer_aws_account_id) for record in world.bill()] == [(LICENSE, ACCOUNT)]
    assert outcome.observed[HOUR]["pending_rows_after"] == outcome.observed[HOUR]["pending_aggregates_after"] == 0


def test_a_direct_submit_that_names_its_account_in_its_key_alone_is_flushed(world):
    world.put(a_deprovisioning(EXPIRY), an_aggregate("7", customerAWSAccountId=None))
    assert world.flush().observed[HOUR]["billed_quantity"] == 7


def test_the_current_hour_goes_in_the_last_ten_minutes_only(world):
    world.put(a_deprovisioning(EXPIRY), a_usage(0, "1", hour="2026-11-28T13"))
    world.at("2026-11-28T13:04:59Z")
    assert world.flush().observed == {}
    world.at("2026-11-28T13:05:00Z")
    assert set(world.flush().observed) == {"2026-11-28T13"}
    assert billed_hours(world) == ["2026-11-28T13"]


def test_of_the_current_hour_those_alone_go_whose_window_is_about_to_close(world):
    world.put(a_deprovisioning(EXPIRY), a_deprovisioning("2026-11-28T13:55:00Z", OTHER_LICENSE))
    world.put(*(a_usage(0, "1", license=license, hour="2026-11-28T13") for license in (LICENSE, OTHER_LICENSE)))
    world.at(LAST_MINUTES)
    assert world.flush().success
    assert [record.license_arn for record in world.bill()] == [LICENSE]


@pytest.mark.parametrize("expiry", ["soon", "2026-11-28T13:15:00", "9999-12-31T23:59:59-12:00", "13:15"])
def test_an_expiry_that_is_no_instant_keeps_the_current_hour_out_and_no_other(world, expiry):
    world.put(a_deprovisioning(expiry), a_usage(0, "1", hour=CURRENT_HOUR), a_usage(0, "1", hour=LAST_HOUR))
    outcome = world.flush()
    assert billed_hours(world) == [LAST_HOUR]
    assert outcome.shown["planned"]["unreadable_expiries"] == 1
    assert "no instant" in outcome.said


def test_held_and_zero_groups_go_at_the_last_call_of_their_license(world):
    world.put(a_deprovisioning(EXPIRY), a_usage(0, "1"), a_usage(1, {"S": "abc"}), a_usage(0, "0", dimension="zero"))
    assert world.flush().observed[HOUR]["pending_rows_after"] == 2
    assert world.bill() == []
    world.at(LAST_MINUTES)
    assert world.flush().success
    assert world.billed() == {"api_calls": "1", "zero": "0"}
    assert world.row_statuses() == {"Aggregated": 2, "RejectedClientSide": 1}


def test_what_goes_wrong_in_one_hour_stops_no_other(world):
    world.put(a_deprovisioning(EXPIRY))
    world.put(
        a_usage(0, "1", hour="2026-11-28T08"),
        a_usage(0, "1", dimension="bad", hour=HOUR),
        a_usage(0, "1", hour=LAST_HOUR),
    )
    world.sandbox.inject(faults.error("InternalServiceErrorException", dimension="bad"))
    outcome = world.flush()
    assert not outcome.success
    assert billed_hours(world) == ["2026-11-28T08", LAST_HOUR]
    (message,) = outcome.messages
    assert "1 records of 2026-11-28T10 are left" in message
    assert outcome.observed[HOUR]["left_pending"] == 1


def test_where_nobody_can_be_asked_who_is_deprovisioning_the_flush_fails_and_touches_nothing(world):
    world.put(a_deprovisioning(EXPIRY), a_usage(0, "1"))
    world.configure(subscribers_table="nowhere")
    before = world.dump()
    outcome = world.flush()
    assert "the subscribers table nowhere (SUBSCRIBERS_TABLE)" in outcome.message
    assert world.dump() == before
    assert world.calls() == []


def test_a_step_that_cannot_ask_any_more_fails_rather_than_take_everybody(world, monkeypatch):
    world.put(a_deprovisioning(EXPIRY), a_usage(0, "1"), a_usage(0, "1", license=OTHER_LICENSE))
    table = world.deployment.tables.subscribers
    answers = iter([table.name])
    whole = type(table).deprovisioning

    def once(self):
        self.name = next(answers, "gone")
        return whole(self)

    monkeypatch.setattr(type(table), "deprovisioning", once)
    outcome = world.flush()
    assert "there is no such table" in outcome.message
    assert world.row_statuses() == {"pending": 2}


def test_a_flush_of_nobody_is_green_and_does_nothing(world):
    world.put(a_subscriber(), a_usage(0, "1"))
    outcome = world.flush()
    assert outcome.success
    assert outcome.observed == {}
    assert world.row_statuses() == {"pending": 1}


def test_a_window_that_the_index_still_shows_though_it_is_closed_is_none(world):
    world.put(a_deprovisioning(EXPIRY), a_usage(0, "1"))
    events = world.deployment.tables.subscribers.client.meta.events
    closed = iter([a_subscriber(subscriptionStatus="inactive")])
    events.register("after-call.dynamodb.Query", lambda **_: [world.put(item) for item in closed])
    assert world.flush().shown["planned"]["windows"] == 0
    assert world.row_statuses() == {"pending": 1}


def test_a_shadow_flush_foretells_and_writes_to_no_table(world):
    world.configure(mode=Mode.SHADOW)
    world.put(a_deprovisioning(EXPIRY), *some_usage("1", "2"))
    before = world.dump()
    outcome = world.flush()
    assert outcome.success
    assert world.dump() == before
    assert outcome.observed[HOUR]["mode"] == "shadow"
    assert [entry.outcome for entry in Ledger(world.settings.ledger_uri).read_hour(HOUR)] == ["WouldBill"]


def test_a_flush_again_finds_nothing_more(world):
    world.put(a_deprovisioning(EXPIRY), *some_usage("1", "2"))
    world.flush()
    assert world.flush().observed == {}
    assert len(world.calls()) == 1
    world.judge()


def test_what_one_run_finds_of_an_hour_under_two_hours_is_all_in_the_ledger(world):
    older, newer, past = "2026-11-28T06", HOUR, "2026-11-26T10"
    world.put(a_deprovisioning(EXPIRY), a_usage(0, "1", hour=older), a_usage(0, "1", hour=newer))
    world.flush()
    world.put(
        a_usage(1, "2", hour=past, filed=older), a_usage(2, "4", hour=past, filed=newer),
        a_usage(3, "8", hour=older, filed=newer), a_usage(4, "16", hour=older),
    )  # fmt: skip
    assert world.flush().success
    ledger = Ledger(str(world.settings.ledger_uri))
    assert sorted(e.sort_key[-2:] for e in ledger.read_hour(past) if e.kind == EntryKind.ROW) == ["01", "02"]
    assert sorted(e.sort_key[-2:] for e in ledger.read_hour(older) if e.kind == EntryKind.ROW) == ["03", "04"]


def test_usage_that_comes_after_the_flush_of_its_group_fails_a_check_of_its_hour(world):
    world.put(a_deprovisioning(EXPIRY), a_usage(0, "1"))
    world.flush()
    world.put(a_usage(1, "7"))
    late = world.flush().elsewhere["no_late_usage"]
    assert (late.partition, late.passed, late.metadata["late_quantity"].value) == (HOUR, False, 7.0)
