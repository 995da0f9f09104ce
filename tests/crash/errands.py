"""Processes that carry out one errand each: the project's own functions behind its ops, ticks and sensors, undisturbed.

Belongs here: what is done, in the order of the ops. Does not: when, and who is killed (conductor).
"""

import os
import random
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from multiprocessing.connection import Connection
from pathlib import Path

import dagster as dg

from metering_dagster.core.errors import LeftPendingError, MeteringError
from metering_dagster.definitions import build_defs
from metering_dagster.expiry.services.sweep import hours_of_sweep, sweep
from metering_dagster.expiry.services.sweep_report import Sweep
from metering_dagster.licenses.rules.flush_plan import hours_to_flush
from metering_dagster.licenses.services.connections import events_queue_of, subscribers_of
from metering_dagster.licenses.services.event_application import apply_events
from metering_dagster.licenses.services.finalization import close_windows, failure_of
from metering_dagster.licenses.services.flush_search import pending_hours
from metering_dagster.licenses.stores import events_queue
from metering_dagster.licenses.stores.open_windows import ClosingStore
from metering_dagster.metering.rules.flush_window import LicenseScope
from metering_dagster.metering.rules.run_decision import LastRun
from metering_dagster.metering.services import hour_run
from metering_dagster.metering.services.aggregation import aggregate
from metering_dagster.metering.services.aggregation_report import Aggregation
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.metering.services.discovery import discover
from metering_dagster.metering.services.tables import Slice
from metering_dagster.settings import Settings
from tests.crash.marks import OVER, WORKING, Marks, note_slots

BEGUN, DONE, FAILED, BROKEN = "begun", "done", "failed", "broken"
"""Words on the pipe; `FAILED` is an error that a person would read and the next run mends, `BROKEN` any other."""


class Kind(StrEnum):
    """The errands."""

    METER = "meter hours"
    RUN = "a run of Dagster"
    FLUSH = "flush"
    CLOSE = "close windows"
    EVENTS = "apply events"
    AGE_OUT = "age out"


@dataclass(frozen=True)
class Errand:
    """One piece of work."""

    kind: Kind
    hours: tuple[str, ...] = ()
    """That are metered, one after the other; a run of Dagster takes one."""
    shard: int = 0
    whole: bool = False
    as_of: datetime | None = None
    kills: int = field(default=0, compare=False)
    """How often somebody died of it."""
    failures: int = field(default=0, compare=False)

    def __str__(self) -> str:
        what = ", ".join(self.hours) or (f"shard {self.shard}" if self.kind is Kind.AGE_OUT else "")
        return f"{self.kind} {what}".strip()


@dataclass(frozen=True)
class Place:
    """Where work is done."""

    environment: Mapping[str, str]
    settings: Settings
    home: Path
    """The DAGSTER_HOME of the runs."""
    slots: Path
    """Where each keeps the slots of the quota that it used."""


def carry_out(pipe: Connection, place: Place, errand: Errand, marks_at: Path, log: Path) -> None:
    """The whole life of a worker."""
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(place.environment)
    random.seed()  # a fork inherits its parent's: rivals would pause for equally long
    events_queue.WAIT_SECONDS = 0
    marks = Marks(marks_at)
    note_slots(place.slots)
    try:
        deployment = Deployment(place.settings)
        marks.follow(deployment.clients._session.events)
        pipe.send((BEGUN, None))
        marks.say(WORKING)
        done = _WORK[errand.kind](deployment, place, errand)
    except MeteringError as error:
        pipe.send((FAILED, str(error)))
    except dg.Failure as failure:
        pipe.send((FAILED, str(failure.description)))
    except Exception:  # noqa: BLE001  # whatever it is, it is told: nobody else would hear of it
        pipe.send((BROKEN, traceback.format_exc()))
    else:
        pipe.send((DONE, done))
    marks.say(OVER)


def _meter(deployment: Deployment, place: Place, errand: Errand) -> dict[str, LastRun]:
    """What Dagster would remember of each hour."""
    return {bucket: found for bucket in errand.hours if (found := _meter_hour(deployment, bucket)) is not None}


def _meter_hour(deployment: Deployment, bucket: str) -> LastRun | None:
    whose = LicenseScope.ALL
    part = _begin(deployment, bucket, whose)
    if part is None:
        return None
    discover(deployment.tables, part)
    part = _begin(deployment, bucket, whose)
    if part is None:
        return None
    folded = _fold(deployment, bucket, whose, part)
    _submit(deployment, bucket, whose)
    tables = deployment.tables
    pending = hour_run.still_pending(tables, bucket)
    _raise(hour_run.arrived_meanwhile(bucket, pending))
    waiting = folded.held_rows + folded.zero_rows
    return LastRun(deployment.settings.now(), waiting, pending, zero_rows=folded.zero_rows)


def _flush(deployment: Deployment, place: Place, errand: Errand) -> None:
    """What goes wrong in one hour stops no other."""
    windows = deployment.tables.subscribers.deprovisioning()
    failures = []
    for each in pending_hours(deployment.indexes, hours_to_flush(deployment.settings.now(), windows)):
        try:
            _flush_hour(deployment, each.bucket)
        except MeteringError as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _flush_hour(deployment: Deployment, bucket: str) -> None:
    whose = LicenseScope.DEPROVISIONING
    part = _begin(deployment, bucket, whose)
    if part is None:
        return
    discover(deployment.tables, part)
    part = _begin(deployment, bucket, whose)
    if part is None:
        return
    _fold(deployment, bucket, whose, part)
    _submit(deployment, bucket, whose)


def _fold(deployment: Deployment, bucket: str, whose: LicenseScope, part: Slice) -> Aggregation:
    done = aggregate(deployment.tables, part)
    unfinished = hour_run.not_folded(bucket, done)
    if unfinished is not None:
        hour_run.send_the_rest(deployment, bucket, whose, done, lambda entry: None)
        raise unfinished
    return done


def _begin(deployment: Deployment, bucket: str, whose: LicenseScope) -> Slice | None:
    beginning = hour_run.begin(deployment, bucket, whose)
    return None if beginning.closed is not None else beginning.part


def _submit(deployment: Deployment, bucket: str, whose: LicenseScope) -> None:
    part = _begin(deployment, bucket, whose)
    if part is None:
        return
    submission = deployment.submitter(urgent=whose is LicenseScope.DEPROVISIONING).submit(part)
    _raise(hour_run.left_pending(bucket, submission, deployment.settings.now()))


def _raise(failure: MeteringError | None) -> None:
    if failure is not None:
        raise failure


def _close(deployment: Deployment, place: Place, errand: Errand) -> None:
    tables = deployment.tables
    store = ClosingStore(tables.subscribers.client, tables.subscribers.name)
    _raise(failure_of(close_windows(store, tables, lambda bucket, losses: None)))


def _apply(deployment: Deployment, place: Place, errand: Errand) -> None:
    report = apply_events(events_queue_of(deployment), subscribers_of(deployment))
    _raise(report.fault)
    if report.left:
        raise LeftPendingError("; ".join(report.left))


def _age_out(deployment: Deployment, place: Place, errand: Errand) -> None:
    tables, report = deployment.tables, Sweep()
    sweep(tables, hours_of_sweep(errand.shard, tables.clock(), errand.as_of), whole=errand.whole, report=report)
    if report.faults or report.unwritable:
        raise LeftPendingError(f"the shard was swept, but: {report.faults}")


def _run(deployment: Deployment, place: Place, errand: Errand) -> None:
    """A real run of `meter_hour`, in the instance that all of them share."""
    os.environ["DAGSTER_HOME"] = str(place.home)
    settings = replace(place.settings, ledger_uri=str(place.home / "ledger"))
    defs = build_defs(settings=settings, resources={"metering": deployment})
    with dg.DagsterInstance.get() as instance, dg.partition_loading_context(effective_dt=settings.now()):
        defs.resolve_job_def("meter_hour").execute_in_process(instance=instance, partition_key=errand.hours[0])


_WORK = {
    Kind.METER: _meter, Kind.RUN: _run, Kind.FLUSH: _flush, Kind.CLOSE: _close, Kind.EVENTS: _apply,
    Kind.AGE_OUT: _age_out,
}  # fmt: skip
