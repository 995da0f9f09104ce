"""The rows of a group whose aggregate this project did not make (domain: an aggregate that we did not make). Pure.

Belongs here: reading rows as another pipeline did, the one figure by which a group is late, who bears it. Does not: the
rows of our own commits (committed_rows), how anything is stored.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from metering_dagster.core.instants import instant_of_any_form
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.quantities import EXACT, number_fault, readable_number, total
from metering_dagster.metering.rules.raw_row import GroupKey, RawRow, group_of
from metering_dagster.metering.rules.statuses import RawStatus, Reason


@dataclass(frozen=True, slots=True)
class StampedRow:
    """A raw row with its stamps as they are stored. `object` fields hold whatever type was stored there."""

    row: RawRow
    created_at: object = None
    updated_at: object = None
    late_by: object = None
    """Of a `LateUsage` row: what the bill lacks because of it."""

    @property
    def quantity(self) -> Decimal:
        """Return what it states, as another pipeline read it; 0 where that is no number."""
        return readable_number(self.row.quantity) or Decimal(0)

    @property
    def stated_late(self) -> Decimal:
        """Return what its group is late by because of it, as it says; where it says nothing, its quantity."""
        stated = readable_number(self.late_by)
        return self.quantity if stated is None else stated


@dataclass(frozen=True, slots=True)
class OthersSettlement:
    """The states that the pending rows of a group end in whose aggregate others made."""

    aggregated: tuple[RawRow, ...]
    late: tuple[tuple[RawRow, Decimal], ...]
    """Each with what the bill lacks because of it; negative where too much was billed."""
    rejected: tuple[tuple[RawRow, Reason], ...]
    """Pending rows without a readable number, or of a key that names no time: they are in no sum."""
    count: int
    """Rows that are `Aggregated` now, those from before included."""


def settle_others(key: GroupKey, quantity: object, made_at: object, rows: Iterable[StampedRow]) -> OthersSettlement:
    """Settle the pending rows of a group by one figure: what its rows sum up to, less what is billed and late already.

    `quantity` and `made_at` (`createdAt`) are the aggregate's, as stored; `rows` are all rows of the group
    (`groups.belongs`). At a figure of 0 the pending rows are `Aggregated`. Else those written after the aggregate are
    late, if that explains the figure exactly; else all pending rows are late and share it.
    """
    named = [(each, group_of(key.license_arn, each.row.sort_key)) for each in rows]
    pending = [each for each, of in named if each.row.pending is not None and of in (key, None)]
    rejected = tuple((each.row, reason) for each in pending if (reason := _reason_against(each.row, key)) is not None)
    refused = {row.sort_key for row, _ in rejected}
    open_rows = sorted((e for e in pending if e.row.sort_key not in refused), key=lambda e: e.row.sort_key)
    final = [each for each, of in named if each.row.pending is None and of == key]
    before = [each for each in final if each.row.status == RawStatus.AGGREGATED]
    late_before = [each for each in final if each.row.status == RawStatus.LATE]
    billed = readable_number(quantity)
    if billed is None:
        # Nobody can say what is in such an aggregate: whatever is pending is beside it.
        late = tuple((each.row, each.quantity) for each in open_rows)
        return OthersSettlement((), late, rejected, len(before))
    used = total(each.quantity for each in (*open_rows, *before, *late_before))
    figure = EXACT.subtract(EXACT.subtract(used, billed), total(each.stated_late for each in late_before))
    late_rows = _bearers(open_rows, figure, made_at)
    late_keys = {row.sort_key for row, _ in late_rows}
    aggregated = tuple(each.row for each in open_rows if each.row.sort_key not in late_keys)
    return OthersSettlement(aggregated, late_rows, rejected, len(before) + len(aggregated))


def _reason_against(row: RawRow, key: GroupKey) -> Reason | None:
    if group_of(key.license_arn, row.sort_key) is None:
        return Reason.MALFORMED_TIMESTAMP
    if readable_number(row.quantity) is not None:
        return None
    return number_fault(row.quantity, Quantities.DECIMAL) or Reason.NON_NUMERIC_QUANTITY


def _bearers(open_rows: Sequence[StampedRow], figure: Decimal, made_at: object) -> tuple[tuple[RawRow, Decimal], ...]:
    """Return the late rows, each with its part of the figure."""
    if not figure or not open_rows:
        return ()
    after = _written_after(open_rows, made_at)
    if after is not None and total(each.quantity for each in after) == figure:
        return tuple((each.row, each.quantity) for each in after)
    parts = []
    left = figure
    for each in open_rows:
        part = min(max(each.quantity, Decimal(0)), max(left, Decimal(0)))
        parts.append(part)
        left = EXACT.subtract(left, part)
    parts[-1] = EXACT.add(parts[-1], left)
    return tuple((each.row, part) for each, part in zip(open_rows, parts, strict=True))


def _written_after(rows: Sequence[StampedRow], made_at: object) -> list[StampedRow] | None:
    """Return the rows written after the aggregate; None where a stamp is missing, equal or unreadable: it explains
    nothing.
    """
    made = instant_of_any_form(made_at)
    if made is None:
        return None
    after = []
    for each in rows:
        written = instant_of_any_form(each.created_at if each.updated_at is None else each.updated_at)
        if written is None or written == made:
            return None
        if written > made:
            after.append(each)
    return after
