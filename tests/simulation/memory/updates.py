"""Update expressions, compiled once and kept.

Belongs here: SET, REMOVE, ADD and DELETE on a copy of an item. Does not: whether they may happen (conditions).
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any

from tests.simulation.memory.conditions import Get, Names, Values, getter, value_at
from tests.simulation.memory.grammar import Node, Parser, Path
from tests.simulation.memory.values import EXACT, InvalidError, Item, Typed, normal, number_text

Change = Callable[[Item, Item, Values], None]
"""From the item as it was, on the copy that becomes the new one."""
_ABSENT = "The provided expression refers to an attribute that does not exist in the item"
_WRONG_TYPE = "An operand in the update expression has an incorrect data type"
_WRONG_PATH = "The document path provided in the update expression is invalid for update"


class UnfitError(InvalidError):
    """The update does not fit the item that it met: in a transaction, a reason to cancel it."""


@dataclass(frozen=True, slots=True)
class Update:
    """Compiled."""

    changes: tuple[Change, ...]
    names: frozenset[str]
    """The attributes that it touches."""
    used_names: frozenset[str]
    used_values: frozenset[str]

    def apply(self, old: Item, values: Values) -> Item:
        """The item as it becomes."""
        new = dict(old)
        for change in self.changes:
            change(old, new, values)
        return new


@lru_cache(maxsize=8192)
def update(text: str, names: Names) -> Update:
    """An update expression."""
    parser = Parser(text, dict(names))
    sections = parser.update()
    changes = [_change(section, path, what) for section, clauses in sections.items() for path, what in clauses]
    touched = frozenset(str(path[0]) for clauses in sections.values() for path, _ in clauses)
    return Update(tuple(changes), touched, frozenset(parser.used_names), frozenset(parser.used_values))


def _change(section: str, path: Path, what: Any) -> Change:
    if section == "REMOVE":
        return _remove(path)
    get = _value(what) if section == "SET" else _sum(path, what) if section == "ADD" else _rest(path, what)
    if len(path) == 1:
        name = str(path[0])

        def put(old: Item, new: Item, values: Values) -> None:
            value = get(old, values)
            if value is None:
                new.pop(name, None)
            else:
                new[name] = value

        return put

    def put_deep(old: Item, new: Item, values: Values) -> None:
        value = get(old, values)
        _replace(new, path, value)

    return put_deep


def _remove(path: Path) -> Change:
    if len(path) == 1:
        name = str(path[0])
        return lambda old, new, values: new.pop(name, None) and None
    return lambda old, new, values: _replace(new, path, None)


def _replace(new: Item, path: Path, value: Typed | None) -> None:
    """Put the value there (None: take away what is there); what leads to it is copied, for others may hold it."""
    holder: Any = new
    for part, following in pairwise(path):
        kind = "M" if isinstance(following, str) else "L"
        inside = (isinstance(part, str) and part in holder) or (isinstance(part, int) and part < len(holder))
        if not inside or kind not in holder[part]:
            raise UnfitError(_WRONG_PATH)
        holder[part] = {kind: holder[part][kind].copy()}
        holder = holder[part][kind]
    last = path[-1]
    if isinstance(last, str):
        if value is None:
            holder.pop(last, None)
        else:
            holder[last] = value
    elif value is None:
        del holder[last : last + 1]
    else:
        holder[last : last + 1] = [value]


def _value(node: Node) -> Get:
    """What SET puts there."""
    kind = node[0]
    if kind in "+-":
        one, other = _value(node[1]), _value(node[2])
        return lambda item, values: _added(one(item, values), other(item, values), kind)
    if kind == "if_not_exists":
        path, fallback = node[1], _value(node[2])

        def kept(item: Item, values: Values) -> Typed | None:
            found = value_at(item, path)
            return fallback(item, values) if found is None else found

        return kept
    if kind == "list_append":
        first, second = _value(node[1]), _value(node[2])
        return lambda item, values: _appended(first(item, values), second(item, values))
    get = getter(node)

    def needed(item: Item, values: Values) -> Typed | None:
        found = get(item, values)
        if found is None:
            raise UnfitError(_ABSENT)
        return found

    return needed


def _added(one: Typed | None, other: Typed | None, sign: str) -> Typed:
    if one is None or other is None:
        raise UnfitError(_ABSENT)
    if "N" not in one or "N" not in other:
        raise UnfitError(_WRONG_TYPE)
    first, second = Decimal(one["N"]), Decimal(other["N"])
    found = EXACT.add(first, second) if sign == "+" else EXACT.subtract(first, second)
    try:
        return {"N": number_text(found)}
    except InvalidError as refusal:
        raise UnfitError(*refusal.args) from None


def _appended(one: Typed | None, other: Typed | None) -> Typed:
    if one is None or other is None or "L" not in one or "L" not in other:
        raise UnfitError(_WRONG_TYPE)
    return {"L": [*one["L"], *other["L"]]}


def _sum(path: Path, name: str) -> Get:
    """What ADD makes of it: a number grows from 0, a set from nothing."""

    def get(item: Item, values: Values) -> Typed | None:
        found, more = value_at(item, path), values[name]
        if found is None:
            return more
        ((kind, held),) = found.items()
        if kind == "N":
            return _added(found, more, "+")
        if kind not in more or kind not in ("SS", "NS", "BS"):
            raise UnfitError(_WRONG_TYPE)
        return normal({kind: list(dict.fromkeys([*held, *more[kind]]))})

    return get


def _rest(path: Path, name: str) -> Get:
    """What DELETE leaves of a set; None where that is nothing."""

    def get(item: Item, values: Values) -> Typed | None:
        found, less = value_at(item, path), values[name]
        if found is None:
            return None
        ((kind, held),) = found.items()
        if kind not in less or kind not in ("SS", "NS", "BS"):
            raise UnfitError(_WRONG_TYPE)
        left = [each for each in held if each not in less[kind]]
        return {kind: left} if left else None

    return get
