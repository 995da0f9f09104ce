"""The asset of the age-out and its job.

Belongs here: names, partitions, config, descriptions, telling what was lost. Does not: the sweep itself (sweep).
"""

from datetime import datetime

import dagster as dg
from pydantic import Field

from metering_dagster.core import hours
from metering_dagster.core.errors import HourRefusedError, MeteringError
from metering_dagster.core.masking import mask_text
from metering_dagster.expiry.defs.metadata import faults_of, of_sweep, warnings_of
from metering_dagster.expiry.services.sweep_ledger import SweepLedger
from metering_dagster.expiry.services.sweep_report import Sweep
from metering_dagster.metering.defs.assets import GROUP, MODE_TAG, OWNERS, mode_of
from metering_dagster.metering.defs.ledger_writer import ledger_file
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Mode, Settings

SHARDS = dg.StaticPartitionsDefinition([str(shard) for shard in range(hours.SHARDS)])
NAME = "expired_usage"


class SweepConfig(dg.Config):
    """The reach of a sweep; the defaults are those of a shard that you materialize by hand."""

    whole: bool = Field(
        default=True,
        description=(
            "Look at all 400 days. False: stop after six hours of the shard in a row with nothing pending, as the "
            "hourly sweeps do."
        ),
    )
    as_of: str = Field(
        default="",
        description=(
            "The hour bucket (YYYY-MM-DDTHH, UTC) as of which the shard's hours are counted back; empty: the current "
            "one. Schedules name the hour of their tick, so that a run that waited meets the hours of its tick."
        ),
    )


def expired_usage(settings: Settings) -> dg.AssetsDefinition:
    """Return the asset; it says in which mode it runs."""
    mode = mode_of(settings)

    @dg.asset(
        name=NAME,
        group_name=GROUP,
        partitions_def=SHARDS,
        deps=["raw_usage"],
        kinds={"dynamodb"},
        owners=OWNERS,
        tags={MODE_TAG: mode},
        description=(
            "Usage that could not be billed in time. Raw rows and records still pending past their window end as "
            "`AggregationExpired`, `SubmissionExpired`, or as an earlier commit settles them. The sweep reports them "
            "by hour and dimension. A partition is a shard: every seventh hour, up to 400 days back."
            f"\n\n**Mode: {mode}** (`METERING_MODE`)."
        ),
    )
    def sweep_shard(
        context: dg.AssetExecutionContext, config: SweepConfig, metering: dg.ResourceParam[Deployment]
    ) -> dg.MaterializeResult[None]:
        report = Sweep()
        ledger = SweepLedger(
            lambda bucket, found_in: ledger_file(context.op_execution_context, metering, bucket, found_in)
        )
        try:
            with ledger:
                _sweep(metering, hours.parse_shard(context.partition_key), config, report, ledger)
        except MeteringError as error:
            shown = of_sweep(mode_of(metering.settings), report, whole=config.whole)
            raise dg.Failure(str(error), metadata=shown, allow_retries=error.retryable) from None
        finally:
            # What is lost is said also where the sweep broke off.
            for words in warnings_of(report, writes=metering.settings.mode is not Mode.SHADOW):
                context.log.warning(words)
        shown = of_sweep(mode_of(metering.settings), report, whole=config.whole)
        faults = faults_of(report, ledger.fault)
        if faults:
            words = f"Shard {context.partition_key} was swept, but: {' '.join(faults)}"
            raise dg.Failure(words, metadata=shown, allow_retries=False)
        return dg.MaterializeResult(metadata=shown)

    return sweep_shard


def _sweep(deployment: Deployment, shard: int, config: SweepConfig, report: Sweep, ledger: SweepLedger) -> None:
    from metering_dagster.expiry.services.sweep import hours_of_sweep, ignore, sweep

    tables = deployment.tables
    tell = ledger.tell if tables.writes else ignore  # in shadow mode nothing ended
    shard_hours = hours_of_sweep(shard, tables.clock(), _as_of(config, tables.clock()))
    sweep(tables, shard_hours, tell, whole=config.whole, report=report)


def _as_of(config: SweepConfig, now: datetime) -> datetime | None:
    if not config.as_of:
        return None
    try:
        as_of = hours.parse_bucket(config.as_of)
        if not 0 <= hours.offset_of(as_of, now) <= hours.OLDEST_OFFSET:
            raise ValueError(f"no hour of the last 400 days: {config.as_of!r}")
    except ValueError as error:
        raise HourRefusedError(
            f"as_of in the run's config is {mask_text(str(error))}. Nothing was read or written. Leave it empty to "
            "sweep the shard's hours of now."
        ) from None
    return as_of


age_out = dg.define_asset_job(
    "age_out",
    selection=dg.AssetSelection.assets(NAME),
    partitions_def=SHARDS,
    tags={"metering/lane": "expiry"},
    description="End what can no longer be billed in one shard's hours, and report the lost usage.",
)
