"""What is to be written for one group, and what that means. Pure.

Belongs here: turning a verdict, or the settlement of a committed group, into the ends of rows and a commit. Does not:
reading and writing (aggregation), the verdicts themselves (aggregate_group, committed_rows, foreign_aggregate).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from metering_dagster.core.masking import digest, mask, mask_text
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.aggregate_group import Aggregate, GroupOutcome, Verdict, belongs, judge_pending
from metering_dagster.metering.rules.committed_rows import Counted, settle
from metering_dagster.metering.rules.foreign_aggregate import StampedRow, settle_others
from metering_dagster.metering.rules.quantities import number_text, readable_number, total
from metering_dagster.metering.rules.raw_row import BillableRow, GroupKey, RawRow, RowEnd, judge
from metering_dagster.metering.rules.statuses import RawStatus, Reason


@dataclass(frozen=True, slots=True)
class Commit:
    """A group to be committed: its aggregate, and the raw rows that it counts."""

    aggregate: Aggregate
    usages: tuple[BillableRow, ...]


@dataclass(frozen=True, slots=True)
class GroupVisit:
    """A group as it was read: committed or not, and its rows."""

    key: GroupKey
    rows: Sequence[RawRow]


@dataclass(slots=True)
class GroupStep:
    """The writes for one group."""

    visit: GroupVisit
    ends: list[RowEnd]
    commit: Commit | None = None
    verdict: Verdict | None = None
    seen: Decimal = Decimal(0)
    """Quantity of the good rows that are not in `commit`, row by row; and the same by what becomes of them."""
    accounted: Decimal = Decimal(0)
    lost: Aggregate | None = field(default=None)
    """The record of our commit, where its aggregate is gone."""
    counted: Counted | None = None
    """Beside `lost`: the rows that it counted."""


def name_of(key: GroupKey) -> str:
    """Return the group in a message: hour, dimension, masked license and account, and a digest that tells two apart."""
    return (
        f"{key.bucket} {mask_text(key.dimension)} of license {mask(key.license_arn)}, account {mask(key.account)} "
        f"({digest(key.license_arn, key.prefix)})"
    )


def named(key: GroupKey) -> tuple[str, tuple[str, str]]:
    """Return what people call a group, and what must not be shown of it."""
    return name_of(key), (key.license_arn, key.account)


def aggregated_reason(quantity: Decimal, count: int) -> str:
    """Return the reason of a raw row that is `Aggregated`, in the domain's words."""
    return f"Aggregated total quantity {number_text(quantity)} from {count} raw usage records"


def step_of_verdict(visit: GroupVisit, verdict: Verdict) -> GroupStep:
    """Return the writes that a verdict on an uncommitted group asks for."""
    ends = [RowEnd(row, RawStatus.REJECTED, reason.value) for row, reason in verdict.bad]
    commit = None
    if verdict.outcome is GroupOutcome.REJECT and verdict.reason is not None:
        ends += [RowEnd(usage.row, RawStatus.REJECTED, verdict.reason.value) for usage in verdict.usages]
    elif verdict.outcome is GroupOutcome.REVIVE:
        ends += [RowEnd(usage.row, None, pending=visit.key.bucket) for usage in verdict.usages]
    elif verdict.outcome is GroupOutcome.COMMIT and verdict.aggregate is not None:
        commit = Commit(verdict.aggregate, verdict.usages)
    step = GroupStep(visit, ends, commit=commit, verdict=verdict)
    if commit is None and verdict.usages:
        step.seen = total(usage.quantity for usage in verdict.usages)
        step.accounted = verdict.aggregate.quantity if verdict.aggregate else step.seen
    return step


def step_of_held_again(visit: GroupVisit, verdict: Verdict, quantities: Quantities) -> GroupStep:
    """Return the writes for a held group without aggregate and commit: its `Aggregated` rows wait as well.

    Else no row of it might be pending, and no visit would meet it at its last call. A row that only others can read
    stays as it is: it counts with those that wait.
    """
    step = step_of_verdict(visit, verdict)
    again = [u.row for u in verdict.usages if u.row.pending is None]
    by_key = {row.sort_key: row for row in visit.rows}
    stored = [by_key[row.sort_key] for row in again]
    step.ends += [
        RowEnd(row, None, pending=visit.key.bucket) for row in stored if isinstance(judge(row, quantities), BillableRow)
    ]
    return step


def step_of_twin(visit: GroupVisit, verdict: Verdict) -> GroupStep:
    """Return the end of a legacy group whose identity another group holds: the service would take it for that one
    again.
    """
    return step_of_verdict(
        visit, Verdict(GroupOutcome.REJECT, verdict.bad, verdict.usages, reason=Reason.MISSING_LEGACY_IDENTIFIER)
    )


def step_of_committed(visit: GroupVisit, quantity: Decimal, counted: Counted, quantities: Quantities) -> GroupStep:
    """Return the ends of the pending rows of a group that we committed before."""
    bad, usages = judge_pending([row for row in visit.rows if belongs(visit.key, row)], quantities)
    settlement = settle(quantity, counted, usages)
    step = GroupStep(visit, [RowEnd(row, RawStatus.REJECTED, reason.value) for row, reason in bad])
    step.seen = total(usage.quantity for usage in usages)
    step.accounted = total(
        usage.quantity for usage in (*settlement.aggregated, *(late.usage for late in settlement.late))
    )
    reason = aggregated_reason(settlement.total, settlement.count)
    step.ends += [RowEnd(usage.row, RawStatus.AGGREGATED, reason) for usage in settlement.aggregated]
    step.ends += [_late(late.usage.row, late.late_by, number_text(settlement.total)) for late in settlement.late]
    return step


def step_of_others(key: GroupKey, quantity: object, made_at: object, rows: Iterable[StampedRow]) -> GroupStep:
    """Return the ends of the pending rows of a group whose aggregate others made, settled before any is judged."""
    own = [each for each in rows if belongs(key, each.row)]
    settlement = settle_others(key, quantity, made_at, own)
    billed = readable_number(quantity)
    shown = number_text(billed) if billed is not None else "no readable quantity"
    step = GroupStep(GroupVisit(key, [each.row for each in own]), [])
    step.ends = [RowEnd(row, RawStatus.REJECTED, reason.value) for row, reason in settlement.rejected]
    reason = f"Aggregated total quantity {shown} from {settlement.count} raw usage records"
    step.ends += [RowEnd(row, RawStatus.AGGREGATED, reason) for row in settlement.aggregated]
    step.ends += [_late(row, late_by, shown) for row, late_by in settlement.late]
    rejected = {row.sort_key for row, _ in settlement.rejected}
    pending = [each for each in own if each.row.pending is not None and each.row.sort_key not in rejected]
    step.seen = total(each.quantity for each in pending)
    ended = {*(row.sort_key for row in settlement.aggregated), *(row.sort_key for row, _ in settlement.late)}
    step.accounted = total(each.quantity for each in pending if each.row.sort_key in ended)
    return step


def _late(row: RawRow, late_by: Decimal, committed: str) -> RowEnd:
    words = f"Late by {number_text(late_by)}: the hour was committed with {committed}"
    return RowEnd(row, RawStatus.LATE, words, late_by=late_by)
