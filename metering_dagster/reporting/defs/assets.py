"""The daily report of the hourly ledger: its asset, job and schedule.

Belongs here: when a report is made and how it shows. Does not: adding up and drawing (daily_report).
"""

import base64
import hashlib
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.core.dagster_events import raise_as_dagster_failure
from metering_dagster.core.dagster_history import last_materialization, text_of
from metering_dagster.core.dagster_partitions import daily
from metering_dagster.core.dagster_previews import used_knowingly
from metering_dagster.core.masking import mask_text
from metering_dagster.metering.rules.quantities import number_text
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Settings

if TYPE_CHECKING:
    from metering_dagster.ledger.stores.files import Ledger
    from metering_dagster.reporting.services.daily_report import Line

REPORT = dg.AssetKey("metering_report")
REPORT_CRON = "50 * * * *"
YESTERDAY_UNTIL_HOUR = 6
"""Until then yesterday's last hours may still be metered, so its report is renewed as well."""
LAST_HOUR_OF_DAY = 23
"""Then the last of yesterday's hours is past its window: whatever its last calls billed is in the ledger."""
_DIGEST = "ledger_digest"
"""In the metadata of a report: which ledger files it has seen."""
_SHOWN_ROWS = 200


def metering_report(mode: str, days: dg.DailyPartitionsDefinition | None = None) -> dg.AssetsDefinition:
    """Return the report's asset; `mode` shows on it as on every asset."""
    with used_knowingly():  # a day's report is drawn before all its hours have partitions
        mapping = dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)

    @dg.asset(
        key=REPORT,
        group_name="metering",
        partitions_def=days or daily(),
        deps=[dg.AssetDep("metered_usage", partition_mapping=mapping)],
        kinds={"parquet"},
        owners=["team:metering"],
        tags={"metering/mode": mode},
        description=(
            "A day of the ledger: usage by hour and dimension, and how every record, row and group ended."
            f"\n\n**Mode: {mode}** (`METERING_MODE`)."
        ),
        metadata={"dagster/column_schema": _column_schema()},
    )
    def report(context: dg.AssetExecutionContext, metering: dg.ResourceParam[Deployment]) -> dg.MaterializeResult[None]:
        from metering_dagster.reporting.services.daily_report import draw, lines_of_hour, table_of_day

        day = context.partition_key
        ledger = metering.ledger(context.instance.storage_directory())
        with raise_as_dagster_failure():
            digest = digest_of_day(ledger, day)
            found = sorted(line for bucket in hours_of(day) for line in lines_of_hour(ledger, bucket))
        shown: dict[str, dg.MetadataValue] = {
            "dagster/partition_row_count": dg.MetadataValue.int(len(found)),
            "ledger": dg.MetadataValue.path(ledger.uri),
            _DIGEST: dg.MetadataValue.text(digest),
        }
        if not found:
            shown["nothing"] = dg.MetadataValue.text(f"The ledger holds nothing of {day}.")
            return dg.MaterializeResult(metadata=shown)
        for (kind, outcome), lines in itertools.groupby(sorted(found, key=_outcome), key=_outcome):
            shown[mask_text(f"{kind}s_{outcome}")] = dg.MetadataValue.int(sum(line.entries for line in lines))
        picture = base64.b64encode(draw(day, table_of_day(found))).decode()
        shown["picture"] = dg.MetadataValue.md(f"![Usage of {day}](data:image/png;base64,{picture})")
        shown["table"] = dg.MetadataValue.table([_record(line) for line in found[:_SHOWN_ROWS]])
        return dg.MaterializeResult(metadata=shown)

    return report


def _outcome(line: "Line") -> tuple[str, str]:
    return line.kind, line.outcome


def _record(line: "Line") -> dg.TableRecord:
    return dg.TableRecord({
        "hour": line.hour, "dimension": mask_text(line.dimension), "kind": mask_text(line.kind),
        "outcome": mask_text(line.outcome),
        "entries": line.entries, "quantity": number_text(line.quantity),
    })  # fmt: skip


def _column_schema() -> dg.TableSchema:
    return dg.TableSchema([
        dg.TableColumn("hour", "string", description="The hour bucket, UTC."),
        dg.TableColumn("dimension", "string"),
        dg.TableColumn("kind", "string", description="record, raw row, or group that stays pending."),
        dg.TableColumn("outcome", "string", description="How it ended, in the words of the tables."),
        dg.TableColumn("entries", "int", description="How many."),
        dg.TableColumn("quantity", "decimal", description="Of them together; of late rows what the bill lacks."),
    ])  # fmt: skip


refresh_report = dg.define_asset_job(
    "refresh_report",
    selection=dg.AssetSelection.assets(REPORT),
    tags={"metering/lane": "regular"},
    description="Draw the report of one day from the ledger.",
)


def report_schedule(settings: Settings) -> dg.ScheduleDefinition:
    """Return `metering_report_daily`: ten minutes before each hour, today; until 06:00 and at 23:50 yesterday
    as well.
    """

    @dg.schedule(
        name="metering_report_daily",
        job=refresh_report,
        cron_schedule=REPORT_CRON,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING if settings.running else dg.DefaultScheduleStatus.STOPPED,
        tags={"metering/lane": "regular"},
        description=(
            "Renews today's report when runs have written to the ledger. Until 06:00 UTC, and at 23:50 when the last "
            "calls are over, it renews yesterday's as well."
        ),
    )
    def tick(
        context: dg.ScheduleEvaluationContext, metering: dg.ResourceParam[Deployment]
    ) -> Sequence[dg.RunRequest] | dg.SkipReason:
        now = settings.frozen_now or context.scheduled_execution_time.astimezone(UTC)
        ledger = metering.ledger(context.instance.storage_directory())
        asked, reasons = [], []
        for day in days_of_tick(now):
            digest = digest_of_day(ledger, day)
            if digest == _last_digest(context.instance, day):
                reasons.append(f"Nothing new was written to the ledger of {day}.")
            else:
                asked.append(dg.RunRequest(run_key=f"{day}:{digest}", partition_key=day))
        return asked or dg.SkipReason(" ".join(reasons))

    return tick


def days_of_tick(now: datetime) -> list[str]:
    """Return the days whose report a tick at `now` looks after."""
    days = [now]
    if now.hour < YESTERDAY_UNTIL_HOUR or now.hour == LAST_HOUR_OF_DAY:
        days.append(now - timedelta(days=1))
    return [day.strftime("%Y-%m-%d") for day in days]


def hours_of(day: str) -> list[str]:
    """Return the hour buckets of a day."""
    return [f"{day}T{hour:02d}" for hour in range(24)]


def digest_of_day(ledger: "Ledger", day: str) -> str:
    """Return which files the ledger has of this day; empty where it has none. Files are only ever added."""
    names = [path.rsplit("/", 1)[-1] for bucket in hours_of(day) for path in ledger.files_of(bucket)]
    return hashlib.blake2b("\n".join(names).encode(), digest_size=8).hexdigest() if names else ""


def _last_digest(instance: dg.DagsterInstance, day: str) -> str:
    found = last_materialization(instance, REPORT, day)
    return (text_of(found[1], _DIGEST) if found else None) or ""
