"""The contract of one raw row: where it belongs and whether it can be billed (domain: the usage table). Pure.

Belongs here: the sort key, the faults of a row by itself, the identity of the group it belongs to.
Does not: what its neighbors make of it (aggregate_group), how it is stored (usage_table).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from metering_dagster.core import hours
from metering_dagster.core.instants import instant_of_any_form
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.quantities import Allocations, number_fault, read_allocations
from metering_dagster.metering.rules.statuses import RawStatus, Reason

_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]")
"""Hours by name, for some versions of Python read 24:00:00 as the next day's 0."""

OURS = "metering-dagster#"
"""Begins the hash keys of items of our own in the aggregated table. Whoever else takes such a key is refused."""


@dataclass(frozen=True, slots=True)
class RawRow:
    """A raw row as it stands in the table, judged by nobody. `object` fields hold whatever type was stored there."""

    license_arn: str
    sort_key: str
    account: object = None
    dimension: object = None
    timestamp: object = None
    quantity: object = None
    allocations: object = None
    customer_identifier: object = None
    pending: str | None = None
    """`meteringPending`: present means pending, whatever the status says."""
    status: object = None
    reason: object = None
    stored: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """For the store alone: the content as it was read, on which its conditional writes hang."""

    @property
    def is_rejected(self) -> bool:
        """Return whether it is finally rejected: by its status, and not pending again."""
        return self.pending is None and self.status == RawStatus.REJECTED


@dataclass(frozen=True, slots=True)
class RowEnd:
    """The state that a row is given: final with a status and a reason, or pending under an hour."""

    row: RawRow
    status: RawStatus | None
    reason: str = ""
    pending: str | None = None
    late_by: Decimal | None = None
    """Of `LateUsage`: what the bill lacks because of it; negative where a counted second was overwritten with less."""


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """The key of what is billed as one record: license, account, dimension, hour."""

    license_arn: str
    account: str
    dimension: str
    hour: datetime

    @property
    def bucket(self) -> str:
        """Return the hour as the tables name it."""
        return hours.bucket(self.hour)

    @property
    def prefix(self) -> str:
        """Return `{account}#{dimension}#{hour}`: the beginning of its rows' sort keys, and its aggregate's sort key."""
        return f"{self.account}#{self.dimension}#{self.bucket}"

    @property
    def is_legacy(self) -> bool:
        """Return whether `license_arn` holds a product code (domain: legacy products)."""
        return not self.license_arn.startswith("arn:")


class SortKey(NamedTuple):
    """The three parts of a raw row's sort key; the timestamp as text, for it may be none."""

    account: str
    dimension: str
    timestamp: str


def parse_sort_key(sort_key: str) -> SortKey | None:
    """Return the account up to the first `#`, the timestamp after the last; None for fewer than two of them.

    A dimension may itself contain `#`.
    """
    account, first, rest = sort_key.partition("#")
    dimension, second, timestamp = rest.rpartition("#")
    return SortKey(account, dimension, timestamp) if first and second else None


def account_of(sort_key: str) -> str:
    """Return the account that a key of either table begins with; empty where it is no such key."""
    account, found, _ = sort_key.partition("#")
    return account if found else ""


def parse_timestamp(text: str) -> datetime | None:
    """Return the instant of `YYYY-MM-DDTHH:MM:SS` in UTC, or None."""
    if not _TIMESTAMP.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None


def group_of(license_arn: str, sort_key: str) -> GroupKey | None:
    """Return the group that the row's key says, whatever its `meteringPending` is; None where the key names no hour."""
    parts = parse_sort_key(sort_key)
    instant = parse_timestamp(parts.timestamp) if parts else None
    if parts is None or instant is None:
        return None
    return GroupKey(license_arn, parts.account, parts.dimension, hours.floor_hour(instant))


def key_fault(
    sort_key: str, account: object = None, dimension: object = None, timestamp: object = None
) -> Reason | None:
    """Return what is wrong with the row's key, by itself or beside the attributes.

    An absent attribute contradicts nothing, and neither does a `timestamp` that is no instant, or the key's own in
    another spelling (domain: the usage table).
    """
    found = _read_key(sort_key, account, dimension, timestamp)
    return found if isinstance(found, Reason) else None


def _read_key(sort_key: str, account: object, dimension: object, timestamp: object) -> datetime | Reason:
    """Return the instant that the key names, or what is wrong with the key."""
    parts = parse_sort_key(sort_key)
    if parts is None:
        return Reason.MALFORMED_SORT_KEY
    instant = parse_timestamp(parts.timestamp)
    for attribute, part in ((account, parts.account), (dimension, parts.dimension)):
        if attribute is not None and attribute != part:
            return Reason.SORT_KEY_MISMATCH
    if instant is None:
        return Reason.MALFORMED_TIMESTAMP
    if timestamp not in (None, parts.timestamp):
        stated = instant_of_any_form(timestamp)
        if stated is not None and stated.replace(microsecond=0) != instant:
            return Reason.SORT_KEY_MISMATCH
    return instant


@dataclass(frozen=True, slots=True)
class BillableRow:
    """A raw row that can be billed."""

    row: RawRow
    second: int
    """Of the hour, 0 to 3599. One row a second: it identifies the row within its group."""
    quantity: Decimal
    allocations: Allocations | None


def judge(row: RawRow, quantities: Quantities) -> BillableRow | Reason:
    """Return the usage that a row states, or the first of its faults (domain: reason codes)."""
    instant = _read_key(row.sort_key, row.account, row.dimension, row.timestamp)
    if isinstance(instant, Reason):
        return instant
    fault = number_fault(row.quantity, quantities)
    if fault is not None:
        return fault
    assert isinstance(row.quantity, Decimal)  # number_fault has looked
    allocations = None
    if row.allocations not in (None, []):  # an empty list is none (domain: the usage table)
        read = read_allocations(row.allocations, row.quantity, quantities)
        if isinstance(read, Reason):
            return read
        allocations = read
    return BillableRow(row, instant.minute * 60 + instant.second, row.quantity, allocations)
