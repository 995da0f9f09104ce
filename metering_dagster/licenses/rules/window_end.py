"""When a flush window is over (domain: finalizing). Pure.

Belongs here: the end of a window, which is closed first, what is known of one and how it is named. Does not: what is
lost then (finalization), writing it (open_windows).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from metering_dagster.core.instants import instant_of
from metering_dagster.core.masking import digest, mask
from metering_dagster.metering.rules.batching import Buyer

AFTER_THE_LAST_WRITE = timedelta(hours=1)
"""How long a window whose expiry is no instant stays open after its row was last written."""


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A subscriber row that carries the flag, as it was read. `object` fields hold whatever type was stored there."""

    buyer: Buyer
    expiry: object = None
    updated_at: object = None

    @property
    def name(self) -> str:
        """Its buyer as messages name it: masked, with a digest that tells two apart."""
        arn, account = self.buyer
        return f"license {mask(arn)}, account {mask(account)} ({digest(arn, account)})"

    @property
    def has_readable_expiry(self) -> bool:
        """Return whether its expiry says when it ends."""
        return instant_of(self.expiry) is not None


def end_of(window: OpenWindow) -> datetime | None:
    """Return when it ends: at its expiry, else an hour after its row was written; None where neither says a time."""
    expiry, written = instant_of(window.expiry), instant_of(window.updated_at)
    if expiry is not None:
        return expiry
    return written + AFTER_THE_LAST_WRITE if written is not None else None


def is_over(window: OpenWindow, now: datetime) -> bool:
    """Return whether it is to be closed. One that never says when it ends is closed at once, or it would stay
    for ever.
    """
    end = end_of(window)
    return end is None or now >= end


def oldest_first(window: OpenWindow) -> tuple[datetime, Buyer]:
    """Return the order in which windows are closed: by their end, those that never say it before all."""
    return end_of(window) or datetime.min.replace(tzinfo=UTC), window.buyer
