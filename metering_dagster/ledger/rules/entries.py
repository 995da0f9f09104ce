"""What the ledger says: one entry for each thing that ended in a run (pure).

Belongs here: the entry, its kinds and outcomes, and what the entries of an hour together say about its present state.
Does not: where and how entries are stored (files), what a day of them looks like (daily_report).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum


class EntryKind(StrEnum):
    """The subject of an entry."""

    RECORD = "record"
    """A group's record, and how it ended."""
    ROW = "row"
    """A raw row that ended in no record."""
    GROUP = "group"
    """A group that stays pending for a reason, as a run found it; the next run's word replaces it."""


class EntryOutcome(StrEnum):
    """The end of an entry's subject; records and rows carry the words of the tables."""

    SUCCESS = "Success"
    DUPLICATE = "DuplicateRecord"
    NOT_SUBSCRIBED = "CustomerNotSubscribed"
    REJECTED = "RejectedClientSide"
    DRY_RUN = "DryRunSubmitted"
    WOULD_BILL = "WouldBill"
    LATE = "LateUsage"
    EXPIRED = "AggregationExpired"
    UNSENT = "SubmissionExpired"
    HELD = "Held"
    WAITING = "Waiting"


_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger. It names the buyer in full (domain: secrecy)."""

    kind: str
    outcome: str
    license_arn: str
    customer_aws_account_id: str
    dimension: str
    quantity: Decimal | None
    """What it is about; None where a row's quantity is no number that a record could hold."""
    reason: str = ""
    sort_key: str = ""
    """Of a raw row."""
    late_by: Decimal | None = None
    """Of a late row: what the bill lacks; negative where too much was billed."""
    rows: int | None = None
    """Of a group: the raw rows in it that wait."""
    metering_record_id: str = ""
    customer_identifier: str = ""
    at: datetime | None = None
    """When it was told, by the real clock; the ledger's file sets it."""
    bucket: str = ""
    """The hour that it belongs to, where that is not the one that was visited. No column: the file lies there."""

    @property
    def group(self) -> tuple[str, str, str]:
        """Return which record of the hour it is about."""
        return self.license_arn, self.customer_aws_account_id, self.dimension


@dataclass(frozen=True)
class HourSummary:
    """The summary of an hour's earlier runs, as the ledger remembers it."""

    duplicates: int = 0
    not_subscribed: int = 0
    rejected_records: int = 0
    rejected_rows: frozenset[tuple[str, str]] = frozenset()
    """Keys of raw rows that were rejected; whether they still are, only the table knows."""
    late_rows: int = 0
    late: Decimal = Decimal(0)
    over_billed: Decimal = Decimal(0)
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Records of the hour by how they ended."""
    billed: Mapping[str, Decimal] = field(default_factory=dict)
    """Quantity of each dimension that is billed (or, by mode, would be)."""


BILLED = frozenset({EntryOutcome.SUCCESS.value, EntryOutcome.DRY_RUN.value, EntryOutcome.WOULD_BILL.value})
"""Outcomes of a record whose quantity counts as usage of the hour; a deployment has one of them, by its mode."""


def standing_of(entries: Iterable[Entry]) -> HourSummary:
    """Return what the entries of one hour amount to. Of a record that was sent again only the last answer counts."""
    records: dict[tuple[str, str, str], Entry] = {}
    rejected: set[tuple[str, str]] = set()
    late: list[Decimal] = []
    for entry in sorted(entries, key=lambda entry: entry.at or _LONG_AGO):
        if entry.kind == EntryKind.RECORD:
            records[entry.group] = entry
        elif entry.kind == EntryKind.ROW and entry.outcome == EntryOutcome.REJECTED:
            rejected.add((entry.license_arn, entry.sort_key))
        elif entry.kind == EntryKind.ROW and entry.outcome == EntryOutcome.LATE:
            late.append(entry.late_by or Decimal(0))
    ended = [entry.outcome for entry in records.values()]
    billed: dict[str, Decimal] = {}
    for entry in records.values():
        if entry.outcome in BILLED:
            billed[entry.dimension] = billed.get(entry.dimension, Decimal(0)) + (entry.quantity or Decimal(0))
    return HourSummary(
        duplicates=ended.count(EntryOutcome.DUPLICATE),
        not_subscribed=ended.count(EntryOutcome.NOT_SUBSCRIBED),
        rejected_records=ended.count(EntryOutcome.REJECTED),
        rejected_rows=frozenset(rejected),
        late_rows=len(late),
        late=sum((by for by in late if by > 0), Decimal(0)),
        over_billed=-sum((by for by in late if by < 0), Decimal(0)),
        outcomes=Counter(ended),
        billed=billed,
    )
