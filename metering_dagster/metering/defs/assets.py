"""The hourly assets, what they are made from, and their job.

Belongs here: names, partitions, lineage, descriptions. Does not: what the steps do (ops).
"""

from collections.abc import Iterable
from typing import Any

import dagster as dg

from metering_dagster.core.dagster_partitions import hourly
from metering_dagster.metering.defs import checks, column_schemas
from metering_dagster.metering.defs.ops import aggregate_groups, discover_pending, submit_batches
from metering_dagster.settings import Settings

GROUP = "metering"
OWNERS = ["team:metering"]
MODE_TAG = "metering/mode"


def mode_of(settings: Settings) -> str:
    """Return the mode as the assets show it."""
    return settings.mode.value if settings.mode else "not-set"


def _table(schema: dg.TableSchema, name: str | None) -> dict[str, Any]:
    return {"dagster/column_schema": schema} | ({"dagster/table_name": name} if name else {})


def external_assets(settings: Settings) -> list[dg.AssetSpec]:
    """Return what others write: lineage starts here."""
    mode = mode_of(settings)
    tags = {MODE_TAG: mode}
    return [
        dg.AssetSpec(
            "raw_usage",
            group_name=GROUP,
            kinds={"dynamodb"},
            tags=tags,
            metadata=_table(column_schemas.RAW_USAGE, settings.usage_table),
            description=(
                "Raw usage rows that the seller's services write into the table `USAGE_TABLE`: at most one a second "
                "for each license, account and dimension. A row with `meteringPending` waits to be metered."
            ),
        ),
        dg.AssetSpec(
            "subscribers",
            group_name=GROUP,
            kinds={"dynamodb"},
            tags=tags,
            metadata=_table(column_schemas.SUBSCRIBERS, settings.subscribers_table),
            description=(
                "The buyers that may be billed, in the table `SUBSCRIBERS_TABLE`: each license's product, and whether "
                "it is deprovisioning."
            ),
        ),
    ]


def hourly_assets(
    settings: Settings, partitions: dg.HourlyPartitionsDefinition | None = None
) -> list[dg.AssetsDefinition]:
    """Return `pending_usage` → `aggregated_usage` → `metered_usage`; each says in which mode it runs."""
    mode, partitions = mode_of(settings), partitions or hourly()

    def about(text: str) -> str:
        return f"{text}\n\n**Mode: {mode}** (`METERING_MODE`)."

    tags = {MODE_TAG: mode}

    @dg.graph_asset(
        group_name=GROUP,
        partitions_def=partitions,
        ins={"raw_usage": dg.AssetIn(dagster_type=dg.Nothing)},
        kinds={"dynamodb"},
        owners=OWNERS,
        tags=tags,
        metadata=_table(column_schemas.RAW_USAGE, settings.usage_table),
        description=about(
            "The raw rows that wait to be metered in this hour. Rows with impossible keys are rejected; misfiled rows "
            "go to their key's hour. This asset stores nothing: the next one reads the tables itself."
        ),
    )
    def pending_usage(raw_usage: object) -> object:
        return discover_pending(after=raw_usage)

    @dg.graph_asset(
        group_name=GROUP,
        partitions_def=partitions,
        ins={
            "pending_usage": dg.AssetIn(dagster_type=dg.Nothing),
            "raw_usage": dg.AssetIn(dagster_type=dg.Nothing),
        },
        kinds={"dynamodb"},
        owners=OWNERS,
        tags=tags,
        check_specs=checks.specs("aggregated_usage", checks.AGGREGATED, partitions),
        metadata=_table(column_schemas.AGGREGATED_USAGE, settings.aggregated_usage_table),
        description=about(
            "One record for each license, account and dimension of the hour: the exact sum of its raw rows, committed "
            "once. An invalid row holds its group until you mend it, or until the hour's last call. Late rows fail a "
            "check."
        ),
    )
    def aggregated_usage(pending_usage: object, raw_usage: object) -> object:
        return _with_checks("aggregated_usage", checks.AGGREGATED, aggregate_groups(after=[pending_usage, raw_usage]))

    @dg.graph_asset(
        group_name=GROUP,
        partitions_def=partitions,
        ins={
            "aggregated_usage": dg.AssetIn(dagster_type=dg.Nothing),
            "subscribers": dg.AssetIn(dagster_type=dg.Nothing),
        },
        kinds={"aws"},
        owners=OWNERS,
        tags=tags,
        check_specs=checks.specs("metered_usage", checks.METERED, partitions),
        metadata=_table(column_schemas.AGGREGATED_USAGE, settings.aggregated_usage_table),
        description=about(
            "The hour as AWS Marketplace billed it. The run sends every pending aggregate through BatchMeterUsage, the "
            "seller's own ones too, and records each answer. Green only if nothing that could be sent is left."
        ),
    )
    def metered_usage(aggregated_usage: object, subscribers: object) -> object:
        return _with_checks("metered_usage", checks.METERED, submit_batches(after=[aggregated_usage, subscribers]))

    return [pending_usage, aggregated_usage, metered_usage]


def _with_checks(asset: str, names: Iterable[str], outputs: Any) -> dict[str, Any]:
    """Return a graph's outputs: the asset, and each check under the name by which Dagster finds it."""
    return {"result": outputs.result} | {f"{asset}_{name}": getattr(outputs, name) for name in names}


meter_hour = dg.define_asset_job(
    "meter_hour",
    selection=dg.AssetSelection.assets("pending_usage", "aggregated_usage", "metered_usage"),
    tags={"metering/lane": "regular"},
    description="Meter one hour: find what is pending, aggregate and commit it, submit it to AWS Marketplace.",
)
