"""Billing by simulation: writers ingest at random into a MariaDB while the sensor's function looks and runs report.

Belongs here: the sensor and its runs without Dagster, one simulation as a whole, many of them from the command line:
`.venv/bin/python -m tests.billing_changes.simulation --seeds 500`. Does not: writers (simulated_ingests), the judge
(simulation_judge).

A seed fixes who does what; which thread comes first is the machine's. Every other seed has no reconcile and nothing
that only a reconcile finds: so looking at stamps is shown to be enough where it has to be.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from pathlib import Path

from metering_dagster.billing_changes.rules import cursor as remembered
from metering_dagster.billing_changes.rules.cells import cells_of
from metering_dagster.billing_changes.rules.day_diff import report
from metering_dagster.billing_changes.rules.reconcile import Days, MaterializedReading
from metering_dagster.billing_changes.rules.watermark import PollRules
from metering_dagster.billing_changes.services.poll import PollResult, poll
from metering_dagster.billing_changes.stores.database import Database
from tests.billing_changes.conftest import filled_by_hand, fresh_database
from tests.billing_changes.filling import BillingTables
from tests.billing_changes.simulated_ingests import AGES, WRITERS, Pace, Writer, fill, numbers_in
from tests.billing_changes.simulation_judge import Course, Materialization, Promise, problems
from tests.command_line import at_least, positive
from tests.mariadb import Server, running_server

_MS = timedelta(milliseconds=1)
_LONG = timedelta(days=365)
RULES = PollRules(
    overlap=1000 * _MS, settle=50 * _MS, quiet=20 * _MS, at_most=200 * _MS, retry=50 * _MS, retry_at_most=200 * _MS,
    sums_every=200 * _MS, recent_every=300 * _MS, others_every=300 * _MS, most_compared=20,
)  # fmt: skip
"""Hours shrunk to tenths of a second."""
STAMPS_ALONE = replace(RULES, sums_every=_LONG, recent_every=_LONG, others_every=_LONG)
WRITING_SECONDS, PATIENCE_SECONDS = 1.5, 60.0
AT_ONCE = 4


@dataclass
class Runs:
    """The runs of the days: some are slow, fail or are lost. What they store is conditional, as in day_files."""

    database: Database
    rng: random.Random
    stored: dict[date, list[Materialization]] = field(default_factory=dict)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _keys: set[str] = field(default_factory=set)
    _futures: list[tuple[date, Future[None]]] = field(default_factory=list)

    def ask(self, day: date, run_key: str) -> None:
        """Begin a run; never twice with one key, as Dagster has it."""
        if run_key in self._keys:
            return
        self._keys.add(run_key)
        fate = self.rng.choice(["through"] * 7 + ["slow", "slow to store", "failed", "lost"])
        if fate != "lost":
            waits = self.rng.uniform(0.05, 0.3)
            self._futures.append((day, self.pool.submit(self._run, day, fate, waits)))

    def under_way(self) -> set[date]:
        """The days whose runs are queued or running. What went wrong in one that is through is raised."""
        for _, future in self._futures:
            if future.done():
                future.result()
        self._futures = [(day, future) for day, future in self._futures if not future.done()]
        return {day for day, _ in self._futures}

    def reported(self, day: date) -> MaterializedReading | None:
        """What is known of the day's last materialization."""
        with self._lock:
            stored = self.stored.get(day)
            return MaterializedReading(stored[-1].report.read_at, stored[-1].report.state) if stored else None

    def counts(self) -> dict[date, int]:
        """How often each day was stored."""
        with self._lock:
            return {day: len(stored) for day, stored in self.stored.items()}

    def _run(self, day: date, fate: str, waits: float) -> None:
        if fate == "slow":
            time.sleep(waits)
        with self._lock:
            before = list(self.stored.get(day, ()))
        with self.database.reading() as reading:
            claims = reading.claims()
            cells = cells_of(reading.pieces_of([day], claims, amounts=True), claims)
            numbers = numbers_in(reading)
        done = report(day, cells, claims, reading.now, before[-1].report if before else None)
        if fate == "slow to store":
            time.sleep(waits)
        if fate == "failed":
            return
        with self._lock:
            if len(self.stored.get(day, ())) == len(before):  # else another was stored meanwhile: this one fails
                self.stored.setdefault(day, []).append(Materialization(done, numbers))


@dataclass
class Sensor:
    """The sensor without Dagster; what it remembers goes through its cursor."""

    runs: Runs
    rules: PollRules
    rng: random.Random
    days: list[date]
    cursor: str | None = None
    promises: list[Promise] = field(default_factory=list)

    def look(self, *, mishaps: bool) -> PollResult:
        """Look once, and begin the runs that are asked for. `mishaps`: at times a cursor is lost, or a tick's answer
        is after its runs began."""
        memory, _ = remembered.read(self.cursor)
        under_way = self.runs.under_way()
        with self.runs.database.reading() as reading:
            partitions = Days(self.days[-1] - timedelta(days=60), reading.now.date())
            looked = poll(reading, memory, self.rules, reported=self.runs.reported, under_way=under_way,
                          partitions=partitions)  # fmt: skip
        if looked.complete_until is not None:
            self.promises.append(Promise(looked.complete_until, self.runs.counts()))
        for ask in looked.due_days:
            self.runs.ask(ask.day, ask.run_key)
        if not mishaps or self.rng.random() > 0.03:
            self.cursor = remembered.write(looked.cursor)
        if mishaps and self.rules is not STAMPS_ALONE and self.rng.random() < 0.01:
            self.cursor = None
        time.sleep(self.rng.uniform(0.01, 0.05))
        return looked

    def settle(self) -> bool:
        """Look until all is materialized and compared after now; whether that came about."""
        with self.runs.database.reading() as reading:
            begun = reading.now
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            looked = self.look(mishaps=False)
            if not looked.waiting and not looked.cursor.pending and self._is_compared(looked, begun):
                return True
        return False

    def _is_compared(self, looked: PollResult, begun: datetime) -> bool:
        compared = [looked.cursor.compared.get(day) for day in Days(looked.first_day, looked.cursor.polled_at.date())]
        if self.rules is STAMPS_ALONE:
            return None not in compared
        return not looked.cursor.suspects and all(at is not None and at >= begun for at in compared)


def simulate(seed: int, tables: BillingTables) -> list[str]:
    """One simulation in empty tables; what went wrong, in words."""
    rng = random.Random(seed)
    reconciled = seed % 2 == 0
    rules = RULES if reconciled else STAMPS_ALONE
    now = tables.now()
    days = [now.date() - timedelta(days=age) for age in AGES]
    course = Course(rules.settle, None if reconciled else rules.overlap, fill(tables, days, rng, now))
    runs = Runs(tables.database(), random.Random(f"{seed}:runs"))
    sensor = Sensor(runs, rules, random.Random(f"{seed}:sensor"), days)
    with runs.pool:
        if not sensor.settle():
            return ["What was there at the start is never done with."]
        sensor.promises.clear()
        writers = [Writer(tables, who, seed, days, Pace(WRITING_SECONDS, reconciled)) for who in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            writing = [pool.submit(writer.run) for writer in writers]
            while not all(future.done() for future in writing):
                sensor.look(mishaps=True)
                if rng.random() < 0.05:
                    runs.ask(rng.choice(days), f"by hand {time.monotonic()}")
        for future in writing:
            course.writes += future.result()
        if not sensor.settle():
            return [f"In the end {sensor.look(mishaps=False).waiting} are never done with."]
    runs.under_way()
    course.stored, course.promises = runs.stored, sensor.promises
    with runs.database.reading() as reading:
        claims = reading.claims()
        course.held = cells_of(reading.pieces_of(days, claims, amounts=True), claims)
    return problems(course)


def failures(server: Server, seeds: Iterable[int]) -> Iterator[tuple[int, list[str]]]:
    """Each seed, as it is done with, and what went wrong in it. Some go on at once: most of their time is waiting."""

    def simulated(seed: int) -> tuple[int, list[str]]:
        with fresh_database(server) as url, filled_by_hand(url) as tables:
            return seed, simulate(seed, tables)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for future in as_completed([pool.submit(simulated, seed) for seed in seeds]):
            yield future.result()


def main() -> int:
    """Many seeds; those that failed are named, and then the exit code is 1."""
    parser = argparse.ArgumentParser(description="Billing by simulation, on MariaDB.")
    parser.add_argument("--seeds", type=positive, default=500, help="how many")
    parser.add_argument("--first", type=at_least(0), default=0, help="the first of them")
    asked = parser.parse_args()
    failed = []
    seeds = range(asked.first, asked.first + asked.seeds)
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder)) as server:
        for count, (seed, found) in enumerate(failures(server, seeds), start=1):
            if found:
                failed.append(seed)
                print(f"\nSeed {seed}:", *found, sep="\n  ", flush=True)  # noqa: T201
            print(f"\r{count} of {asked.seeds} seeds, {len(failed)} failed", end="", flush=True)  # noqa: T201
    print(f"\nFailed: {sorted(failed)}" if failed else "\nAll is well.")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
