"""What a sweep did, in counts (pure).

Belongs here: the report and adding to it, bounded however much is lost. Does not: how it is shown (metadata).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from metering_dagster.core.masking import mask_text
from metering_dagster.metering.rules.isolation import Failures
from metering_dagster.metering.rules.quantities import EXACT

if TYPE_CHECKING:
    from metering_dagster.metering.services.aggregation_report import Aggregation
    from metering_dagster.metering.services.discovery import Discovery

MOST_LINES = 300
"""Hours and dimensions that are told apart; what is lost beyond is counted together as `OTHERS`."""
OTHERS = ("older hours", "others")
_NOTES = 20
READ, ROWS_ENDED, RECORDS_ENDED = "read", "ended as raw rows", "ended as a record"
"""The steps of a sweep in which something may fail; each completes "could not be"."""
_VALUES, _LONGEST_VALUE = 50, 60
"""Values of `meteringPending` that are told apart, and how much of each is shown."""


@dataclass
class ExpiredUsage:
    """The usage of one dimension in one hour that can no longer be billed."""

    rows: int = 0
    records: int = 0
    quantity: Decimal = Decimal(0)
    """Of what could have been billed in time; a row or record that breaks the contract adds nothing."""

    def add(self, other: "ExpiredUsage") -> None:
        """Count the other one with this."""
        self.rows, self.records = self.rows + other.rows, self.records + other.records
        self.quantity = EXACT.add(self.quantity, other.quantity)


@dataclass
class Sweep:
    """The report of a shard's sweep, in counts; it names no buyer in full."""

    buckets: int = 0
    """Hours that were looked at."""
    occupied: int = 0
    """Of these, the hours in which something was filed as pending."""
    lost: dict[tuple[str, str], ExpiredUsage] = field(default_factory=dict)
    """By hour and dimension, newest hour first."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Rows and records that are `RejectedClientSide` now, by reason code."""
    refiled: Counter[str] = field(default_factory=Counter)
    """Misfiled rows by the hour that they were moved to, where they can still be billed."""
    refiled_records: Counter[str] = field(default_factory=Counter)
    """Records that were filed where no Query looks, by the hour that they were moved to."""
    unreachable: Counter[str] = field(default_factory=Counter)
    """Rows and records that were filed where no Query looks, by what stood in `meteringPending`, masked."""
    settled: int = 0
    """Rows that an earlier commit had counted, `Aggregated` now."""
    late_rows: int = 0
    late: Decimal = Decimal(0)
    over_billed: Decimal = Decimal(0)
    changed: int = 0
    """What changed at each attempt: left to the next sweep."""
    unwritable: int = 0
    """Rows and records of which DynamoDB refuses to take the end, as an item would pass 400 KB."""
    failures: Failures = field(default_factory=Failures)
    """Groups, records and hours for which something was raised: they stay pending; the others were swept."""
    notes: list[str] = field(default_factory=list)
    """Late, rejected and unwritable groups in words, masked, the first few."""

    def lose(self, bucket: str, dimension: str, *, rows: int = 0, records: int = 0, quantity: Decimal) -> None:
        """Count what is lost."""
        key = (bucket, mask_text(dimension))
        if key not in self.lost and len(self.lost) >= MOST_LINES:
            key = OTHERS
        self.lost.setdefault(key, ExpiredUsage()).add(ExpiredUsage(rows, records, quantity))

    def find(self, pending: str) -> None:
        """Count what is filed where no Query looks."""
        shown = mask_text(repr(pending))[:_LONGEST_VALUE]
        if shown not in self.unreachable and len(self.unreachable) >= _VALUES:
            shown = OTHERS[1]
        self.unreachable[shown] += 1

    def note(self, words: str) -> None:
        """Keep words for the person who looks."""
        if len(self.notes) < _NOTES:
            self.notes.append(words)

    def settle(self, done: "Aggregation") -> None:
        """Count what became of rows whose group was committed before."""
        self.settled += done.cleaned
        self.rejected += done.rejected
        self.late_rows += done.late_rows
        self.late = EXACT.add(self.late, done.late)
        self.over_billed = EXACT.add(self.over_billed, done.over_billed)
        for words in done.notes:
            self.note(words)

    def mend(self, done: "Discovery") -> None:
        """Count what became of rows that did not belong where they were filed."""
        self.settle(done.settled)
        self.rejected += done.rejected
        self.refiled += done.refiled
        self.changed += done.changed + len(done.settled.unsettled)

    @property
    def faults(self) -> list[str]:
        """Return the first things that failed, in words, masked."""
        return list(self.failures.notes)

    @property
    def total(self) -> ExpiredUsage:
        """Return all that is lost."""
        return _sum(self.lost.values())

    @property
    def by_dimension(self) -> dict[str, ExpiredUsage]:
        """Return what is lost of each dimension."""
        return {name: _sum(loss for (_, d), loss in self.lost.items() if d == name) for name in self._parts(1)}

    @property
    def by_hour(self) -> dict[str, ExpiredUsage]:
        """Return what is lost in each hour."""
        return {name: _sum(loss for (h, _), loss in self.lost.items() if h == name) for name in self._parts(0)}

    def _parts(self, position: int) -> list[str]:
        return list(dict.fromkeys(key[position] for key in self.lost))


def _sum(losses: Iterable[ExpiredUsage]) -> ExpiredUsage:
    total = ExpiredUsage()
    for loss in losses:
        total.add(loss)
    return total
