"""A stored aggregate as a record of BatchMeterUsage: its contract and its shape in the API. Pure.

Belongs here: judging what is pending in the aggregated table, whoever wrote it (direct submit), and the API's form of
a record. Does not: which records share a call (batching), calling (metering_api).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from metering_dagster.core import hours
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.aggregate_group import Aggregate, group_fault, legacy_identifier
from metering_dagster.metering.rules.quantities import (
    Allocations,
    has_repeated_tag_set,
    number_fault,
    number_text,
    read_allocations,
)
from metering_dagster.metering.rules.raw_row import GroupKey, account_of, parse_sort_key
from metering_dagster.metering.rules.statuses import Reason, RecordStatus


@dataclass(frozen=True, slots=True)
class StoredAggregate:
    """An item of the aggregated table, judged by nobody. `object` fields hold whatever type was stored there."""

    license_arn: str
    sort_key: str
    account: object = None
    dimension: object = None
    hour_bucket: object = None
    quantity: object = None
    allocations: object = None
    customer_identifier: object = None
    pending: str | None = None
    status: str | None = None
    put_back: bool = False
    """Whether it was put back after it had been gone (`putBackAt`)."""
    stored: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """For the store alone: the content as it was read, on which a rejection hangs."""

    @property
    def buyer(self) -> tuple[str, str]:
        """License and account, as its key says: the attributes may be missing."""
        return self.license_arn, account_of(self.sort_key)


@dataclass(frozen=True, slots=True)
class RecordEnd:
    """The end of a pending record: the service's answer, or the reason why it was never sent.

    `pending` and `quantity` are what was read: the end is only written where they still stand.
    """

    license_arn: str
    sort_key: str
    pending: str | None
    quantity: object
    status: RecordStatus
    reason: str = ""
    record_id: str = ""
    stored: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Of what breaks the contract: its whole content as it was read, for any of it may be mended meanwhile."""


def judge_aggregate(stored: StoredAggregate, now: datetime, quantities: Quantities) -> Aggregate | Reason:
    """Return the record that a stored aggregate states, or the first of its faults, in the order of the
    reason codes.
    """
    key = _aggregate_key(stored)
    if isinstance(key, Reason):
        return key
    fault = number_fault(stored.quantity, quantities)
    if fault is not None:
        return fault
    assert isinstance(stored.quantity, Decimal)  # number_fault has looked
    allocations: Allocations | None = None
    if stored.allocations is not None and stored.allocations != []:  # an empty list is none
        if has_repeated_tag_set(stored.allocations, quantities):
            return Reason.MALFORMED_ALLOCATIONS
        read = read_allocations(stored.allocations, stored.quantity, quantities)
        if isinstance(read, Reason):
            return read
        allocations = read
    identifier = None
    if key.is_legacy:
        found = legacy_identifier([stored.customer_identifier])
        if isinstance(found, Reason):
            return found
        identifier = found
    aggregate = Aggregate(key, stored.quantity, allocations, identifier, put_back=stored.put_back)
    return group_fault(aggregate, now, quantities) or aggregate


def _aggregate_key(stored: StoredAggregate) -> GroupKey | Reason:
    parts = parse_sort_key(stored.sort_key)
    if parts is None:
        return Reason.MALFORMED_SORT_KEY
    pairs = (
        (stored.account, parts.account),
        (stored.dimension, parts.dimension),
        (stored.hour_bucket, parts.timestamp),
        (stored.pending, parts.timestamp),
    )
    if any(attribute is not None and attribute != part for attribute, part in pairs):
        return Reason.SORT_KEY_MISMATCH
    try:
        hour = hours.parse_bucket(parts.timestamp)
    except ValueError:
        return Reason.MALFORMED_TIMESTAMP
    return GroupKey(stored.license_arn, parts.account, parts.dimension, hour)


def api_allocations(allocations: Allocations, quantities: Quantities) -> list[dict[str, Any]]:
    """UsageAllocations in the API's own shape, with the kind of quantity that the record has."""
    shaped: list[dict[str, Any]] = []
    for allocation in allocations:
        entry: dict[str, Any] = _quantity_field("AllocatedUsageQuantity", allocation.quantity, quantities)
        if allocation.tags:
            entry["Tags"] = [{"Key": key, "Value": value} for key, value in allocation.tags]
        shaped.append(entry)
    return shaped


def api_record(aggregate: Aggregate, quantities: Quantities, instant: datetime | None = None) -> dict[str, Any]:
    """Return the UsageRecord of one aggregate. A legacy one carries the customer's identifier, else the account.

    `instant` is the Timestamp, another one of the aggregate's hour than its beginning.
    """
    key = aggregate.key
    record: dict[str, Any] = {"Timestamp": instant or key.hour, "Dimension": key.dimension}
    if not key.is_legacy:
        record |= {"CustomerAWSAccountId": key.account, "LicenseArn": key.license_arn}
    elif aggregate.customer_identifier:
        record["CustomerIdentifier"] = aggregate.customer_identifier
    else:
        record["CustomerAWSAccountId"] = key.account
    record |= _quantity_field("Quantity", aggregate.quantity, quantities)
    if aggregate.allocations is not None:
        record["UsageAllocations"] = api_allocations(aggregate.allocations, quantities)
    return record


def _quantity_field(name: str, quantity: Decimal, quantities: Quantities) -> dict[str, Any]:
    """Never both kinds in one record (domain: QuantityAsDecimal)."""
    if quantities is Quantities.INTEGER:
        return {name: int(quantity)}
    return {f"{name}AsDecimal": number_text(quantity)}


def record_bytes(record: Mapping[str, Any]) -> int:
    """Return how many bytes the record takes in the request's JSON."""
    return len(json.dumps(record, default=lambda instant: int(instant.timestamp())))


Identity = tuple[str, str, str, datetime]
"""What the service takes for one record: license, buyer, dimension, hour (for each Region)."""


def identity(record: Mapping[str, Any]) -> Identity:
    """Return the identity of a record as sent, or as the service echoes it."""
    buyer = record.get("CustomerAWSAccountId") or record.get("CustomerIdentifier") or ""
    return record.get("LicenseArn") or "", buyer, record["Dimension"], hours.floor_hour(record["Timestamp"])
