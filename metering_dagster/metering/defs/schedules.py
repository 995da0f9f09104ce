"""The 23 schedules of the meter offsets, from one factory.

Belongs here: names, tags, which hours a tick looks at. Does not: what it looks up (hour_status), whether it asks for a
run (run_decision).
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg

from metering_dagster.core import hours
from metering_dagster.core.dagster_partitions import FIRST_HOUR
from metering_dagster.metering.defs.assets import meter_hour
from metering_dagster.metering.defs.hour_status import HourEvidence
from metering_dagster.metering.rules.run_decision import decide, hours_of_tick
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Settings

_PROBE_SECONDS = 30.0
"""For all that one tick looks up in the tables; Dagster ends a tick after 60."""


def meter_schedules(settings: Settings, first_hour: datetime = FIRST_HOUR) -> list[dg.ScheduleDefinition]:
    """Return `meter_offset_01` to `meter_offset_23`: together they look after every hour that can be billed.

    `first_hour` is that of the first partition.
    """
    offsets = range(hours.FIRST_OFFSET, hours.LAST_OFFSET + 1)
    return [_schedule(offset, settings, first_hour) for offset in offsets]


def _schedule(offset: int, settings: Settings, first_hour: datetime) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"meter_offset_{offset:02d}",
        job=meter_hour,
        cron_schedule=settings.cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if settings.running else dg.DefaultScheduleStatus.STOPPED,
        tags={"metering/lane": "regular", "metering/offset": str(offset)},
        description=(
            f"Meters the hour that began {offset} hour{'' if offset == 1 else 's'} before the current one; skips when "
            "nothing is pending."
        ),
    )
    def tick(
        context: dg.ScheduleEvaluationContext, metering: dg.ResourceParam[Deployment]
    ) -> Sequence[dg.RunRequest] | dg.SkipReason:
        settings = metering.settings.require()
        # A frozen clock is the ticks' clock too; else the slice comes from the tick and not from the clock.
        now = settings.frozen_now or context.scheduled_execution_time.astimezone(UTC)
        asked, reasons = [], []
        until = time.monotonic() + _PROBE_SECONDS
        for hour in hours_of_tick(offset, now):
            bucket = hours.bucket(hour)
            if hour < first_hour:
                reasons.append(f"{bucket} lies before the first partition.")
                continue
            evidence = HourEvidence(context.instance, metering, bucket, until)
            decision = decide(hour, now, settings.lock_hours, evidence)
            for doubt in evidence.doubts:
                context.log.warning(doubt)
            reasons.append(decision.reason)
            if decision.run:
                back = str(hours.offset_of(hour, now))
                # The older the hour, the sooner its run: it has the least time left.
                tags = {"metering/lane": "regular", "metering/offset": back, "dagster/priority": back}
                key = f"{bucket}@{context.scheduled_execution_time.isoformat()}"
                asked.append(dg.RunRequest(run_key=key, partition_key=bucket, tags=tags))
        return asked or dg.SkipReason(" ".join(reasons))

    return tick
