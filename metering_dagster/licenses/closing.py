"""Close the flush windows that are over, and say what is lost by it (no Dagster).

Belongs here: what is still pending of a buyer whose window closes, the order of telling and writing. Does not: when a
window is over (closing_rules), how a person reads of it (finalize_job).

Lost is what AWS Marketplace will hardly take any more: the hour's own runs still send it, and then hear
`CustomerNotSubscribed`.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from metering_dagster import hours
from metering_dagster.chunks import chunked
from metering_dagster.licenses.closing_rules import OpenWindow, is_over
from metering_dagster.licenses.closing_store import ClosingStore
from metering_dagster.metering.batches import Buyer
from metering_dagster.metering.quantities import EXACT, number_fault
from metering_dagster.metering.rows import account_of, group_of
from metering_dagster.metering.tables import Tables

_ROWS_AT_ONCE = 1_000
"""Raw rows that are held in memory at once."""


@dataclass
class Loss:
    """What is pending of one buyer in one hour when the window closes."""

    buyer: Buyer
    bucket: str
    rows: int = 0
    """Raw rows of groups that are not aggregated yet."""
    records: int = 0
    """Aggregates that are not sent yet."""
    quantity: Decimal = Decimal(0)
    """Of both, exact."""
    unreadable: int = 0
    """Rows and records whose quantity is none that could be billed: they are in no sum."""

    def add(self, quantity: object, tables: Tables) -> None:
        """Count in what a row or a record states."""
        if isinstance(quantity, Decimal) and number_fault(quantity, tables.quantities) is None:
            self.quantity = EXACT.add(self.quantity, quantity)
        else:
            self.unreadable += 1


@dataclass
class Closing:
    """What a visit of the finaliser did."""

    open: int = 0
    """Windows that were open."""
    closed: list[OpenWindow] = field(default_factory=list)
    left_to_others: list[OpenWindow] = field(default_factory=list)
    """Somebody else closed them, or set them anew, in between: nothing was written."""
    losses: list[Loss] = field(default_factory=list)


TellLosses = Callable[[str, Sequence[Loss]], None]
"""Told for each hour what is lost in it."""


def close_windows(store: ClosingStore, tables: Tables, tell: TellLosses) -> Closing:
    """Close what is over at this moment, each window once, whoever else is at it.

    `tell` hears of all losses before anything is written: whoever dies in between tells of them twice, and not never.
    """
    now = tables.clock()
    windows = store.open_windows()
    due = sorted((window for window in windows if is_over(window, now)), key=lambda window: window.buyer)
    report = Closing(open=len(windows), losses=[loss for w in due for loss in losses_of(tables, w.buyer, now)])
    by_hour: dict[str, list[Loss]] = defaultdict(list)
    for loss in report.losses:
        by_hour[loss.bucket].append(loss)
    for bucket, losses in sorted(by_hour.items()):
        tell(bucket, losses)
    for window in due:
        (report.closed if store.finalise(window, now) else report.left_to_others).append(window)
    return report


def losses_of(tables: Tables, buyer: Buyer, now: datetime) -> list[Loss]:
    """What is pending of a buyer in the hours that could be billed, the current one included, oldest first.

    What is pending in older hours is lost already, and the age-out tells of it. Of zeros nothing is lost.
    """
    losses = (_loss(tables, buyer, hours.bucket(hour)) for hour in hours.billable_hours(now))
    return [loss for loss in losses if loss.quantity or loss.unreadable]


def _loss(tables: Tables, buyer: Buyer, bucket: str) -> Loss:
    loss = Loss(buyer, bucket)
    arn, account = buyer
    theirs = (row for row in tables.usage.pending_rows(bucket, [arn]) if account_of(row.sort_key) == account)
    for chunk in chunked(theirs, _ROWS_AT_ONCE):
        groups = {key for row in chunk if (key := group_of(arn, row.sort_key)) is not None}
        # What is pending of a committed group is in its aggregate, or late, which the hour's own run tells.
        committed = tables.aggregated.committed(sorted(groups))
        for row in tables.usage.rows(chunk):
            if row.pending == bucket and group_of(arn, row.sort_key) not in committed:
                loss.rows += 1
                loss.add(row.quantity, tables)
    for stored in tables.aggregated.pending(bucket, [arn]):
        if stored.buyer == buyer:
            loss.records += 1
            loss.add(stored.quantity, tables)
    return loss
