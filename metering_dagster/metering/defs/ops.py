"""The three ops of an hour, shared by the hourly assets and the flush of deprovisioned licenses.

Belongs here: which hour a step is about, calling the use cases, reporting what they did. Does not: rules, requests.
Nothing is handed on between steps but their order. Each reads for itself, so it can be run again alone, on another
machine too.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from metering_dagster.core import hours
from metering_dagster.core.dagster_events import log_check_evaluation, raise_as_dagster_failure
from metering_dagster.ledger.rules.entries import HourSummary
from metering_dagster.metering.defs import checks, metadata
from metering_dagster.metering.defs.ledger_writer import Telling, ledger_file, standing_so_far
from metering_dagster.metering.rules.flush_window import LicenseScope
from metering_dagster.metering.services import hour_run
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Mode

if TYPE_CHECKING:
    from metering_dagster.metering.services.aggregation_report import Tell
    from metering_dagster.metering.services.submission_report import Submission
    from metering_dagster.metering.services.tables import Slice


class HourConfig(dg.Config):
    """The settings of one run; every default is safe, for backfills carry no config."""

    ignore_lock: bool = Field(
        default=False,
        description=(
            "Meter the hour although it is still open for late usage. What is sent once is billed for good: usage that "
            "arrives later can no longer be. Never opens the current hour."
        ),
    )


AFTER = dg.In(dg.Nothing, description="What has to be done before.")
Yielded = Iterator[dg.AssetCheckResult | dg.Output[None]]


@dg.op(
    ins={"after": AFTER},
    out=dg.Out(dg.Nothing),
    description="Survey what is pending for the hour; reject rows with impossible keys, refile misfiled ones.",
    tags={"dagster/kind": "dynamodb"},
)
def discover_pending(
    context: dg.OpExecutionContext, config: HourConfig, metering: dg.ResourceParam[Deployment]
) -> None:
    """Survey what is pending for the hour."""
    with raise_as_dagster_failure():
        deployment, part, closed, whose = _visit(context, config, metering)
        hour = part.bucket
        if closed:
            context.add_output_metadata(metadata.of_closed_hour(deployment.mode, closed))
            return
        from metering_dagster.metering.services.discovery import discover

        with Telling(context, deployment, hour) as tell:
            found = discover(deployment.tables, part, tell)
            unfinished = hour_run.not_discovered(hour, found)
            # The steps that follow are not reached then.
            rest = hour_run.aggregate_and_send(deployment, hour, whose, part, tell) if unfinished else ""
        for lost_in, rows in sorted(found.lost.items()):
            if rows:
                # That hour's own runs may be over: its square must not stay green over the hole.
                log_check_evaluation(context, checks.lost_elsewhere(lost_in, rows, found_in=hour))
        shown = metadata.of_discovery(deployment.mode, found)
        if unfinished is not None:
            raise dg.Failure(f"{unfinished}{rest}", metadata=shown)
        context.add_output_metadata(shown)


@dg.op(
    ins={"after": AFTER},
    out={"result": dg.Out(dg.Nothing), **checks.outs(checks.AGGREGATED)},
    description="Aggregate each group's rows into one exact sum; commit it together with its rows' final state.",
    tags={"dagster/kind": "dynamodb"},
)
def aggregate_groups(
    context: dg.OpExecutionContext, config: HourConfig, metering: dg.ResourceParam[Deployment]
) -> Yielded:
    """Aggregate and commit the hour's groups, and answer the checks of `aggregated_usage`."""
    with raise_as_dagster_failure():
        deployment, part, closed, whose = _visit(context, config, metering)
        hour = part.bucket
        if closed:
            yield dg.Output(None, "result", metadata=metadata.of_closed_hour(deployment.mode, closed))
            return
        from metering_dagster.metering.services.aggregation import aggregate

        with Telling(context, deployment, hour) as tell:
            done = aggregate(deployment.tables, part, tell)
            unfinished = hour_run.not_folded(hour, done)
            # The step that submits is not reached then.
            sent = hour_run.send_the_rest(deployment, hour, whose, done, tell) if unfinished else ""
        restored = hour_run.restored_lately(deployment.tables, deployment.settings.now())
        for note in [*done.failures.notes, *done.notes, *([restored] if restored else [])]:
            context.log.warning(note)
        if whose is LicenseScope.ALL:
            standing = standing_so_far(context, deployment, hour)
            rejected = deployment.tables.usage.count_rejected(standing.rejected_rows)
            yield from checks.of_aggregation(done, standing, rejected)
        elif done.late_rows:
            # Nobody looks at the hour's checks before its own run, which may come hours after the flush.
            log_check_evaluation(context, checks.late_in_flush(hour, done))
        shown = metadata.of_aggregation(deployment.mode, done)
        if unfinished is not None:
            raise dg.Failure(f"{unfinished}{sent}", metadata=shown)
        yield dg.Output(None, "result", metadata=shown)


@dg.op(
    ins={"after": AFTER},
    out={"result": dg.Out(dg.Nothing), **checks.outs(checks.METERED)},
    description=(
        "Send what is pending through BatchMeterUsage within the common quota, and write each answer down before the "
        "next wait. Green only where nothing that could be sent is left."
    ),
    tags={"dagster/kind": "aws"},
)
def submit_batches(
    context: dg.OpExecutionContext, config: HourConfig, metering: dg.ResourceParam[Deployment]
) -> Yielded:
    """Submit the hour's pending aggregates and answer the checks of `metered_usage`; fail where something is left."""
    with raise_as_dagster_failure():
        deployment, part, closed, whose = _visit(context, config, metering)
        hour, mode = part.bucket, deployment.mode
        if closed:
            yield dg.Output(None, "result", metadata=metadata.of_closed_hour(mode, closed))
            return
        with ledger_file(context, deployment, hour) as ledger:
            submission = _submit(deployment, part, whose, ledger.tell)
        for words in (*submission.warnings, *submission.notes):
            context.log.warning(words)
        now = deployment.settings.now()
        failure = hour_run.left_pending(hour, submission, now)
        if whose is LicenseScope.DEPROVISIONING:
            # An observation, for the hour itself is not done.
            pending = _pending_of(deployment, hour)
            shown = metadata.of_submission(mode, submission, HourSummary(), pending, ledger.written)
            context.log_event(dg.AssetObservation("metered_usage", partition=hour, metadata=shown))
        else:
            tables = deployment.tables
            pending = tables.usage.count_pending(hour), hour_run.still_pending(tables, hour)
            standing = standing_so_far(context, deployment, hour)
            yield from checks.of_submission(hours.closes_at(part.hour, now), submission, standing, pending)
            shown = metadata.of_submission(mode, submission, standing, pending, ledger.written)
            if failure is None and tables.writes:
                failure = hour_run.arrived_meanwhile(hour, pending[1])
        if failure is not None:
            # What can be sent again at once has been; the next tick does the rest.
            raise dg.Failure(str(failure), metadata=shown, allow_retries=False)
        yield dg.Output(None, "result", metadata=shown)


def _submit(deployment: Deployment, part: "Slice", whose: LicenseScope, tell: "Tell") -> "Submission":
    """Send what is pending in the slice; in shadow mode work out what would be."""
    if deployment.mode is Mode.SHADOW:
        from metering_dagster.metering.services.shadow import would_bill

        return would_bill(deployment.tables, part, tell)
    return deployment.submitter(tell, urgent=whose is LicenseScope.DEPROVISIONING).submit(part)


def _pending_of(deployment: Deployment, hour: str) -> tuple[int, int]:
    """Raw rows and aggregates of the hour that are pending of the buyers whose flush window is open."""
    from metering_dagster.metering.services.discovery import pending_of

    part, _ = deployment.slice_of(hours.parse_bucket(hour), LicenseScope.DEPROVISIONING)
    return pending_of(deployment.tables, part)


def _visit(
    context: dg.OpExecutionContext, config: HourConfig, deployment: Deployment
) -> tuple[Deployment, "Slice", str | None, LicenseScope]:
    """Return what a step works with, if the hour may be metered; why nothing is to be done, of one past its window; and
    whose usage it is about.

    The hour is the run's partition, and everybody's. A mapped step is a flush's: of the hour that its key names, and of
    the buyers whose window is open.
    """
    deployment.settings.require()
    mapped = context.get_mapping_key()
    hour, whose = (
        (hour_of(mapped), LicenseScope.DEPROVISIONING) if mapped else (context.partition_key, LicenseScope.ALL)
    )
    beginning = hour_run.begin(deployment, hour, whose, ignore_lock=config.ignore_lock)
    if beginning.unknown:
        context.log.warning(f"Which licenses are deprovisioning is not known. {beginning.unknown}")
    return deployment, beginning.part, beginning.closed, whose


def mapping_key(bucket: str) -> str:
    """Return the key of a flush's steps for this hour; Dagster takes no hyphen in one."""
    return bucket.replace("-", "_")


def hour_of(mapped: str) -> str:
    """Return the hour bucket that such a key names."""
    return mapped.replace("_", "-")
