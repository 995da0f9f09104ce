"""Quantities, allocations and tags. Pure.

Belongs here: the two kinds of quantity, tags, the sum of the allocations. Does not: the rest of a record (rules.py).
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any

from metering_dagster.devstack.sandbox.errors import Code, RefusedError
from metering_dagster.devstack.sandbox.shapes import structure

LARGEST_INTEGER = 2_147_483_647
DECIMAL = re.compile(r"(0|[1-9][0-9]{0,9})(\.[0-9]{1,6})?")
MOST_ALLOCATIONS = 2_500
MOST_TAGS = 5
LONGEST_TAG_KEY = 100
LONGEST_TAG_VALUE = 256
TAG_TEXT = re.compile(r"[a-zA-Z0-9+ -=._:\/@]+")


class QuantityForm(StrEnum):
    """Kind of quantity: never both in one record, and the same in its allocations."""

    INTEGER = "Quantity"
    DECIMAL = "QuantityAsDecimal"


TagSet = frozenset[tuple[str, str]]


def quantity_of(record: Mapping[str, Any]) -> tuple[QuantityForm, Decimal]:
    """Return the record's quantity and its kind. Raises `RefusedError` for none, both or an invalid one."""
    given = [kind for kind in QuantityForm if record.get(kind) is not None]
    if len(given) != 1:
        raise RefusedError(Code.VALIDATION, "A usage record must give exactly one of Quantity and QuantityAsDecimal.")
    kind = given[0]
    return kind, amount(kind, record[kind])


def amount(kind: QuantityForm, value: Any) -> Decimal:
    """Parse a quantity of this kind. Raises `RefusedError` for an invalid form."""
    if kind is QuantityForm.INTEGER:
        if type(value) is not int or not 0 <= value <= LARGEST_INTEGER:
            raise RefusedError(Code.VALIDATION, f"A quantity must be a whole number from 0 to {LARGEST_INTEGER}.")
        return Decimal(value)
    if not isinstance(value, str) or DECIMAL.fullmatch(value) is None:
        raise RefusedError(
            Code.VALIDATION, "A decimal quantity must be a string such as 17.42, with at most 6 decimals."
        )
    return Decimal(value)


def check_allocations(allocations: Any, kind: QuantityForm, quantity: Decimal) -> None:
    """Check for 1 to 2,500 allocations of the record's kind that add up to its quantity, no tag set twice.

    Raises `RefusedError` for any other ones; a record without allocations is valid.
    """
    if allocations is None:
        return
    if not isinstance(allocations, list):
        raise RefusedError(Code.VALIDATION, "UsageAllocations must be a list.")
    if not 1 <= len(allocations) <= MOST_ALLOCATIONS:
        raise _misallocated(f"A usage record takes 1 to {MOST_ALLOCATIONS} allocations.")
    seen: set[TagSet] = set()
    total = Decimal(0)
    for each in allocations:
        allocation = structure(each, "An allocation", {"Tags", *map(_allocated, QuantityForm)})
        tags = tag_set(allocation.get("Tags"))
        if tags in seen:
            raise _misallocated("Two allocations have the same tags, or more than one has none.")
        seen.add(tags)
        total += _allocated_amount(allocation, kind)
    if total != quantity:
        raise _misallocated("The allocations do not add up to the quantity.")


def tag_set(tags: Any) -> TagSet:
    """Read the tags of one allocation; none at all is the untagged bucket. Raises `RefusedError` for invalid ones."""
    if tags is None:
        return frozenset()
    if not isinstance(tags, list):
        raise RefusedError(Code.VALIDATION, "Tags must be a list.")
    if not 1 <= len(tags) <= MOST_TAGS:
        raise RefusedError(Code.TAG, f"An allocation takes 1 to {MOST_TAGS} tags, or no Tags at all.")
    pairs = [_tag(each) for each in tags]
    if len({key for key, _ in pairs}) != len(pairs):
        raise RefusedError(Code.TAG, "A tag key occurs twice in one allocation.")
    return frozenset(pairs)


def _tag(given: Any) -> tuple[str, str]:
    tag = structure(given, "A tag", {"Key", "Value"})
    return _tag_text(tag.get("Key"), LONGEST_TAG_KEY), _tag_text(tag.get("Value"), LONGEST_TAG_VALUE)


def _tag_text(value: Any, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest or TAG_TEXT.fullmatch(value) is None:
        raise RefusedError(Code.TAG, f"A tag has a key and a value, here of 1 to {longest} permitted characters.")
    return value


def _allocated(kind: QuantityForm) -> str:
    return f"AllocatedUsage{kind}"


def _allocated_amount(allocation: Mapping[str, Any], kind: QuantityForm) -> Decimal:
    given = [each for each in QuantityForm if allocation.get(_allocated(each)) is not None]
    if given != [kind]:
        raise _misallocated("Each allocation must give one quantity, of the same kind as the record's.")
    return amount(kind, allocation[_allocated(kind)])


def _misallocated(message: str) -> RefusedError:
    return RefusedError(Code.USAGE_ALLOCATIONS, message)
