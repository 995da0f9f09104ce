"""The asset `billing_changes`, its upstream tables, and its job.

Belongs here: names, partitions, config, lineage, descriptions. Does not: comparing (rules/day_diff), files
(stores/day_files, io_manager), metadata and checks (metadata, checks).
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
"""The key of the resource that stores the asset (io_manager)."""


class ChangesRun(dg.Config):
    """Reason of a run; the defaults are those of a day that an operator materializes."""

    why: str = Field(default="by hand", description="Why the run was requested; shown in the metadata.")
    gap: str = Field(
        default="", description="The sensor's message about a time without polls; the check no_gap reports it."
    )


def external_assets(settings: Settings) -> list[dg.AssetSpec]:
    """Return the tables that billing jobs write: lineage starts there."""
    kind = _database_kind(settings)
    return [
        dg.AssetSpec(
            "cloud_billing_daily",
            group_name=GROUP,
            kinds={kind},
            metadata=_table(column_schemas.CLOUD_BILLING_DAILY, "cmdb_cloud_billing_daily"),
            description=(
                "One row for each tenant and day, written by the billing jobs. `fetched_at` advances at each ingest of "
                "the row; `updated_at` does not."
            ),
        ),
        dg.AssetSpec(
            "cost_facts",
            group_name=GROUP,
            kinds={kind},
            metadata=_table(column_schemas.COST_FACTS, "cmdb_cost_facts"),
            description=(
                "One row for each tenant, day, resource group and service, written by other jobs. `updated_at` "
                "advances at each ingest of the row; `fetched_at` does not."
            ),
        ),
    ]


def billing_changes(settings: Settings, days: dg.DailyPartitionsDefinition | None = None) -> dg.AssetsDefinition:
    """Build the asset; a partition is a day of costs."""
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
        # For a database that is away, or two runs of one day at once. Errors that a retry cannot mend fail at once.
        retry_policy=dg.RetryPolicy(max_retries=3, delay=1, backoff=dg.Backoff.EXPONENTIAL),
        metadata={"dagster/column_schema": column_schemas.BILLING_CHANGES},
        description=(
            "The cells of a day of cloud-billing data. A cell is a subscription on that day: when it was last "
            "ingested, its cost now and in the previous report, and whether it was touched, changed its amount or "
            "vanished since. Ingests count, not amounts: a cell ingested again with the same amount is touched. Any "
            "day can be materialized again, including days older than the horizon."
        ),
    )
    def cells_of_day(
        context: dg.AssetExecutionContext, config: ChangesRun, billing: dg.ResourceParam[Billing]
    ) -> Iterator[dg.MaterializeResult[Replacement]]:
        # Yielded: Dagster takes a returned result beside checks for one without a value, and does not store it.
        files = billing.files(context.instance.storage_directory())
        with raise_as_dagster_failure():
            done = _report_day(billing, files, date.fromisoformat(context.partition_key), config)
        yield done

    return cells_of_day


def _report_day(
    billing: "Billing", files: DayFiles, day: date, config: ChangesRun
) -> dg.MaterializeResult[Replacement]:
    found = files.read(day)  # before the database: a run that replaces it meanwhile may have read a later state
    with billing.database.reading() as reading:
        claims = reading.claims()
        cells = cells_of(reading.pieces_of([day], claims, amounts=True), claims)
        results = [
            checks.groups_are_claimed(reading.tenants_of(day), reading.groups_of(day), claims),
            checks.stamps_are_sound(reading.invalid_stamps(day)),
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
