"""The reconcile: it compares reports with the database (domain §7). Pure.

It finds changes that no stamp shows: a commit later than the overlap, a deletion, a wrong clock. Belongs here: which
days are compared when, and what a difference means. Does not: reading them (stores/queries), what happens to a day that
differs (pending_day).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from metering_dagster.billing_changes.rules.pending_day import DueReason
from metering_dagster.billing_changes.rules.watermark import PollRules

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class MaterializedReading:
    """Reading of the tables that a day's last materialization rests on."""

    read_at: datetime
    """The database's clock just before it: everything committed by then is in it."""
    state: str
    """The digest of the day's cells, as `states_of_days` makes it; empty if it had none."""


@dataclass(frozen=True)
class Days:
    """Consecutive days, both ends included."""

    first: date
    last: date

    def __contains__(self, day: object) -> bool:
        return isinstance(day, date) and self.first <= day <= self.last

    def __iter__(self) -> Iterator[date]:
        return (self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1))


def changed_days(before: Mapping[date, str], now: Mapping[date, str]) -> set[date]:
    """Return the days whose texts differ."""
    return {day for day in {*before, *now} if before.get(day, "") != now.get(day, "")}


def to_compare(
    suspects: Collection[date],
    compared: Mapping[date, datetime],
    horizon: Days,
    busy: Collection[date],
    *,
    at: datetime,
    rules: PollRules,
) -> list[date]:
    """Return the days to compare now: suspects first, then those not compared for the longest time, late days first.

    `compared`: when each day was last compared. Days that are `busy` wait for their runs.
    """
    recent = horizon.last - timedelta(days=rules.recent_days)
    turns = []
    for day in horizon:
        last = compared.get(day, _NEVER)
        every = rules.recent_every if day > recent else rules.others_every
        if day not in busy and (day in suspects or at - last >= every):
            turns.append((day not in suspects, last, horizon.last - day, day))
    return [day for *_, day in sorted(turns)[: rules.most_compared]]


def differences(
    days: Iterable[date], states: Mapping[date, str], reported: Callable[[date], MaterializedReading | None]
) -> dict[date, DueReason]:
    """Find the days whose report differs from the tables, with the reason."""
    found = {}
    for day in days:
        state, known = states.get(day, ""), reported(day)
        if known is None and state:
            found[day] = DueReason.NEVER_REPORTED
        elif known is not None and known.state != state:
            found[day] = DueReason.DIFFERS
    return found
