"""Fold and commit one hour: from raw rows to aggregates, every row seen ending in its state (no Dagster).

Belongs here: the order of reading, judging, writing, and what is done when a row changed meanwhile. Does not: what a
group's verdict is (groups, counted), how anything is stored (the tables), what a person reads of it (ops).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

from metering_dagster import hours
from metering_dagster.ledger.entries import Entry
from metering_dagster.masking import digest, mask, mask_text
from metering_dagster.metering import telling
from metering_dagster.metering.aggregated_table import Commit, Committing, aggregated_reason
from metering_dagster.metering.counted import Committed, settle
from metering_dagster.metering.groups import Aggregate, Outcome, Verdict, belongs, judge_group, judge_pending
from metering_dagster.metering.quantities import EXACT, number_text, total
from metering_dagster.metering.reasons import RawStatus
from metering_dagster.metering.rows import GroupKey, RawRow, RowEnd
from metering_dagster.metering.tables import Slice, Tables

WINDOW_GROUPS, WINDOW_ROWS = 64, 8_000
"""How much is read before it is written: bounds the memory, whatever the hour holds."""
READERS = 8
LATEST = 5_000
"""Commits that are looked for in the index at the end; earlier ones had the time of these to get there."""
ATTEMPTS = 4
"""How often a group is judged again because a row of it changed meanwhile, before it is left to the next visit."""


def ignore(_: Entry) -> None:
    """For a visit that keeps no ledger."""


Tell = Callable[[Entry], None]


@dataclass
class Aggregation:
    """What a visit made of an hour's raw rows, in counts; quantities are exact."""

    committed: int = 0
    rows: int = 0
    """Raw rows that are now `Aggregated`."""
    by_dimension: dict[str, Decimal] = field(default_factory=dict)
    """Committed quantity of each dimension."""
    held_groups: int = 0
    held_rows: int = 0
    held_quantity: Decimal = Decimal(0)
    holding_rows: int = 0
    """Rejected rows that hold them, rejected now or before."""
    zero_groups: int = 0
    zero_rows: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Rejected rows by reason code."""
    cleaned: int = 0
    """Rows of earlier commits that were still pending: a lost clean-up or a repeated put."""
    late_rows: int = 0
    late: Decimal = Decimal(0)
    over_billed: Decimal = Decimal(0)
    """What overwritten seconds state less than was billed."""
    unsettled: list[str] = field(default_factory=list)
    """Groups whose rows changed at every attempt, masked: the next visit takes them."""
    notes: list[str] = field(default_factory=list)
    """Held, rejected and late groups in words, masked, the first few."""
    hidden: list[str] = field(default_factory=list)
    """Groups that were committed and that the index does not show yet, masked: a submission now would miss them."""
    closed: bool = False
    """The hour's window closed during the visit: what was not reached by then was left alone."""
    would_commit: list[Aggregate] = field(default_factory=list)
    """In shadow mode: what a live visit would have committed."""
    latest: deque[GroupKey] = field(default_factory=lambda: deque(maxlen=LATEST))
    """The groups that were committed last."""
    seen: Decimal = Decimal(0)
    """Quantity of the good pending rows of all groups that were seen through, added up row by row."""
    accounted: Decimal = Decimal(0)
    """The same by what became of them: committed, held, rejected with their group, cleaned, late."""
    tell: Tell = ignore

    def note(self, key: GroupKey, words: str) -> None:
        """Keep words about a group for the person who looks."""
        if len(self.notes) < 20:
            self.notes.append(f"{name_of(key)}: {words}")


def name_of(key: GroupKey) -> str:
    """The group in a message: hour, dimension, masked licence and account, and a digest that tells two apart."""
    return (
        f"{key.bucket} {mask_text(key.dimension)} of licence {mask(key.license_arn)}, account {mask(key.account)} "
        f"({digest(key.license_arn, key.prefix)})"
    )


@dataclass(frozen=True, slots=True)
class _Visit:
    """A group as it was read: committed or not, and its rows."""

    key: GroupKey
    rows: list[RawRow]


def aggregate(tables: Tables, part: Slice, tell: Tell = ignore) -> Aggregation:
    """Fold every group that has a pending row in this slice, commit what can be, settle what was committed before.

    `tell` hears of every row that ended in no record, and of every group that stays pending.
    """
    report = Aggregation(tell=tell)
    with ThreadPoolExecutor(READERS) as pool:
        for window in _windows(_groups(tables, part)):
            # Looked at before each: a large hour takes minutes, and what can no longer be billed is not committed.
            report.closed = not hours.is_billable(part.hour, tables.clock())
            if report.closed:
                break
            waiting = window
            for attempt in range(ATTEMPTS):
                if not waiting:
                    break
                visits = list(pool.map(lambda key: _Visit(key, tables.usage.group_rows(key)), waiting))
                waiting = _handle(tables, part, visits, report, first=attempt == 0)
            report.unsettled += [name_of(key) for key in waiting]
    if report.latest:
        hidden = tables.aggregated.await_visible(report.latest, part.bucket)
        report.hidden = [name_of(key) for key in hidden]
    return report


def settle_group(tables: Tables, key: GroupKey, committed: Committed, report: Aggregation) -> None:
    """End the pending rows of a group that was committed before, wherever they are filed.

    All of them, for only together they tell whether they are what an aggregate of others still lacks. A row that
    changes meanwhile stays pending.
    """
    step = _settle_step(_Visit(key, tables.usage.group_rows(key)), committed, tables)
    if _write_ends(tables, [step], report):
        report.unsettled.append(name_of(key))


def _groups(tables: Tables, part: Slice) -> Iterator[tuple[GroupKey, int]]:
    for key, rows in tables.usage.pending_groups(part.bucket, part.licences):
        if part.holds((key.license_arn, key.account)):
            yield key, rows


def _windows(groups: Iterable[tuple[GroupKey, int]]) -> Iterator[list[GroupKey]]:
    window: list[GroupKey] = []
    rows = 0
    for key, count in groups:
        if window and (len(window) >= WINDOW_GROUPS or rows + count > WINDOW_ROWS):
            yield window
            window, rows = [], 0
        window.append(key)
        rows += count
    if window:
        yield window


@dataclass(slots=True)
class _Step:
    """What is to be written for one group, and what it means."""

    visit: _Visit
    ends: list[RowEnd]
    late: dict[int, Decimal] = field(default_factory=dict)
    """By the position of a `LateUsage` in `ends`: what the bill lacks because of it."""
    commit: Commit | None = None
    verdict: Verdict | None = None
    seen: Decimal = Decimal(0)
    """Quantity of the good rows that are not in `commit`, row by row; and the same by what becomes of them."""
    accounted: Decimal = Decimal(0)


def _handle(
    tables: Tables, part: Slice, visits: Sequence[_Visit], report: Aggregation, *, first: bool
) -> list[GroupKey]:
    """Judge and write these groups; those of which something had changed, to be read again."""
    now = tables.clock()
    verdicts = [_judge(tables, part, visit, now) for visit in visits]
    doubtful = [
        visit.key for visit, verdict in zip(visits, verdicts, strict=True)
        if not first or not tables.writes or verdict.outcome is not Outcome.COMMIT or _looks_committed(visit)
    ]  # fmt: skip
    committed = tables.aggregated.committed(doubtful) if doubtful else {}
    steps = [
        _settle_step(visit, committed[visit.key], tables) if visit.key in committed else _step(visit, verdict)
        for visit, verdict in zip(visits, verdicts, strict=True)
    ]
    changed = _write_ends(tables, steps, report)
    changed |= _write_commits(tables, [step for step in steps if step.commit], report)
    for step in steps:
        if step.visit.key not in changed:
            report.seen = EXACT.add(report.seen, step.seen)
            report.accounted = EXACT.add(report.accounted, step.accounted)
            if step.verdict is not None:
                _count(step.visit, step.verdict, report)
    return sorted(changed)


def _judge(tables: Tables, part: Slice, visit: _Visit, now: datetime) -> Verdict:
    last_call = part.is_last_call((visit.key.license_arn, visit.key.account), now)
    verdict = judge_group(visit.key, visit.rows, now, tables.quantities, last_call=last_call)
    if verdict.outcome is Outcome.REVIVE and not tables.writes:
        revived = {usage.row.sort_key for usage in verdict.usages}
        rows = [replace(row, pending=visit.key.bucket) if row.sort_key in revived else row for row in visit.rows]
        return judge_group(visit.key, rows, now, tables.quantities, last_call=last_call)
    return verdict


def _looks_committed(visit: _Visit) -> bool:
    return any(row.status == RawStatus.AGGREGATED and row.pending is None for row in visit.rows)


def _step(visit: _Visit, verdict: Verdict) -> _Step:
    """The writes that a verdict on an uncommitted group asks for."""
    ends = [RowEnd(row, RawStatus.REJECTED, reason.value) for row, reason in verdict.bad]
    commit = None
    if verdict.outcome is Outcome.REJECT and verdict.reason is not None:
        ends += [RowEnd(usage.row, RawStatus.REJECTED, verdict.reason.value) for usage in verdict.usages]
    elif verdict.outcome is Outcome.REVIVE:
        ends += [RowEnd(usage.row, None, pending=visit.key.bucket) for usage in verdict.usages]
    elif verdict.aggregate is not None:
        commit = Commit(verdict.aggregate, verdict.usages)
    step = _Step(visit, ends, commit=commit, verdict=verdict)
    if commit is None and verdict.usages:
        step.seen = total(usage.quantity for usage in verdict.usages)
        step.accounted = verdict.aggregate.quantity if verdict.aggregate else step.seen
    return step


def _settle_step(visit: _Visit, committed: Committed, tables: Tables) -> _Step:
    """The writes that end the pending rows of a group that was committed before."""
    bad, usages = judge_pending([row for row in visit.rows if belongs(visit.key, row)], tables.quantities)
    before = [
        row.quantity for row in visit.rows
        if row.pending is None and row.status == RawStatus.AGGREGATED and isinstance(row.quantity, Decimal)
    ]  # fmt: skip
    settlement = settle(committed, usages, before)
    step = _Step(visit, [RowEnd(row, RawStatus.REJECTED, reason.value) for row, reason in bad])
    step.seen = total(usage.quantity for usage in usages)
    step.accounted = total(
        usage.quantity for usage in (*settlement.aggregated, *(late.usage for late in settlement.late))
    )
    reason = aggregated_reason(settlement.total, settlement.count)
    step.ends += [RowEnd(usage.row, RawStatus.AGGREGATED, reason) for usage in settlement.aggregated]
    for late in settlement.late:
        step.late[len(step.ends)] = late.late_by
        words = f"Late by {number_text(late.late_by)}: the hour was committed with {number_text(settlement.total)}"
        step.ends.append(RowEnd(late.usage.row, RawStatus.LATE, words))
    return step


def _write_ends(tables: Tables, steps: Sequence[_Step], report: Aggregation) -> set[GroupKey]:
    """Write the rows' ends and count those that were written; the groups to be read again."""
    flat = [(step, position, end) for step in steps for position, end in enumerate(step.ends)]
    ends = [end for _, _, end in flat]
    written = tables.usage.write(ends, tables.clock()) if tables.writes else [True] * len(ends)
    again = set()
    for (step, position, end), ok in zip(flat, written, strict=True):
        key = step.visit.key
        if not ok or end.status is None:
            again.add(key)
        elif end.status is RawStatus.REJECTED:
            report.tell(telling.of_row(end))
            report.rejected[end.reason] += 1
            report.note(key, f"a row was rejected: {end.reason}")
        elif end.status is RawStatus.AGGREGATED:
            report.cleaned += 1
        else:
            report.tell(telling.of_row(end, step.late[position]))
            _count_late(key, step.late[position], report)
    return again


def _count_late(key: GroupKey, late_by: Decimal, report: Aggregation) -> None:
    report.late_rows += 1
    if late_by < 0:
        report.over_billed = EXACT.subtract(report.over_billed, late_by)
        report.note(key, f"over-billed by {number_text(-late_by)}: a counted second was overwritten with less")
    else:
        report.late = EXACT.add(report.late, late_by)
        report.note(key, f"late by {number_text(late_by)}: the group was committed without it")


def _write_commits(tables: Tables, steps: Sequence[_Step], report: Aggregation) -> set[GroupKey]:
    """Commit the groups; those that were refused, or left a changed row behind, to be read again."""
    commits = [step.commit for step in steps if step.commit is not None]
    if not tables.writes:
        report.would_commit += [commit.aggregate for commit in commits]
        outcomes = [Committing(written=True)] * len(commits)
    else:
        outcomes = tables.aggregated.commit(commits, tables.clock())
    again = set()
    for commit, outcome in zip(commits, outcomes, strict=True):
        aggregate = commit.aggregate
        if not outcome.written or outcome.unfinished:
            again.add(aggregate.key)
        if outcome.written:
            report.committed += 1
            if tables.writes:
                report.latest.append(aggregate.key)
            report.seen = EXACT.add(report.seen, total(usage.quantity for usage in commit.usages))
            report.accounted = EXACT.add(report.accounted, aggregate.quantity)
            report.rows += len(commit.usages) - outcome.unfinished
            dimension = mask_text(aggregate.key.dimension)
            so_far = report.by_dimension.get(dimension, Decimal(0))
            report.by_dimension[dimension] = EXACT.add(so_far, aggregate.quantity)
    return again


def _count(visit: _Visit, verdict: Verdict, report: Aggregation) -> None:
    key = visit.key
    if verdict.outcome not in (Outcome.HOLD, Outcome.ZERO):
        return
    quantity, rows = total(usage.quantity for usage in verdict.usages), len(verdict.usages)
    held = verdict.outcome is Outcome.HOLD
    report.tell(telling.of_waiting(key, quantity, rows, held=held))
    if held:
        report.held_groups += 1
        report.holding_rows += len(verdict.bad) + sum(row.is_rejected for row in visit.rows if belongs(key, row))
        report.held_rows += rows
        report.held_quantity = EXACT.add(report.held_quantity, quantity)
        report.note(key, f"{rows} good rows of {number_text(quantity)} are held by a rejected one")
    else:
        report.zero_groups += 1
        report.zero_rows += rows
