"""The sensors of the flush window: is there anything to flush, is a window to be closed?

Belongs here: intervals, what a tick looks up and asks for, its words. Does not: the looking (flush_search,
finalization).
"""

from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.core.dagster_history import is_under_way
from metering_dagster.core.errors import MeteringError
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Mode, Settings

if TYPE_CHECKING:
    from metering_dagster.licenses.rules.window_end import OpenWindow

LOOK_SECONDS = 20.0
"""A tick has a minute for everything; a look that takes longer asks for the run, which has the time."""
Answer = dg.RunRequest | dg.SkipReason


def license_sensors(
    settings: Settings, flush: dg.JobDefinition, finalize: dg.JobDefinition
) -> list[dg.SensorDefinition]:
    """Return `deprovisioning_flush` and `deprovisioned_finalizer`."""
    status = dg.DefaultSensorStatus.RUNNING if settings.running else dg.DefaultSensorStatus.STOPPED

    @dg.sensor(
        job=flush,
        minimum_interval_seconds=settings.flush_seconds,
        default_status=status,
        description="Requests a flush when a license is deprovisioning and usage of it is pending.",
    )
    def deprovisioning_flush(context: dg.SensorEvaluationContext, metering: dg.ResourceParam[Deployment]) -> Answer:
        deployment, now = metering, metering.settings.require().now()
        if is_under_way(context.instance, flush.name):
            return dg.SkipReason("A flush is queued or under way.")
        from metering_dagster.licenses.services.flush_search import need_of_flush

        try:
            need = need_of_flush(deployment.probe, now, LOOK_SECONDS)
        except MeteringError as error:
            context.log.warning(f"Whether a flush is needed could not be looked up, so it is asked for: {error}")
            return dg.RunRequest()
        if not need.windows:
            return dg.SkipReason("No license is deprovisioning.")
        if need.pending is None:
            return dg.SkipReason(
                f"Licenses deprovisioning: {need.windows}. Nothing of them is pending that may go now."
            )
        context.log.info(
            f"Licenses deprovisioning: {need.windows}. Usage of them is pending, at least in {need.pending}."
        )
        return dg.RunRequest()

    @dg.sensor(
        job=finalize,
        minimum_interval_seconds=settings.finalize_seconds,
        default_status=status,
        description="Requests a run that closes the flush windows whose end has come.",
    )
    def deprovisioned_finalizer(context: dg.SensorEvaluationContext, metering: dg.ResourceParam[Deployment]) -> Answer:
        deployment, now = metering, metering.settings.require().now()
        if deployment.mode is Mode.SHADOW:
            return dg.SkipReason("Shadow mode writes to no table: whoever meters these tables closes the windows.")
        if is_under_way(context.instance, finalize.name):
            return dg.SkipReason("A run that closes flush windows is queued or under way.")
        try:
            opened, due = _open_and_due(deployment, now)
        except MeteringError as error:
            context.log.warning(f"Which flush windows are over could not be looked up, so it is asked for: {error}")
            return dg.RunRequest()
        if not opened:
            return dg.SkipReason("No license is deprovisioning.")
        if not due:
            return dg.SkipReason(f"Licenses deprovisioning: {opened}. The window of none of them is over.")
        context.log.info(f"Licenses deprovisioning: {opened}. Windows that are over: {len(due)}.")
        return dg.RunRequest()

    return [deprovisioning_flush, deprovisioned_finalizer]


def _open_and_due(deployment: Deployment, now: datetime) -> tuple[int, "list[OpenWindow]"]:
    from metering_dagster.licenses.rules.window_end import is_over
    from metering_dagster.licenses.stores.open_windows import ClosingStore

    subscribers = deployment.probe.subscribers
    windows = ClosingStore(subscribers.client, subscribers.name).open_windows()
    return len(windows), [window for window in windows if is_over(window, now)]
