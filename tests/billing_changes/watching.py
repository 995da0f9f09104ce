"""The sensor without Dagster over a real database, whose clock goes when it is told to.

Rows, transactions and snapshots are the database's own; what the clock says is told, so that hours pass at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cached_property

from sqlalchemy import Connection

from metering_dagster.billing_changes.rules import cursor as remembered
from metering_dagster.billing_changes.rules.cells import Cell, Claims, cells_of, states_of_days
from metering_dagster.billing_changes.rules.cursor import PollCursor
from metering_dagster.billing_changes.rules.reconcile import Days, MaterializedReading
from metering_dagster.billing_changes.rules.watermark import PollRules
from metering_dagster.billing_changes.services.poll import PollResult, poll
from metering_dagster.billing_changes.stores.database import Database
from metering_dagster.billing_changes.stores.queries import BillingSnapshot
from tests.billing_changes.filling import BillingTables

NOON = datetime(2026, 9, 20, 12, tzinfo=UTC)
DAY, OTHER_DAY = date(2026, 9, 14), date(2026, 9, 15)
"""Older than the days that are compared every hour."""
LONG = timedelta(days=3650)
STAMPS_ALONE = replace(PollRules(), sums_every=LONG, recent_every=LONG, others_every=LONG, most_compared=99)
"""Nothing is compared a second time: what is found is found by its stamps."""
MOST_LOOKS = 50


class ToldReading(BillingSnapshot):
    """A snapshot whose clock stands still. `midway` happens in the midst of what is asked of it."""

    def __init__(self, connection: Connection, now: datetime, midway: Callable[[], object]) -> None:
        super().__init__(connection, now)
        self._midway = midway

    def clock(self) -> datetime:
        return self.now

    def claims(self) -> Claims:
        claims = super().claims()
        self._midway()
        return claims


@dataclass
class Watching:
    """What it remembers goes through its cursor; its runs happen when they are told to."""

    tables: BillingTables
    now: datetime | None = NOON
    """What the database's clock says; None: what it does say."""
    rules: PollRules = field(default_factory=PollRules)
    cursor: str | None = None
    reported: dict[date, MaterializedReading] = field(default_factory=dict)
    cells: dict[date, list[Cell]] = field(default_factory=dict)
    """What each day's last run found."""
    midway: Callable[[], object] = lambda: None
    """What happens to the database in the midst of a look."""

    @cached_property
    def database(self) -> Database:
        return self.tables.database()

    @property
    def memory(self) -> PollCursor:
        memory, said = remembered.read(self.cursor)
        assert memory is not None, said
        return memory

    def passes(self, **time: float) -> None:
        assert self.now is not None
        self.now += timedelta(**time)

    def look(self) -> PollResult:
        memory, _ = remembered.read(self.cursor)
        with self._reading() as reading:
            partitions = Days(reading.now.date() - timedelta(days=400), reading.now.date())
            looked = poll(reading, memory, self.rules, reported=self.reported.get, under_way=(), partitions=partitions)
        self.cursor = remembered.write(looked.cursor)
        return looked

    def asks(self) -> list[date]:
        """The days that a look asks for; nothing becomes of them."""
        return [ask.day for ask in self.look().due_days]

    def run(self, *days: date) -> None:
        """Materialize these days as they are now."""
        for day in days:
            with self._reading() as reading:
                claims = reading.claims()
                cells = cells_of(reading.pieces_of([day], claims, amounts=True), claims).values()
            self.reported[day] = MaterializedReading(reading.now, states_of_days(cells).get(day, ""))
            self.cells[day] = list(cells)

    def settle(self) -> dict[date, str]:
        """Look, and run what is asked for, until nothing is; why each day was run. Some minutes pass."""
        ran: dict[date, str] = {}
        for _ in range(MOST_LOOKS):
            looked = self.look()
            if not looked.waiting:
                return ran
            self.passes(seconds=1)
            self.run(*(ask.day for ask in looked.due_days))
            for ask in looked.due_days:
                ran.setdefault(ask.day, ask.why)
            self.passes(minutes=1)
        raise AssertionError(f"{looked.waiting} are never done with")

    def watch(self, **time: float) -> dict[date, str]:
        """Look for so long, never with a pause of an overlap; why each day was run that was."""
        assert self.now is not None
        until, ran = self.now + timedelta(**time), self.settle()
        while self.now < until:
            self.now = min(until, self.now + self.rules.overlap - timedelta(minutes=5))
            ran |= self.settle()
        return ran

    def amounts(self, day: date) -> dict[str, Decimal]:
        """What the last run of a day found, by subscription; all in one currency."""
        return {cell.subscription.id: sum(amount for _, amount in cell.amounts) + Decimal() for cell in self.cells[day]}

    @contextmanager
    def _reading(self) -> Iterator[BillingSnapshot]:
        with self.database.reading() as reading:
            yield reading if self.now is None else ToldReading(reading._connection, self.now, self.midway)
