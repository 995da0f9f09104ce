"""The ordinary row, group, aggregate and record of the tests: each test says only what differs."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from metering_dagster.core.hours import HOUR, bucket
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.quantities import Allocation
from metering_dagster.metering.rules.raw_row import BillableRow, GroupKey, RawRow, judge
from metering_dagster.metering.rules.statuses import RawStatus
from metering_dagster.metering.rules.usage_record import StoredAggregate

NOW = datetime(2026, 11, 28, 12, 20, 30, tzinfo=UTC)
TWO_BACK = datetime(2026, 11, 28, 10, tzinfo=UTC)
LICENSE = "arn:aws:license-manager::123456789012:license:l-0123456789abcdef"
ACCOUNT = "210987654321"
DIMENSION = "api_calls"
DECIMAL, INTEGER = Quantities.DECIMAL, Quantities.INTEGER


def a_key(**differences: Any) -> GroupKey:
    """A group two hours back."""
    fields = {"license_arn": LICENSE, "account": ACCOUNT, "dimension": DIMENSION, "hour": TWO_BACK}
    return GroupKey(**{**fields, **differences})


def a_row(second: int = 0, quantity: object = Decimal(1), *, key: GroupKey | None = None, **differences: Any) -> RawRow:
    """A pending row of the group, as a seller writes it."""
    key = key or a_key()
    stamp = f"{key.hour + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S}"
    fields = {
        "license_arn": key.license_arn,
        "sort_key": f"{key.account}#{key.dimension}#{stamp}",
        "account": key.account,
        "dimension": key.dimension,
        "timestamp": stamp,
        "quantity": quantity,
        "pending": key.bucket,
    }
    return RawRow(**{**fields, **differences})


def a_rejected_row(reason: object, second: int = 0, quantity: object = Decimal(1), **differences: Any) -> RawRow:
    """A row that an earlier visit, or another pipeline, rejected."""
    final = {"pending": None, "status": RawStatus.REJECTED.value, "reason": reason}
    return a_row(second, quantity, **{**final, **differences})


def a_usage(second: int = 0, quantity: object = Decimal(1), **differences: Any) -> BillableRow:
    """A row that is good."""
    usage = judge(a_row(second, quantity, **differences), DECIMAL)
    assert isinstance(usage, BillableRow)
    return usage


def an_allocation(quantity: object = Decimal(1), **tags: str) -> dict[str, Any]:
    """One entry of `usageAllocations` in the API's shape; without tags the untagged bucket."""
    entry: dict[str, Any] = {"AllocatedUsageQuantityAsDecimal": quantity}
    if tags:
        entry["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]
    return entry


def longest_allocations(count: int) -> tuple[Allocation, ...]:
    """So many buckets of 1, each with 5 tags whose keys and values are of the longest kind."""
    return tuple(
        Allocation(tuple((f"{tag}{'k' * 99}", f"{number:06}{'v' * 250}") for tag in range(5)), Decimal(1))
        for number in range(count)
    )


def api_shape(allocations: tuple[Allocation, ...]) -> list[dict[str, Any]]:
    """These buckets as a seller stores them."""
    return [an_allocation(a.quantity, **dict(a.tags)) for a in allocations]


def an_aggregate(quantity: object = Decimal(1), **differences: Any) -> Aggregate:
    """A record to be billed; differences are of its key, but for allocations and the customer's identifier."""
    own = {name: differences.pop(name) for name in ("allocations", "customer_identifier") if name in differences}
    return Aggregate(a_key(**differences), Decimal(str(quantity)), **own)


def a_stored_aggregate(quantity: object = Decimal(1), *, key: GroupKey | None = None, **differences: Any):
    """A pending item of the aggregated table."""
    key = key or a_key()
    fields = {
        "license_arn": key.license_arn,
        "sort_key": key.prefix,
        "account": key.account,
        "dimension": key.dimension,
        "hour_bucket": key.bucket,
        "quantity": quantity,
        "pending": key.bucket,
    }
    return StoredAggregate(**{**fields, **differences})


def the_next_hour(key: GroupKey) -> str:
    """The bucket after the group's own."""
    return bucket(key.hour + HOUR)
