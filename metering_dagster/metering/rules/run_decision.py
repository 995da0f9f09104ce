"""Should this tick ask for a run of its hour? (design: how an hour goes through; pure)

Belongs here: the reasons for and against a run, in words that a person understands. Does not: looking anything up.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from metering_dagster.core import hours

ASKED_FOR_IN_ANY_CASE = 20
"""From this offset on an hour that no run has closed gets a run, whatever the probe says."""


@dataclass(frozen=True, slots=True)
class LastRun:
    """The rows and aggregates that the last successful run left in its hour."""

    ended: datetime
    pending_rows: int
    pending_aggregates: int
    zero_rows: int = 0
    """Of the rows: those of groups that summed to 0."""


class HourFacts(Protocol):
    """The lookups of a tick, each made only when it is needed."""

    def is_running(self) -> bool:
        """Return whether a run of the hour is queued or under way."""

    def last_run(self) -> LastRun | None:
        """Return the last run of the hour that went through."""

    def pending(self, expected: LastRun | None) -> "PendingFound":
        """Return what is pending in the hour."""

    def has_commits(self) -> bool:
        """Return whether any group of the hour was committed by this project."""


@dataclass(frozen=True, slots=True)
class PendingFound:
    """The result of a probe, counted no further than one beyond what was expected."""

    rows: int
    aggregates: int
    failure: str = ""
    """Why the probe could not tell; then the rest means nothing."""


@dataclass(frozen=True, slots=True)
class RunDecision:
    """A run, or none, and why."""

    run: bool
    reason: str


def decide(hour: datetime, now: datetime, lock_hours: int, evidence: HourFacts) -> RunDecision:
    """Return what the tick at `now` does about `hour`."""
    offset, bucket = hours.offset_of(hour, now), hours.bucket(hour)
    if hours.is_locked(hour, now, lock_hours):
        opens = f"{hours.opens_at(hour, lock_hours):%Y-%m-%dT%H:%MZ}"
        return RunDecision(False, f"{bucket} is still open for late usage until {opens}.")
    if not hours.is_billable(hour, now):
        return RunDecision(False, f"{bucket} can no longer be billed; the age-out ends what is left of it.")
    if evidence.is_running():
        return RunDecision(False, f"A run of {bucket} is queued or under way.")
    last = closing_run(hour, lock_hours, evidence)
    pending = evidence.pending(last)
    if pending.failure:
        return RunDecision(True, f"Whether anything is pending in {bucket} could not be looked up: {pending.failure}")
    if pending.rows or pending.aggregates:
        return _with_work(hour, now, last, pending)
    if last is not None:
        return _of_closed_hour(hour, now, last, evidence)
    if _is_first_call(hour, now, lock_hours) or offset >= ASKED_FOR_IN_ANY_CASE:
        return RunDecision(True, f"Nothing is pending in {bucket}, and no run has closed it yet.")
    return RunDecision(False, f"Nothing is pending in {bucket}.")


def closing_run(hour: datetime, lock_hours: int, evidence: HourFacts) -> LastRun | None:
    """Return the last run that went through after the lock; one by hand before the hour was over closed nothing."""
    last = evidence.last_run()
    return None if last is None or hours.is_locked(hour, last.ended, lock_hours) else last


def _of_closed_hour(hour: datetime, now: datetime, last: LastRun, evidence: HourFacts) -> RunDecision:
    bucket = hours.bucket(hour)
    if _is_last_visit_due(hour, now, last) and evidence.has_commits():
        return RunDecision(True, f"The last visit of {bucket}: it looks whether each commit still has its aggregate.")
    return RunDecision(False, f"{bucket} is closed: it was metered, and nothing is pending in it.")


def _with_work(hour: datetime, now: datetime, last: LastRun | None, pending: PendingFound) -> RunDecision:
    bucket = hours.bucket(hour)
    unchanged = last is not None and (pending.rows, pending.aggregates) == (last.pending_rows, last.pending_aggregates)
    if unchanged and not pending.aggregates and not _is_asked_for_in_any_case(hour, now, last):
        return RunDecision(
            False,
            f"{pending.rows} rows of {bucket} are held by a rejected row or sum to zero, as the last run left them; "
            "nothing has changed since. They go at the hour's last call.",
        )
    return RunDecision(
        True, f"At least {pending.rows} rows and {pending.aggregates} aggregates of {bucket} are pending."
    )


def _is_asked_for_in_any_case(hour: datetime, now: datetime, last: LastRun | None) -> bool:
    """Return whether it gets late for the hour: at its last call; before that, from offset 20 on, once an hour."""
    if hours.is_last_call(hour, now):
        return True
    ran_this_hour = last is not None and hours.floor_hour(last.ended) == hours.floor_hour(now)
    return hours.offset_of(hour, now) >= ASKED_FOR_IN_ANY_CASE and not ran_this_hour


def _is_last_visit_due(hour: datetime, now: datetime, last: LastRun) -> bool:
    """Return whether the hour's last visit has not been yet: from offset 22 on, and in the month's grace from 05:00 on
    the 1st once more (domain: a commit whose aggregate is gone).
    """
    begins = [hour + hours.LAST_CALL_OFFSET * hours.HOUR]
    if hours.is_previous_month(hour, now):
        last_hour = hours.closes_for_good(hour) - hours.HOUR
        begins.append(min(hours.month_start(now) + hours.GRACE_LAST_CALL, last_hour))
    return any(last.ended < begin <= now for begin in begins)


def _is_first_call(hour: datetime, now: datetime, lock_hours: int) -> bool:
    """Return whether this is the offset at which the hour opens; in the month's grace any is."""
    lock = hours.lock_of(hour, now, lock_hours)
    return lock == 0 or hours.offset_of(hour, now) == lock


def hours_of_tick(offset: int, now: datetime) -> list[datetime]:
    """Return the hours that the schedule of this offset looks after.

    Its own; and for the last offset, on the 1st before 06:00, the hours of the grace that no offset names.
    """
    found = [hours.hour_at_offset(now, offset)]
    if offset == hours.LAST_OFFSET:
        grace = (hours.hour_at_offset(now, n) for n in range(offset + 1, hours.GRACE_LAST_OFFSET + 1))
        found += [hour for hour in grace if hours.is_billable(hour, now)]
    return found
