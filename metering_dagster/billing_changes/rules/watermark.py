"""The watermark's arithmetic: from when on to read, and up to where what was read counts (domain: the billing-changes
signal). Pure: the database's clock is an argument.

Belongs here: marks, their overlap and their cap. Does not: what was found there (poll), how it is read (queries).

A mark tells up to which stamp a table was read. A start is where the next reading of it begins: an overlap before the
mark, for transactions that stamped their rows before that and commit later. A start stays where it is while the mark
moves on, and follows in steps: what is read from the same start twice can be compared.

A table whose reading takes longer than a statement may is read in pieces, one a look, each of so narrow a span of
stamps that it gets through. Its start then follows the pieces, and not the mark, but never passes the clock less an
overlap: no transaction still writes stamps before that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from metering_dagster.billing_changes.rules.cells import Signal


@dataclass(frozen=True)
class PollRules:
    """For how long something counts as fresh, and how much a look may do."""

    horizon: timedelta = timedelta(days=32)
    """Days older than this are not looked at."""
    overlap: timedelta = timedelta(minutes=60)
    """How far before its mark is read again: longer than the longest ingest transaction."""
    settle: timedelta = timedelta(seconds=60)
    """A stamp younger than this may still be given to further rows."""
    quiet: timedelta = timedelta(minutes=2)
    """A day is asked for once nothing of it has moved for so long ..."""
    at_most: timedelta = timedelta(minutes=15)
    """... or once it has moved for so long without a pause."""
    retry: timedelta = timedelta(minutes=5)
    """So long after it was asked for in vain a day is asked for again; then after twice as long, and so on ..."""
    retry_at_most: timedelta = timedelta(hours=1)
    """... up to this."""
    most_asked: int = 100
    """No more days are asked for in one look; the rest follows in the next."""
    sums_every: timedelta = timedelta(hours=1)
    """How often the whole horizon is summed up, to see which days may have moved unnoticed."""
    recent_days: int = 3
    """So many days, counted back from today, are compared exactly with what was reported ..."""
    recent_every: timedelta = timedelta(hours=1)
    """... this often, ..."""
    others_every: timedelta = timedelta(hours=24)
    """... the older ones this often, ..."""
    most_compared: int = 4
    """... and no more of them in one look."""
    narrowest: timedelta = timedelta(seconds=1)
    """No piece has a smaller span of stamps: a table that is too slow even so fails the look."""


class PollTooSlowError(Exception):
    """A reading of a table's fresh rows that took longer than a statement may."""

    def __init__(self, signal: Signal) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass(frozen=True)
class Narrowed:
    """A table that is read in pieces."""

    span: timedelta
    """Of stamps, of the next piece."""
    read_until: datetime
    """Up to which stamp, itself excluded, the last look has read."""


def advanced(mark: datetime | None, stamps: Iterable[datetime], now: datetime, rules: PollRules) -> datetime | None:
    """Return the mark after a reading that found these stamps: the newest of them, but never past `now` less the settle
    time.

    It never goes back, and a reading that found nothing leaves it where it is; None until a row was read. Microseconds
    are kept: a mark that was rounded up would pass over rows of its own second.
    """
    newest = max(stamps, default=None)
    if newest is None:
        return mark
    capped = min(newest, now - rules.settle)
    return capped if mark is None else max(mark, capped)


def start_of(mark: datetime | None, now: datetime, rules: PollRules) -> datetime:
    """From which stamp on, itself included, a table has to be read so that nothing before it can still appear.

    The mark counts less than the clock where that was set back: rows are being stamped before the mark again.
    """
    settled = now - rules.settle
    return (settled if mark is None else min(mark, settled)) - rules.overlap


def lowered(start: datetime, mark: datetime | None, now: datetime, rules: PollRules) -> datetime:
    """Return where this reading begins: at the start, unless the database's clock was set back behind it."""
    return min(start, start_of(mark, now, rules))


def stepped(start: datetime, mark: datetime | None, now: datetime, rules: PollRules) -> datetime:
    """Return where the next reading begins: the start moves on in steps of half an overlap, and not with every mark."""
    if mark is None:
        return start
    wanted = start_of(mark, now, rules)
    return wanted if wanted >= start + rules.overlap / 2 else start


def halved(
    start: datetime, narrowed: Narrowed | None, looked: datetime, now: datetime, rules: PollRules
) -> Narrowed | None:
    """Return how a table is read after a reading from `start` took too long; None where no narrower piece is left.

    `looked`: when the last look began, which has read all unless the table is `narrowed` already.
    """
    span = now - lowered(start, None, now, rules)
    if narrowed is not None:
        span = min(span, narrowed.span)
    if span / 2 < rules.narrowest:
        return None
    return Narrowed(span / 2, looked if narrowed is None else narrowed.read_until)


def end_of_piece(start: datetime, narrowed: Narrowed | None, now: datetime) -> datetime | None:
    """Return up to which stamp, itself excluded, to read from `start` on; None: whatever is later, too."""
    if narrowed is None or start + narrowed.span >= now:
        return None
    return start + narrowed.span


def mark_of_piece(mark: datetime | None, end: datetime | None, now: datetime, rules: PollRules) -> datetime:
    """Return the mark after a piece: where it ends, whatever was found in it."""
    settled = now - rules.settle
    until = settled if end is None else min(end, settled)
    return until if mark is None else max(mark, until)


def start_after_piece(start: datetime, end: datetime | None, now: datetime, rules: PollRules) -> datetime:
    """Return where the next piece begins: where this one ends, or an overlap before the clock if that is earlier.

    Close behind the clock it stays where it is for half an overlap, as `stepped` does.
    """
    final = start_of(None, now, rules)
    if end is not None and end <= final:
        return end
    return final if final >= start + rules.overlap / 2 else start


def grown(narrowed: Narrowed, end: datetime | None) -> Narrowed | None:
    """Return how a table is read after a piece that got through; None: whole again, since nothing was left out."""
    return None if end is None else Narrowed(narrowed.span * 3 / 2, end)
