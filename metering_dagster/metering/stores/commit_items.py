"""A commit as an item of the aggregated table (domain: the tables).

Belongs here: what a commit remembers, in DynamoDB's typed JSON, and reading it back. Does not: writing it together with
the aggregate and the rows (aggregated_table), what it makes of rows found later (committed_rows).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from metering_dagster.core import hours
from metering_dagster.core.aws import dynamodb
from metering_dagster.core.aws.dynamodb import Item, typed, value
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules import committed_rows
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.committed_rows import Counted
from metering_dagster.metering.rules.quantities import read_allocations, table_allocations
from metering_dagster.metering.rules.raw_row import BillableRow, GroupKey, parse_sort_key

LIFE = timedelta(days=35)
"""How long a commit is kept (`ttl`): well past the 30 hours in which an hour can be billed."""
LICENSE, GROUP = "committedLicense", "committedGroup"
"""The attributes that name the group in full, for its key may be shortened."""


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A commit as it was read back."""

    key: GroupKey
    quantity: Decimal | None
    counted: Counted | None
    """The rows that it counted; None where that cannot be read."""
    aggregate: Aggregate | None
    """The whole record that it made; None where that cannot be read."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A group that was committed: its quantity as stored, and what was counted, unless others made the aggregate."""

    quantity: object
    counted: Counted | None
    made_at: object = None
    """Of an aggregate that others made: its `createdAt`, as stored."""
    lost: Aggregate | None = None
    """The record that our commit made, where its aggregate is gone from the table."""


def item_of(aggregate: Aggregate, usages: Iterable[BillableRow], now: datetime) -> dict[str, Any]:
    """Return the item of a commit, without its keys. It has no `meteringPending`: no reader of the sparse index meets
    it.
    """
    stamp = dynamodb.stamp(now)
    values: dict[str, Any] = {
        LICENSE: aggregate.key.license_arn,
        GROUP: aggregate.key.prefix,
        "quantity": aggregate.quantity,
        "customerIdentifier": aggregate.customer_identifier,
        "createdAt": stamp,
        "updatedAt": stamp,
        "ttl": int((aggregate.key.hour + LIFE).timestamp()),
    }
    if aggregate.allocations is not None:
        values["usageAllocations"] = table_allocations(aggregate.allocations)
    item = {name: typed(v) for name, v in values.items() if v is not None}
    return item | {"counted": {"B": committed_rows.encode(committed_rows.count(usages))}}


def group_in(item: Item) -> GroupKey | None:
    """Return the group that a commit's item names; None where it names none."""
    license_arn, prefix = value(item, LICENSE), value(item, GROUP)
    if not isinstance(license_arn, str) or not isinstance(prefix, str):
        return None
    parts = parse_sort_key(prefix)
    try:
        return (
            GroupKey(license_arn, parts.account, parts.dimension, hours.parse_bucket(parts.timestamp))
            if parts
            else None
        )
    except ValueError:
        return None


def read_commit(key: GroupKey, item: Item) -> CommitRecord:
    """Read the commit of a group back from its item."""
    quantity = value(item, "quantity")
    if not isinstance(quantity, Decimal):
        return CommitRecord(key, None, committed_rows.decode(value(item, "counted")), None)
    return CommitRecord(key, quantity, committed_rows.decode(value(item, "counted")), _aggregate(key, quantity, item))


def _aggregate(key: GroupKey, quantity: Decimal, item: Item) -> Aggregate | None:
    allocations, identifier = value(item, "usageAllocations"), value(item, "customerIdentifier")
    identifier = identifier if isinstance(identifier, str) else None
    if allocations is None:
        return Aggregate(key, quantity, None, identifier)
    read = read_allocations(allocations, quantity, Quantities.DECIMAL)
    return Aggregate(key, quantity, read, identifier) if isinstance(read, tuple) else None
