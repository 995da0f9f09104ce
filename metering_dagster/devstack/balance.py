"""The balance of a rehearsal: what was used, and where all of it went (pure).

Belongs here: adding up a sample as it was generated against how its rows and groups ended and what was billed.
Does not: metering, reading tables. It shares no rule with the pipeline: a wrong sum there must show here.
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
    """One hour: exact quantities, and how many raw rows."""

    rows: int = 0
    used: Decimal = Decimal(0)
    billed: Decimal = Decimal(0)
    """As the marketplace's bill says."""
    held: Decimal = Decimal(0)
    waiting: int = 0
    """Rows of groups that sum to 0 and wait for more; their quantity is 0."""
    rejected: Decimal = Decimal(0)
    late: Decimal = Decimal(0)
    expired: Decimal = Decimal(0)
    """Of hours that were past their window before anybody metered them."""

    @property
    def is_even(self) -> bool:
        """Return whether everything used is accounted for, to the last unit."""
        return self.used == self.billed + self.held + self.rejected + self.late + self.expired


@dataclass
class Balance:
    """All hours, and the groups in which the tables and the bill disagree."""

    hours: dict[str, HourBalance]
    wrong_groups: list[str] = field(default_factory=list)

    @property
    def total(self) -> HourBalance:
        """Return the sums of all hours."""
        total = HourBalance()
        for hour in self.hours.values():
            total.rows += hour.rows
            total.waiting += hour.waiting
            for name in ("used", "billed", "held", "rejected", "late", "expired"):
                setattr(total, name, getattr(total, name) + getattr(hour, name))
        return total

    @property
    def is_even(self) -> bool:
        """Return whether each hour is, and each group is billed as its rows were used and its aggregate says."""
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
    """Compare what was used with what became of it.

    `ends` and `aggregates` are the items of the tables as they stand at the end, as plain values.
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
            # The second was counted before: only what is new in it is to be accounted for.
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
    """Add a row to where its final state says it went; a row in a state unknown here leaves the hour uneven."""
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
    """Return the bill by group; a legacy customer's identifier stands for an account (`accounts`)."""
    billed: dict[GroupKey, Decimal] = {}
    for record in bill:
        license = record.license_arn or record.product_code or ""
        account = record.customer_aws_account_id or accounts[record.customer_identifier or ""]
        billed[license, account, record.dimension, record.hour] = Decimal(record.quantity)
        balance.hours[record.hour].billed += Decimal(record.quantity)
    return billed
