"""The watermark's arithmetic: from when on to read, and up to where what was read counts (domain: the billing-changes
signal). Pure: the database's clock is an argument.

Belongs here: marks, their overlap and their cap. Does not: what was found there (look), how it is read (changes).

A mark tells up to which stamp a table was read. A start is where the next reading of it begins: an overlap before the
mark, for transactions that stamped their rows before that and commit later. A start stays where it is while the mark
moves on, and follows in steps: what is read from the same start twice can be compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Rules:
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


def advanced(mark: datetime | None, stamps: Iterable[datetime], now: datetime, rules: Rules) -> datetime | None:
    """The mark after a reading that found these stamps: the newest of them, but never past `now` less the settle time.

    It never goes back, and a reading that found nothing leaves it where it is; None until a row was read. Microseconds
    are kept: a mark that was rounded up would pass over rows of its own second.
    """
    newest = max(stamps, default=None)
    if newest is None:
        return mark
    capped = min(newest, now - rules.settle)
    return capped if mark is None else max(mark, capped)


def start_of(mark: datetime | None, now: datetime, rules: Rules) -> datetime:
    """From which stamp on, itself included, a table has to be read so that nothing before it can still appear.

    The mark counts less than the clock where that was set back: rows are being stamped before the mark again.
    """
    settled = now - rules.settle
    return (settled if mark is None else min(mark, settled)) - rules.overlap


def lowered(start: datetime, mark: datetime | None, now: datetime, rules: Rules) -> datetime:
    """Where this reading begins: at the start, unless the database's clock was set back behind it."""
    return min(start, start_of(mark, now, rules))


def stepped(start: datetime, mark: datetime | None, now: datetime, rules: Rules) -> datetime:
    """Where the next reading begins: the start moves on in steps of half an overlap, and not with every mark."""
    if mark is None:
        return start
    wanted = start_of(mark, now, rules)
    return wanted if wanted >= start + rules.overlap / 2 else start
