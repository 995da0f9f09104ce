"""Which hours a flush looks at, and for whom (domain: flush of a deprovisioning license). Pure.

Belongs here: the hours of the open windows. Does not: whether anything is pending in them (flush_search), what a window
lets through (metering's windows, for the steps of an hour go by it too).
"""

from dataclasses import dataclass
from datetime import datetime

from metering_dagster.core import hours
from metering_dagster.metering.rules.batching import Buyer
from metering_dagster.metering.rules.flush_window import Windows, buyers_of


@dataclass(frozen=True)
class FlushHour:
    """An hour, and the buyers of whom a flush takes it."""

    hour: datetime
    buyers: frozenset[Buyer]

    @property
    def bucket(self) -> str:
        """Return the hour as the tables name it."""
        return hours.bucket(self.hour)


def hours_to_flush(now: datetime, windows: Windows) -> list[FlushHour]:
    """Return the hours that a flush at `now` looks at, oldest first: what is about to leave its own window
    goes first.
    """
    found = (FlushHour(hour, buyers_of(hour, now, windows)) for hour in hours.billable_hours(now))
    return [each for each in found if each.buyers]
