"""One look at the billing database: which days have moved, and which of them are to be materialised now.

Belongs here: the order of a look, and what becomes of what it finds. Does not: the arithmetic of marks (watermark),
reading fresh rows (fresh), when a day is due (pending), which days are compared (reconcile), the cursor (memory), SQL
(changes), Dagster (sensors).

Reporting too much is safe, too little is not: wherever a look and a run may have crossed, the day counts as moved.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

from metering_dagster.billing.cells import Claims, cells_of, newest_of_days, states_of_days
from metering_dagster.billing.fresh import Fresh, read_fresh
from metering_dagster.billing.memory import Gap, Memory, beginning
from metering_dagster.billing.pending import Pending, Why
from metering_dagster.billing.reconcile import Days, Reported, changed_days, differences, to_compare
from metering_dagster.billing.watermark import Rules

if TYPE_CHECKING:
    from metering_dagster.billing.changes import Reading

LONG_AWAY = timedelta(days=31)
"""After so long everything is looked at anew: reading all that was stamped since might take longer than a tick has."""
_UNKNOWN = (Why.FIRST_LOOK, Why.SUBSCRIPTIONS, Why.NEVER_REPORTED)
"""Then nothing is known to be materialised of the day, however long ago it was stamped."""
_NAMED = 5

Readings = Callable[[date], datetime | None]
"""When a day was read for its last materialisation."""


@dataclass(frozen=True)
class Ask:
    """A run of a day's partition that is to be asked for."""

    day: date
    run_key: str
    why: str
    gap: str
    """What its check is to say of a time in which nobody looked; empty if there was none."""


@dataclass(frozen=True)
class Looked:
    """What came of a look."""

    memory: Memory
    asked: list[Ask]
    complete_until: datetime | None
    """What was stamped before that, by a transaction no longer than the overlap, is materialised; None: unknown."""
    waiting: list[date]
    """The days that have moved and are not materialised as they are now."""
    first_day: date
    """Where the horizon begins."""
    notes: list[str]
    """What there is to be said, in sentences."""


@dataclass(frozen=True)
class _Moves:
    """The days that this look saw move."""

    why: dict[date, Why]
    newest: dict[date, datetime]

    def add(self, why: Mapping[date, Why], newest: Mapping[date, datetime]) -> None:
        self.why.update(why)
        self.newest.update(newest)


def look(
    reading: "Reading",
    memory: Memory | None,
    rules: Rules,
    reported: Callable[[date], Reported | None],
    under_way: Collection[date],
    partitions: Days,
) -> Looked:
    """Look once. `memory`: what the last look has left, None for the first one. `reported`: a day's last
    materialisation. `under_way`: the days whose runs are queued or running, looked up before `reading` began.
    `partitions`: the days that a run can be asked for.
    """
    reported = cache(reported)

    def read_at(day: date) -> datetime | None:
        found = reported(day)
        return None if found is None else found.read_at

    now, claims = reading.now, reading.claims()
    horizon = _horizon(now, rules, partitions)
    before, notes = _before(memory, now, rules)
    renewed = before.claims != claims.digest
    fresh = read_fresh(reading, before, claims, rules, _days_of_last_look(before, horizon, rules, partitions))
    sums = reading.checksums(horizon.first) if renewed or _is_time_to_sum(before, now, rules) else None
    at = reading.clock()  # after the snapshot was taken: whatever begins to read from now on reads at least as much

    pending, told = _as_read(before.pending, read_at, at, horizon, rules)
    moves = _Moves(dict.fromkeys(fresh.moved, Why.INGESTED), dict(fresh.newest))
    if renewed:
        why = Why.SUBSCRIPTIONS if before.claims else Why.FIRST_LOOK
        moves.add({day: why for day in {*(sums or {}), *fresh.states} if day in horizon}, {})
    suspects = before.suspects | (changed_days(before.sums, sums) if sums is not None else set())
    # A day whose run is still to come is compared when it has come: something might hide in between.
    busy = moves.why.keys() | {day for day, one in pending.items() if not one.is_read(read_at(day), at, rules)}
    compared = [] if renewed else to_compare(suspects, before.compared, horizon, busy, at, rules)
    if compared:
        cells = cells_of(reading.pieces_of(compared, claims, amounts=False), claims)
        found = differences(compared, states_of_days(cells.values()), reported)
        moves.add(found, {day: stamp for day, stamp in newest_of_days(cells).items() if day in found})
    gap = None if told else before.gap
    if gap is not None and not busy and not moves.why:
        moves.add({horizon.last: Why.GAP}, {})

    last_look = None if memory is None or now < memory.looked else memory.looked
    pending = _moved(pending, moves, last_look, read_at, at, rules)
    due = [day for day, one in pending.items() if day in partitions and day not in under_way
           and not one.is_read(read_at(day), at, rules) and one.is_due(at, rules)]  # fmt: skip
    pending, asked = _asked(pending, due, gap, at, rules)
    after = Memory(
        looked=now,
        claims=claims.digest,
        starts=fresh.starts,
        marks=fresh.marks,
        states=fresh.states,
        summed=before.summed if sums is None else now,
        sums=before.sums if sums is None else dict(sums),
        suspects=frozenset(day for day in suspects - moves.why.keys() - set(compared) if day in horizon),
        compared=_compared(before, pending, compared, read_at, at, horizon),
        pending=pending,
        gap=gap,
    )
    waiting = sorted(day for day, one in pending.items() if not one.is_read(read_at(day), at, rules))
    notes += _notes(claims, fresh, len(due) - len(asked), horizon, now, rules)
    return Looked(after, asked, _complete_until(pending, read_at, now, at, rules), waiting, horizon.first, notes)


def _horizon(now: datetime, rules: Rules, partitions: Days) -> Days:
    """The days that are looked at; those without a partition are none of them."""
    return Days(max((now - rules.horizon).date(), partitions.first), min(now.date(), partitions.last))


def _days_of_last_look(before: Memory, horizon: Days, rules: Rules, partitions: Days) -> Days:
    """What was ingested just before a day left the horizon, and after the last look, is still to be seen."""
    first = (before.looked - rules.overlap - rules.horizon).date()
    return Days(min(horizon.first, max(first, partitions.first)), horizon.last)


def _before(memory: Memory | None, now: datetime, rules: Rules) -> tuple[Memory, list[str]]:
    """What is remembered as this look begins, and what there is to be said about it."""
    if memory is None:
        return beginning(now, rules), []
    if now < memory.looked:
        back = f"The database's clock was set back by {memory.looked - now}; what that may have hidden is looked at."
        return memory.rewound(now), [back]
    if now - memory.looked <= rules.overlap:
        return memory, []
    since = memory.looked if memory.gap is None else min(memory.gap.since, memory.looked)
    first, last = (since - rules.horizon).date(), (now - rules.horizon).date() - timedelta(days=1)
    gap = Gap(since, now, (first, last) if first <= last else None)
    pending = {day: replace(one, tells_gap=False) for day, one in memory.pending.items()}
    if now - memory.looked > LONG_AWAY:
        return replace(beginning(now, rules), pending=pending, gap=gap), [gap.words, "Everything is looked at anew."]
    return replace(memory, pending=pending, gap=gap), [gap.words]


def _is_time_to_sum(before: Memory, now: datetime, rules: Rules) -> bool:
    return before.summed is None or now >= before.summed + rules.sums_every


def _as_read(
    pending: Mapping[date, Pending], read_at: Readings, at: datetime, horizon: Days, rules: Rules
) -> tuple[dict[date, Pending], bool]:
    """What is still pending, and whether a run that tells of the gap is through."""
    still, told = {}, False
    for day, one in pending.items():
        read = one.is_read(read_at(day), at, rules)
        told = told or (read and one.tells_gap)
        # A stamp ahead of the clock is waited for within the horizon only.
        if not one.is_done(read_at(day), at, rules) and not (read and day < horizon.first):
            still[day] = one.updated(read_at(day), at, rules)
    return still, told


def _moved(
    pending: Mapping[date, Pending], moves: _Moves, last_look: datetime | None, read_at: Readings, at: datetime,
    rules: Rules,
) -> dict[date, Pending]:  # fmt: skip
    after = dict(pending)
    for day, why in moves.why.items():
        first = None if why in _UNKNOWN else last_look
        one = Pending(first, since=at, moved=at, newest=moves.newest.get(day), why=why)
        after[day] = after[day].moved_again(one, read_at(day), rules) if day in after else one
    return after


def _asked(
    pending: Mapping[date, Pending], due: Collection[date], gap: Gap | None, at: datetime, rules: Rules
) -> tuple[dict[date, Pending], list[Ask]]:
    """What is asked for now: of the days that are due those that have moved first."""
    after, asked = dict(pending), []
    for day in sorted(due, key=lambda day: (pending[day].since, day))[: rules.most_asked]:
        one = pending[day]
        asked.append(Ask(day, one.run_key(day), one.why, "" if gap is None else gap.words))
        after[day] = one.asking(at, tells_gap=gap is not None)
    return after, asked


def _compared(
    before: Memory, pending: Mapping[date, Pending], compared: Collection[date], read_at: Readings, at: datetime,
    horizon: Days,
) -> dict[date, datetime]:  # fmt: skip
    """When each day was last compared; a materialisation is as good: it says what its reading found."""
    done = {day: read for day in before.pending.keys() - pending.keys() if (read := read_at(day)) is not None}
    times = {**before.compared, **done, **dict.fromkeys(compared, at)}
    return {day: time for day, time in times.items() if day in horizon}


def _complete_until(
    pending: Mapping[date, Pending], read_at: Readings, now: datetime, at: datetime, rules: Rules
) -> datetime | None:
    bounds = [one.complete_until(read_at(day), at, rules) for day, one in pending.items()]
    known = [bound for bound in bounds if bound is not None]
    return min([now, *known]) - rules.overlap if len(known) == len(bounds) else None


def _notes(claims: Claims, fresh: Fresh, more: int, horizon: Days, now: datetime, rules: Rules) -> list[str]:
    notes = []
    if not claims.subscriptions:
        notes.append("No subscription is enabled: there is nothing to report.")
    if fresh.ahead:
        named = ", ".join(str(day) for day in sorted(fresh.ahead)[:_NAMED])
        notes.append(f"{len(fresh.ahead)} days have rows and have not come yet ({named}): they wait until then.")
    if horizon.first > (now - rules.horizon).date():
        notes.append(f"Days before {horizon.first} have no partition and are not looked at.")
    if more:
        notes.append(f"{more} days more are due; they are asked for at the next look.")
    return notes
