"""A day that changed since its last materialization (domain §7). Pure: the database's clock is an argument.

Belongs here: when its run is due, when it is requested again, when the day is done. Does not: which days changed
(services/poll), the day's text in the cursor (cursor), what a run reports (day_diff).
"""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

from metering_dagster.billing_changes.rules.watermark import PollRules

_LAST = datetime.max.replace(tzinfo=UTC)
"""Stamps may be of any year: some writers use 9999-12-31 23:59:59 for `never`."""


class DueReason(StrEnum):
    """Reason why a day is due; operators read it in the metadata."""

    INGESTED = "rows were ingested"
    FIRST_POLL = "first poll"
    SUBSCRIPTIONS = "subscriptions were added, removed or claim other rows"
    DIFFERS = "reconcile: the tables differ from the last report"
    NEVER_REPORTED = "reconcile: never reported"
    GAP = "nothing changed, but the sensor had not polled for longer than the overlap"


@dataclass(frozen=True)
class PendingDay:
    """Changed day, and the runs that were requested for it. All instants are the database's."""

    first: datetime | None
    """Everything stamped up to then is materialized, by transactions no longer than the overlap; None: nothing is."""
    since: datetime
    """When it first changed since its last request."""
    changed_at: datetime
    """When a poll last saw it changed: the clock after that poll's reading, so that a later reading has the change."""
    newest: datetime | None
    """Its latest stamp then; None if unknown."""
    why: DueReason
    requested_at: datetime | None = None
    """When a run of its present state was last requested; None: not since it changed."""
    attempt: int = 0
    """The number of such requests."""
    reports_gap: bool = False
    """True where the requested run reports a time without polls."""

    def changed_again(self, other: "PendingDay", read_at: datetime | None, rules: PollRules) -> "PendingDay":
        """Return the day after another change. `read_at`: when its last materialization read the tables."""
        if self.is_read(read_at, other.changed_at, rules):
            return other
        return replace(
            other,
            first=None if self.first is None or other.first is None else min(self.first, other.first),
            since=self.since if self.requested_at is None else other.since,
            reports_gap=self.reports_gap,
        )

    def wanted(self, at: datetime, rules: PollRules) -> datetime:
        """Return the earliest time of a reading that has everything to be read by now (`at`).

        A reading must first have the change itself. Further rows with a stamp already seen may be written later in the
        same second: a reading after the settle time has them. A stamp ahead of the clock settles once the clock has
        passed it.
        """
        settled = self._settled(rules)
        passed = self._passed(rules)
        return passed if passed <= at else settled if settled <= at else self.changed_at

    def is_read(self, read_at: datetime | None, at: datetime, rules: PollRules) -> bool:
        """Judge whether nothing is left to read for now. A reading later than `at` is of a clock that was set back."""
        return read_at is not None and self.wanted(at, rules) <= read_at <= at

    def is_done(self, read_at: datetime | None, at: datetime, rules: PollRules) -> bool:
        """Judge whether nothing is left to read, now or later."""
        return self._passed(rules) <= at and self.is_read(read_at, at, rules)

    def is_due(self, at: datetime, rules: PollRules) -> bool:
        """Judge whether to request a run of the day, given that it is neither read nor in progress."""
        if self.requested_at is None:
            return at >= self.changed_at + rules.quiet or at >= self.since + rules.at_most
        if self.requested_at < self.wanted(at, rules):
            return True  # the requested run came too early for this
        return at >= self.requested_at + self._pause(rules)

    def after_request(self, at: datetime, reports_gap: bool) -> "PendingDay":
        """Return the day after a request of its run."""
        return replace(self, requested_at=at, attempt=self.attempt + 1, reports_gap=reports_gap)

    def updated(self, read_at: datetime | None, at: datetime, rules: PollRules) -> "PendingDay":
        """Return the day after a reading: its change is materialized, except for stamps that had not settled."""
        if read_at is None or not self.changed_at <= read_at <= at:
            return self
        safe = read_at - rules.settle
        return replace(self, first=safe if self.first is None else max(self.first, safe))

    def complete_until(self, read_at: datetime | None, at: datetime, rules: PollRules) -> datetime | None:
        """Return the instant up to which everything stamped is materialized of this day; None: unknown."""
        if read_at is None or not self._settled(rules) <= read_at <= at:
            return self.first
        return at if self.newest is None else min(at, self.newest)  # only a stamp ahead of the clock is waited for

    def rewound(self, now: datetime) -> "PendingDay":
        """Move all times back to `now` after the database's clock was set back."""
        return replace(
            self,
            first=None if self.first is None else min(self.first, now),
            since=min(self.since, now),
            changed_at=min(self.changed_at, now),
            requested_at=None if self.requested_at is None else min(self.requested_at, now),
        )

    def run_key(self, day: date) -> str:
        """Return a run key, equal for equal change and attempt only: Dagster never runs a key twice."""
        stamps = (_text(self.newest), _text(self.changed_at))
        return f"{day}:{':'.join(stamps)}:{self.attempt + 1}"

    def _settled(self, rules: PollRules) -> datetime:
        if self.newest is None:
            return self.changed_at
        return max(self.changed_at, min(self.newest, self.changed_at) + rules.settle)

    def _passed(self, rules: PollRules) -> datetime:
        if self.newest is None:
            return self.changed_at
        return max(self.changed_at, min(self.newest, _LAST - rules.settle) + rules.settle)

    def _pause(self, rules: PollRules) -> timedelta:
        doubled: int = 2 ** min(self.attempt - 1, 20)
        return min(rules.retry * doubled, rules.retry_at_most)


def _text(instant: datetime | None) -> str:
    return "-" if instant is None else f"{instant:%Y%m%dT%H%M%S.%f}"
