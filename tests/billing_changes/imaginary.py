"""A billing database that is imagined: its clock goes when it is told to, and a transaction commits when it is told to.

It answers what `changes.Reading` answers, exactly and from one snapshot, so that a look can be tried out by the
thousand. What the real databases answer is shown elsewhere.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta

from metering_dagster.billing_changes.rules import cursor as remembered
from metering_dagster.billing_changes.rules.cells import (
    Claims,
    Group,
    Piece,
    Side,
    Signal,
    Subscription,
    TenantScope,
    cells_of,
    digest,
    states_of_days,
)
from metering_dagster.billing_changes.rules.cursor import PollCursor
from metering_dagster.billing_changes.rules.reconcile import Days, MaterializedReading
from metering_dagster.billing_changes.rules.watermark import PollRules, PollTooSlowError
from metering_dagster.billing_changes.services.poll import DueDay, PollResult, poll

START = datetime(2026, 9, 20, 10, tzinfo=UTC)
TODAY = START.date()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PARTITIONS = Days(date(2026, 1, 1), date(2026, 12, 31))


@dataclass(frozen=True, order=True)
class Row:
    """What tells a row from the others of its table."""

    signal: Signal
    day: date
    scope: str
    group: str | None = None
    service: str = "vm"


def daily(day: date = TODAY, scope: str = "t1") -> Row:
    return Row(Signal.DAILY, day, scope)


def fact(day: date = TODAY, scope: str = "t1", group: str | None = "rg") -> Row:
    return Row(Signal.FACTS, day, scope, group)


def a_tenant(scope: str) -> Subscription:
    return Subscription(scope, "azure", f"ext-{scope}", scope, "azure", is_resource_group=False)


def a_group(name: str) -> Subscription:
    return Subscription(f"rg:{name}", "azure", name, name, "azure", is_resource_group=True)


@dataclass
class Imaginary:
    """The database."""

    now: datetime = START
    rows: dict[Row, datetime | None] = field(default_factory=dict)
    """Each with its stamp."""
    subscriptions: list[Subscription] = field(default_factory=lambda: [a_tenant("t1"), a_tenant("t2"), a_group("rg")])
    most: int | None = None
    """A reading of fresh rows of a table with more stamps than that takes too long; None: none does."""

    def passes(self, **time: float) -> None:
        self.now += timedelta(**time)

    def ingest(self, *rows: Row, stamp: datetime | None = None) -> None:
        """Stamped now, unless another stamp is given, and committed at once."""
        for row in rows:
            self.rows[row] = stamp or self.now

    def reading(self) -> "Snapshot":
        return Snapshot(dict(self.rows), self.now, Claims(self.subscriptions), lambda: self.now, self.most)


@dataclass
class Snapshot:
    """`changes.Reading` of it."""

    rows: Mapping[Row, datetime | None]
    now: datetime
    its_claims: Claims
    clock: Callable[[], datetime]
    most: int | None = None

    def claims(self) -> Claims:
        return self.its_claims

    def pieces_since(
        self, starts: Mapping[Signal, datetime], first_day: date, ends: Mapping[Signal, datetime] | None = None
    ) -> list[Piece]:
        found = [
            (row, stamp)
            for row, stamp in self.rows.items()
            if stamp is not None
            and stamp >= starts[row.signal]
            and (row.signal not in (ends or {}) or stamp < ends[row.signal])
            and row.day >= first_day
        ]
        for signal in Signal:
            if self.most is not None and len({stamp for row, stamp in found if row.signal is signal}) > self.most:
                raise PollTooSlowError(signal)
        return _pieces(found)

    def pieces_of(self, days: Collection[date], claims: Claims, *, amounts: bool) -> list[Piece]:
        found = _pieces((row, stamp) for row, stamp in self.rows.items() if row.day in days)
        return [piece for piece in found if claims.of(piece.owner)]

    def checksums(self, first_day: date) -> dict[date, str]:
        newest: dict[tuple[object, ...], datetime | None] = {}
        for piece in _pieces((row, stamp) for row, stamp in self.rows.items() if row.day >= first_day):
            newest[piece.day, piece.signal, piece.owner] = piece.side.newest
        texts: dict[date, list[str]] = {}
        for (day, *whose), stamp in newest.items():
            texts.setdefault(day, []).append(f"{whose}{stamp}")
        return {day: digest(sorted(found)) for day, found in texts.items()}


def _pieces(rows: Iterable[tuple[Row, datetime | None]]) -> list[Piece]:
    sides: dict[tuple[Signal, date, TenantScope | Group], Side] = {}
    for row, stamp in rows:
        micros = 0 if stamp is None else (stamp - EPOCH) // timedelta(microseconds=1)
        side = Side(1, int(stamp is None), stamp, micros)
        owners: list[TenantScope | Group] = [TenantScope(row.scope)]
        if row.group is not None:
            owners.append(Group("azure", row.group))
        for owner in owners:
            place = (row.signal, row.day, owner)
            sides[place] = sides[place] + side if place in sides else side
    return [Piece(*place, side) for place, side in sides.items()]


@dataclass
class Watcher:
    """The sensor without Dagster: what it remembers goes through its cursor, its runs happen when they are told to."""

    database: Imaginary
    rules: PollRules = field(default_factory=PollRules)
    cursor: str | None = None
    reported: dict[date, MaterializedReading] = field(default_factory=dict)
    under_way: list[date] = field(default_factory=list)
    partitions: Days = PARTITIONS
    runs: list[tuple[date, datetime]] = field(default_factory=list)
    """Those that went through, with the clock of their readings."""

    @property
    def memory(self) -> PollCursor:
        memory, said = remembered.read(self.cursor)
        assert memory is not None, said
        return memory

    def look(self) -> PollResult:
        memory, _ = remembered.read(self.cursor)
        looked = poll(
            self.database.reading(),
            memory,
            self.rules,
            reported=self.reported.get,
            under_way=self.under_way,
            partitions=replace(self.partitions, last=min(self.partitions.last, self.database.now.date())),
        )
        self.cursor = remembered.write(looked.cursor)
        assert remembered.read(self.cursor) == (looked.cursor, ""), "a cursor brings back what was remembered"
        return looked

    def asks(self) -> list[date]:
        """The days that a look asks for; nothing becomes of them."""
        return [ask.day for ask in self.look().due_days]

    def run(self, *days: date) -> None:
        """Materialize these days as they are now."""
        for day in days:
            reading = self.database.reading()
            claims = reading.claims()
            cells = cells_of(reading.pieces_of([day], claims, amounts=True), claims)
            self.reported[day] = MaterializedReading(reading.now, states_of_days(cells.values()).get(day, ""))
            self.runs.append((day, reading.now))

    def settle(self) -> list[date]:
        """Look, and run what is asked for, until nothing is; which days were run. Some minutes pass."""
        ran: list[date] = []
        for _ in range(200):
            looked = self.look()
            if not looked.waiting and not looked.cursor.narrowed:
                return ran
            self.database.passes(seconds=1)
            self.run(*(ask.day for ask in looked.due_days))
            ran += [ask.day for ask in looked.due_days]
            self.database.passes(minutes=1)
        raise AssertionError(f"{self.look().waiting} are never done with")


def words(asked: Iterable[DueDay]) -> dict[date, str]:
    """Why each day was asked for."""
    return {ask.day: ask.why for ask in asked}
