"""What one visit of an hour works with: the three tables, the rules in force, the clock.

Belongs here: the values that every use case of an hour takes. Does not: where they come from (deployment), any rule.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from metering_dagster.core import hours
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.batching import Buyer
from metering_dagster.metering.rules.flush_window import Windows

if TYPE_CHECKING:
    from metering_dagster.metering.stores.aggregated_table import AggregatedTable
    from metering_dagster.metering.stores.subscribers_table import SubscribersTable
    from metering_dagster.metering.stores.usage_table import UsageTable


@dataclass(frozen=True)
class Tables:
    """The tables of one deployment, with what holds for every visit."""

    usage: "UsageTable"
    aggregated: "AggregatedTable"
    subscribers: "SubscribersTable"
    quantities: Quantities
    clock: Callable[[], datetime]
    writes: bool = True
    """False in shadow mode: everything is read, nothing is written."""


@dataclass(frozen=True)
class Slice:
    """The subject of a visit: an hour, of all buyers or of some (a flush of deprovisioning licenses)."""

    hour: datetime
    buyers: frozenset[Buyer] | None = None
    expiries: Windows | None = None
    """The buyers whose flush window is open, with its end; None where the subscribers could not be asked."""

    @property
    def bucket(self) -> str:
        """Return the hour as the tables name it."""
        return hours.bucket(self.hour)

    @property
    def licenses(self) -> list[str] | None:
        """Return the licenses to read from the sparse index; None for all."""
        return None if self.buyers is None else sorted({arn for arn, _ in self.buyers})

    def holds(self, buyer: Buyer) -> bool:
        """Return whether the buyer's usage is in this slice."""
        return self.buyers is None or buyer in self.buyers

    def is_last_call(self, buyer: Buyer, now: datetime) -> bool:
        """Return whether this buyer's usage of the hour goes now or never."""
        return hours.is_last_call(self.hour, now, (self.expiries or {}).get(buyer))
