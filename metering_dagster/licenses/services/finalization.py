"""Close the flush windows that are over, and say what is lost by it (no Dagster).

Belongs here: what is still pending of buyers whose windows close, the order of telling and writing, what goes wrong
with one of them. Does not: when a window is over (window_end), how a person reads of it (finalize_job).

Lost is what AWS Marketplace will hardly take any more: the hour's own runs still send it, and then hear
`CustomerNotSubscribed`.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from metering_dagster.core import hours
from metering_dagster.core.chunks import chunked
from metering_dagster.core.errors import LeftPendingError
from metering_dagster.licenses.rules.window_end import OpenWindow, is_over, oldest_first
from metering_dagster.licenses.stores.open_windows import ClosingStore
from metering_dagster.metering.rules.batching import Buyer
from metering_dagster.metering.rules.isolation import Failures, stops_the_rest, words_of
from metering_dagster.metering.rules.quantities import EXACT, number_fault
from metering_dagster.metering.rules.raw_row import account_of, group_of
from metering_dagster.metering.services.tables import Tables

_ROWS_AT_ONCE = 1_000
"""Raw rows of an hour that are held in memory at once."""
_SIDE_BY_SIDE = 8
"""Hours that are read, and windows that are closed, at the same time."""
_PORTION = 500
"""Windows whose losses are looked up and told together. Each portion reads every hour anew, by a handful of requests;
a run that is ended has closed all portions but the last."""


@dataclass
class UnbilledUsage:
    """One buyer's pending usage in one hour when the window closes."""

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
    """The report of a finalizer's visit."""

    open: int = 0
    """Windows that were open."""
    closed: list[OpenWindow] = field(default_factory=list)
    left_to_others: list[OpenWindow] = field(default_factory=list)
    """Somebody else closed them, or set them anew, in between: nothing was written."""
    losses: list[UnbilledUsage] = field(default_factory=list)
    still_open: int = 0
    """Windows that are over and were not closed, because something failed."""
    failures: Failures = field(default_factory=Failures)
    """What failed, window by window."""
    stopped: str = ""
    """Why no further window was tried: AWS refuses the caller, or a table is not as it must be."""


TellLosses = Callable[[str, Sequence[UnbilledUsage]], None]
"""Told for an hour what is lost in it, all that is known so far; again, once there is more."""


def close_windows(store: ClosingStore, tables: Tables, tell: TellLosses) -> Closing:
    """Close what is over at this moment, the oldest expiry first, each window once, whoever else is at it.

    `tell` hears of the losses of a portion before its windows are written: a run that dies in between tells of them
    twice, and not never. A window that fails stays open and stops no other; `failure_of` has the words.
    """
    now = tables.clock()
    windows = store.open_windows()
    due = sorted((window for window in windows if is_over(window, now)), key=oldest_first)
    report, told = Closing(open=len(windows)), defaultdict[str, list[UnbilledUsage]](list)
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        for portion in chunked(due, _PORTION):
            judged, losses = _judge(tables, portion, now, report)
            for loss in losses:
                told[loss.bucket].append(loss)
            for bucket in sorted({loss.bucket for loss in losses}):
                tell(bucket, told[bucket])
            report.losses += losses
            outcomes = pool.map(lambda window: _close(store, window, now, report), judged)
            for window, was_closed in zip(judged, outcomes, strict=True):
                if was_closed is not None:
                    (report.closed if was_closed else report.left_to_others).append(window)
    report.still_open = len(due) - len(report.closed) - len(report.left_to_others)
    return report


def failure_of(done: Closing) -> LeftPendingError | None:
    """Return the error of a visit that left windows open which are over, or None."""
    if not done.still_open:
        return None
    reasons = [f"{count} {why}" for why, count in done.failures.by_why.most_common(5)]
    reasons += [f"no further one was tried: {done.stopped}"] if done.stopped else []
    first = f"The first: {done.failures.notes[0]}. " if done.failures.notes else ""
    return LeftPendingError(
        f"{done.still_open} flush windows are over and still open: {'; '.join(reasons)}. {first}"
        f"{len(done.closed)} windows were closed in this run. Nothing was written to the others; the next run tries "
        "them again."
    )


def losses_of(tables: Tables, buyers: Set[Buyer], now: datetime) -> list[UnbilledUsage]:
    """Find what is pending of these buyers in the hours that could be billed, the current one included, oldest first.

    So do the hours that wait on a month's last day for the coming grace. Each hour is read once for all buyers. What is
    pending in older hours is lost already, and the age-out tells of it. Of zeros nothing is lost.
    """
    buckets = [hours.bucket(hour) for hour in [*hours.reopened_hours(now), *hours.billable_hours(now)]]
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        found = pool.map(lambda bucket: _losses_in(tables, buyers, bucket), buckets)
        return [loss for losses in found for loss in losses if loss.quantity or loss.unreadable]


def _judge(
    tables: Tables, windows: Sequence[OpenWindow], now: datetime, report: Closing
) -> tuple[list[OpenWindow], list[UnbilledUsage]]:
    """Find the losses of these windows; a window that cannot be judged is counted as a failure and left out.

    They are looked up together. Where that fails, each half by itself, down to the window at fault.
    """
    if report.stopped or report.failures.resting("judged"):
        return [], []
    try:
        return list(windows), losses_of(tables, {window.buyer for window in windows}, now)
    except Exception as error:  # noqa: BLE001  # it is counted, named, and fails the run in the end
        if len(windows) == 1 or stops_the_rest(error):
            _fail(report, "judged", windows[0], error)
            return [], []
    half = len(windows) // 2
    first, losses = _judge(tables, windows[:half], now, report)
    second, more = _judge(tables, windows[half:], now, report)
    return first + second, losses + more


def _close(store: ClosingStore, window: OpenWindow, now: datetime, report: Closing) -> bool | None:
    """Close a window; None where that failed, or is not tried any more."""
    if report.stopped or report.failures.resting("closed"):
        return None
    try:
        was_closed = store.finalize(window, now)
    except Exception as error:  # noqa: BLE001  # it is counted, named, and fails the run in the end
        _fail(report, "closed", window, error)
        return None
    report.failures.went_well("closed")
    return was_closed


def _fail(report: Closing, step: str, window: OpenWindow, error: Exception) -> None:
    if stops_the_rest(error):
        report.stopped = words_of(error)
        return
    report.failures.add(step, f"The window of {window.name}", error, window.buyer)


def _losses_in(tables: Tables, buyers: Set[Buyer], bucket: str) -> list[UnbilledUsage]:
    licenses = sorted({arn for arn, _ in buyers})
    losses: dict[Buyer, UnbilledUsage] = {}

    def loss_of(buyer: Buyer) -> UnbilledUsage:
        return losses.setdefault(buyer, UnbilledUsage(buyer, bucket))

    rows = tables.usage.pending_rows(bucket, licenses)
    theirs = (row for row in rows if (row.license_arn, account_of(row.sort_key)) in buyers)
    for chunk in chunked(theirs, _ROWS_AT_ONCE):
        groups = {key for row in chunk if (key := group_of(row.license_arn, row.sort_key)) is not None}
        # What is pending of a committed group is in its aggregate, or late, which the hour's own run tells.
        committed = tables.aggregated.committed(sorted(groups))
        for row in tables.usage.rows(chunk):
            if row.pending == bucket and group_of(row.license_arn, row.sort_key) not in committed:
                loss = loss_of((row.license_arn, account_of(row.sort_key)))
                loss.rows += 1
                loss.add(row.quantity, tables)
    for stored in tables.aggregated.pending(bucket, licenses):
        if stored.buyer in buyers:
            loss = loss_of(stored.buyer)
            loss.records += 1
            loss.add(stored.quantity, tables)
    return [losses[buyer] for buyer in sorted(losses)]
