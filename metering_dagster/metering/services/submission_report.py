"""The report of a submission: what a visit sent, and how it ended, in counts."""

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal

from metering_dagster.metering.rules.isolation import Failures

_NOTES = 20


@dataclass
class Submission:
    """The report of a visit's submission, in counts; it names no buyer in full."""

    records: int = 0
    """Pending records that were found."""
    calls: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    """Records that ended now, by status."""
    by_dimension: dict[str, Decimal] = field(default_factory=dict)
    """Quantity of each dimension that ended as `Success` (or `DryRunSubmitted`)."""
    rejected: Counter[str] = field(default_factory=Counter)
    """`RejectedClientSide` by reason."""
    ended_by_others: int = 0
    """Records that another run wrote while this one sent them: the service took both for one."""
    left: Counter[str] = field(default_factory=Counter)
    """Records that are still pending, by why."""
    unknown_products: int = 0
    """Records of licenses whose product nobody knows: one license a call."""
    notes: list[str] = field(default_factory=list)
    """Records that did not end well, masked, the first few."""
    warnings: list[str] = field(default_factory=list)
    caller: str | None = None
    """Why AWS refused the caller itself, if it did."""
    where: str = ""
    """The Region and endpoint that were called."""
    other_region: str = ""
    """The Region to which the hour belongs, if that is another one."""

    def note(self, words: str) -> None:
        """Keep a note, if there are not many yet."""
        if len(self.notes) < _NOTES:
            self.notes.append(words)

    def add_failures(self, failures: Failures) -> None:
        """Count what was left because something was raised for it that nobody foresaw."""
        self.left.update(failures.by_why)
        self.notes += failures.notes
