"""Conditions, filters and projections, compiled once and kept.

Belongs here: what a tree of the grammar means for an item. Does not: changing one (updates), which part of a table a
query reads (tables).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tests.simulation.memory.grammar import Node, Parser, Path
from tests.simulation.memory.values import InvalidError, Item, Typed, order_of, same

Values = Mapping[str, Typed]
Test = Callable[[Item, Values], bool]
Get = Callable[[Item, Values], Typed | None]
Names = tuple[tuple[str, str], ...]
_KEPT = 8192
"""Expressions; a pipeline's own are some dozens, and those that vary with a row's attributes some hundreds."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Compiled."""

    holds: Test
    tree: Node
    used_names: frozenset[str]
    used_values: frozenset[str]


@dataclass(frozen=True, slots=True)
class Projection:
    """Which attributes; with deeper paths as well, how to take them."""

    names: tuple[str, ...]
    take: Callable[[Item], Item]
    used_names: frozenset[str]


def names_of(request: Mapping[str, Any]) -> Names:
    """The aliases of a request, as part of a key to what is kept."""
    aliases = request.get("ExpressionAttributeNames")
    return tuple(aliases.items()) if aliases else ()


@lru_cache(maxsize=_KEPT)
def condition(text: str, names: Names) -> Condition:
    """A condition or filter expression."""
    parser = Parser(text, dict(names))
    tree = parser.condition()
    return Condition(_test(tree), tree, frozenset(parser.used_names), frozenset(parser.used_values))


@lru_cache(maxsize=_KEPT)
def projection(text: str, names: Names) -> Projection:
    """A projection expression."""
    parser = Parser(text, dict(names))
    paths = parser.projection()
    used = frozenset(parser.used_names)
    firsts = tuple(str(path[0]) for path in paths)
    if all(len(path) == 1 for path in paths):
        return Projection(firsts, lambda item: {name: item[name] for name in firsts if name in item}, used)
    if any(len(set(map(type, path))) > 1 or len(path) > 2 for path in paths):
        raise NotImplementedError(f"a projection of {text}")

    def take(item: Item) -> Item:
        found: dict[str, Any] = {}
        for path in paths:
            value = value_at(item, path)
            if value is not None and len(path) == 1:
                found[str(path[0])] = value
            elif value is not None:
                found.setdefault(str(path[0]), {"M": {}})["M"][path[1]] = value
        return found

    return Projection(firsts, take, used)


def value_at(item: Item, path: Path) -> Typed | None:
    """What stands at a path; None where nothing does."""
    found: Any = {"M": item}
    for part in path:
        if isinstance(part, str):
            found = found.get("M", {}).get(part)
        else:
            held = found.get("L", [])
            found = held[part] if part < len(held) else None
        if found is None:
            return None
    return found  # type: ignore[no-any-return]


def getter(node: Node) -> Get:
    """How to get an operand's value."""
    kind, what = node[0], node[1]
    if kind == "value":
        return lambda item, values: values[what]
    if kind == "path":
        if len(what) == 1:
            name = what[0]
            return lambda item, values: item.get(name)
        return lambda item, values: value_at(item, what)

    def size(item: Item, values: Values) -> Typed | None:
        found = value_at(item, what)
        return None if found is None else {"N": str(len(next(iter(found.values()))))}

    return size


def _test(node: Node) -> Test:
    kind = node[0]
    if kind in _JOINED:
        return _JOINED[kind](node)
    if kind in ("attribute_exists", "attribute_not_exists"):
        return _existence(node[1], kind == "attribute_exists")
    operands = [getter(each) for each in node[1:]] if kind != "in" else []
    if kind == "=":
        return _equal(*operands)
    if kind == "<>":
        equal = _equal(*operands)
        return lambda item, values: not equal(item, values)
    if kind == "in":
        among = [_equal(getter(node[1]), getter(each)) for each in node[2]]
        return lambda item, values: any(equal(item, values) for equal in among)
    if kind == "attribute_type":
        return _typed(*operands)
    if kind in ("begins_with", "contains"):
        return _part(kind, *operands)
    if kind == "between":
        left, low, high = operands
        at_least, at_most = _ordered(">=", left, low), _ordered("<=", left, high)
        return lambda item, values: at_least(item, values) and at_most(item, values)
    return _ordered(kind, *operands)


def _and(node: Node) -> Test:
    # A chain of ANDs, as most conditions are, is one loop and not a call in a call.
    parts: list[Node] = []
    while node[0] == "and":
        parts.append(node[2])
        node = node[1]
    tests = tuple(_test(each) for each in (node, *reversed(parts)))

    def holds(item: Item, values: Values) -> bool:
        for test in tests:
            if not test(item, values):
                return False
        return True

    return holds


def _or(node: Node) -> Test:
    one, other = _test(node[1]), _test(node[2])
    return lambda item, values: one(item, values) or other(item, values)


def _not(node: Node) -> Test:
    inner = _test(node[1])
    return lambda item, values: not inner(item, values)


_JOINED: Mapping[str, Callable[[Node], Test]] = {"and": _and, "or": _or, "not": _not}


def _existence(operand: Node, wanted: bool) -> Test:
    if operand[0] != "path":
        raise InvalidError("Invalid expression: Operator or function requires a document path")
    path = operand[1]
    if len(path) == 1:
        name = path[0]
        return (lambda item, values: name in item) if wanted else (lambda item, values: name not in item)
    return lambda item, values: (value_at(item, path) is not None) is wanted


def _equal(left: Get, right: Get) -> Test:
    def holds(item: Item, values: Values) -> bool:
        one, other = left(item, values), right(item, values)
        return one is not None and other is not None and (one == other or same(one, other))

    return holds


def _ordered(kind: str, left: Get, right: Get) -> Test:
    compare = _ORDERS[kind]

    def holds(item: Item, values: Values) -> bool:
        one, other = left(item, values), right(item, values)
        if one is None or other is None:
            return False
        first, second = order_of(one), order_of(other)
        if first is None or second is None or first[0] != second[0]:
            return False
        return bool(compare(first[1], second[1]))

    return holds


_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


def _typed(left: Get, right: Get) -> Test:
    def holds(item: Item, values: Values) -> bool:
        one, kind = left(item, values), right(item, values)
        return one is not None and kind is not None and kind.get("S") in one

    return holds


def _part(kind: str, left: Get, right: Get) -> Test:
    def holds(item: Item, values: Values) -> bool:
        one, other = left(item, values), right(item, values)
        if one is None or other is None:
            return False
        ((of, whole),), ((what, part),) = one.items(), other.items()
        if kind == "begins_with":
            return of == what and of in ("S", "B") and whole.startswith(part)
        if of in ("S", "B"):
            return of == what and part in whole
        if of == "L":
            return any(same(each, other) for each in whole)
        return of in ("SS", "NS", "BS") and of[0] == what and part in whole

    return holds
