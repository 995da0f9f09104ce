"""The billing part of a rehearsal: some days of two months are ingested again, and only their cells must be reported.

Belongs here: the order of sample, polls and runs, and the comparison of reported and due cells. Does not: which rows
(billing_sample, billing_reingest), the output (cli).

Billing data follows its database's clock, so this part of a rehearsal always happens at the present time.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.devstack import billing_db
from metering_dagster.devstack.billing_reingest import CellKey, ExpectedChange, reingest
from metering_dagster.devstack.billing_sample import generate
from metering_dagster.devstack.demo_state import DemoState
from metering_dagster.devstack.environment import environment_with, using_environment
from metering_dagster.devstack.runs import Progress, Run, perform
from metering_dagster.settings import read_settings

if TYPE_CHECKING:
    from metering_dagster.billing_changes.rules.day_diff import CellChange
    from metering_dagster.billing_changes.stores.day_files import DayFiles

SENSOR, JOB = "billing_changes", "refresh_billing_changes"


@dataclass(frozen=True)
class ReportedCell:
    """Cell that was reported after days had been ingested again."""

    day: date
    subscription_id: str
    name: str
    move: ExpectedChange
    before: Mapping[str, Decimal]
    """By currency; empty where there was nothing."""
    now: Mapping[str, Decimal]

    @property
    def key(self) -> CellKey:
        """Return the cell's day and subscription id."""
        return self.day, self.subscription_id


@dataclass(frozen=True)
class BillingRehearsal:
    """Result of the billing part."""

    days: int
    """The days of the window."""
    cells: int
    """The cells of the window, all of which a consumer would otherwise pull again every night."""
    moved: tuple[ReportedCell, ...]
    wrong: tuple[str, ...]
    """Cells that were due and not reported so, or reported without being due."""
    runs: int
    failures: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Judge whether exactly the cells ingested again were reported, each with the right change."""
        return not self.wrong and not self.failures

    @property
    def spared(self) -> float:
        """Return the share of the window that need not be pulled again, 0 to 1."""
        return 1 - len(self.moved) / self.cells if self.cells else 0.0


def rehearse_billing(home: Path, state: DemoState, progress: Progress) -> BillingRehearsal:
    """Load a sample, report all days of the horizon, ingest some again, and do the runs that the sensor then requests.

    Database and reports are in `state`, which must be empty; runs stay in the Dagster instance at `home`.
    """
    database = state.billing_database
    progress("loading two months of billing data", 0, 1)
    now = datetime.now(UTC)
    sample = generate(now)
    billing_db.fill(database, sample)
    environment = environment_with(home, os.environ, **state.billing_settings())
    with using_environment(environment), dg.DagsterInstance.get() as instance:
        deployment = _Deployment(instance, progress)
        days = deployment.poll_and_run("reporting")
        before = deployment.rows(days)
        later = reingest(sample, datetime.now(UTC))
        billing_db.write_again(database, later)
        # On a slow machine this includes days that were read before their rows had settled; they report nothing new.
        again = deployment.poll_and_run("reporting again")
        moved = tuple(_moved(row) for row in deployment.rows(again) if row.touched)
    names = {each.id: each.name for each in sample.subscriptions}
    wrong = _wrong(later.due, {cell.key: cell.move for cell in moved}, names)
    return BillingRehearsal(
        len(days), len(before), moved, tuple(wrong), len(days) + len(again), tuple(deployment.failures)
    )


class _Deployment:
    """The project's own sensor and job, driven here instead of by the daemon."""

    def __init__(self, instance: dg.DagsterInstance, progress: Progress) -> None:
        from metering_dagster.billing_changes.services.deployment import Billing
        from metering_dagster.definitions import build_defs

        self._instance, self._progress = instance, progress
        self._billing = Billing(read_settings(os.environ))
        self._defs = build_defs(resources={"billing": self._billing})
        self._files: DayFiles = self._billing.files(instance.storage_directory())
        self._cursor: str | None = None
        self.failures: list[str] = []

    def poll_and_run(self, what: str) -> list[date]:
        """Evaluate the sensor once, do the runs that it requests, and return their days."""
        sensor = self._defs.resolve_sensor_def(SENSOR)
        with dg.build_sensor_context(
            self._instance, self._cursor, definitions=self._defs, resources={"billing": self._billing}
        ) as context:
            context.log.setLevel(logging.CRITICAL)  # its log would mix with the lines of progress
            tick = sensor.evaluate_tick(context)
        self._cursor = tick.cursor
        requests = sorted(tick.run_requests or [], key=lambda request: str(request.partition_key))
        for done, request in enumerate(requests):
            run = Run(JOB, f"{what} {request.partition_key}", request.partition_key, request.run_config, request.tags)
            self._progress(run.what, done, len(requests))
            self.failures += perform(run, self._defs, self._instance)
        return [date.fromisoformat(str(request.partition_key)) for request in requests]

    def rows(self, days: Sequence[date]) -> "list[CellChange]":
        """Read the reported rows of these days."""
        found = [self._files.read(day) for day in days]
        return [row for each in found if each is not None for row in each.report.rows]


def _moved(row: "CellChange") -> ReportedCell:
    move = (
        ExpectedChange.VANISHED if row.vanished else ExpectedChange.CHANGED if row.changed else ExpectedChange.TOUCHED
    )
    one = row.cell.subscription
    return ReportedCell(row.cell.day, one.id, one.name, move, dict(row.amounts_before or ()), dict(row.amounts))


def _wrong(
    due: Mapping[CellKey, ExpectedChange], found: Mapping[CellKey, ExpectedChange], names: Mapping[str, str]
) -> list[str]:
    """Return a message for each cell whose report differs from what was due."""
    return [
        f"{day} {names.get(one, one)}: {found.get((day, one), 'not reported')}, "
        f"due was {due.get((day, one), 'nothing')}"
        for day, one in sorted(due.keys() | found.keys())
        if due.get((day, one)) != found.get((day, one))
    ]
