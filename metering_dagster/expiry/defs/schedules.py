"""The 7 schedules of the age-out's shards, from one factory.

Belongs here: names, tags, what a tick looks up. Does not: whether it asks for a run (sweep_decision).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import dagster as dg

from metering_dagster.core import hours
from metering_dagster.core.dagster_history import UNDER_WAY
from metering_dagster.core.errors import MeteringError
from metering_dagster.expiry.defs.assets import NAME, age_out
from metering_dagster.expiry.rules.sweep_decision import ProbedHour, decide, earlier_days
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Settings

LANE, SHARD, WHOLE_SWEEP = "metering/lane", "metering/shard", "metering/whole_sweep"
"""Tags of a run; the last holds the day whose whole sweep it is."""

_FAILURES_A_DAY = 3
"""So many failed whole sweeps of a day are enough: what fails them is seen, and tomorrow's tries again."""


def age_out_schedules(settings: Settings) -> list[dg.ScheduleDefinition]:
    """Return `age_out_shard_0` to `age_out_shard_6`: together they look after every hour that can no longer
    be billed.
    """
    return [_schedule(shard, settings) for shard in range(hours.SHARDS)]


def _schedule(shard: int, settings: Settings) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"age_out_shard_{shard}",
        job=age_out,
        cron_schedule=settings.cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if settings.running else dg.DefaultScheduleStatus.STOPPED,
        tags={LANE: "expiry", SHARD: str(shard)},
        description=(
            f"Ends what can no longer be billed in every seventh hour (hours back modulo 7 is {shard}). Requests a run "
            f"when usage is pending in the newest six, and once a day, at {6 + 2 * shard:02d}:00 UTC, for all of them."
        ),
    )
    def tick(
        context: dg.ScheduleEvaluationContext, metering: dg.ResourceParam[Deployment]
    ) -> dg.RunRequest | dg.SkipReason:
        return answer(context.instance, metering, shard, context.scheduled_execution_time)

    return tick


def answer(
    instance: dg.DagsterInstance, metering: Deployment, shard: int, tick_at: datetime
) -> dg.RunRequest | dg.SkipReason:
    """Return the run that the shard's tick asks for, or why it asks for none."""
    # A frozen clock is the ticks' clock too; else the slice comes from the tick and not from the clock.
    now = metering.settings.require().frozen_now or tick_at.astimezone(UTC)
    decision = decide(shard, now, _Evidence(instance, metering, str(shard)))
    if not decision.run:
        return dg.SkipReason(decision.reason)
    config = {"whole": decision.whole, "as_of": hours.bucket(decision.as_of)}
    return dg.RunRequest(
        run_key=f"{shard}@{tick_at.isoformat()}",
        partition_key=str(shard),
        run_config={"ops": {NAME: {"config": config}}},
        tags={LANE: "expiry", SHARD: str(shard)} | ({WHOLE_SWEEP: decision.day} if decision.whole else {}),
    )


class _Evidence:
    """The lookups of a tick about its shard: Dagster's own record, and the tables."""

    def __init__(self, instance: dg.DagsterInstance, deployment: Deployment, shard: str) -> None:
        self.instance, self.deployment = instance, deployment
        self.partition = {"dagster/partition": shard}  # no other partitions are named so

    def is_running(self) -> bool:
        return self._has(UNDER_WAY)

    def has_swept(self, day: str) -> bool:
        if self._has([*UNDER_WAY, dg.DagsterRunStatus.SUCCESS], [day]):
            return True
        return self._has([dg.DagsterRunStatus.FAILURE], [day], _FAILURES_A_DAY)

    def has_swept_before(self, day: str) -> bool:
        return self._has([dg.DagsterRunStatus.SUCCESS], earlier_days(day))

    def _has(self, statuses: list[dg.DagsterRunStatus], days: Sequence[str] = (), count: int = 1) -> bool:
        tags: dict[str, str | Sequence[str]] = {**self.partition} | ({WHOLE_SWEEP: list(days)} if days else {})
        return len(self.instance.get_run_ids(dg.RunsFilter(tags=tags, statuses=statuses), limit=count)) == count

    def first_pending(self, these: Sequence[str]) -> ProbedHour:
        try:
            probe = self.deployment.probe
            with ThreadPoolExecutor(len(these)) as pool:  # side by side, for a tick has a minute for everything
                rows = pool.map(lambda bucket: probe.rows.count(bucket, most=1), these)
                aggregates = pool.map(lambda bucket: probe.aggregates.count(bucket, most=1), these)
                found = [n + m for n, m in zip(rows, aggregates, strict=True)]
        except MeteringError as error:
            return ProbedHour(None, str(error))
        return ProbedHour(next((bucket for bucket, count in zip(these, found, strict=True) if count), None))
