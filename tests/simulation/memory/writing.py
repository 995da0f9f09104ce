"""Writes, planned before any of them happens.

Belongs here: what one Put, Update, Delete or ConditionCheck would leave, or why it may not. Does not: answers and
errors (dynamodb), carrying it out (tables).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.simulation.memory.conditions import Condition, condition, names_of
from tests.simulation.memory.reading import check_names, values_of
from tests.simulation.memory.tables import Entry, Key, Table
from tests.simulation.memory.updates import UnfitError, Update, update
from tests.simulation.memory.values import InvalidError, Item, normal, size_of

ITEM_BYTES = 400 * 1024
_NONE: frozenset[str] = frozenset()


class ConditionFailedError(Exception):
    """The condition did not hold; what stands there, if anything."""

    def __init__(self, item: Item | None) -> None:
        super().__init__()
        self.item = item


class Planned(NamedTuple):
    """What a write would do."""

    table: Table
    key: Key
    old: Entry | None
    new: Entry | None
    writes: bool
    """False for a mere check."""
    touched: frozenset[str]
    """The attributes that an update names."""

    @property
    def size(self) -> int:
        """What it counts for in a transaction."""
        return max(self.old.size if self.old else 0, self.new.size if self.new else 0)


def plan(kind: str, table: Table, request: Mapping[str, Any]) -> Planned:
    """Look what a `Put`, `Update`, `Delete` or `ConditionCheck` would do.

    `InvalidError` for a request that can never be carried out, `UnfitError` for an update that does not fit the item,
    `ConditionFailedError` for the rest.
    """
    names = names_of(request)
    text = request.get("ConditionExpression")
    asked = condition(text, names) if text else None
    change: Update | None = None
    if kind == "Put":
        item = {name: normal(value) for name, value in request["Item"].items()}
        key = table.key_of(item)
        table.check(item, InvalidError)
        size = size_of(item)
        if size > ITEM_BYTES:
            raise InvalidError("Item size has exceeded the maximum allowed size")
        new: Entry | None = Entry(item, size)
    else:
        key = table.key_of(request["Key"], alone=True)
        new = None
        if kind == "Update":
            change = _update(table, request)
    used_names = (asked.used_names if asked else _NONE, change.used_names if change else _NONE)
    if names:
        check_names(names, *used_names)
    values = values_of(request, asked.used_values if asked else _NONE, change.used_values if change else _NONE)
    old = table.get(key)
    if asked is not None and not asked.holds(old.item if old else {}, values):
        raise ConditionFailedError(old.item if old else None)
    if kind == "Update":
        before = old.item if old else {name: request["Key"][name] for name in table.keys}
        after = change.apply(before, values) if change else before
        new = _fitting(table, before, after, change)
    elif kind == "ConditionCheck":
        new = old
    return Planned(table, key, old, new, kind != "ConditionCheck", change.names if change else _NONE)


def _update(table: Table, request: Mapping[str, Any]) -> Update | None:
    text = request.get("UpdateExpression")
    if text is None:
        return None
    change = update(text, names_of(request))
    for name in table.keys:
        if name in change.names:
            raise InvalidError(
                f"One or more parameter values were invalid: Cannot update attribute {name}. This attribute is part of "
                "the key"
            )
    return change


def _fitting(table: Table, before: Item, after: Item, change: Update | None) -> Entry:
    if change is not None:
        table.check(after, UnfitError)
    size = size_of(after)
    if size > ITEM_BYTES:
        raise UnfitError("Item size to update has exceeded the maximum allowed size")
    return Entry(after, size)


__all__ = ["Condition", "ConditionFailedError", "Planned", "plan"]
