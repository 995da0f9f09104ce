"""The report of a day: its cells, compared with the day's previous report (domain §7). Pure: the database's clock is an
argument.

Belongs here: touched, changed, vanished; what another run of the same day keeps. Does not: reading the tables
(stores/queries), where reports are stored (stores/day_files).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal

from metering_dagster.billing_changes.rules.cells import (
    Amounts,
    Cell,
    CellKey,
    Claims,
    Side,
    Signal,
    Subscription,
    owner_key,
    states_of_days,
)

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True)
class CellChange:
    """Row of a day's report: a cell, compared with the previous report."""

    cell: Cell
    """The cell as the tables held it. A vanished cell has neither side."""
    last_ingested_at: datetime | None
    """The latest stamp, in UTC; of a vanished cell the last one seen. None where no row has a stamp."""
    amounts_before: Amounts | None
    """The cell's cost in the day's previous report; None if the cell was not in it."""
    signals: tuple[Signal, ...]
    """The tables in which this state of the cell differs from the one before it."""
    touched: bool
    """True where rows, stamps or amounts differ from the day's previous report, or the cell was not in it."""
    changed: bool
    """True where an amount differs from the day's previous report; never in a day's first report."""
    vanished: bool
    """True where the cell was reported before, and is now in neither table."""
    reported_at: datetime
    """When this state of the cell was first reported, by the database's clock. Within a day it only grows."""

    @property
    def key(self) -> CellKey:
        return self.cell.key

    @property
    def amounts(self) -> Amounts:
        """Return what the cell costs now."""
        return self.cell.amounts

    @property
    def currency(self) -> str | None:
        """Return the currency of all amounts, now and before: joined by `+` if several, None without an amount."""
        found = {currency for currency, _ in (*self.amounts, *(self.amounts_before or ()))}
        return "+".join(sorted(found)) if found else None

    @property
    def amount(self) -> Decimal | None:
        """Return what the cell costs now; None where its amounts have several currencies, or there are none."""
        return self._single(self.amounts)

    @property
    def amount_before(self) -> Decimal | None:
        """Return what the cell cost before; None where its amounts have several currencies, or there are none."""
        return self._single(self.amounts_before or ())

    def _single(self, amounts: Amounts) -> Decimal | None:
        return None if self.currency is None else dict(amounts).get(self.currency)


@dataclass(frozen=True)
class DayReport:
    """Full report of a day: the content of its file."""

    day: date
    read_at: datetime
    """When the tables were read, by the database's clock: everything committed before that is in it."""
    since: datetime | None
    """When they were read for the previous report; None in the first one, in which everything is touched."""
    state: str
    """A digest of the rows and stamps of the day's cells; empty if there are none."""
    newest: datetime | None
    """The latest `reported_at` that the day ever had, rows that are gone included."""
    rows: tuple[CellChange, ...]

    @property
    def touched(self) -> list[CellChange]:
        """Return the cells to be pulled again since the previous report."""
        return [row for row in self.rows if row.touched]


def report(
    day: date, cells: Mapping[CellKey, Cell], claims: Claims, read_at: datetime, before: DayReport | None
) -> DayReport:
    """Build the report of a day whose cells were read at `read_at`, with their amounts.

    Unchanged cells keep their rows, except that none is touched or changed any more.
    """
    known = before or DayReport(day, read_at, None, "", None, ())
    at = read_at if known.newest is None else max(read_at, known.newest + _TICK)
    rows = compare(known.rows, cells, claims, at)
    if before is None:
        rows = [replace(row, changed=False) for row in rows]
    state = states_of_days(cells.values()).get(day, "")
    newest = max((row.reported_at for row in rows), default=known.newest)
    if newest is not None and known.newest is not None:
        newest = max(newest, known.newest)
    return DayReport(day, read_at, before.read_at if before else None, state, newest, tuple(rows))


def compare(
    before: Sequence[CellChange], now: Mapping[CellKey, Cell], claims: Claims, at: datetime
) -> list[CellChange]:
    """Compare each cell as it is `now` with its row `before`; rows are ordered by external id, then id.

    `at` stands for the reading, and is later than any `reported_at` before. A cell that is gone stays as a vanished
    one, touched in the run that missed it. So does one that no subscription claims any more: a consumer that took it
    must learn that it is no longer theirs.
    """
    known = {row.key: row for row in before}
    subscriptions = {one.id: one for one in claims.subscriptions}
    rows = [_present(cell, known.get(key), at) for key, cell in now.items()]
    rows += [
        _absent(_labeled(row, subscriptions.get(row.cell.subscription.id)), at)
        for key, row in known.items()
        if key not in now
    ]
    return sorted(rows, key=lambda row: (row.cell.subscription.external_id, row.cell.subscription.id))


def money_differences(rows: Iterable[CellChange]) -> dict[str, tuple[Decimal, Decimal]]:
    """Return by currency the differences of changed cells' amounts: their sum, and their sum without signs.

    An owner counts once, however many subscriptions claim it: all of them hold the same amounts. A tenant's amounts
    include those of its resource groups, so pass rows of one kind alone.
    """
    by_owner: dict[tuple[str, ...], list[CellChange]] = {}
    for row in rows:
        by_owner.setdefault(owner_key(row.cell.subscription.owner), []).append(row)
    differences: dict[str, tuple[Decimal, Decimal]] = {}
    for same in by_owner.values():
        if not any(row.changed for row in same):
            continue
        # A new claim has no amounts before, a removed one has none now: other claims of the owner have them.
        now, before = (row.amounts for row in same), (row.amounts_before or () for row in same)
        for currency, by in _difference(next(filter(None, now), ()), next(filter(None, before), ())).items():
            total, gross = differences.get(currency, (Decimal(), Decimal()))
            differences[currency] = total + by, gross + abs(by)
    return dict(sorted(differences.items()))


def _labeled(row: CellChange, subscription: Subscription | None) -> CellChange:
    """Return the row under the subscription's present name, if it is still enabled."""
    return row if subscription is None else replace(row, cell=replace(row.cell, subscription=subscription))


def _present(cell: Cell, before: CellChange | None, at: datetime) -> CellChange:
    earlier = before.cell if before else None
    signals = _signals(cell, earlier)
    touched = before is None or bool(signals)
    return CellChange(
        cell,
        last_ingested_at=cell.last_ingested_at,
        amounts_before=before.amounts if before else None,
        signals=signals if before is None or touched else before.signals,
        touched=touched,
        changed=_amounts_differ(cell, earlier),
        vanished=False,
        reported_at=at if before is None or touched else before.reported_at,
    )


def _absent(before: CellChange, at: datetime) -> CellChange:
    if before.vanished:
        return replace(before, amounts_before=(), touched=False, changed=False)
    gone = replace(before.cell, daily=None, facts=None)
    return CellChange(
        gone,
        last_ingested_at=before.last_ingested_at,
        amounts_before=before.amounts,
        signals=_signals(gone, before.cell),
        touched=True,
        changed=_amounts_differ(gone, before.cell),
        vanished=True,
        reported_at=at,
    )


def _signals(now: Cell, before: Cell | None) -> tuple[Signal, ...]:
    """Return the tables whose part of the cell differs from before."""
    earlier = before.sides if before else {}
    return tuple(signal for signal in Signal if earlier.get(signal) != now.sides.get(signal))


def _amounts_differ(now: Cell, before: Cell | None) -> bool:
    """Judge whether one of the tables holds another amount. A missing amount counts as 0."""
    earlier = before.sides if before else {}
    return any(_difference(_of(now.sides.get(signal)), _of(earlier.get(signal))) for signal in Signal)


def _of(side: Side | None) -> Amounts:
    return side.amounts if side else ()


def _difference(now: Amounts, before: Amounts) -> dict[str, Decimal]:
    sums = dict(now)
    for currency, amount in before:
        sums[currency] = sums.get(currency, Decimal()) - amount
    return {currency: by for currency, by in sums.items() if by}
