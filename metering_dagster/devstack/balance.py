"""The balance of a rehearsal: the usage of its sample, against final states and the bill. Pure.

Belongs here: adding up a sample as it was generated, the end of its rows and groups, and the bill. Does not: metering,
reading tables. It shares no rule with the pipeline: a wrong sum there must show here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from metering_dagster.devstack.sample import SORT_KEY, SampleKind, SampleRow
from metering_dagster.devstack.sandbox.bill import BilledRecord

RowKey = tuple[str, str]
GroupKey = tuple[str, str, str, str]
"""License or product code, account, dimension, hour."""


@dataclass
class HourBalance:
    """Balance of one hour: exact quantities, and the number of raw rows."""

    rows: int = 0
    used: Decimal = Decimal(0)
    billed: Decimal = Decimal(0)
    """According to the marketplace's bill."""
    held: Decimal = Decimal(0)
    waiting: int = 0
    """The number of rows in groups that sum to 0 and wait for more."""
    rejected: Decimal = Decimal(0)
    late: Decimal = Decimal(0)
    expired: Decimal = Decimal(0)
    """Of hours that left their window before they were metered."""

    @property
    def is_even(self) -> bool:
        """Judge whether all usage is accounted for, to the last unit."""
        return self.used == self.billed + self.held + self.rejected + self.late + self.expired


@dataclass
class Balance:
    """Balance of all hours, and the groups whose tables and bill disagree."""

    hours: dict[str, HourBalance]
    wrong_groups: list[str] = field(default_factory=list)

    @property
    def total(self) -> HourBalance:
        """Add up all hours."""
        total = HourBalance()
        for hour in self.hours.values():
            total.rows += hour.rows
            total.waiting += hour.waiting
            for name in ("used", "billed", "held", "rejected", "late", "expired"):
                setattr(total, name, getattr(total, name) + getattr(hour, name))
        return total

    @property
    def is_even(self) -> bool:
        """Judge whether each hour is even, and each group is billed by its usage and its aggregate."""
        return not self.wrong_groups and all(hour.is_even for hour in self.hours.values())


def row_key(row: SampleRow) -> RowKey:
    """Return the row's key in the usage table."""
    return row.item["licenseArn"], row.item[SORT_KEY]


def strike_balance(
    rows: Iterable[SampleRow],
    later: Iterable[SampleRow],
    ends: Mapping[RowKey, Mapping[str, Any]],
    aggregates: Mapping[GroupKey, Mapping[str, Any]],
    bill: Iterable[BilledRecord],
) -> Balance:
    """Compare the usage with its final states and the bill.

    `ends` and `aggregates` are the tables' items at the end, as plain values.
    """
    later = list(later)
    again = {row_key(row) for row in later if row.kind in (SampleKind.OVERWRITTEN, SampleKind.REPEATED)}
    balance = Balance(defaultdict(HourBalance))
    counted: dict[GroupKey, Decimal] = defaultdict(Decimal)
    accounts: dict[str, str] = {}
    for row in (*rows, *later):
        hour = balance.hours[row.group[3]]
        hour.rows += 1
        hour.used += row.used
        accounts[row.item.get("customerIdentifier", "")] = row.group[1]
        end = ends.get(row_key(row), {})
        if row.kind in (SampleKind.OVERWRITTEN, SampleKind.REPEATED):
            # The second was counted before: only its difference needs accounting.
            hour.late += row.used if end.get("meteringStatus") == "LateUsage" else 0
        elif row_key(row) in again:
            counted[row.group] += row.used
        else:
            _add_end(row, end, hour, counted)
    billed = _billed(bill, balance, accounts)
    for group in sorted(set(counted) | set(billed) | set(aggregates)):
        aggregate = aggregates.get(group, {})
        expected = counted.get(group)
        if expected != billed.get(group) or expected != aggregate.get("quantity"):
            balance.wrong_groups.append(
                f"{group[3]} {group[2]}: used {expected}, aggregated {aggregate.get('quantity')} "
                f"({aggregate.get('meteringStatus')}), billed {billed.get(group)}"
            )
    balance.hours = dict(sorted(balance.hours.items()))
    return balance


def _add_end(row: SampleRow, end: Mapping[str, Any], hour: HourBalance, counted: dict[GroupKey, Decimal]) -> None:
    """Add a row to the sum of its final state; a row in an unknown state leaves the hour uneven."""
    status = end.get("meteringStatus")
    if end.get("meteringPending") is not None:
        hour.held += row.used
        hour.waiting += row.kind is SampleKind.ZERO
    elif status == "Aggregated":
        counted[row.group] += row.used
    elif status == "RejectedClientSide":
        hour.rejected += row.used
    elif status == "LateUsage":
        hour.late += row.used
    elif status == "AggregationExpired":
        hour.expired += row.used


def _billed(bill: Iterable[BilledRecord], balance: Balance, accounts: Mapping[str, str]) -> dict[GroupKey, Decimal]:
    """Return the bill by group; `accounts` has the account of each legacy customer identifier."""
    billed: dict[GroupKey, Decimal] = {}
    for record in bill:
        license = record.license_arn or record.product_code or ""
        account = record.customer_aws_account_id or accounts[record.customer_identifier or ""]
        billed[license, account, record.dimension, record.hour] = Decimal(record.quantity)
        balance.hours[record.hour].billed += Decimal(record.quantity)
    return billed
