"""In what a table that exists differs from what is needed: what can be added, what must be said. Pure.

Belongs here: comparing DynamoDB's description of a table with its shape, what each difference wants of a person.
Does not: asking DynamoDB, creating anything (init).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metering_dagster.core.aws.dynamodb import IndexShape, TableShape, key_names, stored_key_names

Described = Mapping[str, Any]
"""The `Table` of an answer to DescribeTable."""

_ANY_PROJECTION = frozenset({"agreementId-index", "customerAWSAccountId-index"})
"""Nothing names a projection for these: they lead to keys, and the base table is read again."""
_REBUILD = "An index cannot be changed: delete it while nothing meters, and run init again."


@dataclass(frozen=True)
class Difference:
    """Something that init will not change: what it is, and what a person is to do."""

    what: str
    todo: str


@dataclass(frozen=True)
class TablePlan:
    """The difference of a table from what is needed: what `init` adds, and what it leaves."""

    missing: tuple[IndexShape, ...] = ()
    differs: tuple[Difference, ...] = ()


def plan(found: Described, shape: TableShape) -> TablePlan:
    """Compare. A table with another key is another table: nothing is added to it."""
    types = _types(found)
    keys = stored_key_names(found.get("KeySchema", []))
    if keys != key_names(shape) or _wrongly_typed(keys, types):
        what = (
            f"its key is {_typed(keys, types)}, not {_typed(key_names(shape), {})}; its indexes were left as they are"
        )
        todo = f"A table's key cannot be changed: name another table in {shape.setting}, or move this one away."
        return TablePlan(differs=(Difference(what, todo),))
    indexes = indexes_of(found)
    missing, differs = [], []
    for index in shape.indexes:
        fault = _fault(indexes.get(index.name), index, types)
        if fault is not None:
            differs.append(fault)
        elif index.name not in indexes:
            missing.append(index)
    return TablePlan(tuple(missing), tuple(differs))


def indexes_of(found: Described) -> dict[str, Mapping[str, Any]]:
    """Its global secondary indexes by name."""
    return {index["IndexName"]: index for index in found.get("GlobalSecondaryIndexes") or []}


def throughput_of(found: Described) -> dict[str, int] | None:
    """Return the read and write units of a table with provisioned capacity; None for one that is paid on demand."""
    if found.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED") != "PROVISIONED":
        return None
    units = found.get("ProvisionedThroughput", {})
    wanted = {name: int(units.get(name, 0)) for name in ("ReadCapacityUnits", "WriteCapacityUnits")}
    return wanted if all(wanted.values()) else None


def ttl_difference(described: Mapping[str, Any], table: str, attribute: str) -> Difference | None:
    """Return whether items go by themselves once `attribute` says so; `described` is a `TimeToLiveDescription`."""
    on = described.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
    if on and described.get("AttributeName") == attribute:
        return None
    if on:
        return Difference(
            f"its TTL goes by the attribute {described.get('AttributeName')}, not {attribute}",
            f"What metering itself keeps beside the aggregates expires by {attribute}: switch TTL over to it.",
        )
    return Difference(
        f"its TTL is not on for the attribute {attribute}: what metering keeps beside the aggregates stays for ever",
        f"aws dynamodb update-time-to-live --table-name {table} "
        f"--time-to-live-specification Enabled=true,AttributeName={attribute}",
    )


def _fault(found: Mapping[str, Any] | None, index: IndexShape, types: Mapping[str, str]) -> Difference | None:
    """Return what is wrong with an index that is there, or keeps one that is missing from being added."""
    wanted = key_names(index)
    if found is None:
        if _wrongly_typed(wanted, types):
            return Difference(
                f"its index {index.name} is missing, and cannot be added: its keys would be {_typed(wanted, types)}",
                "Delete the index that defines the attribute with another type, and run init again.",
            )
        return None
    if found.get("IndexStatus") == "DELETING":
        return Difference(f"its index {index.name} is being deleted", "Run init again once it is gone.")
    keys = stored_key_names(found.get("KeySchema", []))
    if keys != wanted or _wrongly_typed(keys, types):
        return Difference(f"the key of its index {index.name} is {_typed(keys, types)}, not {_typed(wanted, {})}",
                          _REBUILD)  # fmt: skip
    lacks = _lacking(found.get("Projection", {}), index)
    if lacks:
        return Difference(f"its index {index.name} does not project {lacks}", _REBUILD)
    return None


def _lacking(projection: Mapping[str, Any], index: IndexShape) -> str:
    """Return what the index should carry and does not; a wider one is as good."""
    kind = projection.get("ProjectionType")
    if kind == "ALL" or index.name in _ANY_PROJECTION:
        return ""
    if index.include is None:
        return f"all attributes, but {kind}"
    return ", ".join(name for name in index.include if name not in projection.get("NonKeyAttributes", ()))


def _types(found: Described) -> dict[str, str]:
    return {item["AttributeName"]: item["AttributeType"] for item in found.get("AttributeDefinitions", [])}


def _wrongly_typed(keys: list[str], types: Mapping[str, str]) -> bool:
    return any(types.get(key, "S") != "S" for key in keys)


def _typed(keys: list[str], types: Mapping[str, str]) -> str:
    """Keys in words, each with its type where it is no string."""
    return "[" + ", ".join(key if types.get(key, "S") == "S" else f"{key} (type {types[key]})" for key in keys) + "]"
