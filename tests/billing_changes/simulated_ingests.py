"""Ingests at random for the simulation: writers with sessions of their own, and a log of what each of them committed.

Belongs here: rows, whose they are, transactions and their stamps. Does not: who watches (simulation), what has to come
of it (simulation_judge).

Each row has one writer, so its writes have an order; cells have rows of several writers. Each transaction leaves its
number in a table of its own, by which a snapshot tells exactly which transactions it holds.
"""

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from sqlalchemy import Connection, delete, text
from sqlalchemy.exc import OperationalError

from metering_dagster.billing_changes.rules.cells import Subscription
from metering_dagster.billing_changes.stores.billing_tables import DAILY, FACTS
from metering_dagster.billing_changes.stores.queries import BillingSnapshot
from tests.billing_changes.filling import BillingTables, resource_group, tenant

WRITERS = 3
BASELINE = 0
"""The number of what was there before the writers began."""
AGES = (0, 1, 2, 5, 12, 30)
"""Of the days that have rows; the horizon is longer."""
QUIET = "quiet"
"""A tenant that nobody writes after the start."""
SPELT = {"t1": "rg", "t2": "RG", "t3": None, "unclaimed": "rg", QUIET: "quiet-rg"}
"""The scopes and the resource group that their facts have."""
SUBSCRIPTIONS: tuple[Subscription, ...] = (
    tenant("t1"), tenant("t2"), tenant("t3"), tenant(QUIET), resource_group("Rg"), resource_group("quiet-rg"),
)  # fmt: skip
_AGAIN = {1205, 1213}
"""What InnoDB says to a transaction that is to be tried again: waited too long, deadlock."""
_PER_WRITER = 1_000_000


@dataclass(frozen=True, order=True)
class Row:
    """What tells a row from all others. `service` is empty for a daily row."""

    day: date
    scope: str
    service: str = ""

    @property
    def cells(self) -> list[str]:
        """The ids of the subscriptions that have it in a cell."""
        found = [] if self.scope == "unclaimed" else [self.scope]
        group = SPELT[self.scope] if self.service else None
        return found if group is None else [*found, f"rg:{'Rg' if group.lower() == 'rg' else group}"]


@dataclass(frozen=True)
class Write:
    """What a committed transaction did to a row."""

    number: int
    """The transaction's."""
    row: Row
    stamp: datetime | None
    """None: it was deleted."""
    amount: Decimal
    after: datetime
    """The database's clock just after the commit."""
    again: bool = False
    """Whether the row had this very stamp before: neither rows nor stamps tell."""

    def is_owed(self, *, settle: timedelta, longest: timedelta | None) -> bool:
        """Whether it must be reported. `longest`: of a transaction, where only stamps tell; None: all is compared."""
        if self.stamp is None:
            return True
        taken = self.after - self.stamp
        return taken <= settle if self.again else longest is None or taken <= longest


@dataclass(frozen=True)
class Pace:
    """What a seed's writers do."""

    seconds: float
    reconciled: bool
    """Whether what stamps do not tell is found as well: then there are deletions, and clocks that are far behind."""


def rows_of(days: Iterable[date]) -> list[Row]:
    """All rows that there may be."""
    return [
        Row(day, scope, service)
        for day in days
        for scope in SPELT
        for service in ("", *(f"s{n}" for n in range(WRITERS)))
        if service or scope != "unclaimed"
    ]


def fill(tables: BillingTables, days: Sequence[date], rng: random.Random, now: datetime) -> list[Write]:
    """The subscriptions, and most of the rows, stamped hours ago."""
    tables.subscribe(*SUBSCRIPTIONS)
    tables.run("CREATE TABLE simulation_writes (number BIGINT PRIMARY KEY)")
    writes = []
    with tables.session() as session:
        for row in rows_of(days):
            if row.scope == QUIET or rng.random() < 0.7:
                stamp = now - timedelta(hours=rng.randint(2, 200), microseconds=rng.randrange(10**6))
                writes.append(Write(BASELINE, row, stamp, _amount(rng), now))
                _upsert(tables, session, row, stamp, writes[-1].amount)
        session.commit()
    return writes


def numbers_in(reading: BillingSnapshot) -> frozenset[int]:
    """The transactions that are in this snapshot."""
    found = reading._connection.execute(text("SELECT number FROM simulation_writes"))
    return frozenset({BASELINE, *found.scalars()})


class Writer:
    """One of those who ingest; `run` in a thread of its own."""

    def __init__(self, tables: BillingTables, who: int, seed: int, days: Sequence[date], pace: Pace) -> None:
        self.tables, self.who, self.pace = tables, who, pace
        self.rng = random.Random(f"{seed}:writer {who}")
        mine = [row for row in rows_of(days) if row.scope != QUIET and self._owns(row, days)]
        self.rows = self.rng.sample(mine, len(mine) * 2 // 3)  # the rest stays as it was
        self.count = 0
        self.log: list[Write] = []

    def run(self) -> list[Write]:
        """Ingest until the time is up; everything that was committed, in its order."""
        until = time.monotonic() + self.pace.seconds
        with self.tables.session() as session:
            while time.monotonic() < until:
                self._ingest(session, ["now"] * 4 + self._odd)
                time.sleep(self.rng.uniform(0, 0.06))
            self._ingest(session, self._odd)  # nothing comes after it that would have its day read anyway
        return self.log

    def _owns(self, row: Row, days: Sequence[date]) -> bool:
        if row.service:
            return row.service == f"s{self.who}"
        return (days.index(row.day) + list(SPELT).index(row.scope)) % WRITERS == self.who

    @property
    def _odd(self) -> list[str]:
        """The kinds of ingests in which something is easily missed."""
        found = ["slow", "behind", "ahead", "twice", "twice ahead", "twice ahead"]
        return [*found, "far behind", "deleted"] if self.pace.reconciled else found

    def _ingest(self, session: Connection, kinds: Sequence[str]) -> None:
        kind = self.rng.choice(kinds)
        twice = kind.startswith("twice")
        rows = self.rng.sample(self.rows, 1 if twice else self.rng.randint(1, 4))
        offset, open_for = timedelta(0), self.rng.choice([0, 0, 0, 0.02])
        if kind == "slow":
            open_for = self.rng.uniform(0.1, 0.5)
        elif kind == "behind":
            offset = -timedelta(seconds=self.rng.uniform(0.1, 0.5))
        elif kind == "far behind":
            offset = -timedelta(seconds=self.rng.uniform(1.5, 5))
        elif kind.endswith("ahead"):
            offset = timedelta(seconds=self.rng.uniform(0.1, 0.6))
        stamp = _clock(session) + offset
        session.rollback()
        self._transaction(session, rows, None if kind == "deleted" else stamp, open_for)
        if twice:
            # The later one is perhaps after a run that has the first, and before the stamp has settled.
            time.sleep(self.rng.uniform(0, 0.03) + self.rng.uniform(0.4, 1) * offset.total_seconds())
            self._transaction(session, rows, stamp, 0, again=True)

    def _transaction(
        self, session: Connection, rows: Sequence[Row], stamp: datetime | None, open_for: float, *, again: bool = False
    ) -> None:
        """Write these rows in one transaction. One that the database gave up is not in the log."""
        self.count += 1
        number = self.who * _PER_WRITER + self.count
        amounts = [_amount(self.rng) for _ in rows]
        try:
            session.execute(text("INSERT INTO simulation_writes VALUES (:number)"), {"number": number})
            for row, amount in zip(rows, amounts, strict=True):
                _upsert(self.tables, session, row, stamp, amount)
            time.sleep(open_for)
            session.commit()
        except OperationalError as error:
            session.rollback()
            if error.orig is None or error.orig.args[0] not in _AGAIN:
                raise
            return
        after = _clock(session)
        session.rollback()
        for row, amount in zip(rows, amounts, strict=True):
            self.log.append(Write(number, row, stamp, amount, after, again))


def _upsert(tables: BillingTables, session: Connection, row: Row, stamp: datetime | None, amount: Decimal) -> None:
    if stamp is None:
        table = FACTS if row.service else DAILY
        which = [table.c.scope_id == row.scope, table.c.date == row.day]
        session.execute(delete(table).where(*which, *([FACTS.c.service == row.service] if row.service else [])))
    elif row.service:
        tables.fact(row.scope, row.day, stamp, amount, group=SPELT[row.scope], service=row.service, on=session)
    else:
        tables.daily(row.scope, row.day, stamp, amount, on=session)


def _clock(session: Connection) -> datetime:
    found: datetime = session.execute(text("SELECT UTC_TIMESTAMP(6)")).scalar_one()
    return found.replace(tzinfo=UTC)


def _amount(rng: random.Random) -> Decimal:
    """Another one each time."""
    return Decimal(rng.randrange(1, 10**12)).scaleb(-6)
