"""The 24 schedules: what is there, and what their ticks do beside a real instance and real tables."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from metering_dagster.core import hours
from metering_dagster.core.errors import SettingsError
from metering_dagster.definitions import build_defs
from metering_dagster.settings import Mode, Settings
from tests.items import HOUR, a_usage, an_aggregate
from tests.world import World


def evaluate(world: World, instance: dg.DagsterInstance, name: str, tick_at: datetime) -> list[dg.RunRequest] | str:
    """What the schedule answers to a tick: the runs that it asks for, or why it asks for none."""
    defs = build_defs(settings=world.settings, resources={"metering": world.deployment})
    schedule = defs.get_repository_def().get_schedule_def(name)
    with (
        dg.partition_loading_context(effective_dt=world.clock.now),
        dg.build_schedule_context(
            instance=instance, scheduled_execution_time=tick_at, resources={"metering": world.deployment}
        ) as context,
    ):
        answer = schedule(context)
    return answer.skip_message if isinstance(answer, dg.SkipReason) else list(answer)


def tick(world: World, instance: dg.DagsterInstance, name: str) -> tuple[list[dg.RunRequest], str]:
    """What a schedule does at the world's instant, by the tick's own time and not by a frozen clock."""
    world.configure(frozen_now=None)
    answer = evaluate(world, instance, name, world.clock.now.replace(minute=0))
    return ([], answer) if isinstance(answer, str) else (answer, "")


def test_the_schedules_by_name_cron_and_slice():
    defs = build_defs(settings=Settings())
    found = {schedule.name: schedule for schedule in defs.schedules if not schedule.name.startswith("age_out_")}
    assert sorted(found) == [*(f"meter_offset_{n:02d}" for n in range(1, 24)), "metering_report_daily"]
    for name, schedule in found.items():
        assert schedule.execution_timezone == "UTC"
        assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
        report = name == "metering_report_daily"
        assert schedule.cron_schedule == ("50 * * * *" if report else "0 * * * *")
        assert schedule.job_name == ("refresh_report" if report else "meter_hour")
        assert schedule.tags["metering/lane"] == "regular"
        if not report:
            assert schedule.tags["metering/offset"] == str(int(name[-2:]))


def test_cron_and_status_come_from_the_settings():
    defs = build_defs(settings=Settings(cron="* * * * *", running=True))
    for schedule in defs.schedules:
        assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
        assert schedule.cron_schedule == ("50 * * * *" if "report" in schedule.name else "* * * * *")


def test_together_the_offsets_ask_for_each_of_the_last_23_hours_once(world: World, instance):
    now = world.clock.now
    buckets = [hours.bucket(hours.hour_at_offset(now, n)) for n in range(1, 24)]
    world.put(*(a_usage(0, "1", hour=bucket) for bucket in buckets))
    asked = [request for n in range(1, 24) for request in tick(world, instance, f"meter_offset_{n:02d}")[0]]
    assert [request.partition_key for request in asked] == buckets
    assert [request.tags["metering/offset"] for request in asked] == [str(n) for n in range(1, 24)]
    assert {request.tags["metering/lane"] for request in asked} == {"regular"}


def test_a_tick_with_nothing_to_do_is_skipped_with_its_reason(world: World, instance):
    assert tick(world, instance, "meter_offset_05") == ([], "Nothing is pending in 2026-11-28T07.")


def test_a_metered_hour_is_closed_and_skipped_even_at_the_offset_that_opens_it(world: World, instance):
    world.put(a_usage(0, "1"))
    assert tick(world, instance, "meter_offset_02")[0]
    world.meter(instance=instance)
    assert tick(world, instance, "meter_offset_02") == (
        [], "2026-11-28T10 is closed: it was metered, and nothing is pending in it.",
    )  # fmt: skip


def test_a_late_row_opens_a_closed_hour_again(world: World, instance):
    world.put(a_usage(0, "1"))
    world.meter(instance=instance)
    world.put(a_usage(1, "1"))
    assert [request.partition_key for request in tick(world, instance, "meter_offset_02")[0]] == [HOUR]


def test_held_rows_are_left_alone_until_one_is_mended(world: World, instance):
    world.put(a_usage(0, "1"), a_usage(1, "1"), a_usage(2, {"S": "abc"}))
    world.meter(instance=instance)
    asked, reason = tick(world, instance, "meter_offset_02")
    assert not asked
    assert "2 rows of 2026-11-28T10 are held" in reason
    world.put(a_usage(2, "1"))
    assert tick(world, instance, "meter_offset_02")[0]


@pytest.mark.parametrize("held", [2.5, "two", None, 10**40, -1, {"a": {"b": 2}}])
def test_a_hand_written_count_of_held_rows_is_unknown_and_what_is_pending_gets_a_run(world: World, instance, held):
    world.put(a_usage(0, "1"), a_usage(1, "1"), a_usage(2, {"S": "abc"}))
    world.meter(instance=instance)
    assert not tick(world, instance, "meter_offset_02")[0]
    instance.report_runless_asset_event(
        dg.AssetMaterialization("aggregated_usage", partition=HOUR, metadata={"held_rows": held})
    )
    assert [request.partition_key for request in tick(world, instance, "meter_offset_02")[0]] == [HOUR]


def test_held_rows_go_at_the_last_call(world: World, instance):
    world.put(a_usage(0, "1"), a_usage(2, {"S": "abc"}))
    world.meter(instance=instance)
    world.at("2026-11-29T08:20:00Z")
    assert tick(world, instance, "meter_offset_22")[0]


def test_a_direct_submit_is_work(world: World, instance):
    world.put(an_aggregate("4"))
    assert tick(world, instance, "meter_offset_02")[0]


def test_a_run_of_the_hour_that_is_under_way_is_enough(world: World, instance):
    world.put(a_usage(0, "1"))
    instance.create_run_for_job(
        build_defs(settings=world.settings).resolve_job_def("meter_hour"),
        status=dg.DagsterRunStatus.STARTED,
        tags={"dagster/partition": HOUR},
    )
    assert tick(world, instance, "meter_offset_02") == ([], "A run of 2026-11-28T10 is queued or under way.")


def test_the_last_offset_asks_for_the_graces_hours(world: World, instance):
    world.at("2026-12-01T03:20:00Z")
    old = [hours.bucket(hours.hour_at_offset(world.clock.now, n)) for n in (24, 27)]
    world.put(*(a_usage(0, "1", hour=bucket) for bucket in old))
    asked = tick(world, instance, "meter_offset_23")[0]
    assert set(old) <= {request.partition_key for request in asked}
    assert len(asked) == 7  # in the grace every hour that no run has closed is asked for


def test_a_probe_that_cannot_tell_asks_for_the_run(world: World, instance):
    world.configure(usage_table="no-such-table")
    asked, _ = tick(world, instance, "meter_offset_05")
    assert [request.partition_key for request in asked] == ["2026-11-28T07"]


def test_a_missing_setting_fails_the_tick_and_is_named(world: World, instance):
    world.configure(usage_table=None, mode=None)
    with pytest.raises(SettingsError) as failed:
        tick(world, instance, "meter_offset_05")
    told = str(failed.value)
    assert "USAGE_TABLE" in told
    assert "METERING_MODE" in told


def test_an_hour_before_the_first_partition_is_skipped(world: World, instance):
    world.at("2026-01-01T05:10:00Z")
    asked, reason = tick(world, instance, "meter_offset_10")
    assert not asked
    assert "before the first partition" in reason


def test_two_ticks_of_one_hour_have_run_keys_of_their_own(world: World, instance):
    world.put(a_usage(0, "1"))
    first = tick(world, instance, "meter_offset_02")[0][0].run_key
    assert tick(world, instance, "meter_offset_02")[0][0].run_key == first
    world.clock.now += timedelta(hours=1)
    assert tick(world, instance, "meter_offset_03")[0][0].run_key != first


def test_a_frozen_clock_is_the_ticks_clock_too(world: World, instance):
    world.put(a_usage(0, "1"))
    asked = evaluate(world, instance, "meter_offset_02", datetime(2026, 11, 29, 23, 0, tzinfo=UTC))
    assert [request.partition_key for request in asked] == [HOUR]


def test_the_oldest_hour_goes_first(world: World, instance):
    world.put(a_usage(0, "1", hour="2026-11-27T13"), a_usage(0, "1"))
    old, young = (tick(world, instance, f"meter_offset_{n:02d}")[0][0].tags["dagster/priority"] for n in (23, 2))
    assert int(old) > int(young)


def test_what_arrives_while_a_run_is_under_way_is_work_for_the_next_tick(world: World, instance):
    world.put(a_usage(0, "1"))
    events = world.deployment.tables.aggregated.client.meta.events
    late = iter([a_usage(0, "1", dimension="meanwhile")])
    events.register("after-call.dynamodb.TransactWriteItems", lambda **_: [world.put(item) for item in late])
    world.meter(instance=instance)
    assert world.row_statuses()["pending"] == 1
    assert tick(world, instance, "meter_offset_02")[0]


def test_a_shadow_run_has_closed_nothing_for_a_live_tick(world: World, instance):
    world.configure(mode=Mode.SHADOW)
    world.put(a_usage(0, "1"))
    world.meter(instance=instance)
    world.configure(mode=Mode.LIVE)
    assert tick(world, instance, "meter_offset_02")[0]
