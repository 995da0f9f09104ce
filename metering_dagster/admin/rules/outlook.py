"""What is still pending means: open, billable until when, or past its window; and when money is lost next. Pure.

Belongs here: which hours to look at, the state of an hour with something pending, the verdict on all of them.
Does not: counting (status), the hour policy itself (hours), how it is printed (words).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from metering_dagster.core import hours

SOON = timedelta(hours=1)
"""A cutoff this close, with something pending, wants a person."""


class State(StrEnum):
    """The state of an hour's usage: open, billable, or past its window."""

    OPEN = "open"
    """Late usage may still arrive: nothing is done before the lock is over."""
    BILLABLE = "billable"
    WAITING = "waiting"
    """Past its window on the month's last day: the grace opens it again at 00:00 on the 1st."""
    PAST = "past"
    """No longer billable: the age-out ends what is pending."""


@dataclass(frozen=True)
class PendingCounts:
    """Pending rows and aggregates of one hour."""

    hour: datetime
    rows: int = 0
    aggregates: int = 0
    held: int | None = None
    """Of the rows: good ones of groups in which a rejected row stands; None where that was not looked at."""
    zero: int | None = None
    """Of the rows: those of groups that sum to 0 so far; None as above."""

    @property
    def is_something(self) -> bool:
        """Return whether anything is pending."""
        return bool(self.rows or self.aggregates)


@dataclass(frozen=True)
class HourOutlook:
    """An hour with something pending, and what that means at this instant."""

    pending: PendingCounts
    state: State
    opens_at: datetime | None = None
    """Of an open hour: the end of its lock; of a waiting one: the turn of the month."""
    closes_at: datetime | None = None
    """The first instant at which it is no longer billable; None for one that is past for good."""
    is_last_call: bool = False
    """Held and zero groups are sent now or never."""
    is_expirable: bool = False
    """Of a past hour: whether the age-out may end it already; on the 1st it waits for the month's grace."""

    @property
    def bucket(self) -> str:
        """Return the hour as the tables name it."""
        return hours.bucket(self.pending.hour)


@dataclass(frozen=True)
class Outlook:
    """The state of a deployment: its hours with pending usage, and when money is lost next."""

    now: datetime
    looked_at: Sequence[datetime]
    """Every hour that was counted, the oldest first."""
    standings: Sequence[HourOutlook]
    """Those of them with something pending, the oldest first."""

    @property
    def oldest(self) -> HourOutlook | None:
        """Return the oldest hour with something pending."""
        return self.standings[0] if self.standings else None

    @property
    def next_cutoff(self) -> datetime | None:
        """Return when the next hour with something pending stops being billable; None where none is billable."""
        return min((standing.closes_at for standing in self.standings if standing.closes_at), default=None)

    @property
    def past(self) -> list[HourOutlook]:
        """Return the hours with something that can never be billed again."""
        return [standing for standing in self.standings if standing.state is State.PAST]

    @property
    def closing(self) -> list[HourOutlook]:
        """Return the hours with something pending that close within an hour."""
        return [s for s in self.standings if s.closes_at is not None and s.closes_at - self.now <= SOON]

    @property
    def is_good(self) -> bool:
        """Nothing is past its window, nor about to be."""
        return not self.past and not self.closing

    @property
    def unjudged(self) -> list[HourOutlook]:
        """Return the hours in which held and zero rows were not told from others."""
        return [standing for standing in self.standings if standing.pending.held is None]


def hours_to_look_at(now: datetime, days: int) -> list[datetime]:
    """Return every hour that can be billed now or in the month's coming grace, and all up to so many days back; oldest
    first.

    The current hour is among them.
    """
    back = [(offset, hours.hour_at_offset(now, offset)) for offset in range(hours.GRACE_LAST_OFFSET + 1)]
    alive = [n for n, hour in back if hours.is_billable(hour, now) or hours.reopens_at(hour, now) is not None]
    last = max(hours.LAST_OFFSET, days * 24, *alive)
    return [hours.hour_at_offset(now, offset) for offset in range(last, -1, -1)]


def outlook(now: datetime, lock_hours: int, counted: Sequence[PendingCounts]) -> Outlook:
    """Return what these counts mean."""
    ordered = sorted(counted, key=lambda pending: pending.hour)
    return Outlook(
        now,
        [pending.hour for pending in ordered],
        [standing(pending, now, lock_hours) for pending in ordered if pending.is_something],
    )


def standing(pending: PendingCounts, now: datetime, lock_hours: int) -> HourOutlook:
    """Return what an hour's pending usage means. The window counts before the lock: what is past never opens again.

    But for the hours that wait for the month's grace (domain §4).
    """
    hour = pending.hour
    reopens = hours.reopens_at(hour, now)
    if reopens is not None:
        return HourOutlook(pending, State.WAITING, opens_at=reopens, closes_at=hours.closes_for_good(hour))
    if not hours.is_billable(hour, now):
        return HourOutlook(pending, State.PAST, is_expirable=hours.is_expirable(hour, now))
    closes = hours.closes_at(hour, now)
    if hours.is_locked(hour, now, lock_hours):
        return HourOutlook(pending, State.OPEN, opens_at=hours.opens_at(hour, lock_hours), closes_at=closes)
    return HourOutlook(pending, State.BILLABLE, closes_at=closes, is_last_call=hours.is_last_call(hour, now))


def judging_order(counted: Sequence[PendingCounts], now: datetime, lock_hours: int) -> list[PendingCounts]:
    """Return the hours with pending rows, those first in which held and zero rows matter most: billable first, past
    last.
    """
    rank = {State.BILLABLE: 0, State.OPEN: 1, State.WAITING: 2, State.PAST: 3}
    with_rows = [pending for pending in counted if pending.rows]
    return sorted(with_rows, key=lambda p: (rank[standing(p, now, lock_hours).state], p.hour))
