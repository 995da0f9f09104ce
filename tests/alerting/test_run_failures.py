"""The sensor `run_failures` over a real instance, with runs that really failed, and a webhook that can be down."""

import json
import time
import uuid
from datetime import UTC, datetime

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from metering_dagster.alerting.defs import sensors
from metering_dagster.alerting.defs.run_failures import CodeLocation
from metering_dagster.alerting.defs.sensors import is_ours
from metering_dagster.alerting.rules.cursor import OVERLAP_SECONDS
from metering_dagster.core.dagster_partitions import FIRST_HOUR
from metering_dagster.core.errors import UndeliveredError
from metering_dagster.definitions import build_defs
from metering_dagster.settings import Settings
from tests.alerting.conftest import Watch
from tests.alerting.test_delivery import Topic
from tests.items import HOUR, LICENSE, a_usage
from tests.webhook import SECRET, Webhook

OTHER_HOUR = "2026-11-28T09"
AT_06_10 = "2026-11-29T06:10:00Z"
"""The hours 07 to 10 of the day before have less than four hours left."""


def changed(cursor: str | None, **values: object) -> str:
    return json.dumps(json.loads(cursor or "") | values)


def test_a_failed_run_is_told_once_with_hour_lane_cause_and_link(watch: Watch, webhook: Webhook):
    watch.a_failed_hour(HOUR)
    watch.tick()
    watch.tick()
    (told,) = webhook.runs
    run = watch.instance.get_runs(limit=1)[0]
    assert told["subject"] == "Metering: meter_hour failed for 2026-11-28T10"
    assert (told["hour"], told["lane"], told["job"], told["run"]) == (HOUR, "regular", "meter_hour", run.run_id)
    assert told["link"] == f"https://dagster.example.com/runs/{run.run_id}"
    assert told["cause"].startswith("the usage table no-such-table")
    assert "there is no such table" in told["cause"]
    assert "Traceback" not in told["text"]


def test_nothing_new_is_said_in_the_ticks_own_words(watch: Watch, webhook: Webhook):
    assert watch.tick() == "No run has failed."
    assert not webhook.runs


def test_a_license_that_the_cause_names_is_masked(watch: Watch, webhook: Webhook):
    watch.world.put(a_usage(0, "1"))
    watch.a_failed_run(f"refused: {LICENSE}")
    watch.tick()
    (told,) = webhook.runs
    assert told["license"] == "****cdef"
    said = json.dumps(webhook.taken) + (watch.cursor or "")
    assert not [secret for secret in watch.world.secrets if secret in said]


def test_what_failed_before_the_watch_began_is_no_news(watch: Watch, webhook: Webhook):
    watch.a_failed_run()
    watch.cursor = None
    assert "Watching starts now" in watch.tick()
    watch.tick()
    assert not webhook.runs


def test_two_failures_at_once_are_both_told(watch: Watch, webhook: Webhook):
    watch.a_failed_run(partition=HOUR)
    watch.a_failed_run(partition=OTHER_HOUR)
    watch.tick()
    assert sorted(taken["hour"] for taken in webhook.runs) == [OTHER_HOUR, HOUR]


def test_a_failure_that_was_stored_late_is_told_nevertheless(watch: Watch, webhook: Webhook):
    watch.cursor = changed(watch.cursor, start=0.0, newest=time.time() + OVERLAP_SECONDS / 2)
    watch.a_failed_run()
    watch.tick()
    assert len(webhook.runs) == 1


def test_a_run_that_was_killed_tells_who_ended_it(watch: Watch, webhook: Webhook):
    watch.a_failed_run(partition=HOUR)
    watch.tick()
    assert webhook.runs[0]["cause"] == "Exceeded maximum runtime of 3000 seconds."
    assert webhook.runs[0]["lane"] == "by hand"


def test_canceled_runs_and_those_that_are_retried_are_not_told(watch: Watch, webhook: Webhook):
    retried = watch.a_failed_run()
    watch.instance.add_run_tags(retried.run_id, {"dagster/will_retry": "true"})
    job = build_defs(settings=Settings()).resolve_job_def("meter_hour")
    canceled = watch.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    watch.instance.report_run_canceled(canceled)
    watch.tick()
    assert not webhook.runs


def test_a_retry_that_does_not_come_is_told_after_all(watch: Watch, webhook: Webhook):
    run = watch.a_failed_run()
    watch.instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    watch.tick()
    watch.instance.add_run_tags(run.run_id, {"dagster/will_retry": "false"})
    watch.tick()
    assert len(webhook.runs) == 1


def test_runs_of_other_code_locations_are_not_ours(watch: Watch, webhook: Webhook):
    theirs = RemoteJobOrigin(
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("somebody_else"), "__repository__"), "meter_hour"
    )
    run = dg.DagsterRun(
        job_name="meter_hour", run_id=str(uuid.uuid4()), status=dg.DagsterRunStatus.STARTED, remote_job_origin=theirs
    )
    watch.instance.add_run(run)
    watch.instance.report_run_failed(run)
    watch.tick()
    assert not webhook.runs


def test_a_webhook_that_was_down_hears_of_all_when_it_is_up_and_of_none_twice(watch: Watch, webhook: Webhook):
    webhook.status = 503
    watch.a_failed_run(partition=HOUR)
    assert "1 alerts wait" in watch.tick()
    watch.a_failed_run(partition=OTHER_HOUR)
    assert "2 alerts wait" in watch.tick()
    webhook.status = 200
    watch.tick()
    watch.tick()
    assert sorted(taken["hour"] for taken in webhook.runs) == [OTHER_HOUR, HOUR]


def test_an_alert_that_waits_fails_the_next_tick_without_naming_the_address(watch: Watch, webhook: Webhook):
    webhook.status = 503
    watch.a_failed_run()
    watch.tick()
    with pytest.raises(UndeliveredError) as failed:
        watch.tick()
    told = str(failed.value)
    assert "1 alerts wait" in told
    assert "webhook at 127.0.0.1" in told
    assert SECRET not in told
    webhook.status = 200
    watch.tick()
    assert len(webhook.runs) == 1


def test_one_channel_that_is_down_does_not_keep_the_other_from_hearing(watch: Watch, webhook: Webhook, emulator):
    topic = Topic(emulator)
    watch.world.configure(alerts_topic_arn=topic.arn)
    webhook.status = 503
    watch.a_failed_run(partition=HOUR)
    watch.tick()
    assert [heard["Subject"] for heard in topic.heard()] == ["Metering: meter_hour failed for 2026-11-28T10"]
    webhook.status = 200
    watch.tick()
    assert len(webhook.runs) == 1
    assert not topic.heard()


def test_without_topic_and_webhook_the_log_tells(watch: Watch, capfd):
    watch.world.configure(alerts_webhook_url=None)
    watch.a_failed_run(partition=HOUR)
    watch.tick()
    watch.tick()
    assert capfd.readouterr().err.count("Metering: meter_hour failed for 2026-11-28T10") == 1


def test_fifty_messages_a_tick_and_the_rest_in_the_next(watch: Watch, webhook: Webhook, monkeypatch):
    monkeypatch.setattr(sensors, "MOST_MESSAGES", 5)
    for _ in range(7):
        watch.a_failed_run()
    watch.tick()
    assert len(webhook.runs) == 5
    watch.tick()
    watch.tick()
    assert len({taken["run"] for taken in webhook.runs}) == len(webhook.runs) == 7


def test_a_tick_that_dies_before_its_cursor_is_kept_tells_again(watch: Watch, webhook: Webhook):
    watch.a_failed_run()
    before = watch.cursor
    watch.tick()
    watch.cursor = before
    watch.tick()
    assert len(webhook.runs) == 2
    assert webhook.runs[0] == webhook.runs[1]


@pytest.mark.parametrize("garbage", ["", "{}", "not json", "[1]", '{"version": 9}', '{"version": 1, "start": "x"}'])
def test_a_cursor_that_cannot_be_read_starts_anew_and_says_so(watch: Watch, webhook: Webhook, garbage):
    watch.a_failed_run(partition=OTHER_HOUR)
    watch.cursor = garbage
    assert "cursor cannot be read" in watch.tick()
    watch.a_failed_run(partition=HOUR)
    watch.tick()
    assert [taken["hour"] for taken in webhook.runs] == [HOUR]


def test_a_run_deleted_meanwhile_keeps_nobody_waiting(watch: Watch, webhook: Webhook):
    webhook.status = 503
    run = watch.a_failed_run()
    watch.tick()
    watch.instance.delete_run(run.run_id)
    webhook.status = 200
    assert watch.tick() == "No run has failed."
    assert not webhook.runs


def test_what_nobody_took_for_a_day_is_given_up(watch: Watch, webhook: Webhook):
    webhook.status = 503
    run = watch.a_failed_run()
    watch.tick()
    waiting = json.loads(watch.cursor or "")["waiting"]
    waiting[run.run_id]["since"] -= 90_000
    watch.cursor = changed(watch.cursor, waiting=waiting)
    watch.tick()
    assert json.loads(watch.cursor or "")["waiting"] == {}


# Hours.


def test_an_hour_not_closed_four_hours_before_its_end_is_told_once(watch: Watch, webhook: Webhook):
    watch.world.put(a_usage(0, "1"), a_usage(1, "1"))
    for _ in range(2):
        watch.look_at_hours_again(AT_06_10)
        watch.tick()
    (told,) = webhook.hours  # the hours 07 to 10 of the day before
    assert told["hour"] == "2026-11-28T07 to 2026-11-28T10"
    assert told["subject"] == "Metering: 4 hours are not closed, billable until 2026-11-29T07:00Z"
    assert f"{HOUR}: no run has closed it; 2 raw rows and 0 aggregates are pending" in told["cause"]
    assert "it closes at 2026-11-29T10:00Z" in told["cause"]
    assert told["link"] == "https://dagster.example.com/assets/metered_usage?view=partitions"


def test_an_hour_that_was_metered_is_not_told_until_something_is_pending_in_it(watch: Watch, webhook: Webhook):
    for hour in ("2026-11-28T07", "2026-11-28T08", OTHER_HOUR, HOUR):
        watch.world.meter(hour, instance=watch.instance)
    watch.look_at_hours_again(AT_06_10)
    watch.tick()
    assert not webhook.hours
    watch.world.put(a_usage(5, "1"))
    watch.tick()
    assert not webhook.hours  # the last look was within five minutes
    watch.cursor = changed(watch.cursor, looked=time.time() - 301)
    watch.tick()
    assert [taken["hour"] for taken in webhook.hours] == [HOUR]
    assert "metered, but something is pending" in webhook.hours[0]["cause"]


def test_hours_that_could_not_be_told_are_told_later_without_another_look(watch: Watch, webhook: Webhook):
    webhook.status = 503
    watch.look_at_hours_again(AT_06_10)
    watch.tick()
    webhook.status = 200
    watch.tick()
    assert [taken["hour"] for taken in webhook.hours] == ["2026-11-28T07 to 2026-11-28T10"]


def test_a_look_that_fails_is_said_and_tried_again(watch: Watch, webhook: Webhook):
    table = watch.world.names["usage"]
    watch.world.configure(usage_table="no-such-table")
    watch.look_at_hours_again(AT_06_10)
    assert "could not be looked up; the next tick looks again" in watch.tick()
    watch.world.configure(usage_table=table)
    watch.tick()
    assert len(webhook.hours) == 1


def test_missing_settings_are_named_and_failures_are_told_nevertheless(watch: Watch, webhook: Webhook):
    watch.a_failed_run()
    watch.world.configure(usage_table=None, mode=None)
    said = watch.tick()
    assert "Hours are not looked at. Not set: USAGE_TABLE, METERING_MODE" in said
    assert len(webhook.runs) == 1


def test_the_sensor_by_name_interval_and_status():
    for running, status in ((False, dg.DefaultSensorStatus.STOPPED), (True, dg.DefaultSensorStatus.RUNNING)):
        sensor = build_defs(settings=Settings(running=running)).get_repository_def().get_sensor_def("run_failures")
        assert (sensor.minimum_interval_seconds, sensor.default_status) == (60, status)
        assert not sensor.targets


@pytest.mark.parametrize(("job", "selected", "ours"), [
    ("meter_hour", (), True), ("__ASSET_JOB", ("metered_usage",), True),
    ("__ASSET_JOB", ("somebody_elses",), False), ("__ASSET_JOB", (), False), ("nightly", (), False),
])  # fmt: skip
def test_a_run_of_the_command_line_is_told_by_the_names_of_its_job_or_assets(job, selected, ours):
    run = dg.DagsterRun(job_name=job, asset_selection=frozenset(dg.AssetKey(name) for name in selected) or None)
    names = frozenset({"meter_hour", "metered_usage", "__ASSET_JOB"})
    assert is_ours(run, CodeLocation("metering_dagster", "__repository__"), names) is ours


@pytest.mark.case("first_hour_in_alerts")
def test_no_hour_before_the_first_partition_is_told_of(watch: Watch, webhook: Webhook):
    first = datetime(2026, 11, 28, 6, tzinfo=UTC)
    watch.world.at("2026-11-28T12:20:00Z")
    watch.begins_with(first)
    watch.tick()
    assert not webhook.taken
    watch.look_at_hours_again("2026-11-29T02:10:00Z")
    watch.tick()
    (told,) = webhook.taken
    assert told["subject"].startswith("Metering: 2026-11-28T06 is not closed")


@pytest.mark.case("first_hour_in_alerts")
def test_without_a_first_hour_of_its_own_every_hour_is_told_of(watch: Watch, webhook: Webhook):
    watch.world.at("2026-11-28T12:20:00Z")
    watch.begins_with(FIRST_HOUR)
    watch.tick()
    assert [told["hour"] for told in webhook.taken] == ["2026-11-27T13 to 2026-11-27T16"]
