"""Cells and reports of a day as tests make them by hand."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from metering_dagster.billing_changes.rules.cells import Cell, CellKey, Claims, Side, Subscription
from metering_dagster.billing_changes.rules.day_diff import CellChange, DayReport, report

DAY = date(2026, 11, 20)
TEN = datetime(2026, 11, 21, 10, tzinfo=UTC)
ELEVEN, TWELVE = TEN + timedelta(hours=1), TEN + timedelta(hours=2)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def a_subscription(id: str = "t1", **fields: object) -> Subscription:
    values = {"integration_id": "azure", "external_id": f"ext-{id}", "name": f"Tenant {id}", "provider": "azure",
              "is_resource_group": False} | fields  # fmt: skip
    return Subscription(id, **values)  # type: ignore[arg-type]


def a_side(stamp: datetime | None = TEN, rows: int = 1, **amounts: str) -> Side:
    """Rows of one stamp, and their sums: `EUR="12.5"`."""
    stamps = 0 if stamp is None else rows * ((stamp - EPOCH) // timedelta(microseconds=1))
    sums = tuple(sorted((currency, Decimal(text)) for currency, text in (amounts or {"EUR": "10"}).items()))
    return Side(rows, 0 if stamp else rows, stamp, stamps, sums)


def a_cell(daily: Side | None = None, facts: Side | None = None, subscription: Subscription | None = None) -> Cell:
    """A cell of the day; without a side it has a daily row of 10 EUR."""
    if daily is None and facts is None:
        daily = a_side()
    return Cell(subscription or a_subscription(), DAY, daily, facts)


def a_report(
    *cells: Cell,
    at: datetime = TWELVE,
    before: DayReport | None = None,
    subscriptions: Sequence[Subscription] | None = None,
) -> DayReport:
    """The report of these cells; by default of those subscriptions alone that have one now or had one before."""
    known = [row.cell.subscription for row in before.rows] if before else []
    claimed = {one.id: one for one in (*known, *(cell.subscription for cell in cells))}.values()
    found: dict[CellKey, Cell] = {cell.key: cell for cell in cells}
    return report(DAY, found, Claims(claimed if subscriptions is None else subscriptions), at, before)


def row_of(found: DayReport, id: str = "t1") -> CellChange:
    """The row of one subscription."""
    (row,) = (row for row in found.rows if row.cell.subscription.id == id)
    return row
