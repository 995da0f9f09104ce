"""DynamoDB in memory: the service, and its client.

Belongs here: requests and answers of each operation, limits, errors. Does not: what expressions mean, how items are
kept.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tests.simulation.memory import failures
from tests.simulation.memory.calls import Answer, Around, MemoryClient, Request
from tests.simulation.memory.conditions import names_of, projection
from tests.simulation.memory.reading import Reading, check_names
from tests.simulation.memory.tables import Index, Lag, Table, Watcher
from tests.simulation.memory.updates import UnfitError
from tests.simulation.memory.values import InvalidError, Item
from tests.simulation.memory.writing import ConditionFailedError, Planned, plan

REGION = "us-east-1"
MOST_ACTIONS, MOST_BYTES = 100, 4 * 1024 * 1024
MOST_GETS, MOST_PUTS, MOST_READ_BYTES = 100, 25, 16 * 1024 * 1024
_META = {"HTTPStatusCode": 200, "RequestId": "", "HTTPHeaders": {}, "RetryAttempts": 0}
_FAILED = "The conditional request failed"
_NOT_FOUND = "Requested resource not found"


class MemoryDynamoDB:
    """Tables that all clients share, whatever their Region."""

    def __init__(self, clock: Callable[[], float] = time.time, lag: Lag | None = None) -> None:
        """`clock`: seconds since 1970. `lag`: how long what is written now takes to reach an index; None: no time."""
        self.clock, self.lag = clock, lag
        self.tables: dict[str, Table] = {}
        self.lock = threading.RLock()

    def client(self, around: Around | None = None, region: str = REGION) -> "DynamoDBClient":
        """A client of its own, as one process has it."""
        return DynamoDBClient(self, around, region)

    def watch(self, table: str, watcher: Watcher) -> None:
        """Tell of each change of this table, at once; what is told is not to be changed."""
        self.tables[table].watchers.append(watcher)

    def remember(self, table: str) -> None:
        """Keep all that this table held, from now on, so that it can be restored."""
        self.tables[table].history = []

    def restore(self, table: str, moment: float) -> None:
        """Let the table be as it was then, as one made from a backup; its indexes show that at once."""
        restored, now = self.tables[table], self.clock()
        for key, entry in restored.before(moment).items():
            restored.replace(key, entry, now, None)
        restored.description = {**restored.description, "CreationDateTime": datetime.fromtimestamp(now, UTC)}

    def outlived(self, table: str) -> list[Item]:
        """The items whose `ttl` is over, which DynamoDB deletes at some time after it."""
        return [item for item in self.items(table) if float(item.get("ttl", {}).get("N", "inf")) < self.clock()]

    def items(self, table: str) -> Iterable[Item]:
        """All items as they stand, in no order; they are not to be changed."""
        return self.tables[table].items()

    def item(self, table: str, hash_value: str, range_value: str) -> Item | None:
        """One item as it stands, which is not to be changed."""
        found = self.tables[table].get((hash_value, range_value))
        return found.item if found else None


class DynamoDBClient(MemoryClient):
    """boto3's method names and answers."""

    service = "dynamodb"

    def __init__(self, tables: MemoryDynamoDB, around: Around | None, region: str) -> None:
        super().__init__(around, region)
        self.tables = tables

    # Tables.

    def create_table(self, **request: Any) -> Answer:
        """Usable at once."""
        return self._call("CreateTable", request, self._create_table)

    def describe_table(self, **request: Any) -> Answer:
        """As it was created."""
        return self._call("DescribeTable", request, lambda given: {"Table": dict(self._table(given).description)})

    def delete_table(self, **request: Any) -> Answer:
        """Gone at once."""
        return self._call("DeleteTable", request, self._delete_table)

    def list_tables(self, **request: Any) -> Answer:
        """All of them, on one page."""
        return self._call("ListTables", request, lambda given: {"TableNames": sorted(self.tables.tables)})

    # Reading.

    def get_item(self, **request: Any) -> Answer:
        """Always consistent."""
        return self._call("GetItem", request, self._get_item)

    def batch_get_item(self, **request: Any) -> Answer:
        """At most 16 MB; the keys beyond come back unprocessed."""
        return self._call("BatchGetItem", request, self._batch_get_item)

    def query(self, **request: Any) -> Answer:
        """One page."""
        return self._call("Query", request, lambda given: self._reading(given).query())

    def scan(self, **request: Any) -> Answer:
        """One page."""
        return self._call("Scan", request, lambda given: self._reading(given).scan())

    # Writing.

    def put_item(self, **request: Any) -> Answer:
        """Of the return values, ALL_OLD."""
        return self._call("PutItem", request, lambda given: self._write("Put", "PutItem", given))

    def update_item(self, **request: Any) -> Answer:
        """Creates what is not there."""
        return self._call("UpdateItem", request, lambda given: self._write("Update", "UpdateItem", given))

    def delete_item(self, **request: Any) -> Answer:
        """Of the return values, ALL_OLD."""
        return self._call("DeleteItem", request, lambda given: self._write("Delete", "DeleteItem", given))

    def batch_write_item(self, **request: Any) -> Answer:
        """Puts and deletes, each for itself."""
        return self._call("BatchWriteItem", request, self._batch_write_item)

    def transact_write_items(self, **request: Any) -> Answer:
        """All or nothing."""
        return self._call("TransactWriteItems", request, self._transact_write_items)

    def _call(self, operation: str, request: Request, work: Callable[[Request], Answer]) -> Answer:
        def answer(given: Request) -> Answer:
            with self.tables.lock:
                try:
                    found = work(given)
                except InvalidError as refusal:
                    raise self.error(operation, "ValidationException", str(refusal)) from None
                except _NoTableError:
                    raise self.error(operation, "ResourceNotFoundException", _NOT_FOUND) from None
            found["ResponseMetadata"] = _META
            return found

        return self._invoke(operation, request, answer)

    def _table(self, request: Request) -> Table:
        found = self.tables.tables.get(request["TableName"])
        if found is None:
            raise _NoTableError
        return found

    def _create_table(self, request: Request) -> Answer:
        name = request["TableName"]
        if name in self.tables.tables:
            raise self.error("CreateTable", "ResourceInUseException", f"Table already exists: {name}")
        indexes = request.get("GlobalSecondaryIndexes") or []
        described = {
            "TableName": name,
            "TableStatus": "ACTIVE",
            "CreationDateTime": datetime.fromtimestamp(self.tables.clock(), UTC),
            "KeySchema": request["KeySchema"],
            "AttributeDefinitions": request["AttributeDefinitions"],
            "BillingModeSummary": {"BillingMode": request.get("BillingMode", "PROVISIONED")},
            "TableArn": f"arn:aws:dynamodb:{self.meta.region_name}:000000000000:table/{name}",
            **({"GlobalSecondaryIndexes": [{**each, "IndexStatus": "ACTIVE"} for each in indexes]} if indexes else {}),
        }
        if any(each["AttributeType"] != "S" for each in request["AttributeDefinitions"]):
            raise NotImplementedError("a key that is no string")
        table = Table(name, *_keys(request["KeySchema"]), description=described)
        for each in indexes:
            hash_key, range_key = _keys(each["KeySchema"])
            carried = _projected(each["Projection"], table, hash_key, range_key)
            table.indexes[each["IndexName"]] = Index(each["IndexName"], hash_key, range_key, carried)
        self.tables.tables[name] = table
        return {"TableDescription": described}

    def _delete_table(self, request: Request) -> Answer:
        table = self._table(request)
        del self.tables.tables[table.name]
        return {"TableDescription": {**table.description, "TableStatus": "DELETING"}}

    def _get_item(self, request: Request) -> Answer:
        table = self._table(request)
        found = table.get(table.key_of(request["Key"], alone=True))
        take = _shown(request)
        return {} if found is None else {"Item": take(found.item)}

    def _batch_get_item(self, request: Request) -> Answer:
        asked = request["RequestItems"]
        if not asked or sum(len(each["Keys"]) for each in asked.values()) > MOST_GETS:
            raise InvalidError("Too many items requested for the BatchGetItem call")
        responses: dict[str, list[Item]] = {}
        left: dict[str, Any] = {}
        size = 0
        for name, each in asked.items():
            table, take = self._table({"TableName": name}), _shown(each)
            keys = [table.key_of(key, alone=True) for key in each["Keys"]]
            if len(set(keys)) < len(keys):
                raise InvalidError("Provided list of item keys contains duplicates")
            items = responses[name] = []
            for place, key in enumerate(keys):
                found = table.get(key)
                if found is None:
                    continue
                size += found.size
                if size > MOST_READ_BYTES:
                    left[name] = {**each, "Keys": each["Keys"][place:]}
                    break
                items.append(take(found.item))
        return {"Responses": responses, "UnprocessedKeys": left}

    def _reading(self, request: Request) -> Reading:
        table = self._table(request)
        name = request.get("IndexName")
        if name is None:
            return Reading(table, table, request, self.tables.clock())
        if name not in table.indexes:
            raise InvalidError(f"The table does not have the specified index: {name}")
        if request.get("ConsistentRead"):
            raise InvalidError("Consistent reads are not supported on global secondary indexes")
        return Reading(table, table.indexes[name], request, self.tables.clock())

    def _write(self, kind: str, operation: str, request: Request) -> Answer:
        try:
            planned = plan(kind, self._table(request), request)
        except ConditionFailedError as refused:
            shows = request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" and refused.item is not None
            more = {"Item": dict(refused.item)} if shows and refused.item is not None else {}
            raise self.error(operation, "ConditionalCheckFailedException", _FAILED, **more) from None
        self._carry_out(planned)
        return _returned(planned, request.get("ReturnValues", "NONE"))

    def _carry_out(self, planned: Planned) -> None:
        planned.table.replace(planned.key, planned.new, self.tables.clock(), self.tables.lag)

    def _batch_write_item(self, request: Request) -> Answer:
        asked = request["RequestItems"]
        if not 1 <= sum(len(each) for each in asked.values()) <= MOST_PUTS:
            raise InvalidError("Too many items requested for the BatchWriteItem call")
        planned = []
        for name, writes in asked.items():
            table = self._table({"TableName": name})
            for write in writes:
                ((kind, given),) = write.items()
                planned.append(plan(kind.removesuffix("Request"), table, given))
        if len({(each.table.name, each.key) for each in planned}) < len(planned):
            raise InvalidError("Provided list of item keys contains duplicates")
        for each in planned:
            self._carry_out(each)
        return {"UnprocessedItems": {}}

    def _transact_write_items(self, request: Request) -> Answer:
        actions = request["TransactItems"]
        if not 1 <= len(actions) <= MOST_ACTIONS:
            raise InvalidError("1 validation error detected: Value at 'transactItems' failed to satisfy constraint: "
                               f"Member must have length less than or equal to {MOST_ACTIONS}")  # fmt: skip
        planned: list[Planned] = []
        reasons: list[dict[str, Any]] = []
        seen: set[Any] = set()
        for action in actions:
            ((kind, given),) = action.items()
            table = self._table(given)
            key = (table.name, table.key_of(given["Item"]) if kind == "Put" else table.key_of(given["Key"], alone=True))
            if key in seen:
                raise InvalidError("Transaction request cannot include multiple operations on one item")
            seen.add(key)
            try:
                planned.append(plan(kind, table, given))
                reasons.append({"Code": "None"})
            except ConditionFailedError as refused:
                reasons.append(_refusal(given, refused.item))
            except UnfitError as unfit:
                reasons.append({"Code": "ValidationError", "Message": str(unfit)})
        if len(planned) < len(actions):
            raise failures.canceled("TransactWriteItems", reasons)
        if sum(each.size for each in planned) > MOST_BYTES:
            raise InvalidError("Member must have aggregated size less than or equal to 4 MB")
        for each in planned:
            if each.writes:
                self._carry_out(each)
        return {}


class _NoTableError(Exception):
    """There is no such table."""


def _refusal(action: Mapping[str, Any], item: Item | None) -> dict[str, Any]:
    reason: dict[str, Any] = {"Code": "ConditionalCheckFailed", "Message": _FAILED}
    if action.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" and item is not None:
        reason["Item"] = dict(item)
    return reason


def _keys(schema: Iterable[Mapping[str, str]]) -> tuple[str, str | None]:
    kinds = {each["KeyType"]: each["AttributeName"] for each in schema}
    return kinds["HASH"], kinds.get("RANGE")


def _projected(
    projection: Mapping[str, Any], table: Table, hash_key: str, range_key: str | None
) -> tuple[str, ...] | None:
    if projection["ProjectionType"] == "ALL":
        return None
    keys = [*table.keys, hash_key, *([range_key] if range_key else [])]
    return tuple(dict.fromkeys([*keys, *projection.get("NonKeyAttributes", ())]))


def _shown(request: Request) -> Callable[[Item], Item]:
    text = request.get("ProjectionExpression")
    if not text:
        return dict
    names = names_of(request)
    found = projection(text, names)
    check_names(names, found.used_names)
    return found.take


def _returned(planned: Planned, which: str) -> Answer:
    if which == "NONE":
        return {}
    entry = planned.old if which.endswith("_OLD") else planned.new
    if entry is None:
        return {}
    item = entry.item
    if which.startswith("UPDATED"):
        item = {name: item[name] for name in sorted(planned.touched) if name in item}
        return {"Attributes": item} if item else {}
    return {"Attributes": dict(item)}
