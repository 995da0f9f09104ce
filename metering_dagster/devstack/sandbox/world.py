"""The sandbox's configured marketplace: catalog, licenses, subscriptions, limits. Pure.

Belongs here: the settings and their JSON form. Does not: their effect on a record (rules.py), storing them (bill.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from metering_dagster.devstack.sandbox.errors import ControlError


@dataclass(frozen=True)
class World:
    """Settings of the marketplace. By default every customer is subscribed and every name is known."""

    dimensions: frozenset[str] | None = None
    products: frozenset[str] | None = None
    failing_products: frozenset[str] = frozenset()
    licenses: Mapping[str, str | None] | None = None
    """Known licenses, each with its product (None: unknown)."""
    customers: frozenset[str] | None = None
    """Customer identifiers and accounts that a legacy call may name."""
    unsubscribed: frozenset[str] = frozenset()
    """Accounts, customer identifiers or licenses without a subscription."""
    subscribed_from: Mapping[str, datetime] = field(default_factory=dict)
    """Accounts, customer identifiers or licenses, each with its subscription's instant: earlier usage is refused."""
    deprovisioned: Mapping[str, datetime] = field(default_factory=dict)
    """Licenses, each with the instant of its deprovisioning."""
    disabled_regions: frozenset[str] = frozenset()
    grace_accepts_old_hours: bool = True
    """True where hours 24 to 29 back are accepted in the grace of the month's closing."""
    calls_per_second: int | None = 10
    """For each Region; None: no limit."""

    def changed(self, changes: Mapping[str, Any]) -> "World":
        """Return the world with the given settings replaced. Raises `ControlError` for unknown or invalid ones."""
        unknown = sorted(set(changes) - set(READERS))
        if unknown:
            raise ControlError(f"unknown settings: {', '.join(unknown)}; known are {', '.join(READERS)}")
        return replace(self, **{name: READERS[name](name, value) for name, value in changes.items()})

    def document(self) -> dict[str, Any]:
        """Return the JSON form, which `changed` reads back."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


def read_instant(name: str, value: Any) -> datetime:
    """Parse an ISO-8601 instant with a zone into UTC. Raises `ControlError` for any other value."""
    try:
        instant = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ControlError(f"{name} must be an ISO-8601 instant") from None
    if instant.tzinfo is None:
        raise ControlError(f"{name} must name its zone, such as 2026-11-20T10:30:00Z")
    return instant.astimezone(UTC)


def read_texts(name: str, value: Any) -> frozenset[str]:
    """Return a list of strings as a set. Raises `ControlError` for any other value."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ControlError(f"{name} must be a list of strings")
    return frozenset(value)


def _texts_or_any(name: str, value: Any) -> frozenset[str] | None:
    return None if value is None else read_texts(name, value)


def _licenses(name: str, value: Any) -> dict[str, str | None] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(each is None or isinstance(each, str) for each in value.values()):
        raise ControlError(f"{name} must map each license to its product or null")
    return value


def _instants(name: str, value: Any) -> dict[str, datetime]:
    if not isinstance(value, dict):
        raise ControlError(f"{name} must map each name to an instant")
    return {key: read_instant(name, each) for key, each in value.items()}


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ControlError(f"{name} must be true or false")
    return value


def _limit(name: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ControlError(f"{name} must be a whole number from 1, or null for no limit")
    return value


READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "dimensions": _texts_or_any,
    "products": _texts_or_any,
    "failing_products": read_texts,
    "licenses": _licenses,
    "customers": _texts_or_any,
    "unsubscribed": read_texts,
    "subscribed_from": _instants,
    "deprovisioned": _instants,
    "disabled_regions": read_texts,
    "grace_accepts_old_hours": _flag,
    "calls_per_second": _limit,
}


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value.isoformat() if isinstance(value, datetime) else value
