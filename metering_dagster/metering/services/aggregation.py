"""Aggregate and commit one hour: from raw rows to aggregates, every row seen ending in its state (no Dagster).

Belongs here: the order of reading, judging, writing, and what is done when a row changed meanwhile or a group fails.
Does not: what a group's verdict is (aggregate_group, committed_rows, foreign_aggregate), what follows from it
(group_steps), how anything is stored (the tables), what a person reads of it (aggregation_report, ops).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

from metering_dagster.core import hours
from metering_dagster.metering.rules.aggregate_group import GroupOutcome, Verdict, belongs, judge_group, judge_recounted
from metering_dagster.metering.rules.group_steps import (
    Commit,
    GroupStep,
    GroupVisit,
    name_of,
    named,
    step_of_committed,
    step_of_held_again,
    step_of_others,
    step_of_twin,
    step_of_verdict,
)
from metering_dagster.metering.rules.quantities import EXACT
from metering_dagster.metering.rules.raw_row import GroupKey
from metering_dagster.metering.rules.statuses import RawStatus, Reason
from metering_dagster.metering.services import lost_commits
from metering_dagster.metering.services.aggregation_report import Aggregation, Tell, ignore
from metering_dagster.metering.services.tables import Slice, Tables
from metering_dagster.metering.stores.aggregated_table import Committing
from metering_dagster.metering.stores.commit_items import Committed

WINDOW_GROUPS, WINDOW_ROWS = 64, 8_000
"""How much is read before it is written: bounds the memory, whatever the hour holds."""
READERS = 8
ATTEMPTS = 4
"""How often a group is judged again because a row of it changed meanwhile, before it is left to the next visit."""


def aggregate(tables: Tables, part: Slice, tell: Tell = ignore) -> Aggregation:
    """Aggregate each group that has a pending row in this slice; commit new groups, settle committed ones.

    At the hour's last call the commits whose aggregate is gone are put back as well. `tell` hears of every row that
    ended in no record, and of every group that stays pending. What is raised for one group leaves that one as it is.
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
                visits = [v for v in pool.map(lambda key: _read(tables, key, report), waiting) if v is not None]
                waiting = _handle(tables, part, visits, report, first=attempt == 0)
            report.unsettled += [name_of(key) for key in waiting]
    if part.buyers is None and not report.closed and hours.is_last_call(part.hour, tables.clock()):
        _look_after_commits(tables, part, report)
    if report.latest:
        hidden = tables.aggregated.await_visible(report.latest, part.bucket)
        report.hidden = [name_of(key) for key in hidden]
    return report


def settle_group(tables: Tables, key: GroupKey, committed: Committed, report: Aggregation) -> None:
    """End the pending rows of a group that was committed before, wherever they are filed.

    All of them, for only together they tell whether they are what an aggregate of others still lacks. A row that
    changes meanwhile stays pending, and so do all if anything is raised for the group.
    """
    visit = _read(tables, key, report)
    step = None
    with report.failures.isolated("judged", key, named):
        step = _settle(tables, visit, committed) if visit is not None else None
    if step is None:
        return
    if step.lost is not None:
        _put_back(tables, step, report)
    if _write_ends(tables, [step], report):
        report.unsettled.append(name_of(key))


def _groups(tables: Tables, part: Slice) -> Iterator[tuple[GroupKey, int]]:
    for key, rows in tables.usage.pending_groups(part.bucket, part.licenses):
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


def _read(tables: Tables, key: GroupKey, report: Aggregation) -> GroupVisit | None:
    """Return the group as it stands; None where it cannot be read, or nothing is read any more in this run."""
    visit = None
    if not report.failures.is_resting("read"):
        with report.failures.isolated("read", key, named):
            visit = GroupVisit(key, tables.usage.group_rows(key))
    return visit


def _handle(
    tables: Tables, part: Slice, visits: Sequence[GroupVisit], report: Aggregation, *, first: bool
) -> list[GroupKey]:
    """Judge and write these groups; those of which something had changed, to be read again."""
    judged: list[tuple[GroupVisit, Verdict]] = []
    for visit in visits:
        with report.failures.isolated("judged", visit.key, named):
            judged.append((visit, _judge(tables, part, visit, judge_group)))
    doubtful = [
        visit.key for visit, verdict in judged
        if not first or not tables.writes or verdict.outcome is not GroupOutcome.COMMIT
        or verdict.bad or _looks_committed(visit)
    ]  # fmt: skip
    known = dict(report.failures.each("looked up", doubtful, tables.aggregated.committed_each, named))
    unknown = set(doubtful) - set(known)
    if not first:
        # A commit whose answer was lost was refused when it was tried again: its record is waited for as well.
        report.latest += [key for key, stands in known.items() if stands is not None and tables.writes]
    steps: list[GroupStep] = []
    for visit, verdict in judged:
        if visit.key in unknown:
            continue
        with report.failures.isolated("judged", visit.key, named):
            steps.append(_step(tables, part, visit, verdict, known))
    for step in steps:
        if step.lost is not None:
            _put_back(tables, step, report)
    changed = _write_ends(tables, [step for step in steps if step.commit is None], report)
    committing = [step for step in steps if step.commit is not None]
    changed |= _write_commits(tables, [step.commit for step in committing if step.commit is not None], report)
    # Only then the bad rows beside a commit: had others made the aggregate meanwhile, they would be settled with it.
    changed |= _write_ends(tables, [step for step in committing if step.visit.key not in changed], report)
    for step in steps:
        if step.visit.key not in changed:
            report.seen = EXACT.add(report.seen, step.seen)
            report.accounted = EXACT.add(report.accounted, step.accounted)
            if step.verdict is not None:
                report.count_verdict(step.visit, step.verdict)
    return sorted(changed)


def _judge(tables: Tables, part: Slice, visit: GroupVisit, rule: Callable[..., Verdict]) -> Verdict:
    now = tables.clock()
    last_call = part.is_last_call((visit.key.license_arn, visit.key.account), now)
    verdict = rule(visit.key, visit.rows, now, tables.quantities, last_call=last_call)
    if verdict.outcome is GroupOutcome.REVIVE and not tables.writes:
        revived = {usage.row.sort_key for usage in verdict.usages}
        rows = [replace(row, pending=visit.key.bucket) if row.sort_key in revived else row for row in visit.rows]
        return rule(visit.key, rows, now, tables.quantities, last_call=last_call)
    return verdict


def _looks_committed(visit: GroupVisit) -> bool:
    return any(row.status == RawStatus.AGGREGATED and row.pending is None for row in visit.rows)


def _step(
    tables: Tables, part: Slice, visit: GroupVisit, verdict: Verdict, known: Mapping[GroupKey, Committed | None]
) -> GroupStep:
    """Return what is to be written for this group. `known` says of those that were looked up whether they are
    committed.
    """
    key = visit.key
    stands = known.get(key)
    if stands is not None:
        return _settle(tables, visit, stands)
    if key not in known:
        return step_of_verdict(visit, verdict)  # its commit is refused if it was committed before
    if _looks_committed(visit):
        verdict = _judge(tables, part, visit, judge_recounted)
        if verdict.outcome is GroupOutcome.HOLD and tables.writes:
            return step_of_held_again(visit, verdict, tables.quantities)
    commits = verdict.outcome is GroupOutcome.COMMIT and verdict.aggregate is not None
    if commits and key.is_legacy and tables.writes:
        # The commit may have been refused for its identity: whoever holds that is looked at.
        claimed = tables.aggregated.identities.claim(filter(None, [verdict.aggregate]), tables.clock())
        if key in claimed.refused and _looks_committed(visit):
            # Which of the two was billed before a restore nobody can tell: its rows stay as they are.
            return step_of_verdict(visit, Verdict(GroupOutcome.LEAVE, reason=Reason.MISSING_LEGACY_IDENTIFIER))
        if key in claimed.refused:
            return step_of_twin(visit, verdict)
    return step_of_verdict(visit, verdict)


def _settle(tables: Tables, visit: GroupVisit, committed: Committed) -> GroupStep:
    """Return the ends of the pending rows of a committed group, and the record to be put back where it is gone."""
    if committed.counted is None or not isinstance(committed.quantity, Decimal):
        rows = tables.usage.stamped_rows(visit.key)
        return step_of_others(visit.key, committed.quantity, committed.made_at, rows)
    step = step_of_committed(visit, committed.quantity, committed.counted, tables.quantities)
    step.lost, step.counted = committed.lost, committed.counted
    return step


def _put_back(tables: Tables, step: GroupStep, report: Aggregation) -> None:
    """Put the record of our commit back, whose aggregate is gone, while it can be billed."""
    key, lost = step.visit.key, step.lost
    assert lost is not None  # the caller has looked
    with report.failures.isolated("put back", key, named):
        rows = [row for row in step.visit.rows if belongs(key, row)]
        report.count_lost(lost, lost_commits.restore(tables, lost, step.counted or {}, rows))


def _look_after_commits(tables: Tables, part: Slice, report: Aggregation) -> None:
    """Get the aggregate of each commit of the hour once, and put back those that are gone."""
    for record in tables.aggregated.lost_commits(part.bucket):
        key, lost = record.key, record.aggregate
        if key in report.latest or report.failures.is_resting("read"):
            continue
        if lost is None or record.counted is None:
            report.left_groups += 1
            report.note(key, "its aggregate is gone, and what its commit remembers cannot be read")
            continue
        visit = _read(tables, key, report)
        if visit is not None:
            _put_back(tables, GroupStep(visit, [], lost=lost, counted=record.counted), report)


def _write_ends(tables: Tables, steps: Sequence[GroupStep], report: Aggregation) -> set[GroupKey]:
    """Write the rows' ends and count those that were written; the groups to be read again."""
    again: set[GroupKey] = set()
    with_ends = [step for step in steps if step.ends]
    written = report.failures.each("recorded", with_ends, lambda s: _ends_written(tables, s), _named_step)
    for step, each in written:
        for end, ok in zip(step.ends, each, strict=True):
            if not ok or end.status is None:
                again.add(step.visit.key)
            else:
                report.count_end(step.visit.key, end)
    return again


def _named_step(step: GroupStep) -> tuple[str, tuple[str, str]]:
    return named(step.visit.key)


def _ends_written(tables: Tables, steps: Sequence[GroupStep]) -> list[list[bool]]:
    """For each of these groups which of its ends were written."""
    ends = [end for step in steps for end in step.ends]
    written = iter(tables.usage.write(ends, tables.clock()) if tables.writes else [True] * len(ends))
    return [[next(written) for _ in step.ends] for step in steps]


def _write_commits(tables: Tables, commits: Sequence[Commit], report: Aggregation) -> set[GroupKey]:
    """Commit the groups; those that were refused, or left a changed row behind, to be read again."""
    again: set[GroupKey] = set()

    def write(these: Sequence[Commit]) -> Sequence[Committing]:
        if tables.writes:
            return tables.aggregated.commit(these, tables.clock())
        report.would_commit += [commit.aggregate for commit in these]
        return [Committing(written=True)] * len(these)

    for commit, outcome in report.failures.each("committed", commits, write, lambda c: named(c.aggregate.key)):
        key = commit.aggregate.key
        if not outcome.written or outcome.unfinished:
            again.add(key)
        if outcome.written:
            report.count_commit(commit, outcome.unfinished)
            if tables.writes:
                report.latest.append(key)
    return again
