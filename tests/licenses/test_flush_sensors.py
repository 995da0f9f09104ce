"""The sensors of the flush window ask for a run where there is something to do, and say why where there is not."""

import threading
from pathlib import Path

import dagster as dg
import pytest
import yaml

from metering_dagster.core.errors import SettingsError
from metering_dagster.definitions import build_defs
from metering_dagster.licenses.defs import flush_sensors
from metering_dagster.settings import Mode, Settings
from tests.items import LICENSE, OTHER_LICENSE, a_deprovisioning, a_usage, an_aggregate
from tests.world import World

EXPIRY = "2026-11-28T13:15:00Z"
FLUSH, FINALIZER = "deprovisioning_flush", "deprovisioned_finalizer"
JOBS = {FLUSH: "flush_deprovisioning", FINALIZER: "finalize_deprovisioned"}


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as ours:
        yield ours


def tick(world: World, instance: dg.DagsterInstance, name: str) -> str | None:
    """Why the sensor asks for no run; None where it asks for one, which names nobody."""
    defs = build_defs(settings=world.settings, resources={"metering": world.deployment})
    sensor = defs.get_repository_def().get_sensor_def(name)
    with dg.build_sensor_context(instance=instance, resources={"metering": world.deployment}) as context:
        answer = sensor(context)
    if isinstance(answer, dg.SkipReason):
        assert not [secret for secret in world.secrets if secret in answer.skip_message]
        return answer.skip_message
    assert (answer.run_config, answer.tags, answer.partition_key) == ({}, {}, None)
    return None


def test_the_sensors_by_name_interval_and_status():
    found = {sensor.name: sensor for sensor in build_defs(settings=Settings()).sensors if sensor.name in JOBS}
    assert {name: sensor.job_name for name, sensor in found.items()} == JOBS
    assert {name: sensor.minimum_interval_seconds for name, sensor in found.items()} == {FLUSH: 300, FINALIZER: 900}
    assert {sensor.default_status for sensor in found.values()} == {dg.DefaultSensorStatus.STOPPED}


def test_interval_and_status_come_from_the_settings():
    defs = build_defs(settings=Settings(flush_seconds=5, finalize_seconds=7, running=True))
    found = {sensor.name: sensor for sensor in defs.sensors if sensor.name in JOBS}
    assert {name: sensor.minimum_interval_seconds for name, sensor in found.items()} == {FLUSH: 5, FINALIZER: 7}
    assert {sensor.default_status for sensor in found.values()} == {dg.DefaultSensorStatus.RUNNING}


@pytest.mark.parametrize("name", JOBS)
def test_without_an_open_window_there_is_nothing_to_do(world, instance, name):
    world.put(a_usage(0, "1"))
    assert tick(world, instance, name) == "No license is deprovisioning."


@pytest.mark.parametrize("pending", [a_usage(0, "1"), an_aggregate("1")], ids=["a raw row", "an aggregate"])
def test_something_pending_of_a_deprovisioning_license_asks_for_a_flush(world, instance, pending):
    world.put(a_deprovisioning(EXPIRY), pending)
    assert tick(world, instance, FLUSH) is None


@pytest.mark.parametrize("pending", [
    a_usage(0, "1", license=OTHER_LICENSE), a_usage(0, "1", account="777788889999"),
    a_usage(0, "1", hour="2026-11-28T12"),
    a_usage(0, "1", hour="2026-11-27T12"),
], ids=["another license's", "another account's", "the current hour's", "an hour's that is past"])  # fmt: skip
def test_nothing_that_may_go_asks_for_none(world, instance, pending):
    world.put(a_deprovisioning(EXPIRY), pending)
    assert tick(world, instance, FLUSH) == "Licenses deprovisioning: 1. Nothing of them is pending that may go now."


def test_one_row_among_many_of_other_accounts_is_found(world, instance):
    others = [a_usage(second, "1", account=f"{number:012}") for number in range(30) for second in range(10)]
    world.put(a_deprovisioning(EXPIRY), *others)
    assert tick(world, instance, FLUSH) is not None
    world.put(a_usage(0, "1"))
    assert tick(world, instance, FLUSH) is None


def test_a_window_that_is_over_asks_for_its_closing(world, instance):
    world.put(a_deprovisioning(EXPIRY))
    assert tick(world, instance, FINALIZER) == "Licenses deprovisioning: 1. The window of none of them is over."
    world.at(EXPIRY)
    assert tick(world, instance, FINALIZER) is None


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED])
def test_one_run_at_a_time(world, instance, name, status):
    world.put(a_deprovisioning("2026-11-28T12:00:00Z"), a_usage(0, "1"))
    assert tick(world, instance, name) is None
    instance.create_run_for_job(build_defs(settings=world.settings).resolve_job_def(JOBS[name]), status=status)
    assert "queued or under way" in tick(world, instance, name)


@pytest.mark.parametrize("name", JOBS)
def test_a_look_that_fails_asks_for_the_run(world, instance, name):
    world.configure(subscribers_table="nowhere")
    assert tick(world, instance, name) is None


def test_a_search_that_fails_asks_for_the_run(world, instance):
    world.put(a_deprovisioning(EXPIRY))
    world.configure(usage_table="nowhere")
    assert tick(world, instance, FLUSH) is None


def test_a_look_that_takes_too_long_asks_for_the_run(world, instance, monkeypatch):
    world.put(a_deprovisioning(EXPIRY))
    monkeypatch.setattr(flush_sensors, "LOOK_SECONDS", 0.5)
    answered = threading.Event()
    events = world.deployment.probe.rows.client.meta.events
    events.register("before-call.dynamodb.Query", lambda **_: answered.wait(30) and None)
    try:
        assert tick(world, instance, FLUSH) is None
    finally:
        answered.set()


def test_shadow_mode_flushes_and_closes_nothing(world, instance):
    world.configure(mode=Mode.SHADOW)
    world.put(a_deprovisioning("2026-11-28T12:00:00Z"), a_usage(0, "1"))
    assert tick(world, instance, FLUSH) is None
    assert "Shadow mode writes to no table" in tick(world, instance, FINALIZER)


@pytest.mark.parametrize("name", JOBS)
def test_a_missing_setting_fails_the_tick_and_is_named(world, instance, name):
    world.configure(subscribers_table=None)
    with pytest.raises(SettingsError, match="SUBSCRIBERS_TABLE"):
        tick(world, instance, name)


def test_what_a_sensor_asks_for_is_in_the_lane_that_always_finds_a_place():
    defs = build_defs(settings=Settings())
    tags = {name: defs.resolve_job_def(name).tags for name in JOBS.values()}
    assert tags == {
        "flush_deprovisioning": {
            "metering/lane": "deprovision",
            "dagster/priority": "100",
            "dagster/max_runtime": "600",
        },
        "finalize_deprovisioned": {
            "metering/lane": "deprovision",
            "dagster/priority": "90",
            "dagster/max_runtime": "600",
        },
    }


def test_a_flush_that_was_asked_for_leaves_nothing_to_ask_for(world, instance):
    world.put(a_deprovisioning(EXPIRY), a_usage(0, "1"))
    world.flush(instance=instance)
    assert LICENSE in world.secrets
    assert tick(world, instance, FLUSH) == "Licenses deprovisioning: 1. Nothing of them is pending that may go now."


def test_the_other_lanes_together_leave_three_places_in_the_queue():
    runs = yaml.safe_load((Path(__file__).parents[2] / "dagster.yaml").read_text())["concurrency"]["runs"]
    limits = [limit for limit in runs["tag_concurrency_limits"] if limit["key"] != "dagster/partition"]
    assert sum(limit["limit"] for limit in limits) + 3 <= runs["max_concurrent_runs"]
    assert "deprovision" not in [limit.get("value") for limit in limits]
    words = " + ".join(f"{limit['limit']} {limit.get('value', 'backfills')}" for limit in limits)
    places = sum(limit["limit"] for limit in limits) + 3
    documented = " ".join((Path(__file__).parents[2] / "docs" / "licenses.md").read_text().split())
    assert f"{words} + 3 = {places} of {runs['max_concurrent_runs']}." in documented
