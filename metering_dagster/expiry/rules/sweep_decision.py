"""Should this tick ask for a sweep of its shard, and for which? (issue: age-out; pure)

Belongs here: when a shard's whole sweep is due, the reasons for and against a run in words that a person understands.
Does not: looking anything up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from metering_dagster.core import hours

NEWEST = 6
"""Hours that an hourly tick looks at; the sweep that it asks for ends after so many in a row with nothing pending."""
_DAY = timedelta(days=1)


def whole_sweep_due(shard: int, now: datetime) -> datetime:
    """Return when this shard's last whole sweep was due: at hour 6 + 2M, today or yesterday.

    An hour's shard moves on with the clock. At these seven hours the shards meet seven different sevenths of the hours:
    each once a day. From 06:00 on, for on the 1st nothing is expired before.
    """
    due = hours.floor_hour(now).replace(hour=6 + 2 * shard)
    return due if due <= now else due - _DAY


class SweepFacts(Protocol):
    """The lookups of a tick, each made only when it is needed."""

    def is_running(self) -> bool:
        """Return whether a run of the shard is queued or under way."""

    def has_swept(self, day: str) -> bool:
        """Return whether the whole sweep of this day is done, queued or under way, or was tried often enough."""

    def has_swept_before(self, day: str) -> bool:
        """Return whether the whole sweep of some earlier day is known."""

    def first_pending(self, these: Sequence[str]) -> "ProbedHour":
        """Return the first of these hours in which anything is pending."""


@dataclass(frozen=True, slots=True)
class ProbedHour:
    """The result of a probe: an hour's bucket, or none."""

    bucket: str | None
    failure: str = ""
    """Why the probe could not tell; then the rest means nothing."""


@dataclass(frozen=True, slots=True)
class SweepDecision:
    """A sweep or none, and why."""

    run: bool
    reason: str
    as_of: datetime
    """The hour whose slice is to be swept."""
    whole: bool = False

    @property
    def day(self) -> str:
        """Return which day's sweep it is."""
        return day_of(self.as_of)


def day_of(due: datetime) -> str:
    """Return the day of a whole sweep, as its run is tagged."""
    return f"{due:%Y-%m-%d}"


def decide(shard: int, now: datetime, evidence: SweepFacts) -> SweepDecision:
    """Return what the tick at `now` does about its shard."""
    tick = hours.floor_hour(now)
    newest = [hours.bucket(hour) for hour in hours.shard_hours(shard, now)[:NEWEST]]
    if not newest:
        return SweepDecision(
            False, "On the 1st before 06:00 UTC nothing is expired: the old month is still billable.", tick
        )
    if evidence.is_running():
        return SweepDecision(False, f"A run of shard {shard} is queued or under way.", tick)
    due = whole_sweep_due(shard, now)
    if not evidence.has_swept(day_of(due)):
        if due == tick:
            return SweepDecision(True, f"The day's whole sweep of shard {shard}.", due, whole=True)
        if evidence.has_swept_before(day_of(due)):
            missed = f"The whole sweep of shard {shard} that was due at {due:%Y-%m-%dT%H:%MZ} is made up for."
            return SweepDecision(True, missed, due, whole=True)
    found = evidence.first_pending(newest)
    if found.failure:
        return SweepDecision(True, f"Whether anything is pending could not be looked up: {found.failure}", tick)
    if found.bucket is not None:
        return SweepDecision(True, f"Something is pending in {found.bucket}, which can no longer be billed.", tick)
    due_next = due + _DAY
    return SweepDecision(
        False,
        f"Nothing is pending in {newest[0]} and the next {len(newest) - 1} hours of shard {shard}. Older ones are "
        f"looked at by its whole sweep, at {due_next:%Y-%m-%dT%H:%MZ}.",
        tick,
    )


def earlier_days(day: str, most: int = 30) -> list[str]:
    """Return the days before this one."""
    start = datetime.fromisoformat(day)
    return [day_of(start - n * _DAY) for n in range(1, most + 1)]
