"""Exact quantities and their allocations: what a number is, how numbers add up, how they are written. Pure.

Belongs here: the kinds of quantity the API takes and their limits, allocations and their tags, the faults of a
quantity or an allocation by itself (domain: reason codes). Does not: rows, groups, what becomes of a fault.

Sums are exact: a result that would have to be rounded raises instead.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any

from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.statuses import Reason

EXACT = Context(prec=320, traps=[InvalidOperation, Inexact, Overflow])
"""DynamoDB's numbers lie between 1E-130 and 1E+126: 320 digits hold any sum of them without rounding."""
MAX_DECIMALS = 6
MAX_ALLOCATIONS = 2500
MAX_TAGS = 5
MAX_TAG_KEY, MAX_TAG_VALUE = 100, 256

_TAG_TEXT = re.compile(r"[a-zA-Z0-9+ -=._:/@]+")
_NUMERIC_TEXT = re.compile(r"\s*[+-]?([0-9]{1,200}(\.[0-9]{0,200})?|\.[0-9]{1,200})([eE][+-]?[0-9]{1,3})?\s*")
_MAX_DIGITS, _LEAST_EXPONENT, _MOST_EXPONENT = 38, -130, 125
"""What DynamoDB stores as a number."""
_API_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,9})(\.[0-9]{1,6})?")


Tags = tuple[tuple[str, str], ...]
"""A tag set, sorted by key; empty for the untagged bucket."""


@dataclass(frozen=True, slots=True, order=True)
class Allocation:
    """The part of a quantity that belongs to one tag set."""

    tags: Tags
    quantity: Decimal


Allocations = tuple[Allocation, ...]
"""Sorted by tags, each tag set once."""


def number_text(value: Decimal) -> str:
    """Return the shortest plain decimal: `10`, `0.5`, never `1E+1` or `0.50`. It is what QuantityAsDecimal takes."""
    text = format(value or Decimal(0), "f")  # -0 is 0
    return text.rstrip("0").rstrip(".") if "." in text else text


def total(values: Iterable[Decimal]) -> Decimal:
    """Return the exact sum; 0 of nothing."""
    result = Decimal(0)
    for value in values:
        result = EXACT.add(result, value)
    return result


def number_fault(value: object, quantities: Quantities) -> Reason | None:
    """Return what is wrong with a raw quantity, by itself; None for a number that can be billed.

    `value` is as DynamoDB gave it: a Decimal for a number, else any other type.
    """
    if value is None:
        return Reason.MISSING_QUANTITY
    if not isinstance(value, Decimal):
        return Reason.NON_NUMERIC_QUANTITY
    if value < 0:
        return Reason.NEGATIVE_QUANTITY
    if quantities is Quantities.INTEGER and not _has_decimals(value, 0):
        return Reason.NON_INTEGER_QUANTITY
    if not _has_decimals(value, MAX_DECIMALS):
        return Reason.TOO_MANY_DECIMALS
    return Reason.QUANTITY_TOO_LARGE if value > quantities.limit else None


def readable_number(value: object) -> Decimal | None:
    """Return the number that a value states, also as a numeric string; None where it states none (domain: aggregates of
    others).

    None as well beyond what DynamoDB stores as a number, so that sums stay exact.
    """
    if isinstance(value, str):
        if not _NUMERIC_TEXT.fullmatch(value):
            return None
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    shortest = EXACT.normalize(value) if len(value.as_tuple().digits) <= EXACT.prec else None
    if shortest is None or len(shortest.as_tuple().digits) > _MAX_DIGITS:
        return None
    return value if not value or _LEAST_EXPONENT <= value.adjusted() <= _MOST_EXPONENT else None


def _has_decimals(value: Decimal, most: int) -> bool:
    """Return whether the value needs at most so many decimals; `5.0` needs none."""
    scaled = EXACT.scaleb(value, most)
    return scaled == scaled.to_integral_value()


def read_allocations(raw: object, quantity: Decimal, quantities: Quantities) -> Allocations | Reason:
    """Return the allocations of a row in the API's own shape, or what is wrong with them.

    Equal tag sets are added up, as they are between the rows of a group. The sum must be `quantity`, exactly.
    """
    if not isinstance(raw, list) or not raw:
        return Reason.MALFORMED_ALLOCATIONS
    read = [_read_allocation(entry, quantities) for entry in raw]
    found = [entry for entry in read if isinstance(entry, Allocation)]
    if len(found) < len(read):
        return first_fault(entry for entry in read if isinstance(entry, Reason))
    if total(a.quantity for a in found) != quantity:
        return Reason.ALLOCATION_SUM_MISMATCH
    return merge(found)


def first_fault(faults: Iterable[Reason]) -> Reason:
    """Of several faults the one that is looked for first; ValueError of none."""
    order = list(Reason)
    return min(faults, key=order.index)


def merge(allocations: Iterable[Allocation]) -> Allocations:
    """Return one allocation for each tag set, with the sum of its quantities."""
    sums: dict[Tags, Decimal] = {}
    for allocation in allocations:
        sums[allocation.tags] = EXACT.add(sums.get(allocation.tags, Decimal(0)), allocation.quantity)
    return tuple(Allocation(tags, quantity) for tags, quantity in sorted(sums.items()))


def table_allocations(allocations: Allocations) -> list[dict[str, Any]]:
    """UsageAllocations as the aggregated table keeps them: numbers, fractions included, so that the reference pipeline
    reads them (domain: the tables).
    """
    shaped: list[dict[str, Any]] = []
    for allocation in allocations:
        entry: dict[str, Any] = {"AllocatedUsageQuantity": allocation.quantity}
        if allocation.tags:
            entry["Tags"] = tag_list(allocation.tags)
        shaped.append(entry)
    return shaped


def tag_list(tags: Tags) -> list[dict[str, str]]:
    """Return a tag set in the API's own shape."""
    return [{"Key": key, "Value": value} for key, value in tags]


def has_repeated_tag_set(raw: object, quantities: Quantities) -> bool:
    """Return whether a finished record's allocations name a tag set twice, which the API refuses."""
    if not isinstance(raw, list):
        return False
    tags = [a.tags for entry in raw if isinstance(a := _read_allocation(entry, quantities), Allocation)]
    return len(set(tags)) < len(tags)


def _read_allocation(entry: object, quantities: Quantities) -> Allocation | Reason:
    if not isinstance(entry, Mapping) or ("Tags" in entry and not _is_list_of_maps(entry["Tags"])):
        return Reason.MALFORMED_ALLOCATIONS
    quantity = _allocated(entry)
    if isinstance(quantity, Reason):
        return quantity
    if number_fault(quantity, quantities) is not None:
        return Reason.INVALID_ALLOCATION
    tags = _read_tags(entry.get("Tags", []))
    return tags if isinstance(tags, Reason) else Allocation(tags, quantity)


def _is_list_of_maps(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _allocated(entry: Mapping[str, Any]) -> Decimal | Reason:
    """Return the quantity of one allocation: a number, or, in the decimal field, the API's string."""
    number, text = entry.get("AllocatedUsageQuantity"), entry.get("AllocatedUsageQuantityAsDecimal")
    if (number is None) == (text is None):
        return Reason.MALFORMED_ALLOCATIONS
    if isinstance(text, str) and _API_DECIMAL.fullmatch(text):
        return Decimal(text)
    value = text if number is None else number
    return value if isinstance(value, Decimal) else Reason.INVALID_ALLOCATION


def _read_tags(raw: list[Mapping[str, Any]]) -> Tags | Reason:
    if len(raw) > MAX_TAGS:
        return Reason.TOO_MANY_TAGS
    pairs = [(tag.get("Key"), tag.get("Value")) for tag in raw]
    if any(text in (None, "") for pair in pairs for text in pair):
        return Reason.MISSING_TAG_KEY_OR_VALUE
    tags: dict[str, str] = {}
    for key, value in pairs:
        if not _is_tag_text(key, MAX_TAG_KEY) or not _is_tag_text(value, MAX_TAG_VALUE) or key in tags:
            return Reason.INVALID_TAG
        tags[str(key)] = str(value)
    return tuple(sorted(tags.items()))


def _is_tag_text(value: object, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and bool(_TAG_TEXT.fullmatch(value))
