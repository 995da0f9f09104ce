"""Hours that are not closed though their window ends soon: which, and what is said of them (pure).

Belongs here: when an hour is due to be reported, what counts as closed, the alert. Does not: looking anything up
(metering.evidence), whether a run is asked for (metering.ticks).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from metering_dagster.alerting.rules.alert_text import Alert
from metering_dagster.core import hours
from metering_dagster.metering.rules import run_decision
from metering_dagster.metering.rules.run_decision import PendingFound

REPORTED_BEFORE = timedelta(hours=4)
"""So long before its window ends an hour has to be closed."""
OPENED_FOR = timedelta(minutes=30)
"""But one that opens late gets this long for its first run."""
RUN_WAITED_FOR = timedelta(hours=3)
"""While more than this is left, a run that is queued or under way is given its time."""
MOST_ROWS, MOST_AGGREGATES = 1_000, 100
"""No further is counted for an alert."""


class UnclosedFacts(run_decision.HourFacts, Protocol):
    """The lookups about one hour, each made only when it is needed."""

    def count(self, most_rows: int, most_aggregates: int) -> PendingFound:
        """Return what is pending, counted no further than that."""


@dataclass(frozen=True)
class Unclosed:
    """An hour that is not closed."""

    hour: datetime
    closes: datetime
    pending: PendingFound
    was_metered: bool
    """Whether a run went through after the lock."""

    @property
    def bucket(self) -> str:
        """Return the hour by its name."""
        return hours.bucket(self.hour)


def due(now: datetime, lock_hours: int, first_hour: datetime) -> list[datetime]:
    """Return the hours that have to be closed by now, the oldest first."""
    return [hour for hour in hours.billable_hours(now) if hour >= first_hour and _is_due(hour, now, lock_hours)]


def _is_due(hour: datetime, now: datetime, lock_hours: int) -> bool:
    if hours.is_locked(hour, now, lock_hours):
        return False
    # What the month's grace opens again has been closed in between.
    opened = max(hours.opens_at(hour, lock_hours), _opened_again(hour, now))
    return now >= max(hours.closes_at(hour, now) - REPORTED_BEFORE, opened + OPENED_FOR)


def _opened_again(hour: datetime, now: datetime) -> datetime:
    """Return when the month's grace opened an hour of over a day ago again; of any other, when it began."""
    return hours.month_start(now) if hours.offset_of(hour, now) > hours.LAST_OFFSET else hour


def look(hour: datetime, now: datetime, lock_hours: int, evidence: UnclosedFacts) -> Unclosed | str | None:
    """Return the hour if it is not closed, None if it is, or why that cannot be told.

    Closed: a run went through after the lock, and nothing is pending. Rows that sum to zero, as that run left them,
    wait for nothing but the last call, and there is nothing in them to lose.
    """
    last, closes = run_decision.closing_run(hour, lock_hours, evidence), hours.closes_at(hour, now)
    pending = evidence.count(MOST_ROWS, MOST_AGGREGATES)
    if pending.failure:
        return pending.failure
    if last is not None and not pending.aggregates and _is_zero(last, pending.rows):
        return None
    if evidence.is_running() and closes - now > RUN_WAITED_FOR:
        return None
    return Unclosed(hour, closes, pending, last is not None)


def _is_zero(last: run_decision.LastRun, rows: int) -> bool:
    """Return whether the pending rows, if any, are those that the last run left because they sum to zero."""
    return rows == 0 or (rows == last.zero_rows == last.pending_rows)


def alert_of(found: Sequence[Unclosed], link: str, now: datetime) -> Alert:
    """Return one alert of all these hours."""
    first, last = found[0], found[-1]
    soonest = min(one.closes for one in found)
    several = len(found) > 1
    return Alert(
        key=f"hours-{first.bucket}-{last.bucket}-{now:%Y%m%dT%H%M%S}",
        subject=f"Metering: {f'{len(found)} hours are' if several else f'{first.bucket} is'} not closed, "
        f"billable until {_short(soonest)}",
        cause="\n".join(_lines(found)),
        link=link,
        hour=f"{first.bucket} to {last.bucket}" if several else first.bucket,
    )


def _lines(found: Iterable[Unclosed]) -> Iterable[str]:
    yield "What is still pending when an hour's window ends can never be billed."
    for one in found:
        state = "metered, but something is pending again or still" if one.was_metered else "no run has closed it"
        yield (
            f"- {one.bucket}: {state}; {_count(one.pending.rows, MOST_ROWS)} raw rows and "
            f"{_count(one.pending.aggregates, MOST_AGGREGATES)} aggregates are pending; it closes at "
            f"{_short(one.closes)}."
        )
    yield (
        "See the hour's runs and checks. Where a rejected row holds others, mend or delete it; where a run failed, do "
        "what it says; where none ran, see that the daemon and the schedules meter_offset_01 to 23 are running. Then "
        "materialize the hour. `metering-dagster status` counts what is pending."
    )


def _count(found: int, most: int) -> str:
    return f"at least {found}" if found >= most else str(found)


def _short(instant: datetime) -> str:
    return f"{instant:%Y-%m-%dT%H:%MZ}"
