"""Runs: the project's own plain functions, in the order in which the ops call them.

Belongs here: what a run of each job does, and what Dagster would remember of it. Does not: when runs are asked for
(daemon), what is right (judge).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from metering_dagster.core.aws.clients import Clients
from metering_dagster.core.errors import LeftPendingError, MeteringError
from metering_dagster.expiry.defs.metadata import of_sweep
from metering_dagster.expiry.services.sweep import hours_of_sweep, sweep
from metering_dagster.expiry.services.sweep_report import Sweep
from metering_dagster.ledger.rules.entries import HourSummary
from metering_dagster.licenses.rules.flush_plan import hours_to_flush
from metering_dagster.licenses.services import event_application
from metering_dagster.licenses.services.connections import events_queue_of, subscribers_of
from metering_dagster.licenses.services.finalization import close_windows, failure_of
from metering_dagster.licenses.services.flush_search import pending_hours
from metering_dagster.licenses.stores.open_windows import ClosingStore
from metering_dagster.metering.defs import metadata
from metering_dagster.metering.rules.flush_window import LicenseScope
from metering_dagster.metering.rules.run_decision import LastRun
from metering_dagster.metering.services import hour_run
from metering_dagster.metering.services.aggregation import aggregate
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.metering.services.discovery import discover
from metering_dagster.metering.services.shadow import would_bill
from metering_dagster.metering.services.submission_report import Submission
from metering_dagster.metering.stores.rate_limiter import Quota
from metering_dagster.settings import Settings
from tests.simulation.kernel import Kernel
from tests.simulation.memory import MemoryDynamoDB, MemoryMarketplace, MemoryQueues
from tests.simulation.wire import Errand, Wire

Says = Callable[[str], None]


@dataclass(frozen=True)
class SimulatedSettings(Settings):
    """Settings whose clock is the simulation's."""

    clock: Callable[[], datetime] | None = None

    def now(self) -> datetime:
        """The instant that the hour policy goes by."""
        assert self.clock is not None
        return self.clock()


@dataclass(frozen=True)
class Aws:
    """The services of one world."""

    tables: MemoryDynamoDB
    queues: MemoryQueues
    marketplace: MemoryMarketplace


class _Clients(Clients):
    """One process' clients, with all that can happen on the way."""

    def __init__(self, settings: Settings, aws: Aws, wire: Wire, errand: Errand) -> None:
        super().__init__(settings)
        self.aws, self.wire, self.errand = aws, wire, errand

    def dynamodb(self, region: str | None = None) -> Any:
        return self.aws.tables.client(self.wire.around(self.errand, "tables"))

    def probe(self, region: str | None = None) -> Any:
        return self.aws.tables.client(self.wire.around(self.errand, "probe"))

    def metering(self) -> Any:
        return self.aws.marketplace.client(self.wire.around(self.errand, "metering"), self.errand.region)

    def sqs(self) -> Any:
        return self.aws.queues.client(self.wire.around(self.errand, "queue"))


class SimulatedDeployment(Deployment):
    """One process' deployment."""

    def __init__(self, settings: Settings, aws: Aws, wire: Wire, errand: Errand, kernel: Kernel) -> None:
        super().__init__(settings)
        self.__dict__["clients"] = _Clients(settings, aws, wire, errand)
        self.kernel, self.errand = kernel, errand

    @property
    def quota(self) -> Quota:  # type: ignore[override]
        """The common quota, on simulated time."""
        if "_quota" not in self.__dict__:
            aggregated = self.tables.aggregated
            self.__dict__["_quota"] = Quota(
                aggregated.client, aggregated.name, self.marketplace.region,
                clock=lambda: self.kernel.now, sleep=self.kernel.sleep,
            )  # fmt: skip
        found: Quota = self.__dict__["_quota"]
        return found


@dataclass
class Memory:
    """What Dagster remembers of an hour: of its last materializations."""

    ended: datetime | None = None
    pending_aggregates: int = 0
    held_rows: int = 0
    zero_rows: int = 0

    def last_run(self) -> LastRun | None:
        """As metering/evidence.py reads it."""
        if self.ended is None:
            return None
        return LastRun(self.ended, self.held_rows + self.zero_rows, self.pending_aggregates, zero_rows=self.zero_rows)


@dataclass
class Doing:
    """What a run works with."""

    deployment: SimulatedDeployment
    errand: Errand
    says: Says
    """Hears every word that would be stored somewhere."""
    entries: list[Any] = field(default_factory=list)
    """What the ledger would be told."""
    before_fold: float = 0.0
    """When it began to fold."""


def meter_hour(doing: Doing, bucket: str, memory: Memory) -> None:
    """The job `meter_hour`. It remembers what its steps materialize; `MeteringError` where it fails."""
    whose = LicenseScope.ALL
    beginning = hour_run.begin(doing.deployment, bucket, whose)
    if beginning.closed is None:
        _discover(doing, beginning.part)
        beginning = hour_run.begin(doing.deployment, bucket, whose)
    if beginning.closed is None:
        done = _fold(doing, bucket, beginning.part, whose)
        memory.held_rows, memory.zero_rows = done.held_rows, done.zero_rows
        beginning = hour_run.begin(doing.deployment, bucket, whose)
    else:
        memory.held_rows = memory.zero_rows = 0
    if beginning.closed is not None:
        memory.ended, memory.pending_aggregates = doing.deployment.settings.now(), 0
        return
    submission = _submit(doing, bucket, beginning.part, whose)
    tables, now = doing.deployment.tables, doing.deployment.settings.now()
    pending = tables.usage.count_pending(bucket), hour_run.still_pending(tables, bucket)
    failure = hour_run.left_pending(bucket, submission, now) or hour_run.arrived_meanwhile(bucket, pending[1])
    if failure is not None:
        raise failure
    memory.ended, memory.pending_aggregates = doing.deployment.settings.now(), pending[1]


def shadow(doing: Doing, bucket: str) -> None:
    """The job `meter_hour` of a deployment in shadow mode: it tells the ledger what would be billed."""
    beginning = hour_run.begin(doing.deployment, bucket, LicenseScope.ALL)
    if beginning.closed is None:
        _discover(doing, beginning.part)
        doing.entries.clear()
        doing.before_fold = doing.deployment.kernel.now
        report = would_bill(doing.deployment.tables, beginning.part, doing.entries.append)
        _say(doing, [*report.notes, *report.left])


def flush(doing: Doing) -> None:
    """The job `flush_deprovisioning`: what goes wrong in one hour stops no other."""
    deployment = doing.deployment
    windows = deployment.tables.subscribers.deprovisioning()
    failures = []
    for each in pending_hours(deployment.indexes, hours_to_flush(deployment.settings.now(), windows)):
        try:
            _flush_hour(doing, each.bucket)
        except MeteringError as error:
            doing.says(str(error))
            failures.append(error)
    if failures:
        raise failures[0]


def _flush_hour(doing: Doing, bucket: str) -> None:
    deployment, whose = doing.deployment, LicenseScope.DEPROVISIONING
    for step in (_discover, lambda doing, part: _fold(doing, bucket, part, whose)):
        beginning = hour_run.begin(deployment, bucket, whose)
        if beginning.closed is not None:
            return
        step(doing, beginning.part)
    beginning = hour_run.begin(deployment, bucket, whose)
    if beginning.closed is not None:
        return
    submission = _submit(doing, bucket, beginning.part, whose)
    failure = hour_run.left_pending(bucket, submission, deployment.settings.now())
    if failure is not None:
        raise failure


def _discover(doing: Doing, part: Any) -> None:
    found = discover(doing.deployment.tables, part, doing.entries.append)
    doing.says(str(metadata.of_discovery(doing.deployment.mode, found)))


def _fold(doing: Doing, bucket: str, part: Any, whose: LicenseScope) -> Any:
    doing.before_fold = doing.deployment.kernel.now
    done = aggregate(doing.deployment.tables, part, doing.entries.append)
    _say(doing, [*done.notes, *done.unsettled, *done.hidden])
    doing.says(str(metadata.of_aggregation(doing.deployment.mode, done)))
    unfinished = hour_run.not_folded(bucket, done)
    if unfinished is not None:
        sent = hour_run.send_the_rest(doing.deployment, bucket, whose, done, doing.entries.append)
        doing.says(f"{unfinished}{sent}")
        raise unfinished
    return done


def _submit(doing: Doing, bucket: str, part: Any, whose: LicenseScope) -> Submission:
    deployment = doing.deployment
    urgent = whose is LicenseScope.DEPROVISIONING
    submission = deployment.submitter(doing.entries.append, urgent=urgent).submit(part)
    _say(doing, [*submission.notes, *submission.warnings, *submission.left])
    doing.says(str(metadata.of_submission(doing.deployment.mode, submission, HourSummary(), (0, 0), None)))
    return submission


def finalize(doing: Doing) -> None:
    """The job `finalize_deprovisioned`."""
    tables = doing.deployment.tables
    store = ClosingStore(tables.subscribers.client, tables.subscribers.name)
    done = close_windows(store, tables, lambda bucket, losses: None)
    _say(doing, done.failures.notes)
    failure = failure_of(done)
    if failure is not None:
        raise failure


def apply_events(doing: Doing) -> None:
    """The job `apply_marketplace_events`."""
    deployment = doing.deployment
    report = event_application.apply_events(
        events_queue_of(deployment), subscribers_of(deployment), clock=lambda: deployment.kernel.now
    )
    _say(doing, [*report.left, *report.refused, *report.notes])
    if report.fault is not None:
        raise report.fault


def age_out(doing: Doing, shard: int, as_of: datetime, *, whole: bool) -> None:
    """The job `age_out` of one shard."""
    tables, report = doing.deployment.tables, Sweep()
    shard_hours = hours_of_sweep(shard, tables.clock(), as_of)
    try:
        sweep(tables, shard_hours, lambda bucket, entry: doing.entries.append(entry), whole=whole, report=report)
    finally:
        _say(doing, [*report.notes, *report.faults])
        doing.says(str(of_sweep(doing.deployment.mode, report, whole=whole)))
    if report.faults or report.unwritable:
        raise LeftPendingError(f"The shard was swept, but: {report.faults}")


def _say(doing: Doing, words: Iterable[str]) -> None:
    for each in words:
        doing.says(str(each))
