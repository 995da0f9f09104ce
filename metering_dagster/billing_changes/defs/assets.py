"""The asset of the billing changes, what it is made from, and its job.

Belongs here: names, partitions, config, lineage, descriptions. Does not: comparing (day_diff), files (day_files,
io_manager), what is shown (metadata, checks).
"""

from collections.abc import Iterator
from datetime import date
from typing import Any

import dagster as dg
from pydantic import Field

from metering_dagster.billing_changes.defs import checks, column_schemas
from metering_dagster.billing_changes.defs.metadata import Horizon, of_report
from metering_dagster.billing_changes.rules.cells import cells_of
from metering_dagster.billing_changes.rules.day_diff import report
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.billing_changes.stores.day_files import DayFiles, Replacement
from metering_dagster.core.dagster_events import raise_as_dagster_failure
from metering_dagster.core.dagster_partitions import daily
from metering_dagster.settings import Settings

GROUP = "billing"
OWNERS = ["team:billing"]
BILLING_CHANGES = dg.AssetKey("billing_changes")
JOB = "refresh_billing_changes"
RUN_TAGS = {"metering/lane": "billing"}
IO_MANAGER = "billing_changes_io"
"""The resource that stores the asset; see io_manager."""


class ChangesRun(dg.Config):
    """Why a day is read; the defaults are those of a day that a person materializes."""

    why: str = Field(default="by hand", description="What the day was asked for; it shows in the metadata.")
    gap: str = Field(
        default="", description="For how long nobody looked, in the sensor's words; the check no_gap tells it."
    )


def external_assets(settings: Settings) -> list[dg.AssetSpec]:
    """Return what others write: lineage starts here."""
    kind = _database_kind(settings)
    return [
        dg.AssetSpec(
            "cloud_billing_daily",
            group_name=GROUP,
            kinds={kind},
            metadata=_table(column_schemas.CLOUD_BILLING_DAILY, "cmdb_cloud_billing_daily"),
            description=(
                "A row for each tenant and day, as the billing jobs write it. `fetched_at` advances whenever it is "
                "ingested again; its `updated_at` does not."
            ),
        ),
        dg.AssetSpec(
            "cost_facts",
            group_name=GROUP,
            kinds={kind},
            metadata=_table(column_schemas.COST_FACTS, "cmdb_cost_facts"),
            description=(
                "Rows for each tenant, day, resource group and service, as other jobs write them. `updated_at` "
                "advances whenever one is ingested again; its `fetched_at` does not."
            ),
        ),
    ]


def billing_changes(settings: Settings, days: dg.DailyPartitionsDefinition | None = None) -> dg.AssetsDefinition:
    """Yield the asset; a partition is a day of costs."""
    days = days or daily()

    @dg.asset(
        key=BILLING_CHANGES,
        group_name=GROUP,
        partitions_def=days,
        deps=["cloud_billing_daily", "cost_facts"],
        kinds={_database_kind(settings), "parquet"},
        owners=OWNERS,
        io_manager_key=IO_MANAGER,
        check_specs=checks.specs(BILLING_CHANGES, days),
        # Where the database is away, or two runs met on one day. What another attempt does not change fails at once.
        retry_policy=dg.RetryPolicy(max_retries=3, delay=1, backoff=dg.Backoff.EXPONENTIAL),
        metadata={"dagster/column_schema": column_schemas.BILLING_CHANGES},
        description=(
            "The cells of a day of cloud-billing data; a cell is a subscription on that day. Each row says when the "
            "cell was last ingested, what it costs now and in the report before, and whether it was touched, changed "
            "or vanished since. It is a watermark of ingests, not a diff: a cell ingested again with the same amount "
            "is touched. You can materialize any day again, also one older than the horizon."
        ),
    )
    def cells_of_day(
        context: dg.AssetExecutionContext, config: ChangesRun, billing: dg.ResourceParam[Billing]
    ) -> Iterator[dg.MaterializeResult[Replacement]]:
        # Yielded: a returned result beside checks would count as one without a value, and not be stored.
        files = billing.files(context.instance.storage_directory())
        with raise_as_dagster_failure():
            done = _report_day(billing, files, date.fromisoformat(context.partition_key), config)
        yield done

    return cells_of_day


def _report_day(
    billing: "Billing", files: DayFiles, day: date, config: ChangesRun
) -> dg.MaterializeResult[Replacement]:
    found = files.read(day)  # before the database: whoever replaces it meanwhile has perhaps read later than we shall
    with billing.database.reading() as reading:
        claims = reading.claims()
        cells = cells_of(reading.pieces_of([day], claims, amounts=True), claims)
        results = [
            checks.groups_are_claimed(reading.tenants_of(day), reading.groups_of(day), claims),
            checks.stamps_are_sound(reading.odd_stamps(day)),
            checks.no_gap(config.gap),
        ]
        missing_indexes = reading.missing_indexes()
    done = report(day, cells, claims, reading.now, found.report if found else None)
    horizon = Horizon(billing.rules.horizon.days, (reading.now - billing.rules.horizon).date())
    shown = of_report(done, horizon, config.why)
    shown["subscriptions"] = dg.MetadataValue.int(len(claims.subscriptions))
    shown["file"] = dg.MetadataValue.path(files.uri_of(day))
    if missing_indexes:
        shown["missing_indexes"] = dg.MetadataValue.text("; ".join(missing_indexes))
    return dg.MaterializeResult(
        value=Replacement(done, found.generation if found else None), metadata=shown, check_results=results
    )


refresh_billing_changes = dg.define_asset_job(
    JOB,
    selection=dg.AssetSelection.assets(BILLING_CHANGES),
    tags=RUN_TAGS,
    description="Read one day of cloud-billing data again, and report which of its cells changed.",
)


def _database_kind(settings: Settings) -> str:
    return "sqlite" if (settings.billing_database_url or "").startswith("sqlite") else "mysql"


def _table(schema: dg.TableSchema, name: str) -> dict[str, Any]:
    return {"dagster/column_schema": schema, "dagster/table_name": name}
