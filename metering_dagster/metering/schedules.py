"""The 23 schedules of the meter offsets, from one factory.

Belongs here: names, tags, what a tick looks up. Does not: whether it asks for a run (ticks).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster import hours
from metering_dagster.errors import MeteringError
from metering_dagster.history import UNDER_WAY, last_materialization
from metering_dagster.metering.deployment import Deployment
from metering_dagster.metering.metadata import PENDING_AGGREGATES
from metering_dagster.metering.ticks import LastRun, Pending, decide, hours_of_tick
from metering_dagster.settings import Settings

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

METERED, AGGREGATED = dg.AssetKey("metered_usage"), dg.AssetKey("aggregated_usage")
FIRST_HOUR = datetime(2026, 1, 1, tzinfo=UTC)


def meter_schedules(settings: Settings, job: "UnresolvedAssetJobDefinition") -> list[dg.ScheduleDefinition]:
    """`meter_offset_01` to `meter_offset_23`: together they look after every hour that can be billed."""
    return [_schedule(offset, settings, job) for offset in range(hours.FIRST_OFFSET, hours.LAST_OFFSET + 1)]


def _schedule(offset: int, settings: Settings, job: "UnresolvedAssetJobDefinition") -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"meter_offset_{offset:02d}",
        job=job,
        cron_schedule=settings.cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if settings.running else dg.DefaultScheduleStatus.STOPPED,
        tags={"metering/lane": "regular", "metering/offset": str(offset)},
        description=f"Meters the hour {offset} back: its run comes when there is something to do in it.",
    )
    def tick(
        context: dg.ScheduleEvaluationContext, metering: dg.ResourceParam[Deployment]
    ) -> Sequence[dg.RunRequest] | dg.SkipReason:
        settings = metering.settings.require()
        # A frozen clock is the ticks' clock too; else the slice comes from the tick and not from the clock.
        now = settings.frozen_now or context.scheduled_execution_time.astimezone(UTC)
        asked, reasons = [], []
        for hour in hours_of_tick(offset, now):
            bucket = hours.bucket(hour)
            if hour < FIRST_HOUR:
                reasons.append(f"{bucket} lies before the first partition.")
                continue
            decision = decide(hour, now, settings.lock_hours, _Evidence(context.instance, metering, bucket))
            reasons.append(decision.reason)
            if decision.run:
                back = str(hours.offset_of(hour, now))
                # The older the hour, the sooner its run: it has the least time left.
                tags = {"metering/lane": "regular", "metering/offset": back, "dagster/priority": back}
                key = f"{bucket}@{context.scheduled_execution_time.isoformat()}"
                asked.append(dg.RunRequest(run_key=key, partition_key=bucket, tags=tags))
        return asked or dg.SkipReason(" ".join(reasons))

    return tick


class _Evidence:
    """What a tick can look up about one hour: Dagster's own record, and the tables."""

    def __init__(self, instance: dg.DagsterInstance, deployment: Deployment, bucket: str) -> None:
        self.instance, self.deployment, self.bucket = instance, deployment, bucket

    def is_running(self) -> bool:
        filters = dg.RunsFilter(tags={"dagster/partition": self.bucket}, statuses=UNDER_WAY)
        return bool(self.instance.get_run_ids(filters, limit=1))

    def last_run(self) -> LastRun | None:
        found = last_materialization(self.instance, METERED, self.bucket)
        if found is None:
            return None
        ended, shown = found
        if str(shown["mode"].value if "mode" in shown else "") != self.deployment.mode.value:
            return None  # a run of another mode has closed nothing for this one
        return LastRun(ended, self._waiting_rows(), _number(shown, PENDING_AGGREGATES))

    def _waiting_rows(self) -> int:
        """The rows that the last run itself held, or left waiting at zero; whatever else is pending came later."""
        found = last_materialization(self.instance, AGGREGATED, self.bucket)
        return _number(found[1], "held_rows") + _number(found[1], "zero_rows") if found else 0

    def pending(self, expected: LastRun | None) -> Pending:
        try:
            probe = self.deployment.probe
            rows = probe.rows.count(self.bucket, most=1 + (expected.pending_rows if expected else 0))
            aggregates = probe.aggregates.count(self.bucket, most=1 + (expected.pending_aggregates if expected else 0))
        except MeteringError as error:
            return Pending(0, 0, str(error))
        return Pending(rows, aggregates)


def _number(shown: Mapping[str, dg.MetadataValue], name: str) -> int:
    found = shown.get(name)
    return int(str(found.value)) if found else 0
