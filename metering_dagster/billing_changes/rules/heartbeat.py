"""The heartbeat: a document beside the reports, renewed at each poll, by which consumers know how complete they are.
Pure.

Belongs here: the document's content, from JSON and to JSON. Does not: what a poll finds (services/poll), where it is
stored (stores/day_files).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

NAME = "_looked"
"""The document's name among the reports."""


@dataclass(frozen=True)
class Heartbeat:
    """Sensor's last poll, by the database's clock."""

    polled_at: datetime
    complete_until: datetime | None
    """Nothing stamped before that is missing in the reports; None: not known yet."""
    first_day: date
    """The oldest day within the horizon."""
    pending: tuple[date, ...] = ()
    """Changed days that are not materialized yet."""

    def content(self) -> dict[str, Any]:
        """Return the JSON object of the document."""
        return {
            "looked": self.polled_at.isoformat(timespec="microseconds"),
            "complete_until": self.complete_until and self.complete_until.isoformat(timespec="microseconds"),
            "first_day": self.first_day.isoformat(),
            "pending": [day.isoformat() for day in self.pending],
        }


def read_heartbeat(content: Mapping[str, Any]) -> Heartbeat | None:
    """Read such a JSON object; None if it is invalid: the next poll replaces it."""
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
        raise ValueError(f"{text} names no zone")
    return instant.astimezone(UTC)
