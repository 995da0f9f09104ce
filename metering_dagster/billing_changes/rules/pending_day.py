"""A day that has moved and is not materialized as it is now (domain: the billing-changes signal). Pure: the database's
clock is an argument.

Belongs here: when its run is due, when it is asked for again, when it is done with. Does not: which days have moved
(poll), how it is written down (cursor), what a run reports (day_diff).
"""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

from metering_dagster.billing_changes.rules.watermark import PollRules

_LAST = datetime.max.replace(tzinfo=UTC)
"""Stamps may be of any year, and 9999-12-31 23:59:59 is one that people write for `never`."""


class Why(StrEnum):
    """The reason why a day changed, in words for people."""

    INGESTED = "rows were ingested"
    FIRST_LOOK = "first look"
    SUBSCRIPTIONS = "subscriptions came, went or claim other rows"
    DIFFERS = "reconcile: the tables hold something else than was reported"
    NEVER_REPORTED = "reconcile: never reported"
    GAP = "nothing moved, but nobody had looked for longer than the overlap"


@dataclass(frozen=True)
class PendingDay:
    """A day that changed since its last materialization, and its requested run. All instants are the database's."""

    first: datetime | None
    """What was stamped up to then is materialized, by transactions no longer than the overlap; None: nothing is."""
    since: datetime
    """When it first moved since it was last asked for."""
    moved: datetime
    """When it was last seen to have moved: the clock after that was read, so that a reading of a later clock has it."""
    newest: datetime | None
    """Its latest stamp then; None if that is not known."""
    why: Why
    asked: datetime | None = None
    """When it was last asked for as it is now; None: not since it moved."""
    attempt: int = 0
    """How often that was."""
    tells_gap: bool = False
    """Whether the run that was asked for tells of a time in which nobody looked."""

    def moved_again(self, other: "PendingDay", read_at: datetime | None, rules: PollRules) -> "PendingDay":
        """This day after another movement. `read_at`: when it was read for its last materialization."""
        if self.is_read(read_at, other.moved, rules):
            return other
        return replace(
            other,
            first=None if self.first is None or other.first is None else min(self.first, other.first),
            since=self.since if self.asked is None else other.since,
            tells_gap=self.tells_gap,
        )

    def wanted(self, at: datetime, rules: PollRules) -> datetime:
        """Return how old the last reading of this day may be, for all that there is to be read `at` that time.

        First it must have what moved. Then, what carries the stamp of a row seen may have been written later in the
        same second: a reading from after the settle time has it. A stamp ahead of the clock settles when the clock has
        passed it.
        """
        settled = self._settled(rules)
        passed = self._passed(rules)
        return passed if passed <= at else settled if settled <= at else self.moved

    def is_read(self, read_at: datetime | None, at: datetime, rules: PollRules) -> bool:
        """Return whether nothing is left to be read for now. A reading from after `at` is of a clock that was
        set back.
        """
        return read_at is not None and self.wanted(at, rules) <= read_at <= at

    def is_done(self, read_at: datetime | None, at: datetime, rules: PollRules) -> bool:
        """Return whether nothing is left to be read, nor will be."""
        return self._passed(rules) <= at and self.is_read(read_at, at, rules)

    def is_due(self, at: datetime, rules: PollRules) -> bool:
        """Return whether to ask for a run of it that is neither read nor under way."""
        if self.asked is None:
            return at >= self.moved + rules.quiet or at >= self.since + rules.at_most
        if self.asked < self.wanted(at, rules):
            return True  # the run that was asked for came too early for this
        return at >= self.asked + self._pause(rules)

    def asking(self, at: datetime, tells_gap: bool) -> "PendingDay":
        """Now that it is asked for."""
        return replace(self, asked=at, attempt=self.attempt + 1, tells_gap=tells_gap)

    def updated(self, read_at: datetime | None, at: datetime, rules: PollRules) -> "PendingDay":
        """Knowing when it was read: what moved and was read is materialized, but for stamps that were not settled."""
        if read_at is None or not self.moved <= read_at <= at:
            return self
        safe = read_at - rules.settle
        return replace(self, first=safe if self.first is None else max(self.first, safe))

    def complete_until(self, read_at: datetime | None, at: datetime, rules: PollRules) -> datetime | None:
        """Return what was stamped up to then is materialized of this day; None: not known."""
        if read_at is None or not self._settled(rules) <= read_at <= at:
            return self.first
        return at if self.newest is None else min(at, self.newest)  # only a stamp ahead of the clock is waited for

    def rewound(self, now: datetime) -> "PendingDay":
        """After the database's clock was set back: nothing of it lies ahead."""
        return replace(
            self,
            first=None if self.first is None else min(self.first, now),
            since=min(self.since, now),
            moved=min(self.moved, now),
            asked=None if self.asked is None else min(self.asked, now),
        )

    def run_key(self, day: date) -> str:
        """Return the same one for the same movement and attempt, another one for any other: Dagster never runs one
        twice.
        """
        stamps = (_text(self.newest), _text(self.moved))
        return f"{day}:{':'.join(stamps)}:{self.attempt + 1}"

    def _settled(self, rules: PollRules) -> datetime:
        return self.moved if self.newest is None else max(self.moved, min(self.newest, self.moved) + rules.settle)

    def _passed(self, rules: PollRules) -> datetime:
        if self.newest is None:
            return self.moved
        return max(self.moved, min(self.newest, _LAST - rules.settle) + rules.settle)

    def _pause(self, rules: PollRules) -> timedelta:
        doubled: int = 2 ** min(self.attempt - 1, 20)
        return min(rules.retry * doubled, rules.retry_at_most)


def _text(instant: datetime | None) -> str:
    return "-" if instant is None else f"{instant:%Y%m%dT%H%M%S.%f}"
