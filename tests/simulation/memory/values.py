"""Attribute values as DynamoDB keeps them.

Belongs here: the one form of a number, sizes, equality and order. Does not: items, tables, expressions.
"""

from collections.abc import Callable, Mapping
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

Typed = Mapping[str, Any]
Item = dict[str, Typed]

MOST_DIGITS = 38
_LARGEST_EXPONENT, _SMALLEST_EXPONENT = 125, -130
EXACT = Context(prec=60)


class InvalidError(Exception):
    """The request is refused as a whole: a ValidationException with these words."""


def normal(value: Typed) -> Typed:
    """The value as it is kept: a number loses what it does not need; anything malformed is refused."""
    if len(value) != 1:
        raise InvalidError("Supplied AttributeValue has more than one datatypes set, must contain exactly one")
    kind = next(iter(value))
    held = value[kind]
    if kind == "S":
        if not isinstance(held, str):
            raise InvalidError("The value of an S must be a string")
        return value
    if kind == "N":
        text = number(held)
        return value if text == held else {"N": text}
    if kind == "M":
        return {"M": {name: normal(each) for name, each in held.items()}}
    if kind == "L":
        return {"L": [normal(each) for each in held]}
    if kind == "NS":
        return {"NS": _distinct([number(each) for each in held])}
    if kind in ("SS", "BS"):
        return {kind: _distinct(list(held))}
    if kind in ("B", "BOOL", "NULL"):
        return value
    raise InvalidError("Supplied AttributeValue is empty, must contain exactly one of the supported datatypes")


def _distinct(values: list[Any]) -> list[Any]:
    if not values:
        raise InvalidError("One or more parameter values were invalid: An number set  may not be empty")
    if len(set(values)) < len(values):
        raise InvalidError("Input collection contains duplicates")
    return values


def number(text: str) -> str:
    """A number's one form: no exponent, no zeros that say nothing."""
    if not isinstance(text, str):
        raise InvalidError("The value of an N must be a string")
    if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and (text[0] != "0" or text == "0"):
        return text
    return _number(text)


@lru_cache(maxsize=4096)
def _number(text: str) -> str:
    try:
        found = Decimal(text)
    except InvalidOperation:
        raise InvalidError(f"The parameter cannot be converted to a numeric value: {text}") from None
    if not found.is_finite() or "_" in text or text != text.strip():
        raise InvalidError(f"The parameter cannot be converted to a numeric value: {text}")
    return number_text(found)


def number_text(found: Decimal) -> str:
    """The one form of a number that was computed; refused where DynamoDB cannot hold it."""
    if not found:
        return "0"
    found = found.normalize(Context(prec=len(found.as_tuple().digits)))
    if len(found.as_tuple().digits) > MOST_DIGITS:
        raise InvalidError("Attempting to store more than 38 significant digits in a Number")
    if found.adjusted() > _LARGEST_EXPONENT:
        raise InvalidError("Number overflow. Attempting to store a number with magnitude larger than supported range")
    if found.adjusted() < _SMALLEST_EXPONENT:
        raise InvalidError("Number underflow. Attempting to store a number with magnitude smaller than supported range")
    return format(found, "f")


def size_of(item: Mapping[str, Typed]) -> int:
    """How many bytes of the 400 KB an item takes."""
    size = 0
    for name, value in item.items():
        size += len(name) if name.isascii() else len(name.encode())
        for kind in value:
            held = value[kind]
            if kind == "S":
                size += len(held) if held.isascii() else len(held.encode("utf-8", "surrogatepass"))
            else:
                size += _SIZES[kind](held)
    return size


def _size_of_one(value: Typed) -> int:
    return size_of({"": value})


def _number_size(text: str) -> int:
    digits = text.lstrip("-0.").replace(".", "").rstrip("0")
    return (len(digits) + 1) // 2 + 1 + text.startswith("-")


_SIZES: dict[str, Callable[[Any], int]] = {
    "S": lambda held: len(held.encode()),
    "N": _number_size,
    "B": len,
    "BOOL": lambda held: 1,
    "NULL": lambda held: 1,
    "M": lambda held: 3 + len(held) + size_of(held),
    "L": lambda held: 3 + sum(1 + _size_of_one(each) for each in held),
    "SS": lambda held: sum(len(each.encode()) for each in held),
    "NS": lambda held: sum(_number_size(each) for each in held),
    "BS": lambda held: sum(len(each) for each in held),
}
_NESTED = frozenset({"M", "L", "SS", "NS", "BS"})


def same(one: Typed, other: Typed) -> bool:
    """Equal in type and value; the order of a set says nothing."""
    if one == other:
        return True
    return one.keys() == other.keys() and not _NESTED.isdisjoint(one) and _frozen(one) == _frozen(other)


def _frozen(value: Typed) -> Any:
    for kind, held in value.items():
        if kind in ("SS", "NS", "BS"):
            return kind, frozenset(held)
        if kind == "M":
            return kind, {name: _frozen(each) for name, each in held.items()}
        if kind == "L":
            return kind, [_frozen(each) for each in held]
    return dict(value)


def order_of(value: Typed) -> tuple[str, Any] | None:
    """By what two values of one type are ordered; None where there is no order."""
    for kind, held in value.items():
        if kind == "N":
            return kind, Decimal(held)
        if kind in {"S", "B"}:
            return kind, held
    return None
