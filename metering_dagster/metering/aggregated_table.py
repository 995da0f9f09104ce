"""The aggregated usage table: one item a group, the source of truth for submission (domain: the tables).

Belongs here: its keys and attributes, committing groups together with their raw rows, what a commit counted (an item
of our own beside the aggregate), reading what is pending, writing how a record ended.
Does not: what a group's aggregate is (groups), whether a stored one can be sent (records).
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from metering_dagster import dynamodb, transactions
from metering_dagster.dynamodb import IndexShape, Item, TableShape, typed, value
from metering_dagster.masking import mask
from metering_dagster.metering import counted, pending_index
from metering_dagster.metering.counted import Committed
from metering_dagster.metering.groups import Aggregate
from metering_dagster.metering.identities import Identities
from metering_dagster.metering.isolation import Failures, stops_the_rest
from metering_dagster.metering.pending_index import PendingIndex
from metering_dagster.metering.quantities import Quantities, number_text
from metering_dagster.metering.reasons import ANSWERS, RawStatus, RecordStatus
from metering_dagster.metering.records import RecordEnd, StoredAggregate, api_allocations
from metering_dagster.metering.rows import OURS, GroupKey, RowEnd, Usage, account_of
from metering_dagster.metering.usage_table import UsageTable
from metering_dagster.transactions import Action, Fate, Unit, transact

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

SHAPE = TableShape(
    title="the aggregated usage table",
    setting="AGGREGATED_USAGE_TABLE",
    hash_key="licenseArn",
    range_key="account_dimension_hour",
    indexes=(IndexShape(pending_index.NAME, pending_index.HASH_KEY, pending_index.RANGE_KEY),),
)
_HASH, _RANGE = SHAPE.hash_key, SHAPE.range_key
_COUNTED = f"{OURS}counted#"
"""Begins the hash key of what a commit counted; no licence and no product code does."""
_COUNTED_LIFE = timedelta(days=35)
"""How long that is kept (`ttl`): well past the 30 hours in which an hour can be billed."""
_FIRST_ROWS = transactions.MAX_ACTIONS - 2
"""Raw rows that are finalised in the same transaction as the commit itself."""
_ITEM_BYTES = 4_000
"""What an action sends beside its values, from above."""
_VISIBLE_ATTEMPTS = 20
"""How often the index is looked at before a run gives up on it: about half a minute."""
_ABSENT = f"attribute_not_exists({_HASH})"
_JUDGED = ("customerAWSAccountId", "dimension", "hourBucket", "usageAllocations", "customerIdentifier")
"""Beside the quantity: what an aggregate is judged by before it is sent."""
_PENDING_OR_EXPIRED = (
    "(meteringPending = :pending OR (attribute_not_exists(meteringPending) AND meteringStatus = :expired))"
)
_NO_QUANTITY = "attribute_not_exists(quantity) OR attribute_type(quantity, :null)"


@dataclass(frozen=True, slots=True)
class Commit:
    """A group to be committed: its aggregate, and the raw rows that it counts."""

    aggregate: Aggregate
    usages: tuple[Usage, ...]


@dataclass(frozen=True, slots=True)
class Committing:
    """What came of one commit."""

    written: bool
    """False where the group was committed before, or a row had changed since it was read; then nothing was written."""
    unfinished: int = 0
    """Rows beyond the first transaction that had changed: they are still pending, and late."""


class Written(Enum):
    """How much of a record's end was written."""

    WHOLE = "all of it"
    BARE = "the status alone: reason, record id and updatedAt do not fit into the item's 400 KB"
    UNMARKED = "nothing but that it is no longer pending: not even the status fits into the item's 400 KB"
    REFUSED = "nothing: it is no longer pending, or not as it was read"
    INVALID = "nothing: DynamoDB takes no write of this item"


def aggregated_reason(quantity: Decimal, count: int) -> str:
    """The reason of a raw row that is `Aggregated`, in the domain's words."""
    return f"Aggregated total quantity {number_text(quantity)} from {count} raw usage records"


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a commit is written: what stands or falls together, and the rows that follow one by one."""

    first: Unit
    rest: list[Unit]


class AggregatedTable:
    """The aggregates of one deployment. Errors of DynamoDB come out as `MeteringError`s, in words."""

    def __init__(self, client: "DynamoDBClient", name: str, usage: UsageTable, quantities: Quantities) -> None:
        self.client, self.name, self.usage, self.quantities = client, name, usage, quantities
        self._index = PendingIndex(client, name, SHAPE)
        self.identities = Identities(client, name, SHAPE)
        """Which group of a legacy product is the one that is sent for a customer, dimension and hour."""

    def committed(self, keys: Sequence[GroupKey]) -> dict[GroupKey, Committed]:
        """Those of the groups that were committed, by us or by others, read consistently."""
        wanted = [key for group in keys for key in (_key(group), _counted_key(group))]
        found: dict[tuple[str, str], Item] = {}
        with self._explained():
            for item in dynamodb.batch_get(self.client, self.name, wanted):
                found[item[_HASH]["S"], item[_RANGE]["S"]] = item
        result = {}
        for group in keys:
            ours = found.get((_COUNTED + group.license_arn, group.prefix))
            aggregate = found.get((group.license_arn, group.prefix))
            rows = counted.decode(value(ours, "counted")) if ours is not None else None
            if ours is not None or aggregate is not None:
                # Where nobody knows what was counted, or how much, no row can be said to be in it.
                quantity = value(ours if ours is not None and rows is not None else aggregate or {}, "quantity")
                result[group] = Committed(quantity if isinstance(quantity, Decimal) else Decimal("NaN"), rows)
        return result

    def commit(self, commits: Sequence[Commit], now: datetime) -> list[Committing]:
        """Commit groups, each in one transaction with its raw rows' end, small groups together.

        First write wins: a group that has an aggregate, or of which one was counted, is refused. Of a group with more
        rows than a transaction holds the others are finalised after it; where we die between, their seconds are
        among those that were counted, and the next visit ends them.
        """
        plans = [self._plan(commit, now, _FIRST_ROWS) for commit in commits]
        with self._explained():
            fates = transact(self.client, [plan.first for plan in plans])
            # Rows with much of their own may pass 4 MB together, which nobody can tell from outside: then the commit
            # goes by itself, and each row after it.
            for position in [n for n, fate in enumerate(fates) if fate is Fate.INVALID]:
                plans[position] = self._plan(commits[position], now, 0)
                fates[position] = transact(self.client, [plans[position].first])[0]
            done = [unit for plan, fate in zip(plans, fates, strict=True) if fate is Fate.WRITTEN for unit in plan.rest]
            finished = iter(transact(self.client, done))
        return [
            Committing(True, sum(next(finished) is not Fate.WRITTEN for _ in plan.rest))
            if fate is Fate.WRITTEN
            else Committing(False)
            for plan, fate in zip(plans, fates, strict=True)
        ]

    def pending(
        self, bucket: str, license_arn: str | None = None, failures: Failures | None = None
    ) -> Iterator[StoredAggregate]:
        """What is pending for this hour: found by the sparse index, and read again consistently.

        Comes in the order of licences, a hundred at a time, so memory does not grow with the hour. An item that cannot
        be read is left out and counted among the failures; without those it raises.
        """
        keys: list[Item] = []
        for page in self._index.pages(bucket, license_arn, f"{_HASH}, {_RANGE}"):
            keys += [{_HASH: item[_HASH], _RANGE: item[_RANGE]} for item in page]
            while len(keys) >= dynamodb.BATCH_GET_KEYS:
                head, keys = keys[: dynamodb.BATCH_GET_KEYS], keys[dynamodb.BATCH_GET_KEYS :]
                yield from self._still_pending(head, bucket, failures)
        yield from self._still_pending(keys, bucket, failures)

    def check_shape(self) -> None:
        """Raise `TableError` where the table's keys or indexes are not as they must be."""
        error = dynamodb.shape_error(self.client, self.name, SHAPE)
        if error is not None:
            raise error

    def await_visible(
        self, keys: Collection[GroupKey], bucket: str, licences: Sequence[str | None] = (None,)
    ) -> list[GroupKey]:
        """Wait until the sparse index shows these committed groups; those it does not show in time, though pending.

        The index follows the table after some milliseconds, seldom seconds. Whoever submits next asks the index, for
        everything or for these licences.
        """
        hidden = {(key.license_arn, key.prefix): key for key in keys}
        for attempt in range(_VISIBLE_ATTEMPTS):
            if not hidden:
                break
            if attempt:
                time.sleep(dynamodb.pause(attempt))
            for licence in licences:
                for page in self._index.pages(bucket, licence, f"{_HASH}, {_RANGE}"):
                    for item in page:
                        hidden.pop((item[_HASH]["S"], item[_RANGE]["S"]), None)
            if hidden and attempt:
                # What is not pending any more, another run has sent.
                still = self._still_pending([_key(key) for key in hidden.values()], bucket)
                hidden = {place: hidden[place] for s in still if (place := (s.license_arn, s.sort_key)) in hidden}
        return sorted(hidden.values())

    def count_pending(self, bucket: str, most: int | None = None) -> int:
        """How many aggregates are filed as pending under this hour; with `most`, no further than that is counted."""
        return self._index.count(bucket, most)

    def uncommitted(self, group: GroupKey) -> Unit:
        """Checks that let a transaction pass only while the group has neither an aggregate nor a commit of ours."""
        keys = (_key(group), _counted_key(group))
        checks = ({"TableName": self.name, "Key": key, "ConditionExpression": _ABSENT} for key in keys)
        return Unit(tuple({"ConditionCheck": check} for check in checks), len(keys) * _ITEM_BYTES)

    def record(self, ends: Sequence[RecordEnd], now: datetime) -> list[bool]:
        """Write how records ended, as `write_ends` does; whether each is no longer pending by that."""
        return [written not in (Written.REFUSED, Written.INVALID) for written in self.write_ends(ends, now)]

    def write_ends(self, ends: Sequence[RecordEnd], now: datetime) -> list[Written]:
        """Write how records ended, each on the condition that it is still pending with the quantity that was read.

        What the service answered also replaces `SubmissionExpired`: the call was under way when the age-out came, and
        the bill is the truth. Of an item that is full, less is written: it must not be sent again and again.
        """
        written = [Written.INVALID] * len(ends)
        for how in (Written.WHOLE, Written.BARE, Written.UNMARKED):
            left = [place for place, so_far in enumerate(written) if so_far is Written.INVALID]
            if not left:
                break
            fates = self._transact_ends([self._end_unit(ends[place], now, how) for place in left])
            for place, fate in zip(left, fates, strict=True):
                if fate is not Fate.INVALID:
                    written[place] = how if fate is Fate.WRITTEN else Written.REFUSED
        return written

    def _transact_ends(self, units: Sequence[Unit]) -> list[Fate]:
        with self._explained():
            try:
                return transact(self.client, units)
            except ClientError as error:
                if error.response["Error"]["Code"] != "ValidationException":
                    raise
                self.check_shape()  # it is raised where every single unit is invalid: of a misshapen table all are
                return [Fate.INVALID] * len(units)

    def _still_pending(
        self, keys: Sequence[Item], bucket: str, failures: Failures | None = None
    ) -> list[StoredAggregate]:
        with self._explained():
            items = list(dynamodb.batch_get(self.client, self.name, keys))
        read = [stored for item in items if (stored := _read(item, failures)) is not None]
        found = sorted(read, key=lambda s: (s.license_arn, s.sort_key))
        return [stored for stored in found if stored.pending == bucket]

    def _plan(self, commit: Commit, now: datetime, most: int) -> "_Plan":
        """The transaction of the commit itself with up to `most` rows, and one unit for each row it does not hold."""
        aggregate = commit.aggregate
        reason = aggregated_reason(aggregate.quantity, len(commit.usages))
        rows = [self.usage.end_unit(RowEnd(u.row, RawStatus.AGGREGATED, reason), now) for u in commit.usages]
        puts = [self._item(aggregate, now), self._counted_item(commit, now)]
        size = sum(_ITEM_BYTES + transactions.bytes_of(put) for put in puts)
        held = 0
        for row in rows[:most]:
            if size + row.size > transactions.MAX_BYTES:
                break
            size += row.size
            held += 1
        actions: list[Action] = [
            {"Put": {"TableName": self.name, "Item": put, "ConditionExpression": _ABSENT}} for put in puts
        ]
        actions += [action for row in rows[:held] for action in row.actions]
        return _Plan(Unit(tuple(actions), size), rows[held:])

    def _item(self, aggregate: Aggregate, now: datetime) -> dict[str, Any]:
        key, stamp = aggregate.key, dynamodb.stamp(now)
        values: dict[str, Any] = {
            _HASH: key.license_arn,
            _RANGE: key.prefix,
            "customerAWSAccountId": key.account or None,
            "dimension": key.dimension,
            "hourBucket": key.bucket,
            "quantity": aggregate.quantity,
            "customerIdentifier": aggregate.customer_identifier,
            "meteringPending": key.bucket,
            "createdAt": stamp,
            "updatedAt": stamp,
        }
        if aggregate.allocations is not None:
            values["usageAllocations"] = api_allocations(aggregate.allocations, self.quantities)
        return {name: typed(value) for name, value in values.items() if value is not None}

    def _counted_item(self, commit: Commit, now: datetime) -> dict[str, Any]:
        """It has no `meteringPending`, so no reader of the sparse index ever meets it."""
        stamp = {"S": dynamodb.stamp(now)}
        expires = commit.aggregate.key.hour + _COUNTED_LIFE
        return {
            **_counted_key(commit.aggregate.key),
            "quantity": typed(commit.aggregate.quantity),
            "counted": {"B": counted.encode(counted.count(commit.usages))},
            "createdAt": stamp,
            "updatedAt": stamp,
            "ttl": {"N": str(int(expires.timestamp()))},
        }

    def _end_unit(self, end: RecordEnd, now: datetime, how: Written) -> Unit:
        whole = how is Written.WHOLE
        values = {
            ":pending": end.pending,
            ":status": end.status.value if how is not Written.UNMARKED else None,
            ":now": dynamodb.stamp(now) if whole else None,
            ":quantity": end.quantity,
            ":null": "NULL" if end.quantity is None else None,
            ":reason": (end.reason or None) if whole else None,
            ":record": (end.record_id or None) if whole else None,
            ":expired": RecordStatus.EXPIRED.value if end.status in ANSWERS else None,
        }
        sent = {name: typed(value) for name, value in values.items() if value is not None}
        conditions = [_PENDING_OR_EXPIRED if ":expired" in sent else "meteringPending = :pending"]
        conditions += ["quantity = :quantity"] if ":quantity" in sent else [f"({_NO_QUANTITY})"]
        for name in _JUDGED if end.stored else ():
            if name in end.stored:
                conditions.append(f"{name} = :{name}")
                sent[f":{name}"] = end.stored[name]
            else:
                conditions.append(f"attribute_not_exists({name})")
        named = {
            ":status": "meteringStatus",
            ":now": "updatedAt",
            ":reason": "meteringStatusReason",
            ":record": "meteringRecordId",
        }
        sets = [f"{name} = {value}" for value, name in named.items() if value in sent]
        # What an earlier submission of this record left behind is not true any more.
        removes = ["meteringPending"] + ([] if ":reason" in sent else ["meteringStatusReason"])
        action = {
            "Update": {
                "TableName": self.name,
                "Key": {_HASH: {"S": end.license_arn}, _RANGE: {"S": end.sort_key}},
                "UpdateExpression": (f"SET {', '.join(sets)} " if sets else "") + f"REMOVE {', '.join(removes)}",
                "ConditionExpression": " AND ".join(conditions),
                "ExpressionAttributeValues": sent,
            }
        }
        return Unit((action,), _ITEM_BYTES + transactions.bytes_of(sent))

    def _explained(self) -> dynamodb.Explained:
        return dynamodb.Explained(self.client, self.name, SHAPE)


def _key(group: GroupKey) -> Item:
    return {_HASH: {"S": group.license_arn}, _RANGE: {"S": group.prefix}}


def _counted_key(group: GroupKey) -> Item:
    return {_HASH: {"S": _COUNTED + group.license_arn}, _RANGE: {"S": group.prefix}}


def _read(item: Item, failures: Failures | None) -> StoredAggregate | None:
    """An item as it is stored; None, and a failure, where it cannot be read."""
    try:
        return _stored(item)
    except Exception as error:
        if failures is None or stops_the_rest(error):
            raise
        name = f"an aggregate of license {mask(item[_HASH]['S'])}"
        failures.add("read", name, error, [item[_HASH]["S"], account_of(item[_RANGE]["S"])])
        return None


def _stored(item: Item) -> StoredAggregate:
    return StoredAggregate(
        license_arn=item[_HASH]["S"],
        sort_key=item[_RANGE]["S"],
        account=value(item, "customerAWSAccountId"),
        dimension=value(item, "dimension"),
        hour_bucket=value(item, "hourBucket"),
        quantity=value(item, "quantity"),
        allocations=value(item, "usageAllocations"),
        customer_identifier=value(item, "customerIdentifier"),
        pending=value(item, "meteringPending"),
        status=value(item, "meteringStatus"),
        stored={name: item[name] for name in _JUDGED if name in item},
    )
