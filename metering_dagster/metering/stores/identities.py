"""Which group of a legacy product holds an identity: what the service takes for one record (domain: legacy products).

Two groups of one product key meet in one identity where both name one customer: the service would take the second for
the first again. Belongs here: the item of our own that names the holder, and who may take it over.
Does not: what becomes of a group that is refused (submission, the commits).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from metering_dagster.core import hours
from metering_dagster.core.aws import dynamodb, transactions
from metering_dagster.core.aws.dynamodb import Explained, Item, TableShape, value
from metering_dagster.core.aws.transactions import Action, Fate, Unit, transact
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules import own_item_keys
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.own_item_keys import OwnKey
from metering_dagster.metering.rules.raw_row import GroupKey, parse_sort_key
from metering_dagster.metering.rules.statuses import RecordStatus
from metering_dagster.metering.rules.usage_record import api_record, identity

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_LIFE = timedelta(days=35)
"""How long an identity is kept (`ttl`), as long as a commit."""
_BILLED = frozenset({RecordStatus.SUCCESS.value, RecordStatus.DUPLICATE.value})
_ITEM_BYTES = 4_000
"""What an action sends beside its values, from above."""
_ROUNDS = 5
"""How often a claim that meets another writer is looked at again."""


@dataclass(frozen=True)
class Claimed:
    """The result of claims; a group in neither set holds its identity."""

    refused: frozenset[GroupKey] = frozenset()
    """Another group, billed or still to be, holds the identity."""
    undecided: frozenset[GroupKey] = frozenset()
    """The holder changed each time it was looked at."""


@dataclass(frozen=True)
class _Held:
    """A claim that another group's stands against."""

    key: GroupKey
    own: OwnKey
    holder: str


class Identities:
    """The identities of legacy records, as items of our own in the aggregated table."""

    def __init__(self, client: "DynamoDBClient", table: str, shape: TableShape) -> None:
        self.client, self.table, self.shape = client, table, shape
        self._absent = f"attribute_not_exists({shape.hash_key})"

    def claim_unit(self, aggregate: Aggregate, now: datetime) -> Unit:
        """Return the write that claims the identity of a legacy aggregate, alone or as part of a transaction.

        It is refused while another group is the holder, and passes again for the same one.
        """
        condition = f"{self._absent} OR holder = :holder"
        return self._put(aggregate.key, identity_key(aggregate), now, condition, _name(aggregate.key))

    def claim(self, aggregates: Iterable[Aggregate], now: datetime) -> Claimed:
        """Claim the identities of the legacy ones among these aggregates, each for its own group.

        A holder that ended unbilled yields. Whoever holds its identity already costs a read and no write.
        """
        refused: set[GroupKey] = set()
        waiting = sorted((a for a in aggregates if a.key.is_legacy), key=lambda a: a.key)
        for _ in range(_ROUNDS):
            if not waiting:
                break
            waiting = self._round(waiting, refused, now)
        return Claimed(frozenset(refused), frozenset(a.key for a in waiting))

    def _round(self, aggregates: Sequence[Aggregate], refused: set[GroupKey], now: datetime) -> list[Aggregate]:
        """Settle what can be settled; those whose claim has to be looked at again."""
        wanted = {a.key: identity_key(a) for a in aggregates}
        stands = self._holders(set(wanted.values()))
        free: list[Aggregate] = []
        again: list[Aggregate] = []
        held: list[_Held] = []
        claimed: set[OwnKey] = set()
        for aggregate in aggregates:
            own, holder = wanted[aggregate.key], stands.get(wanted[aggregate.key])
            if holder == _name(aggregate.key):
                continue
            if own in claimed:
                again.append(aggregate)  # two of these meet in it: the first one's claim is seen in the next round
            elif holder is None:
                free.append(aggregate)
            else:
                held.append(_Held(aggregate.key, own, holder))
            claimed.add(own)
        checks = self._unbilled({each.holder: each.key for each in held})
        refused |= {each.key for each in held if each.holder not in checks}
        ended = [each for each in held if each.holder in checks]
        units = [self.claim_unit(aggregate, now) for aggregate in free]
        for each in ended:
            put = self._put(each.key, each.own, now, "holder = :holder", each.holder)
            actions = put.actions + checks[each.holder]
            units.append(Unit(actions, put.size + len(checks[each.holder]) * _ITEM_BYTES))
        fates = self._write(units)
        by_key = {a.key: a for a in aggregates}
        trying = [a.key for a in free] + [each.key for each in ended]
        lost = [by_key[key] for key, fate in zip(trying, fates, strict=True) if fate is not Fate.WRITTEN]
        return sorted([*again, *lost], key=lambda a: a.key)

    def _holders(self, keys: Iterable[OwnKey]) -> dict[OwnKey, str]:
        found = {}
        for item in self._read([self._key(*key) for key in sorted(keys)]):
            own = OwnKey(item[self.shape.hash_key]["S"], item[self.shape.range_key]["S"])
            found[own] = str(value(item, "holder"))
        return found

    def _unbilled(self, holders: dict[str, GroupKey]) -> dict[str, tuple[Action, ...]]:
        """Return those of the holders that ended unbilled, each with the checks that it still stands so.

        `holders` has beside each a group of the same product key: a holder's name begins with that.
        """
        places = {holder: self._place(holder, key.license_arn) for holder, key in holders.items()}
        keys = [key for pair in places.values() for key in pair]
        there = {_text(self.shape, item): item for item in self._read(keys)}
        found: dict[str, tuple[Action, ...]] = {}
        for holder, (aggregate, *commit) in places.items():
            item = there.get(_text(self.shape, aggregate))
            if item is None:
                if not any(_text(self.shape, key) in there for key in commit):
                    found[holder] = tuple(self._check(key, self._absent) for key in (aggregate, *commit))
            elif "meteringPending" not in item and value(item, "meteringStatus") not in _BILLED:
                status = item.get("meteringStatus")
                stands = "meteringStatus = :status" if status else "attribute_not_exists(meteringStatus)"
                values = {":status": status} if status else None
                condition = f"attribute_not_exists(meteringPending) AND {stands}"
                found[holder] = (self._check(aggregate, condition, values),)
        return found

    def _place(self, holder: str, license_arn: str) -> tuple[Item, ...]:
        """Return the keys of a holder's aggregate and of its commit."""
        sort_key = holder.removeprefix(f"{license_arn}#")
        aggregate, parts = self._key(license_arn, sort_key), parse_sort_key(sort_key)
        if parts is None:
            return (aggregate,)
        group = GroupKey(license_arn, parts.account, parts.dimension, hours.parse_bucket(parts.timestamp))
        return aggregate, self._key(*own_item_keys.commit_key(group))

    def _put(self, key: GroupKey, own: OwnKey, now: datetime, condition: str, before: str) -> Unit:
        """Return the write that makes this group the holder, where the item's holder (`:holder`) is the one before."""
        stamp = {"S": dynamodb.stamp(now)}
        item: Item = {
            **self._key(*own),
            "holder": {"S": _name(key)},
            "createdAt": stamp,
            "updatedAt": stamp,
            "ttl": {"N": str(int((key.hour + _LIFE).timestamp()))},
        }
        put: dict[str, Any] = {
            "TableName": self.table,
            "Item": item,
            "ConditionExpression": condition,
            "ExpressionAttributeValues": {":holder": {"S": before}},
        }
        return Unit(({"Put": put},), _ITEM_BYTES + transactions.bytes_of(item))

    def _check(self, key: Item, condition: str, values: Item | None = None) -> Action:
        check: dict[str, Any] = {"TableName": self.table, "Key": key, "ConditionExpression": condition}
        if values:
            check["ExpressionAttributeValues"] = values
        return {"ConditionCheck": check}

    def _key(self, hash_key: str, range_key: str) -> Item:
        return {self.shape.hash_key: {"S": hash_key}, self.shape.range_key: {"S": range_key}}

    def _read(self, keys: Sequence[Item]) -> list[Item]:
        with Explained(self.client, self.table, self.shape):
            return list(dynamodb.batch_get(self.client, self.table, keys))

    def _write(self, units: Sequence[Unit]) -> list[Fate]:
        with Explained(self.client, self.table, self.shape):
            return transact(self.client, units)


def identity_key(aggregate: Aggregate) -> OwnKey:
    """Return the key under which the identity of a legacy aggregate is kept: product, customer as sent, dimension,
    hour.
    """
    _, customer, dimension, _ = identity(api_record(aggregate, Quantities.DECIMAL))
    return own_item_keys.identity_key(aggregate.key.license_arn, customer, dimension, aggregate.key.bucket)


def _name(key: GroupKey) -> str:
    """Return how a group is named as holder."""
    return f"{key.license_arn}#{key.prefix}"


def _text(shape: TableShape, item: Item) -> tuple[str, str]:
    return item[shape.hash_key]["S"], item[shape.range_key]["S"]
