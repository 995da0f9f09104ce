"""The sensor that looks whether lifecycle events wait in the queue.

Belongs here: when a run of `apply_marketplace_events` is asked for. Does not: receiving anything.
"""

from datetime import UTC, datetime, timedelta

import dagster as dg

from metering_dagster.core import hours
from metering_dagster.core.dagster_history import failed_at, is_under_way
from metering_dagster.core.errors import MeteringError
from metering_dagster.licenses.defs.event_job import RUN_TAGS, apply_marketplace_events
from metering_dagster.licenses.services.connections import NO_QUEUE, SHADOW, events_queue_of
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Mode, Settings

PAUSE_AFTER_FAILURE = timedelta(minutes=5)
"""Whatever made a run fail wants a person or some time; a failed run a minute helps neither."""


def marketplace_events_sensor(settings: Settings) -> dg.SensorDefinition:
    """Return `marketplace_events`: asks for a run when something waits in the queue."""

    @dg.sensor(
        name="marketplace_events",
        job=apply_marketplace_events,
        minimum_interval_seconds=settings.events_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if settings.running else dg.DefaultSensorStatus.STOPPED,
        description="Polls the queue of the marketplace's lifecycle events, and requests a run when messages wait.",
    )
    def look(
        context: dg.SensorEvaluationContext, metering: dg.ResourceParam[Deployment]
    ) -> dg.RunRequest | dg.SkipReason:
        if metering.settings.events_queue_url is None:
            return dg.SkipReason(f"{NO_QUEUE}: no lifecycle events are read.")
        if metering.mode is Mode.SHADOW:
            return dg.SkipReason(f"{SHADOW}.")
        if is_under_way(context.instance, apply_marketplace_events.name):
            return dg.SkipReason("A run that applies events is queued or under way.")
        failed = failed_at(context.instance, apply_marketplace_events.name)
        # A time far ahead is no reason to wait for it: clocks differ by seconds only.
        if failed is not None and abs(datetime.now(UTC) - failed) < PAUSE_AFTER_FAILURE:
            again = f"{failed + PAUSE_AFTER_FAILURE:%Y-%m-%dT%H:%M:%SZ}"
            return dg.SkipReason(f"The last run failed; the next is asked for from {again} on. Or start one by hand.")
        try:
            state = events_queue_of(metering).state()
        except MeteringError as error:
            # A sensor's run key is good for one run ever: this one for one in the hour, which then says what is wrong.
            # The hour is the real one: under a frozen clock there would never be another.
            context.log.error(str(error))
            return dg.RunRequest(run_key=f"queue_not_read@{hours.bucket(datetime.now(UTC))}", tags=RUN_TAGS)
        if state.waiting:
            return dg.RunRequest(tags=RUN_TAGS)
        return dg.SkipReason(
            f"Nothing waits in the queue; {state.in_other_hands} messages were received and not deleted yet."
        )

    return look
