"""The billing part of a rehearsal: two months are there, some days are ingested again, and those cells alone are told.

Belongs here: the order of sample, looks and runs, and whether what was reported is what was due. Does not: which rows
(billing_sample, billing_reingest), how anything is shown (words).

Billing data goes by its database's clock, so that part of a rehearsal is always now.
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
from metering_dagster.devstack.billing_reingest import CellKey, Move, reingest
from metering_dagster.devstack.billing_sample import generate
from metering_dagster.devstack.demo_state import DemoState
from metering_dagster.devstack.environment import being, environment_with
from metering_dagster.devstack.runs import Progress, Run, perform
from metering_dagster.settings import read_settings

if TYPE_CHECKING:
    from metering_dagster.billing_changes.rules.day_diff import CellChange
    from metering_dagster.billing_changes.stores.day_files import DayFiles

SENSOR, JOB = "billing_changes", "refresh_billing_changes"


@dataclass(frozen=True)
class MovedCell:
    """A cell that was reported once days had been ingested again."""

    day: date
    subscription_id: str
    name: str
    move: Move
    before: Mapping[str, Decimal]
    """By currency; empty where there was nothing."""
    now: Mapping[str, Decimal]

    @property
    def key(self) -> CellKey:
        """Return what tells it from every other."""
        return self.day, self.subscription_id


@dataclass(frozen=True)
class BillingRehearsal:
    """The result of the rehearsal."""

    days: int
    """Of the window."""
    cells: int
    """Of the window: what a consumer would pull again every night."""
    moved: tuple[MovedCell, ...]
    wrong: tuple[str, ...]
    """What was due and is not reported so, or is reported without being due."""
    runs: int
    failures: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """Return whether exactly what was ingested again has been reported, as what it was."""
        return not self.wrong and not self.failures

    @property
    def spared(self) -> float:
        """Return the share of the window that need not be pulled again."""
        return 1 - len(self.moved) / self.cells if self.cells else 0.0


def rehearse_billing(home: Path, state: DemoState, progress: Progress) -> BillingRehearsal:
    """Load a sample, report every day of the horizon, ingest some days again, and report what the sensor asks for then.

    Database and reports lie in `state`, empty before; runs stay in the Dagster instance at `home`.
    """
    database = state.billing_database
    progress("loading two months of billing data", 0, 1)
    now = datetime.now(UTC)
    sample = generate(now)
    billing_db.fill(database, sample)
    environment = environment_with(home, os.environ, **state.billing_settings())
    with being(environment), dg.DagsterInstance.get() as instance:
        deployment = _Deployment(instance, progress)
        days = deployment.look_and_run("reporting")
        before = deployment.rows(days)
        later = reingest(sample, datetime.now(UTC))
        billing_db.write_again(database, later)
        # On a slow machine days whose rows had not settled as they were read are among them; they report nothing new.
        again = deployment.look_and_run("reporting again")
        moved = tuple(_moved(row) for row in deployment.rows(again) if row.touched)
    names = {each.id: each.name for each in sample.subscriptions}
    wrong = _wrong(later.due, {cell.key: cell.move for cell in moved}, names)
    return BillingRehearsal(
        len(days), len(before), moved, tuple(wrong), len(days) + len(again), tuple(deployment.failures)
    )


class _Deployment:
    """The project's own sensor and job, with the daemon's part played here."""

    def __init__(self, instance: dg.DagsterInstance, progress: Progress) -> None:
        from metering_dagster.billing_changes.services.deployment import Billing
        from metering_dagster.definitions import build_defs

        self._instance, self._progress = instance, progress
        self._billing = Billing(read_settings(os.environ))
        self._defs = build_defs(resources={"billing": self._billing})
        self._files: DayFiles = self._billing.files(instance.storage_directory())
        self._cursor: str | None = None
        self.failures: list[str] = []

    def look_and_run(self, what: str) -> list[date]:
        """Evaluate the sensor once and do the runs that it asks for; their days."""
        sensor = self._defs.resolve_sensor_def(SENSOR)
        with dg.build_sensor_context(
            self._instance, self._cursor, definitions=self._defs, resources={"billing": self._billing}
        ) as context:
            context.log.setLevel(logging.CRITICAL)  # or it goes in between the lines of progress
            tick = sensor.evaluate_tick(context)
        self._cursor = tick.cursor
        asked = sorted(tick.run_requests or [], key=lambda request: str(request.partition_key))
        for done, request in enumerate(asked):
            run = Run(JOB, f"{what} {request.partition_key}", request.partition_key, request.run_config, request.tags)
            self._progress(run.what, done, len(asked))
            self.failures += perform(run, self._defs, self._instance)
        return [date.fromisoformat(str(request.partition_key)) for request in asked]

    def rows(self, days: Sequence[date]) -> "list[CellChange]":
        """Return what is reported of these days."""
        found = [self._files.read(day) for day in days]
        return [row for each in found if each is not None for row in each.report.rows]


def _moved(row: "CellChange") -> MovedCell:
    move = Move.VANISHED if row.vanished else Move.CHANGED if row.changed else Move.TOUCHED
    one = row.cell.subscription
    return MovedCell(row.cell.day, one.id, one.name, move, dict(row.amounts_before or ()), dict(row.amounts))


def _wrong(due: Mapping[CellKey, Move], found: Mapping[CellKey, Move], names: Mapping[str, str]) -> list[str]:
    """Return the differences, in words."""
    return [
        f"{day} {names.get(one, one)}: {found.get((day, one), 'not reported')}, "
        f"due was {due.get((day, one), 'nothing')}"
        for day, one in sorted(due.keys() | found.keys())
        if due.get((day, one)) != found.get((day, one))
    ]
