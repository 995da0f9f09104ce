"""What the sensor leaves beside the reports at each look, so that whoever reads them knows how far they go. Pure.

Belongs here: the document's content, out of JSON and into it. Does not: when a look counts (poll), where it lies
(day_files).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

NAME = "_looked"
"""The document's name among the reports."""


@dataclass(frozen=True)
class Heartbeat:
    """The sensor's last look, by the database's clock."""

    looked: datetime
    complete_until: datetime | None
    """Nothing that was stamped before is missing in the reports; None: that is not known yet."""
    first_day: date
    """The oldest day within the horizon."""
    pending: tuple[date, ...] = ()
    """Days that have moved and are not materialized yet."""

    def content(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "looked": self.looked.isoformat(timespec="microseconds"),
            "complete_until": self.complete_until and self.complete_until.isoformat(timespec="microseconds"),
            "first_day": self.first_day.isoformat(),
            "pending": [day.isoformat() for day in self.pending],
        }


def read_heartbeat(content: Mapping[str, Any]) -> Heartbeat | None:
    """Return what such an object says; None if it is none of ours: the next look replaces it."""
    try:
        return Heartbeat(
            _instant(content["looked"]),
            None if content["complete_until"] is None else _instant(content["complete_until"]),
            date.fromisoformat(content["first_day"]),
            tuple(date.fromisoformat(day) for day in content["pending"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError("it names no zone")
    return instant.astimezone(UTC)
