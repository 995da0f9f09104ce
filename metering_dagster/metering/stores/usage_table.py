"""The usage table: raw rows as the seller wrote them (domain: the tables).

Belongs here: its keys and attributes, reading pending rows and groups, writing a row's end on the condition that it is
still what was read. Does not: what is wrong with a row, what becomes of a group (raw_row, aggregate_group).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from metering_dagster.core.aws import dynamodb
from metering_dagster.core.aws.dynamodb import IndexShape, Item, TableShape, typed, value
from metering_dagster.core.aws.transactions import Action, Fate, Unit, bytes_of, transact_each
from metering_dagster.metering.rules.foreign_aggregate import StampedRow
from metering_dagster.metering.rules.quantities import readable_number
from metering_dagster.metering.rules.raw_row import GroupKey, RawRow, RowEnd, group_of
from metering_dagster.metering.rules.statuses import RawStatus
from metering_dagster.metering.stores import pending_index
from metering_dagster.metering.stores.pending_index import PendingIndex

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

SHAPE = TableShape(
    title="the usage table",
    setting="USAGE_TABLE",
    hash_key="licenseArn",
    range_key="customerAWSAccountId_dimension_timestamp",
    indexes=(
        IndexShape(
            pending_index.NAME,
            pending_index.HASH_KEY,
            pending_index.RANGE_KEY,
            include=("customerAWSAccountId", "dimension"),
        ),
    ),
)
_HASH, _RANGE = SHAPE.hash_key, SHAPE.range_key
_CONTENT = ("quantity", "usageAllocations", "customerIdentifier", "meteringPending")
"""What a row's end hangs on: as long as these are what was read, the row is what was judged."""
_IDENTITY = ("customerAWSAccountId", "dimension", "timestamp")
"""What a rejection hangs on as well, for it may be these that contradict the key, and be mended meanwhile."""
_IN_WORDS = {"timestamp": "#t"}
_READ = {
    "ProjectionExpression": "licenseArn, customerAWSAccountId_dimension_timestamp, customerAWSAccountId, dimension, "
    "#t, quantity, usageAllocations, customerIdentifier, meteringPending, meteringStatus, meteringStatusReason",
    "ExpressionAttributeNames": {"#t": "timestamp"},
}
_ACTION_BYTES = 4_000
"""What an action sends beside its values, from above: expressions, names, and a key of up to 3 KB."""


class _How(Enum):
    """The part of a row's end that is written."""

    WHOLE = "all of it"
    BARE = "the status alone"
    UNMARKED = "nothing but that it is no longer pending"


_LADDER = tuple(_How)


@dataclass(frozen=True, slots=True)
class IndexedRow:
    """A row as the sparse index shows it: its keys, and the attributes that its key must agree with."""

    license_arn: str
    sort_key: str
    account: object
    dimension: object


class UsageTable:
    """The raw rows of one deployment. Errors of DynamoDB come out as `MeteringError`s, in words."""

    def __init__(self, client: "DynamoDBClient", name: str) -> None:
        self.client, self.name = client, name
        self._index = PendingIndex(client, name, SHAPE)

    def pending_rows(self, bucket: str, licenses: Sequence[str] | None = None) -> Iterator[IndexedRow]:
        """Read the rows filed under this hour, of these licenses or of all (None), in the order of licenses.

        They come from the sparse index, which is eventually consistent.
        """
        for page in self._index.pages(bucket, licenses, f"{_HASH}, {_RANGE}, customerAWSAccountId, dimension"):
            for item in page:
                yield IndexedRow(item[_HASH]["S"], item[_RANGE]["S"],
                                 value(item, "customerAWSAccountId"), value(item, "dimension"))  # fmt: skip

    def unreachable_rows(self, now: datetime) -> Iterator[IndexedRow]:
        """Find, by a Scan of the sparse index, the rows filed where no Query of ours looks, by their keys alone."""
        for page in self._index.unreachable(now):
            for item in page:
                yield IndexedRow(item[_HASH]["S"], item[_RANGE]["S"], None, None)

    def pending_groups(self, bucket: str, licenses: Sequence[str] | None = None) -> Iterator[tuple[GroupKey, int]]:
        """Find the groups of this hour with rows filed under it, each with how many; license after license.

        Rows whose key names another hour, or none, are left out. Memory is that of one license's groups.
        """
        license, groups = None, Counter[GroupKey]()
        for row in self.pending_rows(bucket, licenses):
            if row.license_arn != license:
                yield from sorted(groups.items())
                license, groups = row.license_arn, Counter()
            key = group_of(row.license_arn, row.sort_key)
            if key is not None and key.bucket == bucket:
                groups[key] += 1
        yield from sorted(groups.items())

    def check_shape(self) -> None:
        """Raise `TableError` where the table's keys or indexes are not as they must be."""
        error = dynamodb.shape_error(self.client, self.name, SHAPE)
        if error is not None:
            raise error

    def count_pending(self, bucket: str, most: int | None = None) -> int:
        """Return how many rows are filed under this hour; with `most`, no further than that is counted."""
        return self._index.count(bucket, most)

    def group_rows(self, key: GroupKey) -> list[RawRow]:
        """Return all rows under the group's key prefix, final ones included, read consistently.

        The prefix may also begin the keys of a longer dimension: `groups.belongs` tells.
        """
        request = self._prefix_request(key)
        with self._explained():
            return [_row(item) for page in dynamodb.pages(self.client.query, **request) for item in page]

    def stamped_rows(self, key: GroupKey) -> list[StampedRow]:
        """Return the same rows with their stamps, which only the settling of an aggregate of others looks at."""
        request = self._prefix_request(key)
        request["ProjectionExpression"] += ", createdAt, updatedAt, lateBy"
        with self._explained():
            return [
                StampedRow(_row(item), value(item, "createdAt"), value(item, "updatedAt"), value(item, "lateBy"))
                for page in dynamodb.pages(self.client.query, **request)
                for item in page
            ]

    def rows(self, keys: Iterable[IndexedRow]) -> list[RawRow]:
        """Return these rows as they stand in the table now, read consistently; those that are gone are left out."""
        wanted = [{_HASH: {"S": key.license_arn}, _RANGE: {"S": key.sort_key}} for key in keys]
        with self._explained():
            return [_row(item) for item in dynamodb.batch_get(self.client, self.name, wanted)]

    def count_rejected(self, keys: Iterable[tuple[str, str]]) -> int:
        """Return how many of the rows with these keys are rejected, as the table stands now."""
        return sum(row.is_rejected for row in self.rows(IndexedRow(arn, key, None, None) for arn, key in sorted(keys)))

    def write(self, ends: Sequence[RowEnd], now: datetime) -> list[bool]:
        """Give rows their end, each on the condition that it is still what was read; for each, whether it was.

        Of a row that fills its 400 KB less is written: no reason, or nothing but that it is pending no more. Raises
        `ItemRefusedError` where DynamoDB takes no write of any of them.
        """
        written = [False] * len(ends)
        left = list(range(len(ends)))
        for how in _LADDER:
            if not left:
                break
            with self._explained():
                fates, invalid = transact_each(self.client, [self.end_unit(ends[place], now, how) for place in left])
                if invalid is not None and how is _LADDER[-1] and all(fate is Fate.INVALID for fate in fates):
                    raise invalid
            for place, fate in zip(left, fates, strict=True):
                written[place] = fate is Fate.WRITTEN
            left = [place for place, fate in zip(left, fates, strict=True) if fate is Fate.INVALID]
        return written

    def end_unit(self, end: RowEnd, now: datetime, how: "_How | None" = None) -> Unit:
        """Return the action that gives a row its end; for a transaction of this or another store."""
        action = self._end_action(end, {"S": dynamodb.stamp(now)}, how or _How.WHOLE)
        return Unit((action,), _ACTION_BYTES + bytes_of(action["Update"]["ExpressionAttributeValues"]))

    def _end_action(self, end: RowEnd, stamp: Item, how: "_How") -> Action:
        conditions, values = [], {":now": stamp}
        names = _CONTENT + _IDENTITY if end.status is RawStatus.REJECTED else _CONTENT
        for name in names:
            if name in end.row.stored:
                conditions.append(f"{_IN_WORDS.get(name, name)} = :{name}")
                values[f":{name}"] = end.row.stored[name]
            else:
                conditions.append(f"attribute_not_exists({_IN_WORDS.get(name, name)})")
        if end.status is not None:
            late = ", lateBy = :late" if end.late_by is not None and readable_number(end.late_by) is not None else ""
            update = (
                f"SET meteringStatus = :s, meteringStatusReason = :r, updatedAt = :now{late} REMOVE meteringPending"
            )
            values |= {":s": {"S": end.status.value}, ":r": {"S": end.reason}}
            values |= {":late": typed(end.late_by)} if late else {}
            if how is _How.BARE:
                update = "SET meteringStatus = :s REMOVE meteringPending, meteringStatusReason"
                del values[":r"], values[":now"]
            elif how is _How.UNMARKED:
                update = "REMOVE meteringPending, meteringStatusReason"
                del values[":r"], values[":now"], values[":s"]
            if late and how is not _How.WHOLE:
                del values[":late"]
        else:
            update = "SET meteringPending = :p, updatedAt = :now REMOVE meteringStatus, meteringStatusReason"
            values[":p"] = {"S": end.pending}
        action: dict[str, Any] = {
            "TableName": self.name,
            "Key": {_HASH: {"S": end.row.license_arn}, _RANGE: {"S": end.row.sort_key}},
            "UpdateExpression": update,
            # Where TTL or the seller deleted the row, nothing brings it back: it must exist.
            "ConditionExpression": " AND ".join(["attribute_exists(licenseArn)", *conditions]),
            "ExpressionAttributeValues": values,
        }
        if end.status is RawStatus.REJECTED:
            action["ExpressionAttributeNames"] = {alias: name for name, alias in _IN_WORDS.items()}
        return {"Update": action}

    def _prefix_request(self, key: GroupKey) -> dict[str, Any]:
        return {
            "TableName": self.name,
            "ConsistentRead": True,
            "KeyConditionExpression": "licenseArn = :l AND begins_with(customerAWSAccountId_dimension_timestamp, :p)",
            "ExpressionAttributeValues": {":l": {"S": key.license_arn}, ":p": {"S": key.prefix}},
            **_READ,
        }

    def _explained(self) -> dynamodb.Explained:
        return dynamodb.Explained(self.client, self.name, SHAPE)


def _row(item: Item) -> RawRow:
    return RawRow(
        license_arn=item[_HASH]["S"],
        sort_key=item[_RANGE]["S"],
        account=value(item, "customerAWSAccountId"),
        dimension=value(item, "dimension"),
        timestamp=value(item, "timestamp"),
        quantity=value(item, "quantity"),
        allocations=value(item, "usageAllocations"),
        customer_identifier=value(item, "customerIdentifier"),
        pending=value(item, "meteringPending"),
        status=value(item, "meteringStatus"),
        reason=value(item, "meteringStatusReason"),
        stored={name: item[name] for name in _CONTENT + _IDENTITY if name in item},
    )
