"""What a commit counted, and what that makes of rows found pending later (domain: after a commit). Pure.

Belongs here: the compact memory of counted rows, telling late usage from a lost clean-up, a repeated put and an
overwritten second. Does not: where the memory is kept (aggregated_table).
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from metering_dagster.metering.rules.quantities import EXACT, Allocations, number_text
from metering_dagster.metering.rules.raw_row import BillableRow


@dataclass(frozen=True, slots=True)
class CountedRow:
    """Of one counted row what identifies its content: its quantity and a digest of its allocations ("" for none)."""

    quantity: Decimal
    allocations: str


Counted = Mapping[int, CountedRow]
"""The counted rows of a group, by their second of the hour."""


@dataclass(frozen=True, slots=True)
class LateRow:
    """A pending row that is not in its group's commit."""

    usage: BillableRow
    late_by: Decimal
    """What the bill lacks because of it; negative where a counted second was overwritten with less."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The states that the good pending rows of a committed group end in."""

    aggregated: tuple[BillableRow, ...]
    late: tuple[LateRow, ...]
    total: Decimal
    """Of the commit."""
    count: int
    """Rows in the commit."""


def count(usages: Iterable[BillableRow]) -> Counted:
    """Return the memory of these rows."""
    return {u.second: CountedRow(u.quantity, allocations_digest(u.allocations)) for u in usages}


def allocations_digest(allocations: Allocations | None) -> str:
    """32 hexadecimal digits that stand for the allocations, equal for equal ones; "" for none."""
    if allocations is None:
        return ""
    text = json.dumps([[a.tags, number_text(a.quantity)] for a in allocations])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def encode(counted: Counted) -> bytes:
    """Compressed JSON of `[second, quantity, digest]` lists: about 5 bytes for each plain row of a full hour."""
    rows = [[second, number_text(row.quantity), row.allocations] for second, row in sorted(counted.items())]
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 9)


def decode(data: object) -> Counted | None:
    """Return the inverse of `encode`; None for what it has not written."""
    if not isinstance(data, bytes):
        return None
    try:
        rows = json.loads(zlib.decompress(data))
        return {second: CountedRow(Decimal(quantity), allocations) for second, quantity, allocations in rows}
    except (zlib.error, ValueError, TypeError, ArithmeticError, RecursionError):
        return None


def settle(total_quantity: Decimal, counted: Counted, usages: Iterable[BillableRow]) -> Settlement:
    """Tell the good pending rows of a group that we committed apart (domain: after a commit).

    A row is `Aggregated` if its second was counted with the same quantity and allocations, else late by the difference.
    """
    aggregated, late = [], []
    for usage in usages:
        row = counted.get(usage.second)
        if row == CountedRow(usage.quantity, allocations_digest(usage.allocations)):
            aggregated.append(usage)
        else:
            late.append(LateRow(usage, EXACT.subtract(usage.quantity, row.quantity if row else Decimal(0))))
    return Settlement(tuple(aggregated), tuple(late), total_quantity, len(counted))
