"""The aggregated usage table: one item a group, the source of truth for submission (domain: the tables).

Belongs here: its keys and attributes, committing groups together with their raw rows, finding commits whose aggregate
is gone and putting those back, reading what is pending, writing how a record ended. Does not: what a group's aggregate
is (aggregate_group), what a commit's item holds (commit_items), whether a stored aggregate can be sent (usage_record).
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from metering_dagster.core import hours
from metering_dagster.core.aws import dynamodb, transactions
from metering_dagster.core.aws.dynamodb import IndexShape, Item, TableShape, typed, value
from metering_dagster.core.aws.transactions import Action, Fate, Unit, transact, transact_each
from metering_dagster.core.errors import ItemRefusedError
from metering_dagster.core.masking import mask
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules import own_item_keys
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.group_steps import Commit, aggregated_reason
from metering_dagster.metering.rules.isolation import Failures, stops_the_rest
from metering_dagster.metering.rules.quantities import table_allocations
from metering_dagster.metering.rules.raw_row import GroupKey, RowEnd, account_of
from metering_dagster.metering.rules.statuses import RawStatus
from metering_dagster.metering.rules.usage_record import RecordEnd, StoredAggregate
from metering_dagster.metering.stores import commit_items, pending_index
from metering_dagster.metering.stores.commit_items import CommitRecord, Committed
from metering_dagster.metering.stores.identities import Identities
from metering_dagster.metering.stores.pending_index import PendingIndex
from metering_dagster.metering.stores.record_ends import JUDGED, Written, write_ends
from metering_dagster.metering.stores.usage_table import UsageTable

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
_ITEM_BYTES = 4_000
"""What an action sends beside its values, from above."""
_VISIBLE_ATTEMPTS = 20
"""How often the index is looked at before a run gives up on it: about half a minute."""
_ABSENT = f"attribute_not_exists({_HASH})"


@dataclass(frozen=True, slots=True)
class Committing:
    """The result of one commit."""

    written: bool
    """False where the group was committed before, or a row had changed since it was read; then nothing was written."""
    unfinished: int = 0
    """Rows beyond the first transaction that had changed: they are still pending, and late."""
    is_invalid: bool = False
    """DynamoDB takes no form of it, though it took others' beside it; nothing was written."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The writes of a commit: what stands or falls together, and the rows that follow one by one."""

    first: Unit
    rest: list[RowEnd]


class AggregatedTable:
    """The aggregates of one deployment. Errors of DynamoDB come out as `MeteringError`s, in words."""

    def __init__(self, client: "DynamoDBClient", name: str, usage: UsageTable, quantities: Quantities) -> None:
        self.client, self.name, self.usage, self.quantities = client, name, usage, quantities
        self._index = PendingIndex(client, name, SHAPE)
        self.identities = Identities(client, name, SHAPE)
        """Which group of a legacy product is the one that is sent for a customer, dimension and hour."""

    def committed(self, keys: Sequence[GroupKey]) -> dict[GroupKey, Committed]:
        """Return those of the groups that were committed, by us or by others, read consistently."""
        wanted = [key for group in keys for key in (_key(group), _commit_key(group))]
        found: dict[tuple[str, str], Item] = {}
        with self._explained():
            for item in dynamodb.batch_get(self.client, self.name, wanted):
                found[item[_HASH]["S"], item[_RANGE]["S"]] = item
        result = {}
        for group in keys:
            own = own_item_keys.commit_key(group)
            ours = found.get((own.hash_key, own.range_key))
            aggregate = found.get((group.license_arn, group.prefix))
            commit = commit_items.read_commit(group, ours) if ours is not None else None
            if commit is not None and commit.counted is not None and commit.quantity is not None:
                lost = commit.aggregate if aggregate is None else None
                result[group] = Committed(commit.quantity, commit.counted, lost=lost)
            elif aggregate is not None:
                result[group] = Committed(value(aggregate, "quantity"), None, value(aggregate, "createdAt"))
            elif commit is not None:
                result[group] = Committed(commit.quantity, None)
        return result

    def committed_each(self, keys: Sequence[GroupKey]) -> list[Committed | None]:
        """Return the same, group by group; None for one that is not committed."""
        found = self.committed(keys)
        return [found.get(key) for key in keys]

    def commit(self, commits: Sequence[Commit], now: datetime) -> list[Committing]:
        """Commit groups, each in one transaction with its raw rows' end, small groups together.

        First write wins: a group that has an aggregate, or a commit, is refused; so is a legacy one whose identity
        another group holds. Of a group with more rows than a transaction holds the others are finalized after it; where
        we die between, their seconds are among those that were counted, and the next visit ends them. Raises
        `ItemRefusedError` where DynamoDB takes no form of any of them.
        """
        plans = [self._plan(commit, now, transactions.MAX_ACTIONS) for commit in commits]
        with self._explained():
            fates, _ = transact_each(self.client, [plan.first for plan in plans])
            # Rows with much of their own may pass 4 MB together, which nobody can tell from outside: then the commit
            # goes by itself, and each row after it.
            invalid = None
            for position in [n for n, fate in enumerate(fates) if fate is Fate.INVALID]:
                plans[position] = self._plan(commits[position], now, 0)
                (fates[position],), error = transact_each(self.client, [plans[position].first])
                invalid = error or invalid
            if invalid is not None and all(fate is Fate.INVALID for fate in fates):
                raise invalid
        done = [end for plan, fate in zip(plans, fates, strict=True) if fate is Fate.WRITTEN for end in plan.rest]
        finished = iter(self._finish(done, now))
        return [
            Committing(True, sum(not next(finished) for _ in plan.rest))
            if fate is Fate.WRITTEN
            else Committing(False, is_invalid=fate is Fate.INVALID)
            for plan, fate in zip(plans, fates, strict=True)
        ]

    def _finish(self, ends: Sequence[RowEnd], now: datetime) -> list[bool]:
        """End the rows of what was just committed. Where DynamoDB takes no write of them, the next visit names them."""
        try:
            return self.usage.write(ends, now)
        except ItemRefusedError:
            return [False] * len(ends)

    def lost_commits(self, bucket: str) -> Iterator[CommitRecord]:
        """Yield the commits of this hour whose aggregate is gone, shard by shard; each aggregate is asked for once.

        Memory is that of a page of commits. One whose group cannot be read from its item is left out.
        """
        names = f"{_HASH}, {_RANGE}, {commit_items.LICENSE}, {commit_items.GROUP}"
        for shard in range(own_item_keys.SHARDS):
            for keys in _commit_pages(self.client, self.name, bucket, shard, ProjectionExpression=names):
                yield from self._lost_of(keys)

    def put_back(self, aggregate: Aggregate, now: datetime) -> bool:
        """Put the aggregate of a commit back, pending and marked.

        False where it is there again, the commit is gone, or another group holds its legacy identity.
        """
        item = self._item(aggregate, now) | {"putBackAt": typed(dynamodb.stamp(now))}
        commit_stands: Any = {
            "TableName": self.name,
            "Key": _commit_key(aggregate.key),
            "ConditionExpression": f"attribute_exists({_HASH})",
        }
        actions: tuple[Action, ...] = (
            {"Put": {"TableName": self.name, "Item": item, "ConditionExpression": _ABSENT}},
            {"ConditionCheck": commit_stands},
        )
        size = 2 * _ITEM_BYTES + transactions.bytes_of(item)
        if aggregate.key.is_legacy:
            if self.identities.claim([aggregate], now).refused:  # a holder that ended unbilled yields
                return False
            claim = self.identities.claim_unit(aggregate, now)
            actions, size = actions + claim.actions, size + claim.size
        with self._explained():
            return transact(self.client, [Unit(actions, size)]) == [Fate.WRITTEN]

    def created_at(self) -> datetime | None:
        """Return when the table was created, or restored; None where it cannot be described."""
        return dynamodb.created_at(self.client, self.name)

    def pending(
        self, bucket: str, licenses: Sequence[str] | None = None, failures: Failures | None = None
    ) -> Iterator[StoredAggregate]:
        """Read what is pending for this hour, of these licenses or of all (None).

        It is found by the sparse index and read again consistently. It comes in the order of licenses, a hundred at a
        time, so memory does not grow with the hour. An item that cannot be read is left out and counted among the
        failures; without those it raises.
        """
        keys: list[Item] = []
        for page in self._index.pages(bucket, licenses, f"{_HASH}, {_RANGE}"):
            keys += [{_HASH: item[_HASH], _RANGE: item[_RANGE]} for item in page]
            while len(keys) >= dynamodb.BATCH_GET_KEYS:
                head, keys = keys[: dynamodb.BATCH_GET_KEYS], keys[dynamodb.BATCH_GET_KEYS :]
                yield from self._still_pending(head, bucket, failures)
        yield from self._still_pending(keys, bucket, failures)

    def unreachable(self, now: datetime) -> Iterator[StoredAggregate]:
        """Find, by a Scan of the sparse index, what is filed where no Query of ours looks, read again consistently."""
        for page in self._index.unreachable(now):
            keys = [{_HASH: item[_HASH], _RANGE: item[_RANGE]} for item in page]
            with self._explained():
                found = [_stored(item) for item in dynamodb.batch_get(self.client, self.name, keys)]
            yield from (
                stored for stored in found if stored.pending is not None and not hours.is_named(stored.pending, now)
            )

    def refile(self, moves: Sequence[tuple[StoredAggregate, str]], now: datetime) -> list[bool]:
        """File each under this hour, on the condition that it is still pending where it was; for each, whether it was.

        Nothing else of it changes. Whether it can be sent is judged when that hour is.
        """
        units = []
        for stored, bucket in moves:
            values = {":from": {"S": stored.pending}, ":to": {"S": bucket}, ":now": {"S": dynamodb.stamp(now)}}
            action = {
                "Update": {
                    "TableName": self.name,
                    "Key": {_HASH: {"S": stored.license_arn}, _RANGE: {"S": stored.sort_key}},
                    "UpdateExpression": "SET meteringPending = :to, updatedAt = :now",
                    "ConditionExpression": "meteringPending = :from",
                    "ExpressionAttributeValues": values,
                }
            }
            units.append(Unit((action,), _ITEM_BYTES + transactions.bytes_of(values)))
        with self._explained():
            return [fate is Fate.WRITTEN for fate in transact(self.client, units)]

    def check_shape(self) -> None:
        """Raise `TableError` where the table's keys or indexes are not as they must be."""
        error = dynamodb.shape_error(self.client, self.name, SHAPE)
        if error is not None:
            raise error

    def await_visible(self, keys: Collection[GroupKey], bucket: str) -> list[GroupKey]:
        """Wait until the sparse index shows these committed groups; return the pending ones it does not show in time.

        The index follows the table after some milliseconds, seldom seconds, and a submission reads the index.
        """
        hidden = {(key.license_arn, key.prefix): key for key in keys}
        for attempt in range(_VISIBLE_ATTEMPTS):
            if not hidden:
                break
            if attempt:
                time.sleep(dynamodb.pause(attempt))
            for page in self._index.pages(bucket, [license_arn for license_arn, _ in hidden], f"{_HASH}, {_RANGE}"):
                for item in page:
                    hidden.pop((item[_HASH]["S"], item[_RANGE]["S"]), None)
            if hidden and attempt:
                # What is not pending any more, another run has sent.
                still = self._still_pending([_key(key) for key in hidden.values()], bucket)
                hidden = {place: hidden[place] for s in still if (place := (s.license_arn, s.sort_key)) in hidden}
        return sorted(hidden.values())

    def count_pending(self, bucket: str, most: int | None = None) -> int:
        """Return how many aggregates are filed as pending under this hour; with `most`, no further than that is
        counted.
        """
        return self._index.count(bucket, most)

    def uncommitted(self, group: GroupKey) -> Unit:
        """Checks that let a transaction pass only while the group has neither an aggregate nor a commit of ours."""
        keys = (_key(group), _commit_key(group))
        checks = ({"TableName": self.name, "Key": key, "ConditionExpression": _ABSENT} for key in keys)
        return Unit(tuple({"ConditionCheck": check} for check in checks), len(keys) * _ITEM_BYTES)

    def record(self, ends: Sequence[RecordEnd], now: datetime) -> list[bool]:
        """Write how records ended, as `write_ends` does; whether each is no longer pending by that."""
        return [written not in (Written.REFUSED, Written.INVALID) for written in self.write_ends(ends, now)]

    def write_ends(self, ends: Sequence[RecordEnd], now: datetime) -> list[Written]:
        """Write how records ended, each while it is still pending with the quantity that was read (record_ends)."""
        return write_ends(self.client, self.name, SHAPE, ends, now)

    def _still_pending(
        self, keys: Sequence[Item], bucket: str, failures: Failures | None = None
    ) -> list[StoredAggregate]:
        with self._explained():
            items = list(dynamodb.batch_get(self.client, self.name, keys))
        read = [stored for item in items if (stored := _read(item, failures)) is not None]
        found = sorted(read, key=lambda s: (s.license_arn, s.sort_key))
        return [stored for stored in found if stored.pending == bucket]

    def _lost_of(self, items: Sequence[Item]) -> Iterator[CommitRecord]:
        """Yield those of these commits, named by key and group, whose aggregate is gone."""
        groups = [group for item in items if (group := commit_items.group_in(item)) is not None]
        with self._explained():
            found = dynamodb.batch_get(
                self.client, self.name, [_key(group) for group in groups], ProjectionExpression=f"{_HASH}, {_RANGE}"
            )
            there = {(item[_HASH]["S"], item[_RANGE]["S"]) for item in found}
            lost = [group for group in groups if (group.license_arn, group.prefix) not in there]
            for item in dynamodb.batch_get(self.client, self.name, [_commit_key(group) for group in lost]):
                group = commit_items.group_in(item)
                if group is not None:
                    yield commit_items.read_commit(group, item)

    def _plan(self, commit: Commit, now: datetime, most: int) -> "_Plan":
        """Return the transaction of the commit itself, of up to `most` actions, and one unit for each row it does not
        hold.
        """
        aggregate = commit.aggregate
        reason = aggregated_reason(aggregate.quantity, len(commit.usages))
        ends = [RowEnd(u.row, RawStatus.AGGREGATED, reason) for u in commit.usages]
        rows = [self.usage.end_unit(end, now) for end in ends[:most]]
        remembered = {**_commit_key(aggregate.key), **commit_items.item_of(aggregate, commit.usages, now)}
        puts = [self._item(aggregate, now), remembered]
        size = sum(_ITEM_BYTES + transactions.bytes_of(put) for put in puts)
        actions: list[Action] = [
            {"Put": {"TableName": self.name, "Item": put, "ConditionExpression": _ABSENT}} for put in puts
        ]
        if aggregate.key.is_legacy:
            claim = self.identities.claim_unit(aggregate, now)
            actions += claim.actions
            size += claim.size
        held = 0
        for row in rows[: max(most - len(actions), 0)]:
            if size + row.size > transactions.MAX_BYTES:
                break
            size += row.size
            held += 1
        actions += [action for row in rows[:held] for action in row.actions]
        return _Plan(Unit(tuple(actions), size), ends[held:])

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
            values["usageAllocations"] = table_allocations(aggregate.allocations)
        return {name: typed(value) for name, value in values.items() if value is not None}

    def _explained(self) -> dynamodb.Explained:
        return dynamodb.Explained(self.client, self.name, SHAPE)


def has_commits(client: "DynamoDBClient", table: str, bucket: str) -> bool:
    """Return whether any group of this hour was committed by us; it stops at the first shard that holds one."""
    shards = range(own_item_keys.SHARDS)
    pages = (_commit_pages(client, table, bucket, shard, ProjectionExpression=_RANGE, Limit=1) for shard in shards)
    return any(next(iter(of_shard), ()) for of_shard in pages)


def _commit_pages(
    client: "DynamoDBClient", table: str, bucket: str, shard: int, **reading: Any
) -> Iterator[Sequence[Item]]:
    request: dict[str, Any] = {
        "TableName": table,
        "KeyConditionExpression": f"{_HASH} = :shard",
        "ExpressionAttributeValues": {":shard": {"S": own_item_keys.commit_hash_key(bucket, shard)}},
        **reading,
    }
    with dynamodb.Explained(client, table, SHAPE):
        yield from dynamodb.pages(client.query, **request)


def _key(group: GroupKey) -> Item:
    return {_HASH: {"S": group.license_arn}, _RANGE: {"S": group.prefix}}


def _commit_key(group: GroupKey) -> Item:
    own = own_item_keys.commit_key(group)
    return {_HASH: {"S": own.hash_key}, _RANGE: {"S": own.range_key}}


def _read(item: Item, failures: Failures | None) -> StoredAggregate | None:
    """Return an item as it is stored; None, and a failure, where it cannot be read."""
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
        put_back="putBackAt" in item,
        stored={name: item[name] for name in JUDGED if name in item},
    )
