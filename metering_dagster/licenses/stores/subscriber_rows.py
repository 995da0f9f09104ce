"""The subscribers table as the licenses' lifecycle reads and writes it (domain: the tables).

Belongs here: finding the rows that an event may be about, writing one on the condition that it still is what was read.
Does not: what an event changes (lifecycle), how often it is tried (event_application).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from metering_dagster.core.aws import dynamodb
from metering_dagster.core.aws.dynamodb import Explained, Item, stamp, value
from metering_dagster.core.instants import instant_of
from metering_dagster.licenses.rules.lifecycle import SubscriberRow
from metering_dagster.licenses.rules.lifecycle_event import LifecycleEvent
from metering_dagster.metering.stores.subscribers_table import SHAPE

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

KEPT = "The events are still in the queue."
_HASH, _RANGE = SHAPE.hash_key, SHAPE.range_key
_ATTRIBUTES = {
    "subscription_status": "subscriptionStatus",
    "flag": "deprovisioningPendingFlag",
    "expiry": "deprovisioningExpiry",
    "agreement_id": "agreementId",
    "agreement_status": "agreementStatus",
    "end_time": "endTime",
    "product_code": "productCode",
    "set_at": "agreementEventTimes",
}
"""A row's fields by the names of their attributes. The last is ours: a map of instants, by the names of the others."""
_NOBODY = {_HASH: {"S": "-"}, _RANGE: {"S": "-"}}


@dataclass(frozen=True)
class EventTarget:
    """A key that an event is about, and what stands there, if anything does."""

    key: tuple[str, str]
    """License and account."""
    row: SubscriberRow | None
    item: Item
    """As DynamoDB gave it; empty where there is none."""


class Subscribers:
    """The subscribers of one deployment. Errors of DynamoDB come out as `MeteringError`s, in words."""

    def __init__(self, client: "DynamoDBClient", name: str, clock: Callable[[], datetime]) -> None:
        self.client, self.name, self.clock = client, name, clock

    def try_write(self) -> None:
        """See that the table is there and may be written, by a write whose condition never holds."""
        with Explained(self.client, self.name, SHAPE, KEPT):
            self._update({
                "Key": _NOBODY,
                "UpdateExpression": "SET updatedAt = :now",
                "ConditionExpression": f"attribute_exists({_HASH}) AND attribute_not_exists({_HASH})",
                "ExpressionAttributeValues": {":now": {"S": stamp(self.clock())}},
            })  # fmt: skip

    def rows_of(self, event: LifecycleEvent) -> list[EventTarget]:
        """Return what the event may be about: the key that it names, else the license's rows, else those of its
        agreement.

        All are read consistently; the index only says where to look, and may lag behind.
        """
        with Explained(self.client, self.name, SHAPE, KEPT):
            if event.license_arn is None:
                index = next(index for index in SHAPE.indexes if index.hash_key == "agreementId")
                keys = self._query(index.hash_key, str(event.agreement_id), IndexName=index.name)
            elif event.account is None:
                keys = self._query(_HASH, event.license_arn, ConsistentRead=True)
            else:
                keys = [(event.license_arn, event.account)]
            typed = [{_HASH: {"S": arn}, _RANGE: {"S": account}} for arn, account in keys]
            items = {_key(item): item for item in dynamodb.batch_get(self.client, self.name, typed)}
        return [EventTarget(key, _row(key, items[key]) if key in items else None, items.get(key, {})) for key in keys]

    def write(self, found: EventTarget, wanted: SubscriberRow) -> bool:
        """Make the row as it is wanted; False, with nothing written, where it is no longer what was read."""
        arn, account = found.key
        before, after = _values(found.row or SubscriberRow(arn, account)), _values(wanted)
        now = {"S": stamp(self.clock())}
        sets = {name: v for name, v in after.items() if v is not None and v != before[name]} | {"updatedAt": now}
        if not found.item:
            sets["createdAt"] = now
        removes = [name for name, v in after.items() if v is None and before[name] is not None]
        with Explained(self.client, self.name, SHAPE, KEPT):
            return self._update(_request(found, sets, removes))

    def _query(self, hash_key: str, wanted: str, **how: Any) -> list[tuple[str, str]]:
        pages = dynamodb.pages(
            self.client.query,
            TableName=self.name,
            KeyConditionExpression="#hash = :wanted",
            ProjectionExpression=f"{_HASH}, {_RANGE}",
            ExpressionAttributeNames={"#hash": hash_key},
            ExpressionAttributeValues={":wanted": {"S": wanted}},
            **how,
        )
        return [_key(item) for page in pages for item in page]

    def _update(self, request: dict[str, Any]) -> bool:
        try:
            self.client.update_item(TableName=self.name, **request)
        except self.client.exceptions.ConditionalCheckFailedException:
            return False
        return True


def _request(found: EventTarget, sets: Mapping[str, Any], removes: Sequence[str]) -> dict[str, Any]:
    """Return an update on the condition that the row, with all that was decided from, is what was read."""
    decided_from = list(_ATTRIBUTES.values())
    alias = {name: f"#a{number}" for number, name in enumerate(dict.fromkeys([*decided_from, *sets]))}
    values = {}
    conditions = [f"attribute{'' if found.item else '_not'}_exists({_HASH})"]
    for number, name in enumerate(decided_from):
        if name in found.item:
            values[f":was{number}"] = found.item[name]
            conditions.append(f"{alias[name]} = :was{number}")
        else:
            conditions.append(f"attribute_not_exists({alias[name]})")
    assignments = []
    for number, (name, typed) in enumerate(sets.items()):
        values[f":is{number}"] = typed
        assignments.append(f"{alias[name]} = :is{number}")
    expression = "SET " + ", ".join(assignments)
    if removes:
        expression += " REMOVE " + ", ".join(alias[name] for name in removes)
    return {
        "Key": {_HASH: {"S": found.key[0]}, _RANGE: {"S": found.key[1]}},
        "UpdateExpression": expression,
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": {short: name for name, short in alias.items()},
        "ExpressionAttributeValues": values,
    }


def _key(item: Item) -> tuple[str, str]:
    return item[_HASH]["S"], item[_RANGE]["S"]


def _row(key: tuple[str, str], item: Item) -> SubscriberRow:
    texts = {name: value(item, attribute) for name, attribute in _ATTRIBUTES.items() if name != "set_at"}
    texts = {name: text if isinstance(text, str) else None for name, text in texts.items()}
    return SubscriberRow(*key, **texts, set_at=_instants(value(item, _ATTRIBUTES["set_at"])))


def _instants(stored: object) -> dict[str, datetime]:
    """Return the instants that are; whatever else stands there says nothing."""
    if not isinstance(stored, Mapping):
        return {}
    fields = {attribute: name for name, attribute in _ATTRIBUTES.items()}
    found = {fields.get(name, ""): instant_of(text) for name, text in stored.items()}
    return {name: at for name, at in found.items() if name and at is not None}


def _values(row: SubscriberRow) -> dict[str, Any]:
    """Return a row's attributes in DynamoDB's typed JSON; None for those that it has not."""
    values = {
        attribute: None if (text := getattr(row, name)) is None else {"S": text}
        for name, attribute in _ATTRIBUTES.items()
        if name != "set_at"
    }
    instants = {_ATTRIBUTES[name]: {"S": at.isoformat()} for name, at in row.set_at.items()}
    return {**values, _ATTRIBUTES["set_at"]: {"M": instants} if instants else None}
