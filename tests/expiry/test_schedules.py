"""The seven schedules against a real instance and real tables: what each tick asks for."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from metering_dagster.core import hours
from metering_dagster.core.errors import SettingsError
from metering_dagster.definitions import build_defs
from metering_dagster.expiry.defs.schedules import age_out_schedules, answer
from metering_dagster.settings import Settings
from tests.expiry.sweeping import OLD, SHARD, age_out
from tests.items import a_usage, an_aggregate
from tests.world import World

SCHEDULES = age_out_schedules(Settings())


def tick(world: World, instance, shard: int, at: str | None = None) -> dg.RunRequest | str:
    """What the shard's schedule answers: the run that it asks for, or why it asks for none."""
    if at:
        world.at(at)
    if world.settings.frozen_now is not None:
        world.configure(frozen_now=None)
    schedule = SCHEDULES[shard]
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=world.clock.now, resources={"metering": world.deployment}
    ) as context:
        answered = schedule(context)
    return answered.skip_message if isinstance(answered, dg.SkipReason) else answered


def config_of(request: dg.RunRequest) -> dict:
    return request.run_config["ops"]["expired_usage"]["config"]


def carry_out(world: World, instance, request: dg.RunRequest):
    """Make the run that was asked for."""
    return age_out(world, request.partition_key, **config_of(request), instance=instance, tags=request.tags)


def test_the_schedules_by_name_cron_and_slice():
    found = {s.name: s for s in build_defs(settings=Settings()).schedules if s.name.startswith("age_out")}
    assert sorted(found) == [f"age_out_shard_{shard}" for shard in range(7)]
    for name, schedule in found.items():
        assert schedule.cron_schedule == "0 * * * *"
        assert schedule.execution_timezone == "UTC"
        assert schedule.default_status is dg.DefaultScheduleStatus.STOPPED
        assert schedule.job_name == "age_out"
        assert schedule.tags["metering/lane"] == "expiry"
        assert schedule.tags["metering/shard"] == name[-1]
    other = build_defs(settings=Settings(cron="* * * * *", running=True))
    for schedule in other.schedules:
        if schedule.name.startswith("age_out"):
            assert schedule.cron_schedule == "* * * * *"
            assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING


@pytest.mark.parametrize("item", [a_usage(0, "1", hour=OLD), an_aggregate("4", hour=OLD)], ids=["row", "record"])
def test_what_is_pending_in_either_table_is_work(world, instance, item):
    assert "Nothing is pending" in tick(world, instance, SHARD)
    world.put(item)
    request = tick(world, instance, SHARD)
    assert request.partition_key == str(SHARD)
    assert request.tags == {"metering/lane": "expiry", "metering/shard": str(SHARD)}
    assert config_of(request) == {"whole": False, "as_of": "2026-11-28T12"}
    assert carry_out(world, instance, request).metadata["dagster/partition_row_count"] == 1
    assert "Nothing is pending" in tick(world, instance, SHARD)


def test_what_lies_behind_the_newest_six_hours_waits_for_the_whole_sweep(world, instance):
    far = hours.bucket(hours.shard_hours(SHARD, world.clock.now)[6])
    world.put(a_usage(0, "1", hour=far))
    assert "Nothing is pending" in tick(world, instance, SHARD)


def test_the_whole_sweep_is_asked_for_once_though_the_tick_comes_every_minute(world, instance):
    request = tick(world, instance, 3, "2026-11-28T12:00:00Z")
    assert request.tags["metering/whole_sweep"] == "2026-11-28"
    assert config_of(request) == {"whole": True, "as_of": "2026-11-28T12"}
    job = build_defs(settings=world.settings).resolve_job_def("age_out")
    tags = {"dagster/partition": "3", **request.tags}
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=tags)
    assert tick(world, instance, 3, "2026-11-28T12:01:00Z") == "A run of shard 3 is queued or under way."
    instance.report_run_failed(run)
    assert config_of(tick(world, instance, 3, "2026-11-28T12:02:00Z"))["whole"], "a failed one is none"
    again = instance.create_run_for_job(job, status=dg.DagsterRunStatus.SUCCESS, tags=tags)
    assert again
    assert "Nothing is pending" in tick(world, instance, 3, "2026-11-28T12:03:00Z")


def test_a_whole_sweep_that_fails_three_times_a_day_is_left_to_the_next_day(world, instance):
    job = build_defs(settings=world.settings).resolve_job_def("age_out")
    for failures in range(4):
        answered = tick(world, instance, 3, "2026-11-28T12:00:00Z")
        assert isinstance(answered, dg.RunRequest) is (failures < 3)
        tags = {"dagster/partition": "3", "metering/whole_sweep": "2026-11-28"}
        instance.create_run_for_job(job, status=dg.DagsterRunStatus.FAILURE, tags=tags)
    assert config_of(tick(world, instance, 3, "2026-11-29T12:00:00Z"))["whole"]


def test_a_missed_whole_sweep_is_made_up_for(world, instance):
    job = build_defs(settings=world.settings).resolve_job_def("age_out")
    assert "Nothing is pending" in tick(world, instance, 3, "2026-11-28T13:00:00Z")
    tags = {"dagster/partition": "3", "metering/whole_sweep": "2026-11-26"}
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.SUCCESS, tags=tags)
    request = tick(world, instance, 3, "2026-11-28T13:00:00Z")
    assert request.tags["metering/whole_sweep"] == "2026-11-28"
    assert config_of(request) == {"whole": True, "as_of": "2026-11-28T12"}


def test_another_shards_run_holds_nobody_up(world, instance):
    world.put(a_usage(0, "1", hour=OLD))
    job = build_defs(settings=world.settings).resolve_job_def("age_out")
    instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags={"dagster/partition": "3"})
    assert isinstance(tick(world, instance, SHARD), dg.RunRequest)


def test_a_probe_that_cannot_tell_asks_for_the_run(world, instance):
    world.configure(usage_table="no-such-table")
    assert isinstance(tick(world, instance, SHARD), dg.RunRequest)


def test_a_missing_setting_fails_the_tick_and_is_named(world, instance):
    world.configure(usage_table=None)
    with pytest.raises(SettingsError, match="USAGE_TABLE"):
        tick(world, instance, SHARD)


def test_a_frozen_clock_is_the_ticks_clock_too(world, instance):
    world.put(a_usage(0, "1", hour=OLD))
    later = datetime(2026, 12, 24, 1, 0, tzinfo=UTC)
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=later, resources={"metering": world.deployment}
    ) as context:
        assert config_of(SCHEDULES[SHARD](context))["as_of"] == "2026-11-28T12"


@pytest.mark.case("stale_behind_a_gap")
def test_what_is_stale_behind_a_gap_expires_within_a_day_of_hourly_ticks(world, monkeypatch):
    monkeypatch.setattr(hours, "OLDEST_OFFSET", 30 * 24)  # days enough for the gap; 400 would take a minute
    world.configure(frozen_now=None)
    midnight = datetime(2026, 11, 29, tzinfo=UTC)
    near, far = (hours.bucket(midnight - timedelta(hours=n)) for n in (30, 9 * 24))
    world.put(a_usage(0, "1", hour=near), a_usage(0, "2", hour=far))
    expired = []
    with dg.DagsterInstance.ephemeral() as instance:
        for now in (midnight + timedelta(hours=n) for n in range(24)):
            world.at(now.isoformat())
            for shard in range(7):
                asked = answer(instance, world.deployment, shard, now)
                if isinstance(asked, dg.RunRequest):
                    expired.append(carry_out(world, instance, asked).metadata["expired_rows"])
    assert world.row_statuses() == {"AggregationExpired": 2}
    assert sum(expired) == 2
    assert len(expired) == 8  # a whole sweep of each shard, and the one that the near row asked for
