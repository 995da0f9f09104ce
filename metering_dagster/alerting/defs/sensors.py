"""The sensor `run_failures`: one look a minute, one message for each failure.

Belongs here: the order of a look, and how it ends. Does not: what is found (run_failures, unclosed_hours), what is
remembered (cursor), what is sent (alert_text). It requests no run.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import dagster as dg

from metering_dagster.alerting.defs.run_failures import CodeLocation, alert_of_run, failed_runs, is_settled, link
from metering_dagster.alerting.rules import cursor as remembered
from metering_dagster.alerting.rules import unclosed_hours
from metering_dagster.alerting.rules.alert_text import Alert
from metering_dagster.alerting.rules.cursor import AlertCursor
from metering_dagster.alerting.stores.delivery import Channel, LogChannel, SnsChannel, WebhookChannel
from metering_dagster.core import hours
from metering_dagster.core.dagster_partitions import FIRST_HOUR
from metering_dagster.core.errors import MeteringError, SettingsError, UndeliveredError, UnreachableError
from metering_dagster.metering.defs.hour_status import HourEvidence
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Settings

INTERVAL_SECONDS = 60
HOURS_LOOKED_AT_SECONDS = 300.0
MOST_MESSAGES = 50
"""Over each channel, in one tick; the rest follows in the next."""
SENDING_SECONDS = 10.0
"""Over each channel; with the last answer awaited, and a look at the hours, all of it stays within a tick's minute."""
REFUSALS = 3
"""After so many a channel is left alone for this tick."""
_HOURS_PAGE = "/assets/metered_usage?view=partitions"


def run_failures_sensor(settings: Settings, first_hour: datetime = FIRST_HOUR) -> dg.SensorDefinition:
    """Return `run_failures`, which tells of failed runs of this code location, and of hours not closed in time.

    Hours before the first one, with which the partitions begin, are of no concern.
    """

    @dg.sensor(
        name="run_failures",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING if settings.running else dg.DefaultSensorStatus.STOPPED,
        description=(
            "Reports each failed run, and each hour that is not closed four hours before its window ends. Alerts go to "
            "this sensor's log, and to SNS and a webhook where these are configured. A failed tick could not deliver "
            "an alert; the next one tries again."
        ),
    )
    def look(context: dg.SensorEvaluationContext, metering: dg.ResourceParam[Deployment]) -> dg.SensorResult:
        now = datetime.now(UTC)
        memory, beginning = remembered.read(context.cursor, now.timestamp())
        said = [beginning] if beginning else []
        before = remembered.write(memory)
        _take_failures(context, memory, now.timestamp())
        said += _take_hours(context, metering, memory, now, first_hour)
        channels = channels_of(metering, context.log.error)
        sent, faults = deliver(memory, channels, lambda key: _alert(context.instance, metering.settings, memory, key))
        given_up = memory.forget({channel.name for channel in channels}, now.timestamp(), metering.settings.now())
        if given_up:
            context.log.error(f"{len(given_up)} alerts of more than a day ago are given up; this log has told them.")
        for fault in faults:
            context.log.error(str(fault))
        after = remembered.write(memory)
        if faults and context.cursor is not None and after == before:
            # Nothing would be lost with the cursor that a failed tick loses: so let it be seen.
            raise UndeliveredError(f"{len(memory.waiting)} alerts wait. {' '.join(str(fault) for fault in faults)}")
        said += [str(fault) for fault in faults]
        said.append(f"{sent} messages sent, {len(memory.waiting)} alerts wait." if sent or memory.waiting else "")
        words = " ".join(filter(None, said)) or "No run has failed."
        return dg.SensorResult(skip_reason=dg.SkipReason(words), cursor=after)

    return look


def channels_of(metering: Deployment, say: Callable[[str], object]) -> list[Channel]:
    """Return who hears of alerts; nothing is connected yet."""
    settings = metering.settings
    channels: list[Channel] = [LogChannel(say)]
    topic = settings.alerts_topic_arn
    if topic is not None:
        channels.append(SnsChannel(topic, lambda: metering.clients.sns(topic.split(":")[3])))
    if settings.alerts_webhook_url is not None:
        channels.append(WebhookChannel(settings.alerts_webhook_url))
    return channels


def deliver(
    memory: AlertCursor, channels: Sequence[Channel], alert_of: Callable[[str], Alert | None]
) -> tuple[int, list[MeteringError]]:
    """Send what waits, channel by channel; how much was sent, and what went wrong.

    A channel that cannot be reached, or refuses too often, is left alone until the next tick; the others are not. All
    that is sent is looked up before the first of it leaves: what fails there must not lose who has been told.
    """
    batches = {channel.name: memory.untold(channel.name, MOST_MESSAGES) for channel in channels}
    alerts = {key: alert_of(key) for keys in batches.values() for key in keys}
    for key in [key for key, alert in alerts.items() if alert is None]:
        del memory.waiting[key]
    sent, faults = 0, list[MeteringError]()
    for channel in channels:
        refusals, until = 0, time.monotonic() + SENDING_SECONDS
        for key in batches[channel.name]:
            alert = alerts[key]
            if time.monotonic() > until or refusals == REFUSALS:
                break
            if alert is None:
                continue
            try:
                channel.send(alert)
            except UnreachableError as fault:
                faults.append(fault)
                break
            except MeteringError as fault:
                refusals += 1
                faults += [] if refusals > 1 else [fault]
                continue
            memory.tell(key, channel.name)
            sent += 1
    return sent, faults


def _alert(instance: dg.DagsterInstance, settings: Settings, memory: AlertCursor, key: str) -> Alert | None:
    """Return the alert of this key; None where its run was deleted meanwhile."""
    alert = memory.waiting[key].alert
    if alert is not None:
        return alert
    run = instance.get_run_by_id(key)
    return None if run is None else alert_of_run(instance, run, settings.ui_url)


def _take_failures(context: dg.SensorEvaluationContext, memory: AlertCursor, now: float) -> None:
    location = context.code_location_origin
    ours = CodeLocation(location.location_name, context.repository_name) if location else CodeLocation(None, None)
    retries = context.instance.run_retries_enabled
    names = _our_names(context)
    for failed in failed_runs(context.instance, memory.look_from, memory.seen):
        if not memory.has_room:
            break
        if not is_ours(failed.run, ours, names):
            memory.pass_over(failed.run.run_id, failed.failed, now)
        elif failed.run.status is dg.DagsterRunStatus.FAILURE and is_settled(failed, now, retries):
            memory.take_failure(failed.run.run_id, failed.failed, now)


def _our_names(context: dg.SensorEvaluationContext) -> frozenset[str]:
    """Return what our jobs and assets are called."""
    defined = context.repository_def
    if defined is None:
        return frozenset()
    keys = defined.asset_graph.get_all_asset_keys()
    return frozenset(defined.job_names) | {key.to_user_string() for key in keys}


def is_ours(run: dg.DagsterRun, ours: CodeLocation, names: frozenset[str]) -> bool:
    """Return whether the run is of this code location. A run of the command line says nothing of where it is from: it
    is taken for ours by the names of its job or assets.
    """
    home = CodeLocation.of(run)
    if home != CodeLocation(None, None) or ours == home:
        return home == ours
    selected = {key.to_user_string() for key in run.asset_selection or ()}
    return bool(selected & names) or (run.job_name in names and not run.job_name.startswith("__"))


def _take_hours(
    context: dg.SensorEvaluationContext,
    metering: Deployment,
    memory: AlertCursor,
    real_now: datetime,
    first_hour: datetime,
) -> list[str]:
    """Look at the hours, if it is time to; what is to be said about it."""
    try:
        settings = metering.settings.require()
    except SettingsError as error:
        return [f"Hours are not looked at. {error}"]
    if 0 <= real_now.timestamp() - memory.looked < HOURS_LOOKED_AT_SECONDS:
        return []
    now, found = settings.now(), list[unclosed_hours.Unclosed]()
    for hour in unclosed_hours.due(now, settings.lock_hours, first_hour):
        bucket = hours.bucket(hour)
        if bucket in memory.hours:
            continue
        evidence = HourEvidence(context.instance, metering, bucket)
        seen = unclosed_hours.look(hour, now, settings.lock_hours, evidence)
        for doubt in evidence.doubts:
            context.log.warning(doubt)
        if isinstance(seen, str):
            context.log.error(f"Whether {bucket} is closed could not be looked up: {seen}")
            return [f"Whether {bucket} is closed could not be looked up; the next tick looks again: {seen}"]
        found += [seen] if seen else []
    memory.looked = real_now.timestamp()
    if found:
        alert = unclosed_hours.alert_of(found, link(settings.ui_url, _HOURS_PAGE), real_now)
        memory.take_hours([one.bucket for one in found], alert, real_now.timestamp())
    return []
