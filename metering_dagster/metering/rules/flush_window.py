"""The flush window of a deprovisioning license: who is in it, and what it lets through. Pure.

Belongs here: reading the end of a window, whom a visit of an hour is about. Does not: opening and closing windows
(licenses), the last call (hours), where windows are stored (subscribers_table).
"""

from collections.abc import Mapping
from datetime import datetime
from enum import Enum

from metering_dagster.core import hours
from metering_dagster.metering.rules.batching import Buyer

Windows = Mapping[Buyer, datetime | None]
"""The buyers whose flush window is open, each with its end; None where the end is no instant."""


class LicenseScope(Enum):
    """Whose usage a visit of an hour is about. It names no buyer, so it may stand where everybody can read."""

    ALL = "everybody's"
    DEPROVISIONING = "that of the buyers whose flush window is open"


def is_flushed(hour: datetime, now: datetime, end: datetime | None) -> bool:
    """Return whether a flush at `now` takes this hour of a buyer whose window ends at `end`.

    Every hour that is over and can be billed, lock or no lock; the current one from 10 minutes before the end, and
    never where the end is no instant.
    """
    if not hours.is_billable(hour, now):
        return False
    if hours.offset_of(hour, now) >= hours.FIRST_OFFSET:
        return True
    return end is not None and now >= end - hours.FLUSH_WINDOW


def buyers_of(hour: datetime, now: datetime, windows: Windows) -> frozenset[Buyer]:
    """Find whom a flush of this hour is about."""
    if is_flushed(hour, now, None):  # an hour that is over, whenever the windows end: of thousands, none is looked at
        return frozenset(windows)
    return frozenset(buyer for buyer, end in windows.items() if is_flushed(hour, now, end))
