"""What becomes of a group: rejected, held, waiting at zero, or committed (domain: terminal states). Pure.

Belongs here: the faults of a whole group, the fold of its rows into one aggregate, holds, zeros, last call.
Does not: reading and writing (aggregation), what happens after a commit (committed_rows).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from metering_dagster.core import hours
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.committed_rows import count, encode
from metering_dagster.metering.rules.quantities import (
    MAX_ALLOCATIONS,
    Allocation,
    Allocations,
    merge,
    number_text,
    readable_number,
    total,
)
from metering_dagster.metering.rules.raw_row import OURS, BillableRow, GroupKey, RawRow, judge
from metering_dagster.metering.rules.statuses import RawStatus, Reason

MAX_DIMENSION = 255
MAX_ITEM_BYTES = 400 * 1024
_ITEM_OVERHEAD = 1024
"""Room for what the service's answer and the time stamps add to an aggregate."""
_MOST_BYTES_OF_A_ROW = 80
"""What a commit remembers of a row, from above: its second, a quantity, and a digest of its allocations."""
LICENSE_ARN = re.compile(
    r"arn:aws[a-zA-Z-]*:[A-Za-z0-9][A-Za-z0-9_/.-]{0,62}:[A-Za-z0-9_/.-]{0,63}:[A-Za-z0-9_/.-]{0,63}:"
    r"[A-Za-z0-9][A-Za-z0-9:_/+=,@.-]{0,1023}"
)
ACCOUNT = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One record to be billed: the exact sum of a group."""

    key: GroupKey
    quantity: Decimal
    allocations: Allocations | None = None
    customer_identifier: str | None = None
    """Only of legacy products."""
    put_back: bool = field(default=False, compare=False)
    """Its aggregate was gone and was put back: it may have been billed before."""


class GroupOutcome(StrEnum):
    """The next step for a group."""

    NOTHING = "nothing"
    """No good row is pending."""
    REVIVE = "revive"
    """Rows that stand rejected and judge good by now become pending again first, to be judged with the others."""
    REJECT = "reject"
    """The group breaks the contract as a whole."""
    HOLD = "hold"
    """A bad row holds it, so that the seller can mend that and have the whole hour billed."""
    ZERO = "zero"
    """It sums to 0, and a later row could still add to it."""
    COMMIT = "commit"
    LEAVE = "leave"
    """Its aggregate and commit are gone, and the contract cannot bill a row of it: it is left as it is, and named."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a visit on one uncommitted group."""

    outcome: GroupOutcome
    bad: tuple[tuple[RawRow, Reason], ...] = ()
    """Pending rows to be rejected, each with its own fault."""
    usages: tuple[BillableRow, ...] = ()
    """The good rows that the outcome concerns."""
    reason: Reason | None = None
    """Of `REJECT` and `LEAVE`."""
    aggregate: Aggregate | None = None
    """Of `COMMIT`."""


def judge_group(
    key: GroupKey, rows: Iterable[RawRow], now: datetime, quantities: Quantities, *, last_call: bool
) -> Verdict:
    """Judge all rows under the group's key prefix together, final ones included; the group is not committed yet."""
    rows = [row for row in rows if belongs(key, row)]
    bad, usages = judge_pending(rows, quantities)
    if not bad and not usages:
        return Verdict(GroupOutcome.NOTHING)
    standing = [row for row in rows if row.is_rejected]
    # Whatever their reason says: their group was at fault, another pipeline is stricter, or a setting was mended.
    revived = tuple(found for row in standing if isinstance(found := judge(row, quantities), BillableRow))
    if revived:
        return Verdict(GroupOutcome.REVIVE, usages=revived)
    if not usages:
        return Verdict(GroupOutcome.NOTHING, bad)
    folded = fold(key, usages, now, quantities)
    if isinstance(folded, Reason):
        return Verdict(GroupOutcome.REJECT, bad, usages, reason=folded)
    return _weighed(Verdict(GroupOutcome.COMMIT, bad, usages, aggregate=folded), standing, last_call=last_call)


def _weighed(commit: Verdict, standing: Sequence[RawRow], *, last_call: bool) -> Verdict:
    """Return the verdict, or a hold or a wait at zero, where the last call has not come."""
    if (commit.bad or standing) and not last_call:
        return replace(commit, outcome=GroupOutcome.HOLD, aggregate=None)
    if commit.aggregate is not None and commit.aggregate.quantity == 0 and not last_call:
        return replace(commit, outcome=GroupOutcome.ZERO, aggregate=None)
    return commit


def judge_recounted(
    key: GroupKey, rows: Iterable[RawRow], now: datetime, quantities: Quantities, *, last_call: bool
) -> Verdict:
    """Judge a group that has `Aggregated` rows but neither an aggregate nor a commit, such as after a restore.

    Its `Aggregated` and its pending rows are aggregated together, read as for aggregates of others (domain: a commit
    whose aggregate is gone).
    """
    rows = [row for row in rows if belongs(key, row)]
    standing = [row for row in rows if row.is_rejected]
    revived = tuple(found for row in standing if isinstance(found := judge(row, quantities), BillableRow))
    if revived:
        return Verdict(GroupOutcome.REVIVE, usages=revived)
    bad: list[tuple[RawRow, Reason]] = []
    usages: list[BillableRow] = []
    for row in rows:
        if row.pending is None and row.status != RawStatus.AGGREGATED:
            continue
        found = judge(as_others_read(row), quantities)
        if isinstance(found, BillableRow):
            usages.append(found)
        elif row.pending is not None and readable_number(row.quantity) is None:
            bad.append((row, found))
        else:
            return Verdict(GroupOutcome.LEAVE, reason=found)
    folded = fold(key, usages, now, quantities)
    if isinstance(folded, Reason):
        return Verdict(GroupOutcome.LEAVE, reason=folded)
    return _weighed(
        Verdict(GroupOutcome.COMMIT, tuple(bad), tuple(usages), aggregate=folded), standing, last_call=last_call
    )


def as_others_read(row: RawRow) -> RawRow:
    """Return the row with a numeric string as its number, and without its `timestamp`, for any spelling of that is
    right.
    """
    number = readable_number(row.quantity)
    return replace(row, quantity=row.quantity if number is None else number, timestamp=None)


def belongs(key: GroupKey, row: RawRow) -> bool:
    """Return whether a row found under the group's key prefix is of this group.

    One that names no time is, for it holds the group; one whose longer dimension merely begins like it is not.
    """
    head, _, timestamp = row.sort_key.rpartition("#")
    return head == f"{key.account}#{key.dimension}" and timestamp.startswith(key.bucket)


def judge_pending(
    rows: Iterable[RawRow], quantities: Quantities
) -> tuple[tuple[tuple[RawRow, Reason], ...], tuple[BillableRow, ...]]:
    """Return the pending rows, judged one by one: the bad ones with their faults, and the good ones."""
    judged = [(row, judge(row, quantities)) for row in rows if row.pending is not None]
    bad = tuple((row, found) for row, found in judged if isinstance(found, Reason))
    return bad, tuple(found for _, found in judged if isinstance(found, BillableRow))


def fold(key: GroupKey, usages: Sequence[BillableRow], now: datetime, quantities: Quantities) -> Aggregate | Reason:
    """Return the aggregate of these rows, or the first fault of the group as a whole."""
    identifier = None
    if key.is_legacy:
        found = legacy_identifier(u.row.customer_identifier for u in usages)
        if isinstance(found, Reason):
            return found
        identifier = found
    aggregate = Aggregate(key, total(u.quantity for u in usages), _fold_allocations(usages), identifier)
    return group_fault(aggregate, now, quantities) or _commit_fault(aggregate, usages) or aggregate


def legacy_identifier(stored: Iterable[object]) -> str | Reason | None:
    """Return the one customer that a legacy group's rows name, if any does.

    A legacy group is one buyer's: where its rows name different customers, nobody can be billed for it. What is no
    text names nobody.
    """
    named: set[str] = set()
    for identifier in stored:
        if isinstance(identifier, str) and identifier:
            named.add(identifier)
        elif identifier not in (None, ""):
            return Reason.MISSING_LEGACY_IDENTIFIER
    if len(named) > 1:
        return Reason.SORT_KEY_MISMATCH
    return named.pop() if named else None


def _fold_allocations(usages: Sequence[BillableRow]) -> Allocations | None:
    """Return the buckets of all rows; what rows without allocations used is the untagged bucket, if others have any."""
    if all(u.allocations is None for u in usages):
        return None
    untagged = total(u.quantity for u in usages if u.allocations is None)
    parts = [a for u in usages for a in u.allocations or ()]
    return merge([*parts, Allocation((), untagged)] if untagged else parts)


def group_fault(aggregate: Aggregate, now: datetime, quantities: Quantities) -> Reason | None:
    """Return the first fault of a whole group, in the order of the domain's reason codes."""
    key = aggregate.key
    if not key.dimension:
        return Reason.MISSING_DIMENSION
    if len(key.dimension) > MAX_DIMENSION:
        return Reason.DIMENSION_TOO_LONG
    if key.hour > hours.floor_hour(now):
        return Reason.TIMESTAMP_IN_FUTURE
    return _buyer_fault(aggregate) or _size_fault(aggregate, quantities)


def _buyer_fault(aggregate: Aggregate) -> Reason | None:
    key = aggregate.key
    if key.license_arn.startswith(OURS):
        return Reason.INVALID_LICENSE_ARN
    if key.is_legacy:
        known = key.account or aggregate.customer_identifier
        return None if known else Reason.MISSING_LEGACY_IDENTIFIER
    if not LICENSE_ARN.fullmatch(key.license_arn):
        return Reason.INVALID_LICENSE_ARN
    if not key.account:
        return Reason.MISSING_CUSTOMER_AWS_ACCOUNT_ID
    return None if ACCOUNT.fullmatch(key.account) else Reason.INVALID_CUSTOMER_AWS_ACCOUNT_ID


def _size_fault(aggregate: Aggregate, quantities: Quantities) -> Reason | None:
    if aggregate.quantity > quantities.limit:
        return Reason.QUANTITY_TOO_LARGE
    if len(aggregate.allocations or ()) > MAX_ALLOCATIONS:
        return Reason.TOO_MANY_ALLOCATIONS
    return Reason.AGGREGATE_TOO_LARGE if item_bytes(aggregate) > MAX_ITEM_BYTES else None


def _commit_fault(aggregate: Aggregate, usages: Sequence[BillableRow]) -> Reason | None:
    """Return the commit remembers the record and the counted rows beside it, and is an item as well."""
    rows_from_above = len(usages) * _MOST_BYTES_OF_A_ROW
    size = item_bytes(aggregate)
    if size + rows_from_above <= MAX_ITEM_BYTES:
        return None
    return Reason.AGGREGATE_TOO_LARGE if size + len(encode(count(usages))) > MAX_ITEM_BYTES else None


def item_bytes(aggregate: Aggregate) -> int:
    """Return how large the aggregate's item is as DynamoDB counts: UTF-8 text and names, 3 bytes for each list or map
    and 1 for each of its members; rounded up by the attributes that are yet to come.
    """
    key = aggregate.key
    name = "AllocatedUsageQuantity"
    texts = (key.license_arn, key.prefix, key.account, key.dimension, aggregate.customer_identifier or "")
    size = _ITEM_OVERHEAD + sum(len(text.encode()) for text in texts)
    for allocation in aggregate.allocations or ():
        size += 1 + 3 + 1 + len(name) + len(number_text(allocation.quantity)) + 1
        if allocation.tags:
            size += 1 + len("Tags") + 3
        for key_text, value in allocation.tags:
            size += 1 + 3 + 1 + len("Key") + len(key_text) + 1 + len("Value") + len(value)
    return size
