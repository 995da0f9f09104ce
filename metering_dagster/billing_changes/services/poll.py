"""One poll of the billing database: which days changed, and which of them are due.

Belongs here: the order of a poll, and what happens to the days it finds. Does not: reading fresh rows (fresh_stamps),
decisions (rules/watermark, pending_day, reconcile), the cursor's text (rules/cursor), SQL (stores/queries), Dagster
(defs/sensors).

Reporting too much is safe, too little is not (domain §7): wherever a poll and a run may have crossed, the day counts as
changed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

from metering_dagster.billing_changes.rules.cells import Claims, Signal, cells_of, newest_of_days, states_of_days
from metering_dagster.billing_changes.rules.cursor import PollCursor, PollGap, beginning
from metering_dagster.billing_changes.rules.pending_day import DueReason, PendingDay
from metering_dagster.billing_changes.rules.reconcile import (
    Days,
    MaterializedReading,
    changed_days,
    differences,
    to_compare,
)
from metering_dagster.billing_changes.rules.watermark import PollRules, PollTooSlowError
from metering_dagster.billing_changes.services.fresh_stamps import FreshStamps, read_fresh

if TYPE_CHECKING:
    from metering_dagster.billing_changes.stores.queries import BillingSnapshot

LONG_PAUSE = timedelta(days=31)
"""After this long without a poll, polling starts anew: reading all stamps since then may exceed a tick's time-out."""
_UNKNOWN = (DueReason.FIRST_POLL, DueReason.SUBSCRIPTIONS, DueReason.NEVER_REPORTED)
"""Reasons for which none of the day counts as materialized, however old its stamps are."""
_NAMED = 5


@dataclass(frozen=True)
class DueDay:
    """Day whose run is requested now."""

    day: date
    run_key: str
    why: str
    gap: str
    """The message of its check no_gap about a time without polls; empty if there was none."""


@dataclass(frozen=True)
class PollResult:
    """Result of a poll."""

    cursor: PollCursor
    due_days: list[DueDay]
    complete_until: datetime | None
    """Everything stamped before that, by transactions no longer than the overlap, is materialized; None: unknown."""
    waiting: list[date]
    """The days that changed since their last materialization."""
    first_day: date
    """The oldest day of the horizon."""
    notes: list[str]
    """Sentences for the log or the skip reason."""


@dataclass(frozen=True)
class _ChangedDays:
    """Days that changed since the last poll."""

    why: dict[date, DueReason] = field(default_factory=dict)
    newest: dict[date, datetime] = field(default_factory=dict)

    def add(self, why: Mapping[date, DueReason], newest: Mapping[date, datetime]) -> None:
        self.why.update(why)
        self.newest.update(newest)


@dataclass(frozen=True)
class _Materialized:
    """Last materialization of each day, as this poll found it."""

    reported: Callable[[date], MaterializedReading | None]
    at: datetime
    """The clock after the snapshot was taken: a run that begins to read from then on reads at least as much."""
    rules: PollRules

    def read_at(self, day: date) -> datetime | None:
        found = self.reported(day)
        return None if found is None else found.read_at

    def has(self, day: date, one: PendingDay) -> bool:
        """Judge whether nothing of the day is left to read for now."""
        return one.is_read(self.read_at(day), self.at, self.rules)


def poll(
    reading: "BillingSnapshot",
    last: PollCursor | None,
    rules: PollRules,
    *,
    reported: Callable[[date], MaterializedReading | None],
    under_way: Collection[date],
    partitions: Days,
) -> PollResult:
    """Poll once.

    `last`: the last poll's cursor, None for the first one. `reported`: a day's last materialization. `under_way`: the
    days whose runs are queued or in progress, read before `reading` began. `partitions`: the days that have a
    partition.
    """
    now, claims = reading.now, reading.claims()
    horizon = _horizon(now, rules, partitions)
    before, notes = _before(last, now, rules)
    try:
        fresh = read_fresh(reading, before, claims, rules, _days_since_last_poll(before, horizon, rules, partitions))
    except PollTooSlowError as slow:
        narrower = before.narrower(slow.signal, now, rules)
        if narrower is None:
            raise
        return _result_of_slow_poll(narrower, slow.signal, notes, horizon, _Materialized(cache(reported), now, rules))
    renewed = before.claims != claims.digest
    sums = reading.checksums(horizon.first) if renewed or _is_time_to_sum(before, now, rules) else None
    done = _Materialized(cache(reported), reading.clock(), rules)

    changed = _ChangedDays(dict.fromkeys(fresh.changed, DueReason.INGESTED), dict(fresh.newest))
    if renewed and (claims.subscriptions or before.claims):  # without claims, then and now, there is no work
        why = DueReason.SUBSCRIPTIONS if before.claims else DueReason.FIRST_POLL
        changed.add({day: why for day in {*before.sums, *(sums or {}), *fresh.states} if day in horizon}, {})
    pending, gap_is_reported = _still_pending(before.pending, done, horizon)
    suspects = before.suspects | (set() if sums is None else changed_days(before.sums, sums))
    # A day that waits for its run is compared after that run: an ingest might hide in between.
    busy = changed.why.keys() | {day for day, one in pending.items() if not done.has(day, one)}
    compared = [] if renewed else to_compare(suspects, before.compared, horizon, busy, at=done.at, rules=rules)
    changed.add(*_differing(reading, claims, compared, done))
    gap = None if gap_is_reported else before.gap
    if gap is not None and not busy and not changed.why:
        changed.add({horizon.last: DueReason.GAP}, {})

    last_poll = None if last is None or now < last.polled_at else last.seen
    pending = _with_changes(pending, changed, last_poll, done)
    due = [day for day, one in pending.items() if day in partitions and day not in under_way
           and not done.has(day, one) and one.is_due(done.at, rules)]  # fmt: skip
    pending, requested = _requested(pending, due, gap, done)
    after = PollCursor(
        polled_at=now,
        claims=claims.digest,
        starts=fresh.starts,
        marks=fresh.marks,
        states=fresh.states,
        summed=before.summed if sums is None else now,
        sums=before.sums if sums is None else dict(sums),
        suspects=frozenset(day for day in suspects - changed.why.keys() - set(compared) if day in horizon),
        compared=_compared(before, pending, compared, done, horizon),
        pending=pending,
        gap=gap,
        narrowed=fresh.narrowed,
    )
    notes += _notes(claims, fresh, len(due) - len(requested))
    return PollResult(after, requested, _complete_until(after, done), _waiting(pending, done), horizon.first, notes)


def _result_of_slow_poll(
    narrower: PollCursor, signal: Signal, notes: Sequence[str], horizon: Days, done: _Materialized
) -> PollResult:
    """Return the result of a poll that took too long: it changes nothing, and the next one reads less."""
    note = (
        f"Reading the fresh rows of {signal} took longer than the time-out of a statement. No run was requested. The "
        f"next polls read their stamps piece by piece, {narrower.narrowed[signal].span} at first."
    )
    waiting = _waiting(narrower.pending, done)
    # Before the first poll no day is known.
    complete_until = _complete_until(narrower, done) if narrower.claims else None
    return PollResult(narrower, [], complete_until, waiting, horizon.first, [*notes, note])


def _waiting(pending: Mapping[date, PendingDay], done: _Materialized) -> list[date]:
    return sorted(day for day, one in pending.items() if not done.has(day, one))


def _horizon(now: datetime, rules: PollRules, partitions: Days) -> Days:
    """Return the days to poll: those of the horizon that have a partition."""
    return Days(max((now - rules.horizon).date(), partitions.first), min(now.date(), partitions.last))


def _days_since_last_poll(before: PollCursor, horizon: Days, rules: PollRules, partitions: Days) -> Days:
    """Return the days to read: an ingest after the last poll, just before its day left the horizon, still counts."""
    first = (before.seen - rules.overlap - rules.horizon).date()
    return Days(min(horizon.first, max(first, partitions.first)), horizon.last)


def _before(last: PollCursor | None, now: datetime, rules: PollRules) -> tuple[PollCursor, list[str]]:
    """Return the cursor to begin with, and notes about it."""
    if last is None:
        return beginning(now, rules), []
    if now < last.polled_at:
        back = f"The database's clock was set back by {last.polled_at - now}: the stamps since then are read again."
        return last.rewound(now), [back]
    if now - last.polled_at <= rules.overlap:
        return last, []
    since = last.polled_at if last.gap is None else min(last.gap.since, last.polled_at)
    first_left, last_left = (since - rules.horizon).date(), (now - rules.horizon).date() - timedelta(days=1)
    gap = PollGap(since, now, (first_left, last_left) if first_left <= last_left else None)
    pending = {day: replace(one, reports_gap=False) for day, one in last.pending.items()}
    if now - last.polled_at > LONG_PAUSE:
        return replace(beginning(now, rules), pending=pending, gap=gap), [gap.message, "Polling starts anew."]
    return replace(last, pending=pending, gap=gap), [gap.message]


def _is_time_to_sum(before: PollCursor, now: datetime, rules: PollRules) -> bool:
    return before.summed is None or now >= before.summed + rules.sums_every


def _still_pending(
    pending: Mapping[date, PendingDay], done: _Materialized, horizon: Days
) -> tuple[dict[date, PendingDay], bool]:
    """Return the days that are still pending, and whether a run has reported the gap."""
    still, reported = {}, False
    for day, one in pending.items():
        read_at = done.read_at(day)
        reported = reported or (one.reports_gap and done.has(day, one))
        # A stamp ahead of the clock is waited for within the horizon only.
        left = day < horizon.first and done.has(day, one)
        if not left and not one.is_done(read_at, done.at, done.rules):
            still[day] = one.updated(read_at, done.at, done.rules)
    return still, reported


def _differing(
    reading: "BillingSnapshot", claims: Claims, compared: Collection[date], done: _Materialized
) -> tuple[dict[date, DueReason], dict[date, datetime]]:
    """Find the compared days that differ from their reports, and their latest stamps."""
    if not compared:
        return {}, {}
    cells = cells_of(reading.pieces_of(compared, claims, amounts=False), claims)
    found = differences(compared, states_of_days(cells.values()), done.reported)
    return found, {day: stamp for day, stamp in newest_of_days(cells).items() if day in found}


def _with_changes(
    pending: Mapping[date, PendingDay], changed: _ChangedDays, last_poll: datetime | None, done: _Materialized
) -> dict[date, PendingDay]:
    after = dict(pending)
    for day, why in changed.why.items():
        first = None if why in _UNKNOWN else last_poll
        one = PendingDay(first, since=done.at, changed_at=done.at, newest=changed.newest.get(day), why=why)
        after[day] = after[day].changed_again(one, done.read_at(day), done.rules) if day in after else one
    return after


def _requested(
    pending: Mapping[date, PendingDay], due: Collection[date], gap: PollGap | None, done: _Materialized
) -> tuple[dict[date, PendingDay], list[DueDay]]:
    """Request runs of the due days, those that changed first before others."""
    after, requested = dict(pending), []
    for day in sorted(due, key=lambda day: (pending[day].since, day))[: done.rules.most_requested]:
        one = pending[day]
        requested.append(DueDay(day, one.run_key(day), one.why, "" if gap is None else gap.message))
        after[day] = one.after_request(done.at, reports_gap=gap is not None)
    return after, requested


def _compared(
    before: PollCursor,
    pending: Mapping[date, PendingDay],
    compared: Collection[date],
    done: _Materialized,
    horizon: Days,
) -> dict[date, datetime]:
    """Return when each day was last compared; a materialization counts as a comparison."""
    times = {**before.compared, **dict.fromkeys(compared, done.at)}
    for day in before.pending.keys() - pending.keys():
        read_at = done.read_at(day)
        if read_at is not None:
            times[day] = read_at
    return {day: time.replace(microsecond=0) for day, time in times.items() if day in horizon}


def _complete_until(cursor: PollCursor, done: _Materialized) -> datetime | None:
    bounds = [one.complete_until(done.read_at(day), done.at, done.rules) for day, one in cursor.pending.items()]
    known = [bound for bound in bounds if bound is not None]
    return min([cursor.seen, *known]) - done.rules.overlap if len(known) == len(bounds) else None


def _notes(claims: Claims, fresh: FreshStamps, more: int) -> list[str]:
    notes = []
    if not claims.subscriptions:
        notes.append("No subscription is enabled: there is nothing to report.")
    if fresh.ahead:
        named = ", ".join(str(day) for day in sorted(fresh.ahead)[:_NAMED])
        notes.append(f"Future days with rows: {len(fresh.ahead)} ({named}). They are polled once they begin.")
    for signal, one in fresh.narrowed.items():
        notes.append(
            f"{signal} is read piece by piece, since one reading took longer than the time-out of a statement. So far "
            f"it is read up to the stamp {one.read_until:%Y-%m-%dT%H:%M:%SZ}."
        )
    if more:
        notes.append(f"{more} more days are due; the next poll requests their runs.")
    return notes
