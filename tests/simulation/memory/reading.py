"""Query and Scan: which part of a table or index is read, and how it is cut into pages.

Belongs here: key conditions, pages of at most 1 MB, filters and projections on the way out. Does not: writes, single
items (dynamodb).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tests.simulation.memory.conditions import Condition, Names, Values, condition, names_of, projection
from tests.simulation.memory.grammar import Node
from tests.simulation.memory.tables import Entry, Index, Key, Position, Table
from tests.simulation.memory.values import InvalidError, Item, Typed, normal

PAGE_BYTES = 1_048_576
_AFTER = chr(0x10FFFF)
_MIXED = 2**32
"""Beyond every number that mixes equals in an index."""


@dataclass(frozen=True, slots=True)
class KeyCondition:
    """Compiled: the hash key's value, and what is asked of the range key, if anything."""

    hash_value: str
    sign: str | None
    operands: tuple[str, ...]
    used_names: frozenset[str]
    used_values: frozenset[str]


@lru_cache(maxsize=2048)
def key_condition(text: str, names: Names, hash_key: str, range_key: str | None) -> KeyCondition:
    """A key condition for these keys."""
    whole = condition(text, names)
    clauses = _clauses(whole.tree)
    hashed = [each for each in clauses if each[:2] == ("=", ("path", (hash_key,)))]
    ranged = [each for each in clauses if each not in hashed]
    if len(hashed) != 1 or len(ranged) > 1:
        raise InvalidError(f"Query condition missed key schema element: {hash_key}")
    sign, operands = None, ()
    for clause in ranged:
        if clause[1] != ("path", (range_key,)) or clause[0] not in {
            "=",
            "<",
            "<=",
            ">",
            ">=",
            "between",
            "begins_with",
        }:
            raise InvalidError("Query key condition not supported")
        sign, operands = clause[0], tuple(_value(each) for each in clause[2:])
    return KeyCondition(_value(hashed[0][2]), sign, operands, whole.used_names, whole.used_values)


def _clauses(tree: Node) -> list[Node]:
    if tree[0] == "and":
        return [*_clauses(tree[1]), *_clauses(tree[2])]
    return [tree]


def _value(operand: Node) -> str:
    if operand[0] != "value":
        raise InvalidError("Query key condition not supported")
    return str(operand[1])


def values_of(request: Mapping[str, Any], *used: frozenset[str]) -> Values:
    """The values of a request, all of which must be used, and no others."""
    given = request.get("ExpressionAttributeValues") or {}
    all_used = used[0].union(*used[1:]) if used else frozenset()
    if all_used != given.keys():
        for name in sorted(all_used - given.keys()):
            raise InvalidError(f"An expression attribute value used in expression is not defined; value: {name}")
        unused = ", ".join(sorted(given.keys() - all_used))
        raise InvalidError(f"Value provided in ExpressionAttributeValues unused in expressions: keys: {{{unused}}}")
    return {name: normal(value) for name, value in given.items()}


def check_names(names: Names, *used: frozenset[str]) -> None:
    """The aliases of a request must all be used."""
    unused = {alias for alias, _ in names}.difference(*used)
    if unused:
        listed = ", ".join(sorted(unused))
        raise InvalidError(f"Value provided in ExpressionAttributeNames unused in expressions: keys: {{{listed}}}")


@dataclass
class Reading:
    """One Query or Scan: where it reads, and what it hands out."""

    table: Table
    where: Table | Index
    request: Mapping[str, Any]
    now: float

    def query(self) -> dict[str, Any]:
        """The answer to a Query."""
        names = names_of(self.request)
        text = self.request.get("KeyConditionExpression")
        if not text:
            raise InvalidError("Either the KeyConditions or KeyConditionExpression parameter must be specified")
        asked = key_condition(text, names, self.where.hash_key, self.where.range_key)
        kept = self._filter(names)
        self._check_names(names, asked.used_names, kept)
        values = values_of(self.request, asked.used_values, kept.used_values if kept else frozenset())
        hashed = _text(values[asked.hash_value], self.where.hash_key)
        order, entries = self.where.shelf(hashed).shown(self.now)
        low, high = self._bounds(order, asked, values)
        start = self.request.get("ExclusiveStartKey")
        forward = self.request.get("ScanIndexForward", True)
        if start:
            at = self._start(start, hashed)
            if forward:
                low = max(low, bisect_right(order, at))
            else:
                high = min(high, bisect_left(order, at))
        places = range(low, high) if forward else range(high - 1, low - 1, -1)
        return self._page((entries[order[place]] for place in places), kept, values)

    def scan(self) -> dict[str, Any]:
        """The answer to a Scan: hash keys in the order of their text."""
        names = names_of(self.request)
        kept = self._filter(names)
        self._check_names(names, frozenset(), kept)
        values = values_of(self.request, kept.used_values if kept else frozenset())
        start = self.request.get("ExclusiveStartKey")
        return self._page(self._everything(start), kept, values)

    def _everything(self, start: Mapping[str, Any] | None) -> Iterable[Entry]:
        first = start[self.where.hash_key]["S"] if start else ""
        for hashed in self.where.hashes():
            if hashed >= first:
                order, entries = self.where.shelf(hashed).shown(self.now)
                low = bisect_right(order, self._start(start, hashed)) if start and hashed == first else 0
                for place in range(low, len(order)):
                    yield entries[order[place]]

    def _start(self, start: Mapping[str, Any], hashed: str) -> Position:
        needed = {*self.table.keys, self.where.hash_key, *([self.where.range_key] if self.where.range_key else [])}
        if start.keys() != needed or start[self.where.hash_key].get("S") != hashed:
            raise InvalidError("The provided starting key is invalid")
        key = self.table.key_of({name: start[name] for name in self.table.keys}, alone=True)
        return self.where.position(key, dict(start))

    def _bounds(self, order: list[Position], asked: KeyCondition, values: Values) -> tuple[int, int]:
        """From where to where in the order the range key is as it was asked for."""
        if asked.sign is None:
            return 0, len(order)
        wanted = [_text(values[name], str(self.where.range_key)) for name in asked.operands]
        first, last = wanted[0], wanted[-1]
        if asked.sign == "begins_with":
            return self._before(order, first), self._behind(order, first + _AFTER)
        low = 0 if asked.sign in ("<", "<=") else (self._behind if asked.sign == ">" else self._before)(order, first)
        if asked.sign in (">", ">="):
            return low, len(order)
        return low, (self._before if asked.sign == "<" else self._behind)(order, last)

    def _before(self, order: list[Position], text: str) -> int:
        return bisect_left(order, text if self.where is self.table else (text,))

    def _behind(self, order: list[Position], text: str) -> int:
        return bisect_right(order, text if self.where is self.table else (text, _MIXED))

    def _filter(self, names: Names) -> Condition | None:
        text = self.request.get("FilterExpression")
        return condition(text, names) if text else None

    def _check_names(self, names: Names, used: frozenset[str], kept: Condition | None) -> None:
        if names:
            text = self.request.get("ProjectionExpression")
            shown = projection(text, names).used_names if text else frozenset()
            check_names(names, used, shown, kept.used_names if kept else frozenset())

    def _page(self, found: Iterable[Entry], kept: Condition | None, values: Values) -> dict[str, Any]:
        limit = self.request.get("Limit") or 0
        if limit < 0:
            raise InvalidError("Limit must be greater than or equal to 1")
        counts = self.request.get("Select") == "COUNT"
        text = self.request.get("ProjectionExpression")
        take = self._projected(text) if text else dict
        items: list[Item] = []
        scanned = count = size = 0
        last: Item | None = None
        more = False
        for entry in found:
            item = entry[0]
            size += entry[1]
            if size > PAGE_BYTES and scanned:
                more = True
                break
            scanned += 1
            last = item
            if kept is None or kept.holds(item, values):
                count += 1
                if not counts:
                    items.append(take(item))
            if scanned == limit:
                more = True
                break
        answer: dict[str, Any] = {"Count": count, "ScannedCount": scanned}
        if not counts:
            answer["Items"] = items
        if more and last is not None:
            named = dict.fromkeys([*self.table.keys, self.where.hash_key, self.where.range_key])
            answer["LastEvaluatedKey"] = {name: last[name] for name in named if name is not None}
        return answer

    def _projected(self, text: str) -> Any:
        shown = projection(text, names_of(self.request))
        if isinstance(self.where, Index) and self.where.projected is not None:
            lacking = sorted(set(shown.names) - {*self.where.projected})
            if lacking:
                raise InvalidError(
                    "One or more parameter values were invalid: Global secondary index "
                    f"{self.where.name} does not project [{', '.join(lacking)}]"
                )
        return shown.take


def _text(value: Typed, name: str) -> str:
    """The value that a key is compared with."""
    text = value.get("S")
    if text is None:
        raise InvalidError(f"One or more parameter values were invalid: Condition parameter type does not match schema "
                           f"type for {name}")  # fmt: skip
    if not text:
        raise InvalidError("One or more parameter values are not valid. The AttributeValue for a key attribute cannot "
                           f"contain an empty string value. Key: {name}")  # fmt: skip
    return str(text)


__all__ = ["Key", "Reading", "check_names", "key_condition", "values_of"]
