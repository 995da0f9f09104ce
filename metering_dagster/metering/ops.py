"""The five ops of an hour, shared by the hourly assets and the flush of deprovisioned licences.

Belongs here: reading inputs and config, calling the use cases, reporting what they did. Does not: rules, requests.
The hour and the licences come in as inputs: in a run of a partition by the input managers below, elsewhere from the op
before. No value that an op hands on names a buyer.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from metering_dagster import hours
from metering_dagster.errors import MeteringError
from metering_dagster.ledger.entries import Standing
from metering_dagster.metering import checks, metadata, visit
from metering_dagster.metering.step_ledger import Telling, ledger_file, standing_so_far
from metering_dagster.metering.windows import Whose
from metering_dagster.settings import Mode

if TYPE_CHECKING:
    from metering_dagster.metering.deployment import Deployment
    from metering_dagster.metering.submission import Submission
    from metering_dagster.metering.tables import Slice


class HourConfig(dg.Config):
    """What a person may say about one run; every default is safe, for backfills carry no config."""

    ignore_lock: bool = Field(
        default=False,
        description=(
            "Meter the hour although it is still open for late usage. What is sent once is billed for good: usage that "
            "arrives later can no longer be. Never opens the current hour."
        ),
    )


@dg.input_manager(
    required_resource_keys={"io_manager"},
    description="The hour: the run's partition, unless an op before says it.",
)
def run_hour(context: dg.InputContext) -> str:
    """The hour bucket of the run's partition."""
    if context.upstream_output is not None:
        return str(context.resources.io_manager.load_input(context))
    return context.partition_key


@dg.input_manager(
    required_resource_keys={"io_manager"},
    description="The licences: everybody's, unless an op before says which.",
)
def run_licences(context: dg.InputContext) -> Whose:
    """Whose usage the run is about."""
    if context.upstream_output is not None:
        found: Whose = context.resources.io_manager.load_input(context)
        return found
    return Whose.EVERYBODY


HOUR = dg.In(str, input_manager_key="run_hour", description="The hour bucket, YYYY-MM-DDTHH in UTC.")
LICENCES = dg.In(
    Whose, input_manager_key="run_licences", description="Whose usage it is about: everybody's, or a flush's buyers'."
)
AFTER = dg.In(dg.Nothing, description="What has to be done before.")
Yielded = Iterator[dg.AssetCheckResult | dg.Output[None]]


@dataclass(frozen=True)
class Plan:
    """What there is to submit, in counts; `None` of an hour that is past its window."""

    hour: str
    records: int
    rejected: Mapping[str, int]
    closed: str | None = None


@dataclass(frozen=True)
class Submitted:
    """What a submission did, ready to be shown."""

    hour: str
    mode: str
    submission: "Submission"
    plan: Plan
    ledger: str | None = None
    """The run's ledger file, if there was anything to tell."""


class _Told:
    """A block whose `MeteringError`s become the run's failure: its words first, retried only where that can help."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MeteringError):
            raise dg.Failure(str(error), allow_retries=error.retryable) from None


@dg.op(
    ins={"hour": HOUR, "licences": LICENCES, "after": AFTER},
    out=dg.Out(dg.Nothing),
    required_resource_keys={"metering"},
    description="Survey what is pending for the hour; reject rows with impossible keys, refile misfiled ones.",
    tags={"dagster/kind": "dynamodb"},
)
def discover_pending(context: dg.OpExecutionContext, config: HourConfig, hour: str, licences: Whose) -> None:
    """Survey what is pending for the hour."""
    with _Told():
        deployment, part, closed = _visit(context, config, hour, licences)
        if closed:
            context.add_output_metadata(metadata.of_closed_hour(deployment.mode, closed))
            return
        from metering_dagster.metering.discovery import discover

        with Telling(context, deployment, hour) as tell:
            found = discover(deployment.tables, part, tell)
        for lost_in, rows in sorted(found.lost.items()):
            if rows:
                # That hour's own runs may be over: its square must not stay green over the hole.
                context.log_event(checks.lost_elsewhere(lost_in, rows, found_in=hour))  # type: ignore[arg-type]  # it does
        context.add_output_metadata(metadata.of_discovery(deployment.mode, found))


@dg.op(
    ins={"hour": HOUR, "licences": LICENCES, "after": AFTER},
    out={"result": dg.Out(dg.Nothing), **checks.outs(checks.AGGREGATED)},
    required_resource_keys={"metering"},
    description="Fold each group's rows into one exact sum and commit it together with its rows' final state.",
    tags={"dagster/kind": "dynamodb"},
)
def aggregate_groups(context: dg.OpExecutionContext, config: HourConfig, hour: str, licences: Whose) -> Yielded:
    """Fold and commit the hour's groups, and answer the checks of `aggregated_usage`."""
    with _Told():
        deployment, part, closed = _visit(context, config, hour, licences)
        if closed:
            yield dg.Output(None, "result", metadata=metadata.of_closed_hour(deployment.mode, closed))
            return
        from metering_dagster.metering.aggregation import aggregate

        with Telling(context, deployment, hour) as tell:
            done = aggregate(deployment.tables, part, tell)
            unfinished = visit.not_folded(hour, done)
            # The steps that submit do not come to their turn then.
            sent = visit.send_the_rest(deployment, hour, licences, done, tell) if unfinished else ""
        for note in done.notes:
            context.log.warning(note)
        if licences is Whose.EVERYBODY:
            standing = standing_so_far(context, deployment, hour)
            rejected = deployment.tables.usage.count_rejected(standing.rejected_rows)
            yield from checks.of_aggregation(done, standing, rejected)
        elif done.late_rows:
            # Nobody looks at the hour's checks before its own run, which may come hours after the flush.
            context.log_event(checks.late_in_flush(hour, done))  # type: ignore[arg-type]  # it does take one
        shown = metadata.of_aggregation(deployment.mode, done)
        if unfinished is not None:
            raise dg.Failure(f"{unfinished}{sent}", metadata=shown)
        yield dg.Output(None, "result", metadata=shown)


@dg.op(
    ins={"hour": HOUR, "licences": LICENCES, "after": AFTER},
    out=dg.Out(dg.Any, description="What there is to submit, in counts."),
    required_resource_keys={"metering"},
    description="Look through the pending aggregates, whoever wrote them; reject those that break the contract.",
    tags={"dagster/kind": "dynamodb"},
)
def plan_submissions(context: dg.OpExecutionContext, config: HourConfig, hour: str, licences: Whose) -> Plan:
    """Count what can be submitted, and reject what cannot."""
    with _Told():
        deployment, part, closed = _visit(context, config, hour, licences)
        if closed:
            return Plan(hour, 0, {}, closed)
        from metering_dagster.metering.submission import Submission, pending_windows, reject_unsendable

        report = Submission()
        with Telling(context, deployment, hour) as tell:
            records = sum(
                len(reject_unsendable(deployment.tables, window, report, tell))
                for window in pending_windows(deployment.tables, part)
            )
        for note in report.notes:
            context.log.warning(note)
        context.log.info(f"{hour}: {records} records to submit, {report.rejected.total()} rejected")
        return Plan(hour, records, dict(report.rejected))


@dg.op(
    ins={"plan": dg.In(dg.Any), "licences": LICENCES},
    out=dg.Out(dg.Any, description="What was submitted, in counts."),
    required_resource_keys={"metering"},
    description="Send BatchMeterUsage within the common quota, and write each answer down before the next wait.",
    tags={"dagster/kind": "aws"},
)
def submit_batches(context: dg.OpExecutionContext, plan: Plan, licences: Whose) -> Submitted:
    """Submit the hour's pending aggregates."""
    with _Told():
        deployment = _deployment(context)
        from metering_dagster.metering.submission import Submission

        mode = deployment.mode
        if plan.closed:
            return Submitted(plan.hour, mode, Submission(), plan)
        part = _part(context, deployment, plan.hour, licences)
        with ledger_file(context, deployment, plan.hour) as ledger:
            if mode is Mode.SHADOW:
                from metering_dagster.metering.shadow import would_bill

                submission = would_bill(deployment.tables, part, ledger.tell)
            else:
                urgent = licences is Whose.DEPROVISIONING
                submission = deployment.submitter(ledger.tell, urgent=urgent).submit(part)
        for words in (*submission.warnings, *submission.notes):
            context.log.warning(words)
        return Submitted(plan.hour, mode, submission, plan, ledger.written)


@dg.op(
    ins={"submitted": dg.In(dg.Any), "licences": LICENCES},
    out={"result": dg.Out(dg.Nothing), **checks.outs(checks.METERED)},
    required_resource_keys={"metering"},
    description="Report the hour: green only where nothing that could be sent is left.",
    tags={"dagster/kind": "python"},
)
def record_submissions(context: dg.OpExecutionContext, submitted: Submitted, licences: Whose) -> Yielded:
    """Report what was submitted, answer the checks of `metered_usage`; fail where something is left."""
    plan, submission, hour = submitted.plan, submitted.submission, submitted.hour
    submission.rejected.update(plan.rejected)
    submission.by_status["RejectedClientSide"] += sum(plan.rejected.values())
    if plan.closed:
        yield dg.Output(None, "result", metadata=metadata.of_closed_hour(submitted.mode, plan.closed))
        return
    with _Told():
        deployment = _deployment(context)
        tables = deployment.tables
        if licences is Whose.DEPROVISIONING:
            yield from _observe(context, deployment, submitted)
            return
        now = deployment.settings.now()
        pending = tables.usage.count_pending(hour), visit.still_pending(tables, hour)
        standing = standing_so_far(context, deployment, hour)
        yield from checks.of_submission(hours.closes_at(hours.parse_bucket(hour), now), submission, standing, pending)
        shown = metadata.of_submission(submitted.mode, submission, standing, pending, submitted.ledger)
        failure = visit.left_pending(hour, submission, now)
        if failure is None and tables.writes:
            failure = visit.arrived_meanwhile(hour, pending[1])
        if failure is not None:
            # This step alone, run again, would only say it again.
            raise dg.Failure(str(failure), metadata=shown, allow_retries=False)
        yield dg.Output(None, "result", metadata=shown)


def _observe(context: dg.OpExecutionContext, deployment: "Deployment", submitted: Submitted) -> Yielded:
    """Report a flush of the hour: an observation, for the hour itself is not done; fail where something is left."""
    from metering_dagster.metering.discovery import pending_of

    pending = pending_of(deployment.tables, _part(context, deployment, submitted.hour, Whose.DEPROVISIONING))
    shown = metadata.of_submission(submitted.mode, submitted.submission, Standing(), pending, submitted.ledger)
    context.log_event(dg.AssetObservation("metered_usage", partition=submitted.hour, metadata=shown))
    failure = visit.left_pending(submitted.hour, submitted.submission, deployment.settings.now())
    if failure is not None:
        raise dg.Failure(str(failure), metadata=shown, allow_retries=False)
    yield dg.Output(None, "result", metadata=shown)


def _deployment(context: dg.OpExecutionContext) -> "Deployment":
    deployment: Deployment = context.resources.metering
    deployment.settings.require()
    return deployment


def _visit(
    context: dg.OpExecutionContext, config: HourConfig, hour: str, licences: Whose
) -> tuple["Deployment", "Slice", str | None]:
    """What a step works with, if the hour may be metered; and, of one past its window, why nothing is to be done."""
    deployment = _deployment(context)
    beginning = visit.begin(deployment, hour, licences, ignore_lock=config.ignore_lock)
    _warn(context, beginning.unknown)
    return deployment, beginning.part, beginning.closed


def _part(context: dg.OpExecutionContext, deployment: "Deployment", hour: str, licences: Whose) -> "Slice":
    part, unknown = deployment.slice_of(hours.parse_bucket(hour), licences)
    _warn(context, unknown)
    return part


def _warn(context: dg.OpExecutionContext, unknown: str | None) -> None:
    if unknown:
        context.log.warning(f"Which licences are deprovisioning is not known. {unknown}")
