"""What a visit made of an hour's raw rows, in counts (no Dagster).

Belongs here: the report, and what each end, commit and verdict adds to it. Does not: deciding or writing anything
(aggregation), what a person sees of it (metadata, checks).
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

from metering_dagster.core.masking import mask_text
from metering_dagster.ledger.rules.entries import Entry
from metering_dagster.metering.rules.aggregate_group import Aggregate, GroupOutcome, Verdict, belongs
from metering_dagster.metering.rules.group_steps import Commit, GroupVisit, name_of
from metering_dagster.metering.rules.isolation import Failures
from metering_dagster.metering.rules.quantities import EXACT, number_text, total
from metering_dagster.metering.rules.raw_row import GroupKey, RowEnd
from metering_dagster.metering.rules.statuses import RawStatus
from metering_dagster.metering.services import ledger_entries
from metering_dagster.metering.services.lost_commits import LostFate

LATEST = 5_000
"""Commits that are looked for in the index at the end; earlier ones had the time of these to get there."""


def ignore(_: Entry) -> None:
    """For a visit that keeps no ledger."""


Tell = Callable[[Entry], None]


@dataclass
class Aggregation:
    """The report on an hour's raw rows, in counts; quantities are exact."""

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
    failures: Failures = field(default_factory=Failures)
    """Groups in which something was raised: each is left as it is, and the others go on."""
    put_back: int = 0
    """Commits whose aggregate was gone: it is pending again, as the record that they made."""
    withdrawn: int = 0
    """Commits whose aggregate is gone with all the rows that they counted: nothing is sent for them."""
    left_groups: int = 0
    """Groups without aggregate and commit of which the contract cannot bill a row: they are left as they are."""
    tell: Tell = ignore

    def note(self, key: GroupKey, words: str) -> None:
        """Keep words about a group for the person who looks."""
        if len(self.notes) < 20:
            self.notes.append(f"{name_of(key)}: {words}")

    def count_end(self, key: GroupKey, end: RowEnd) -> None:
        """Count a row's end that was written."""
        if end.status is RawStatus.AGGREGATED:
            self.cleaned += 1
            return
        self.tell(ledger_entries.of_row(end))
        if end.status is RawStatus.REJECTED:
            self.rejected[end.reason] += 1
            self.note(key, f"a row was rejected: {end.reason}")
            return
        late_by = end.late_by or Decimal(0)
        self.late_rows += 1
        if late_by < 0:
            self.over_billed = EXACT.subtract(self.over_billed, late_by)
            self.note(key, f"over-billed by {number_text(-late_by)}: what was counted is gone, or there is less of it")
        else:
            self.late = EXACT.add(self.late, late_by)
            self.note(key, f"late by {number_text(late_by)}: the group was committed without it")

    def count_commit(self, commit: Commit, unfinished: int) -> None:
        """Count a commit; `unfinished` of its rows had changed and stay pending."""
        aggregate = commit.aggregate
        self.committed += 1
        self.seen = EXACT.add(self.seen, total(usage.quantity for usage in commit.usages))
        self.accounted = EXACT.add(self.accounted, aggregate.quantity)
        self.rows += len(commit.usages) - unfinished
        dimension = mask_text(aggregate.key.dimension)
        self.by_dimension[dimension] = EXACT.add(self.by_dimension.get(dimension, Decimal(0)), aggregate.quantity)

    def count_lost(self, lost: Aggregate, fate: LostFate) -> None:
        """Count a commit whose aggregate is gone."""
        words = number_text(lost.quantity)
        if fate is LostFate.PUT_BACK:
            self.put_back += 1
            self.latest.append(lost.key)
            self.note(lost.key, f"its aggregate of {words} was gone and is pending again, as it was committed")
        elif fate is LostFate.WOULD_BE_PUT_BACK:
            self.put_back += 1
            self.would_commit.append(lost)
        elif fate is LostFate.WITHDRAWN:
            self.withdrawn += 1
            self.note(lost.key, f"withdrawn: its aggregate of {words} and all rows that it counted are gone")

    def count_verdict(self, visit: GroupVisit, verdict: Verdict) -> None:
        """Count a group that stays pending: held, waiting at zero, or left as it is."""
        key = visit.key
        if verdict.outcome is GroupOutcome.LEAVE:
            self.left_groups += 1
            why = verdict.reason.value if verdict.reason is not None else ""
            self.note(key, f"it has neither an aggregate nor a commit, and a row of it cannot be billed: {why}")
        if verdict.outcome not in (GroupOutcome.HOLD, GroupOutcome.ZERO):
            return
        quantity, rows = total(usage.quantity for usage in verdict.usages), len(verdict.usages)
        held = verdict.outcome is GroupOutcome.HOLD
        self.tell(ledger_entries.of_waiting(key, quantity, rows, held=held))
        if held:
            self.held_groups += 1
            self.holding_rows += len(verdict.bad) + sum(row.is_rejected for row in visit.rows if belongs(key, row))
            self.held_rows += rows
            self.held_quantity = EXACT.add(self.held_quantity, quantity)
            self.note(key, f"{rows} good rows of {number_text(quantity)} are held by a rejected one")
        else:
            self.zero_groups += 1
            self.zero_rows += rows
