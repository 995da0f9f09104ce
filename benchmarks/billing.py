"""What it costs to look for changed cells among millions of facts, against aggregating the window again.

`.venv/bin/python -m benchmarks.billing` fills a database of its own on MariaDB (a minute for 5 million facts over 92
days, 200 tenants, 1,500 resource groups), prints how each query is executed and how long it takes, and exits 1 if the
poll is not 100 times, or the reconcile not 15 times, cheaper than what it saves. The server is a private one with room
for the indexes in memory, where there is a `mariadbd`; else the one that the tests use.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text

from benchmarks.billing_rows import DAYS, FULL, build, ingest_again, touch
from metering_dagster.billing_changes.rules.cells import Signal, cells_of, states_of_days
from metering_dagster.billing_changes.stores.database import Database
from metering_dagster.billing_changes.stores.queries import BillingSnapshot
from tests.billing_changes.filling import queries_of
from tests.command_line import positive
from tests.mariadb import Server, private_server, program, running_server

POLL_DEMAND, RECONCILE_DEMAND = 100, 15
OVERLAP = timedelta(minutes=60)
REPEATS = 3
DATABASE = "billing_benchmark"
OPTIONS = ("--innodb-log-file-size=1G", "--innodb-doublewrite=0", "--skip-log-bin")
_WINDOW = (
    "SELECT scope_id, date, SUM(amount), MAX(updated_at) FROM cmdb_cost_facts WHERE date >= :first "
    "GROUP BY scope_id, date",
    "SELECT integration_id, resource_group, date, SUM(amount), MAX(updated_at) FROM cmdb_cost_facts "
    "WHERE date >= :first GROUP BY integration_id, resource_group, date",
    "SELECT scope_id, date, SUM(amount), MAX(fetched_at) FROM cmdb_cloud_billing_daily WHERE date >= :first "
    "GROUP BY scope_id, date",
)
"""What whoever is not told of changes does every night: the whole window, for every subscription."""


@dataclass(frozen=True)
class Step:
    """A query and one table of how the server executes it."""

    query: str
    table: str
    kind: str
    """MariaDB's access type: `range`, `ref`; `ALL` reads the table, `index` the whole index."""
    index: str
    rows: int
    extra: str


@dataclass(frozen=True)
class Figure:
    """A question, what it took, and how it was executed."""

    name: str
    seconds: float
    queries: int
    answers: int
    steps: Sequence[Step] = ()


def measure(database: Database, engine: Engine, say: Callable[[Figure], None]) -> dict[str, Figure]:
    """Ask everything; the figures by their names. The tables are changed for it."""
    with database.reading() as reading:
        last = reading.now.date()
        first = last - timedelta(days=DAYS - 1)

    figures: dict[str, Figure] = {}

    def ask(name: str, question: Callable[[BillingSnapshot], int]) -> None:
        figures[name] = _asked(database, engine, name, question)
        say(figures[name])

    touch(engine)
    ask("poll, few changes", lambda reading: _poll(reading, first))
    ask("reconcile: checksums", lambda reading: len(reading.checksums(first)))
    ask("checksums, 32 days", lambda reading: len(reading.checksums(last - timedelta(days=32))))
    ask("exact look, 4 days", lambda reading: _exactly(reading, [last - timedelta(days=n) for n in range(4)], False))
    ask("a day with amounts", lambda reading: _exactly(reading, [last - timedelta(days=3)], True))
    ask("odd stamps of a day", lambda reading: len(reading.invalid_stamps(last).examples))
    ask("groups of a day", lambda reading: len(reading.groups_of(last)))
    ingest_again(engine, last - timedelta(days=5))
    ask("poll, a day ingested", lambda reading: _poll(reading, first))
    figures["window again"] = _window(engine, first)
    say(figures["window again"])
    return figures


def _poll(reading: BillingSnapshot, first: date) -> int:
    """What the sensor asks every minute: who subscribes, and what moved."""
    starts = dict.fromkeys(Signal, reading.now - OVERLAP)
    cells = cells_of(reading.pieces_since(starts, first), reading.claims())
    states_of_days(cells.values())
    return len(cells)


def _exactly(reading: BillingSnapshot, days: Sequence[date], amounts: bool) -> int:
    claims = reading.claims()
    return len(cells_of(reading.pieces_of(days, claims, amounts=amounts), claims))


def _asked(database: Database, engine: Engine, name: str, question: Callable[[BillingSnapshot], int]) -> Figure:
    best, answers = float("inf"), 0
    for _ in range(REPEATS):
        with queries_of(database) as queries, database.reading() as reading:
            began = time.perf_counter()
            answers = question(reading)
            best = min(best, time.perf_counter() - began)
    with engine.connect() as connection:
        steps = [step for query, parameters in queries for step in explain(connection, query, parameters)]
    return Figure(name, best, len(queries), answers, steps)


def explain(connection: Connection, query: str, parameters: Any) -> list[Step]:
    """How the server executes a query, for each of the billing tables in it; what it gathers itself is none."""
    plan = connection.exec_driver_sql(f"EXPLAIN {query}", parameters).mappings().all()
    return [
        Step(query, row["table"], row["type"], row["key"] or "", int(row["rows"] or 0), row["Extra"] or "")
        for row in plan
        if row["table"] is not None and not row["table"].startswith("<")
    ]


def _window(engine: Engine, first: date) -> Figure:
    best, answers = float("inf"), 0
    for _ in range(2):
        began = time.perf_counter()
        with engine.connect() as connection:
            answers = sum(len(connection.execute(text(query), {"first": first}).all()) for query in _WINDOW)
        best = min(best, time.perf_counter() - began)
    return Figure("window again", best, len(_WINDOW), answers)


def ratios(figures: dict[str, Figure]) -> tuple[float, float]:
    """How many times cheaper than the window again the poll and the reconcile are."""
    window = figures["window again"].seconds
    return window / figures["poll, few changes"].seconds, window / figures["reconcile: checksums"].seconds


@contextmanager
def benchmark_server(folder: Path, rows: int) -> Iterator[Server]:
    """A private server with a buffer pool of 4 GB for the whole of it; else the one that the tests use."""
    if program("mariadbd") is None:
        with running_server(folder) as server:
            yield server
        return
    pool = max(256, 4096 * rows // FULL)
    with private_server(folder, f"--innodb-buffer-pool-size={pool}M", *OPTIONS) as server:
        yield server


@contextmanager
def filled(server: Server, rows: int, name: str = DATABASE) -> Iterator[tuple[Database, Engine]]:
    """The tables, filled, in a database of their own; dropped afterwards."""
    server.run(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    database, engine = Database(server.url_of(name), read_timeout=120), create_engine(server.url_of(name))
    try:
        build(engine, rows, datetime.now(UTC))
        yield database, engine
    finally:
        database.close()
        engine.dispose()
        server.run(f"DROP DATABASE {name}")


def main() -> None:
    """Build, measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive, default=FULL, help=f"How many facts; {FULL} unless said otherwise.")
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder, benchmark_server(Path(folder), rows) as server:
        print(f"Filling {rows} facts over {DAYS} days ...", flush=True)
        began = time.perf_counter()
        with filled(server, rows) as (database, engine):
            print(f"Filled and indexed in {time.perf_counter() - began:.0f} s.\n\n{'':24} {'ms':>9} {'queries':>8} "
                  f"{'answers':>8}   how it is executed")  # fmt: skip
            figures = measure(database, engine, _print)
    poll, reconcile = ratios(figures)
    print(f"\nThe poll is {poll:.0f} times cheaper than the window again (at least {POLL_DEMAND} are wanted), "
          f"the reconcile {reconcile:.1f} times (at least {RECONCILE_DEMAND}).")  # fmt: skip
    sys.exit(0 if poll >= POLL_DEMAND and reconcile >= RECONCILE_DEMAND else 1)


def _print(figure: Figure) -> None:
    print(f"{figure.name:24} {1000 * figure.seconds:>9.1f} {figure.queries:>8} {figure.answers:>8}", flush=True)
    for words, times in _plans(figure.steps).items():
        print(f"{'':53}{words}{f' ({times} queries)' if times > 1 else ''}")


def _plans(steps: Sequence[Step]) -> dict[str, int]:
    """How the queries are executed, each way once, and how many of them."""
    found: dict[str, int] = {}
    for step in steps:
        words = f"{step.table}: {step.kind} of {step.index or 'nothing'}, {step.extra}"
        found[words] = found.get(words, 0) + 1
    return found


if __name__ == "__main__":
    main()
