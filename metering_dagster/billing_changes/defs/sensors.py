"""The sensor that polls which days of billing data changed.

Belongs here: what a poll needs of Dagster, run requests, skip reasons, the cursor. Does not: polling (services/poll),
what a run does (assets).
"""

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.billing_changes.defs.assets import (
    BILLING_CHANGES,
    JOB,
    RUN_TAGS,
    ChangesRun,
    refresh_billing_changes,
)
from metering_dagster.billing_changes.defs.metadata import READ_AT, STATE
from metering_dagster.billing_changes.rules import cursor, heartbeat
from metering_dagster.billing_changes.rules.reconcile import Days, MaterializedReading
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.billing_changes.services.poll import DueDay, PollResult, poll
from metering_dagster.core.dagster_history import UNDER_WAY, last_materialization, text_of
from metering_dagster.core.errors import DamagedFileError, ReplacedMeanwhileError
from metering_dagster.core.instants import instant_of
from metering_dagster.core.masking import shown_value
from metering_dagster.settings import Settings

if TYPE_CHECKING:
    from metering_dagster.billing_changes.stores.day_files import DayFiles

NO_DATABASE = "BILLING_DATABASE_URL is not set: no billing data is polled."


def billing_changes_sensor(settings: Settings, days: dg.DailyPartitionsDefinition) -> dg.SensorDefinition:
    """Build the sensor `billing_changes`: it requests a run of each day whose billing data was ingested again.

    A poll that fails fails its tick: the cursor, and with it the watermark, stays unchanged.
    """

    @dg.sensor(
        name="billing_changes",
        job=refresh_billing_changes,
        minimum_interval_seconds=settings.billing_changes_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if settings.running else dg.DefaultSensorStatus.STOPPED,
        description=(
            "Polls which days of billing data were ingested again, and requests a run of each once its writes pause. "
            "Compares the reports with the database: the last days hourly, the whole horizon daily."
        ),
    )
    def tick(
        context: dg.SensorEvaluationContext, billing: dg.ResourceParam[Billing]
    ) -> dg.SensorResult | dg.SkipReason:
        if billing.settings.billing_database_url is None:
            return dg.SkipReason(NO_DATABASE)
        before, note = cursor.read(context.cursor)
        files = billing.files(context.instance.storage_directory())
        # Before the database is read: a run that begins or ends meanwhile may cost one run too many, never one too few.
        warn = context.log.warning
        under_way, reported = _days_under_way(context.instance, warn), _reported(context.instance, files, warn)
        with billing.database.reading() as reading:
            result = poll(
                reading, before, billing.rules, reported=reported, under_way=under_way, partitions=_partitions(days)
            )
        _write_heartbeat(context, files, result)
        notes = " ".join([note, *result.notes]).strip()
        if result.due_days and notes:
            context.log.info(notes)
        return dg.SensorResult(
            run_requests=[_request(due) for due in result.due_days],
            skip_reason=None if result.due_days else " ".join(filter(None, [_skip_text(result), notes])),
            cursor=cursor.write(result.cursor),
        )

    return tick


def _request(due: DueDay) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=due.run_key,
        partition_key=due.day.isoformat(),
        run_config=dg.RunConfig(ops={BILLING_CHANGES.to_python_identifier(): ChangesRun(why=due.why, gap=due.gap)}),
        tags=RUN_TAGS,
    )


def _partitions(days: dg.DailyPartitionsDefinition) -> Days:
    first, last = days.get_first_partition_key(), days.get_last_partition_key()
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return Days(date.fromisoformat(first or today), date.fromisoformat(last or today))


def _days_under_way(instance: dg.DagsterInstance, warn: Callable[[str], object]) -> set[date]:
    days = set()
    for run in instance.get_runs(dg.RunsFilter(job_name=JOB, statuses=UNDER_WAY)):
        key = run.tags.get("dagster/partition")
        day = None if key is None else _day_of(key)
        if day is not None:
            days.add(day)
        elif key is not None:
            warn(
                f"Run {run.run_id} of {JOB} is in progress for the invalid partition {shown_value(key)}. It was left "
                "alone, and no day waits for it. Cancel it if it was started by mistake."
            )
    return days


def _day_of(key: str) -> date | None:
    """Return the day of this partition key; None for an invalid key, such as another spelling that Python reads."""
    try:
        day = date.fromisoformat(key)
    except ValueError:
        return None
    return day if day.isoformat() == key else None


def _reported(
    instance: dg.DagsterInstance, files: "DayFiles", warn: Callable[[str], object]
) -> Callable[[date], MaterializedReading | None]:
    """Return a lookup of a day's last materialization.

    A day without a file counts as never reported, whatever Dagster's records say: consumers read the files.
    """
    stored = files.generations()

    def reported(day: date) -> MaterializedReading | None:
        found = last_materialization(instance, BILLING_CHANGES, day.isoformat()) if day in stored else None
        if found is None or READ_AT not in found[1] or STATE not in found[1]:
            return None  # reported as materialized by hand, without a reading
        read_at, state = instant_of(text_of(found[1], READ_AT)), text_of(found[1], STATE)
        if read_at is None or state is None:
            warn(
                f"The last materialization of {day} has an invalid {READ_AT} or {STATE}, so no run of this project "
                "wrote it. The day counts as never reported. Its file was left as it is; the day's next run writes "
                "both anew."
            )
            return None
        return MaterializedReading(read_at, state)

    return reported


def _write_heartbeat(context: dg.SensorEvaluationContext, files: "DayFiles", result: PollResult) -> None:
    """Write the heartbeat, by which consumers know how complete the reports are."""
    beat = heartbeat.Heartbeat(result.cursor.polled_at, result.complete_until, result.first_day, tuple(result.waiting))
    try:
        before = files.document(heartbeat.NAME)
        files.replace_document(heartbeat.NAME, beat.content(), before.generation if before else None)
    except ReplacedMeanwhileError as rival:
        context.log.warning(f"Another sensor updated the heartbeat meanwhile: {rival}")
    except DamagedFileError as damaged:
        context.log.error(
            f"The heartbeat was not updated: consumers do not see how complete the reports are. {damaged}"
        )


def _skip_text(result: PollResult) -> str:
    if not result.waiting:
        return "Every changed day is materialized."
    days = ", ".join(str(day) for day in result.waiting[:5]) + (" …" if len(result.waiting) > 5 else "")
    return (
        f"Changed and not materialized yet: {len(result.waiting)} days ({days}). They are still receiving writes, or "
        "their runs are in progress."
    )
