"""The watermark's arithmetic: from which stamp to read, and up to which stamp a reading counts (domain §7). Pure: the
database's clock is an argument.

Belongs here: marks, their overlap and their cap. Does not: what a reading finds (services/fresh_stamps), SQL
(stores/queries).

A mark is the stamp up to which a table was read. A start is where its next reading begins: an overlap before the mark,
for transactions that stamped their rows before the mark and commit later. The start follows the mark in steps only:
readings from the same start can be compared.

A table whose reading exceeds the time-out of a statement is read in pieces, one a poll, each a narrow span of stamps.
Its start then follows the pieces instead of the mark. It never passes the clock less an overlap: no transaction still
writes stamps before that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from metering_dagster.billing_changes.rules.cells import Signal


@dataclass(frozen=True)
class PollRules:
    """Waiting times and limits of a poll."""

    horizon: timedelta = timedelta(days=32)
    """Days older than this are not polled."""
    overlap: timedelta = timedelta(minutes=60)
    """The time before a mark that is read again: longer than the longest ingest transaction."""
    settle: timedelta = timedelta(seconds=60)
    """Writers may still give a stamp younger than this to further rows."""
    quiet: timedelta = timedelta(minutes=2)
    """A day is due once it has not changed for this long ..."""
    at_most: timedelta = timedelta(minutes=15)
    """... or once it has kept changing for this long."""
    retry: timedelta = timedelta(minutes=5)
    """The pause before a day is requested again because its run did not succeed. It doubles each time ..."""
    retry_at_most: timedelta = timedelta(hours=1)
    """... up to this."""
    most_requested: int = 100
    """The most runs that one poll requests; the next poll requests the rest."""
    sums_every: timedelta = timedelta(hours=1)
    """The interval between checksums of the whole horizon, which show days that may have changed unnoticed."""
    recent_days: int = 3
    """The number of recent days, today included, that are compared exactly with their reports ..."""
    recent_every: timedelta = timedelta(hours=1)
    """... at this interval."""
    others_every: timedelta = timedelta(hours=24)
    """The interval for older days."""
    most_compared: int = 4
    """The most days that one poll compares."""
    narrowest: timedelta = timedelta(seconds=1)
    """The smallest span of stamps of a piece. A table that is too slow even for this fails the poll."""


class PollTooSlowError(Exception):
    """Reading of a table's fresh rows that exceeded the time-out of a statement."""

    def __init__(self, signal: Signal) -> None:
        super().__init__(signal)
        self.signal = signal


@dataclass(frozen=True)
class Narrowed:
    """Progress of a table that is read in pieces."""

    span: timedelta
    """The next piece's span of stamps."""
    read_until: datetime
    """The stamp up to which the last poll has read, itself excluded."""


def advanced(mark: datetime | None, stamps: Iterable[datetime], now: datetime, rules: PollRules) -> datetime | None:
    """Return the mark after a reading: the newest of its stamps, but never past `now` less the settle time.

    A mark never goes back; a reading without rows leaves it as it is. It is None until a row was read. It keeps
    microseconds: a mark rounded up would skip rows of its own second.
    """
    newest = max(stamps, default=None)
    if newest is None:
        return mark
    capped = min(newest, now - rules.settle)
    return capped if mark is None else max(mark, capped)


def start_of(mark: datetime | None, now: datetime, rules: PollRules) -> datetime:
    """Return the stamp to read a table from, itself included: no row with an earlier stamp can still appear.

    Where the clock was set back behind the mark the clock counts: rows are being stamped before the mark again.
    """
    settled = now - rules.settle
    return (settled if mark is None else min(mark, settled)) - rules.overlap


def lowered(start: datetime, mark: datetime | None, now: datetime, rules: PollRules) -> datetime:
    """Return where this reading begins: at the start, unless the database's clock was set back behind it."""
    return min(start, start_of(mark, now, rules))


def stepped(start: datetime, mark: datetime | None, now: datetime, rules: PollRules) -> datetime:
    """Return where the next reading begins: the start advances in steps of half an overlap, not with every mark."""
    if mark is None:
        return start
    wanted = start_of(mark, now, rules)
    return wanted if wanted >= start + rules.overlap / 2 else start


def halved(
    start: datetime, narrowed: Narrowed | None, polled_at: datetime, now: datetime, rules: PollRules
) -> Narrowed | None:
    """Return the next piece after a reading from `start` took too long; None if it would be too narrow.

    `polled_at`: when the last poll began. It has read everything unless the table is `narrowed` already.
    """
    span = now - lowered(start, None, now, rules)
    if narrowed is not None:
        span = min(span, narrowed.span)
    if span / 2 < rules.narrowest:
        return None
    return Narrowed(span / 2, polled_at if narrowed is None else narrowed.read_until)


def end_of_piece(start: datetime, narrowed: Narrowed | None, now: datetime) -> datetime | None:
    """Return the stamp, itself excluded, up to which to read from `start` on; None: without an end."""
    if narrowed is None or start + narrowed.span >= now:
        return None
    return start + narrowed.span


def mark_of_piece(mark: datetime | None, end: datetime | None, now: datetime, rules: PollRules) -> datetime:
    """Return the mark after a piece: the piece's end, whatever rows it had."""
    settled = now - rules.settle
    until = settled if end is None else min(end, settled)
    return until if mark is None else max(mark, until)


def start_after_piece(start: datetime, end: datetime | None, now: datetime, rules: PollRules) -> datetime:
    """Return where the next piece begins: at this one's end, or an overlap before the clock if that is earlier.

    Close behind the clock the start stays for half an overlap, as in `stepped`.
    """
    final = start_of(None, now, rules)
    if end is not None and end <= final:
        return end
    return final if final >= start + rules.overlap / 2 else start


def grown(narrowed: Narrowed, end: datetime | None) -> Narrowed | None:
    """Return the next piece after one that succeeded; None: read the table whole again, for nothing was left out."""
    return None if end is None else Narrowed(narrowed.span * 3 / 2, end)
