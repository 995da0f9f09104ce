"""The sensor: a run when something waits, none beside another, and a reason whenever there is none."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent

from metering_dagster.definitions import build_defs
from metering_dagster.licenses.defs import event_sensor
from metering_dagster.settings import Mode, Settings
from tests.licenses.bodies import a_body
from tests.licenses.events_world import JOB, EventsWorld

TAGS = {"metering/lane": "deprovision", "dagster/priority": "100", "dagster/max_runtime": "600"}


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance in which nothing has run."""
    with dg.DagsterInstance.ephemeral() as ours:
        yield ours


def look(events: EventsWorld, instance: dg.DagsterInstance) -> dg.RunRequest | str:
    """What the sensor answers: a request, or its reason for none."""
    world = events.world
    defs = build_defs(settings=world.settings, resources={"metering": world.deployment})
    context = dg.build_sensor_context(instance=instance, resources={"metering": world.deployment})
    answer = defs.resolve_sensor_def("marketplace_events")(context)
    return str(answer.skip_message) if isinstance(answer, dg.SkipReason) else answer


def test_something_in_the_queue_asks_for_a_run(events, instance):
    events.send(a_body())
    asked = look(events, instance)
    assert (asked.run_key, dict(asked.tags)) == (None, TAGS)
    assert events.waiting() == 1, "a look receives nothing"


def test_an_empty_queue_asks_for_none(events, instance):
    assert look(events, instance) == "Nothing waits in the queue; 0 messages were received and not deleted yet."


def test_what_is_in_other_hands_is_said(events, instance):
    events.send(a_body())
    events.receive()
    assert "1 messages were received and not deleted yet" in look(events, instance)


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTED", "CANCELING"])
def test_no_run_is_asked_for_beside_another(events, instance, status):
    events.send(a_body())
    job = build_defs(settings=events.world.settings).resolve_job_def(JOB)
    instance.create_run_for_job(job, status=dg.DagsterRunStatus[status])
    assert look(events, instance) == "A run that applies events is queued or under way."


def test_a_run_that_is_over_is_followed_by_the_next(events, instance):
    events.send(a_body())
    assert events.run(instance).success
    events.send(a_body())
    assert isinstance(look(events, instance), dg.RunRequest)


def test_after_a_failed_run_there_is_a_pause(events, instance, monkeypatch):
    events.send(a_body())
    table = events.world.names["subscribers"]
    events.world.configure(subscribers_table="nowhere")
    assert not events.run(instance).success
    events.world.configure(subscribers_table=table)
    assert "The last run failed; the next is asked for from" in look(events, instance)
    monkeypatch.setattr(event_sensor, "PAUSE_AFTER_FAILURE", timedelta(0))
    assert isinstance(look(events, instance), dg.RunRequest)


def test_a_failure_that_is_stamped_far_ahead_is_not_waited_for(events, instance):
    events.send(a_body())
    job = build_defs(settings=events.world.settings).resolve_job_def(JOB)
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    event = DagsterEvent(dg.DagsterEventType.RUN_FAILURE.value, JOB)
    ahead = datetime(2099, 1, 1, tzinfo=UTC).timestamp()
    instance.report_dagster_event(event, run.run_id, timestamp=ahead)
    assert isinstance(look(events, instance), dg.RunRequest)


def test_a_look_that_fails_asks_for_one_run_in_the_hour(events, instance):
    events.world.configure(events_queue_url=f"{events.url}-gone")
    before = datetime.now(UTC)
    keys = {look(events, instance).run_key for _ in range(2)}
    hours = {f"queue_not_read@{at:%Y-%m-%dT%H}" for at in (before, datetime.now(UTC))}
    assert keys <= hours
    outcome = events.run(instance)
    assert not outcome.success
    assert "There is no queue" in outcome.message


def test_a_queue_that_is_not_named_is_said(events, instance):
    events.world.configure(events_queue_url=None)
    assert look(events, instance) == "MARKETPLACE_EVENTS_QUEUE_URL is not set: no lifecycle events are read."


def test_shadow_takes_nothing_away(events, instance):
    events.send(a_body())
    events.world.configure(mode=Mode.SHADOW)
    assert "METERING_MODE=shadow" in look(events, instance)


@pytest.mark.parametrize(("settings", "seconds", "status"), [
    (Settings(), 60, "STOPPED"), (Settings(running=True, events_seconds=5), 5, "RUNNING"),
])  # fmt: skip
def test_interval_and_status_are_as_the_settings_say(settings, seconds, status):
    sensor = build_defs(settings=settings).resolve_sensor_def("marketplace_events")
    assert sensor.minimum_interval_seconds == seconds
    assert sensor.default_status is dg.DefaultSensorStatus[status]
    assert sensor.job_name == JOB
