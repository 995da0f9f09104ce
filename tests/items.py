"""What a seller, or a pipeline, has written into the tables: ordinary items, from which each test differs in one thing.

A number is given as its text ("5E0" is stored as that); any other type as DynamoDB's own JSON ({"S": "abc"}).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from metering_dagster.core.aws import dynamodb

LICENSE = "arn:aws:license-manager::111122223333:license:l-0123456789abcdef"
OTHER_LICENSE = "arn:aws:license-manager::111122223333:license/l-fedcba9876543210"
ACCOUNT = "444455556666"
OTHER_ACCOUNT = "777788889999"
DIMENSION = "api_calls"
HOUR = "2026-11-28T10"
LONGEST_TAG_KEY, LONGEST_TAG_VALUE = 100, 256

Typed = Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """One item of one of the three tables, in DynamoDB's typed JSON."""

    table: str
    values: dict[str, Typed]

    @property
    def secrets(self) -> set[str]:
        """What of it must never show in full: license, account, customer identifier."""
        named = ("licenseArn", "customerAWSAccountId", "customerIdentifier")
        texts = {str(self.values[name].get("S", "")) for name in named if name in self.values}
        if self.table == "usage":
            texts.add(str(self.values["customerAWSAccountId_dimension_timestamp"]["S"]).split("#")[0])
        return {text for text in texts if text.startswith("arn:") or len(text) == 12}

    @property
    def sort_key(self) -> str:
        """Of a raw row."""
        return str(self.values["customerAWSAccountId_dimension_timestamp"]["S"])


def filled_up(item: Item, room: int) -> Item:
    """The item, so large that no more than about `room` bytes go in: DynamoDB takes 400 KB."""
    size = sum(len(name) + len(str(next(iter(value.values())))) for name, value in item.values.items())
    return Item(item.table, {**item.values, "filler": {"S": "x" * (400 * 1024 - size - room)}})


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """A typed item with plain values; numbers are exact decimals."""
    return {name: dynamodb.plain(value) for name, value in values.items()}


def timestamp(hour: str, second: int) -> str:
    """The second of the hour as raw rows write it."""
    return (datetime.fromisoformat(f"{hour}:00:00") + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S")


def a_usage(
    second: int = 0,
    quantity: str | Typed | None = "1",
    *,
    license: str = LICENSE,
    account: str = ACCOUNT,
    dimension: str = DIMENSION,
    hour: str = HOUR,
    filed: str | None = "",
    sort_key: str | None = None,
    allocations: list[dict[str, Any]] | Typed | None = None,
    **attributes: str | Typed | None,
) -> Item:
    """A raw row. `filed` is its meteringPending: the hour of its key unless said otherwise, absent where None."""
    at = timestamp(hour, second)
    values: dict[str, Any] = {
        "licenseArn": license,
        "customerAWSAccountId_dimension_timestamp": sort_key or f"{account}#{dimension}#{at}",
        "customerAWSAccountId": account,
        "dimension": dimension,
        "timestamp": None if sort_key else at,
        "quantity": {"N": quantity} if isinstance(quantity, str) else quantity,
        "usageAllocations": allocations,
        "meteringPending": hour if filed == "" else filed,
        "createdAt": f"{at}Z",
        **attributes,
    }
    return Item("usage", _typed(values))


def some_usage(*quantities: str, **changes: Any) -> list[Item]:
    """Raw rows of these quantities, one a second."""
    return [a_usage(second, quantity, **changes) for second, quantity in enumerate(quantities)]


def an_aggregate(
    quantity: str | Typed | None = "10",
    *,
    license: str = LICENSE,
    account: str = ACCOUNT,
    dimension: str = DIMENSION,
    hour: str = HOUR,
    status: str | None = None,
    allocations: list[dict[str, Any]] | Typed | None = None,
    **attributes: str | Typed | None,
) -> Item:
    """An aggregate that somebody else wrote; pending unless it has a status."""
    values: dict[str, Any] = {
        "licenseArn": license,
        "account_dimension_hour": f"{account}#{dimension}#{hour}",
        "customerAWSAccountId": account,
        "dimension": dimension,
        "hourBucket": hour,
        "quantity": {"N": quantity} if isinstance(quantity, str) else quantity,
        "usageAllocations": allocations,
        "meteringPending": None if status else hour,
        "meteringStatus": status,
        **attributes,
    }
    return Item("aggregated", _typed(values))


def a_subscriber(license: str = LICENSE, account: str = ACCOUNT, **attributes: str | Typed | None) -> Item:
    """An active subscriber."""
    values: dict[str, Any] = {
        "licenseArn": license,
        "customerAWSAccountId": account,
        "subscriptionStatus": "active",
        "agreementStatus": "active",
        **attributes,
    }
    return Item("subscribers", _typed(values))


def a_deprovisioning(
    expiry: str | None, license: str = LICENSE, account: str = ACCOUNT, **attributes: str | Typed | None
) -> Item:
    """A subscriber whose flush window is open, until `expiry`."""
    marks: dict[str, str | Typed | None] = {
        "subscriptionStatus": "deprovisioning",
        "deprovisioningPendingFlag": "1",
        "deprovisioningExpiry": expiry,
    }
    return a_subscriber(license, account, **(marks | attributes))


def an_allocation(quantity: str, **tags: str) -> dict[str, Any]:
    """A part of a quantity in the API's own shape; without tags, the untagged bucket."""
    entry: dict[str, Any] = {"AllocatedUsageQuantityAsDecimal": quantity}
    return entry | {"Tags": [{"Key": k, "Value": v} for k, v in tags.items()]} if tags else entry


def longest_allocations(count: int, start: int = 0) -> list[dict[str, Any]]:
    """That many allocations of 1, each of 5 tags whose keys and values are of the longest kind."""
    return [
        an_allocation("1", **{
            f"{tag}".ljust(LONGEST_TAG_KEY, "k"): f"{number}-{tag}-".ljust(LONGEST_TAG_VALUE, "v") for tag in range(5)
        })
        for number in range(start, start + count)
    ]  # fmt: skip


def _typed(values: Mapping[str, Any]) -> dict[str, Typed]:
    return {name: _typed_value(value) for name, value in values.items() if value is not None}


def _typed_value(value: Any) -> Typed:
    if isinstance(value, Mapping):
        return value  # DynamoDB's own JSON
    return dynamodb.typed(Decimal(value) if isinstance(value, int) else value)
