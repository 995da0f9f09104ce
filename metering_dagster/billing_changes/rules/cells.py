"""Subscriptions, cells and the rows that both tables hold of them (domain §7). Pure.

Belongs here: the owner of a row, how rows of both tables make a cell, when two readings of a day found the same. Does
not: SQL (stores/queries), from which stamp on to read (watermark), what is reported of a cell (day_diff).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST_STAMP = datetime(2000, 1, 1, tzinfo=UTC)
"""No row of cloud costs was ingested before that. An earlier stamp, such as 1970-01-01 00:00:01, counts as none."""
_MICROSECOND = timedelta(microseconds=1)
Amounts = tuple[tuple[str, Decimal], ...]
"""Sums by currency, ordered by currency: amounts of different currencies are never added."""


class Signal(StrEnum):
    """Columns that advance at each ingest; the other stamps of these two tables stay frozen."""

    DAILY = "billing_daily.fetched_at"
    FACTS = "cost_facts.updated_at"


class StampFault(StrEnum):
    """Reason why a stamp does not show when its row was ingested."""

    MISSING = "missing"
    """NULL, or MySQL's zero date, `0000-00-00 00:00:00`."""
    EARLY = "early"
    """Before `EARLIEST_STAMP`."""
    AHEAD = "ahead"
    """Later than the database's clock."""


@dataclass(frozen=True)
class TenantScope:
    """Tenant that a row belongs to by its `scope_id`."""

    scope_id: str


@dataclass(frozen=True)
class Group:
    """Resource group that a row of the facts belongs to, as the row spells it."""

    integration_id: str
    resource_group: str


@dataclass(frozen=True, order=True)
class Subscription:
    """Enabled row of `cmdb_billing_subscriptions`: a tenant, or a resource group of an integration."""

    id: str
    """For a tenant: the `scope_id`."""
    integration_id: str
    external_id: str
    """For a resource group: its name."""
    name: str
    provider: str
    is_resource_group: bool

    @property
    def owner(self) -> TenantScope | Group:
        """Return the owner of the rows that it claims."""
        return Group(self.integration_id, self.external_id) if self.is_resource_group else TenantScope(self.id)


@dataclass(frozen=True)
class Side:
    """One table's part of a cell: enough to notice a row or a stamp that differs from before."""

    rows: int
    unstamped: int = 0
    """Rows without a stamp (NULL, or a zero date): when they were ingested is unknown."""
    newest: datetime | None = None
    """The latest stamp, in UTC, to the microsecond; None where no row has one."""
    stamps: int = 0
    """The sum of the stamps, in microseconds since 1970: each stamp that advances changes it."""
    amounts: Amounts = ()
    """Empty where amounts were not read."""

    def __add__(self, other: "Side") -> "Side":
        """Add up both as one side of one cell."""
        newest = max((stamp for stamp in (self.newest, other.newest) if stamp is not None), default=None)
        return Side(
            self.rows + other.rows,
            self.unstamped + other.unstamped,
            newest,
            self.stamps + other.stamps,
            _added(self.amounts, other.amounts),
        )

    @property
    def state(self) -> str:
        """Return a short text of the rows and stamps, equal for equal rows and stamps. Amounts do not count."""
        newest = "" if self.newest is None else self.newest.isoformat(timespec="microseconds")
        return f"{self.rows}/{self.unstamped}/{newest}/{self.stamps}"


@dataclass(frozen=True)
class Piece:
    """Rows of one owner and day that one of the queries found."""

    signal: Signal
    day: date
    owner: TenantScope | Group
    side: Side


@dataclass(frozen=True)
class Cell:
    """Subscription on a day, with what the two tables hold of it. At least one of them holds something."""

    subscription: Subscription
    day: date
    daily: Side | None = None
    facts: Side | None = None

    @property
    def sides(self) -> dict[Signal, Side]:
        """Return the sides that have rows, by their signal."""
        found = {Signal.DAILY: self.daily, Signal.FACTS: self.facts}
        return {signal: side for signal, side in found.items() if side is not None}

    @property
    def last_ingested_at(self) -> datetime | None:
        """Return the later one of both signals (domain §7: the later time wins); None where no row has a stamp."""
        return max((side.newest for side in self.sides.values() if side.newest is not None), default=None)

    @property
    def amounts(self) -> Amounts:
        """Return the cell's cost: the daily row's amount where there is one, else the facts' sum."""
        return self.daily.amounts if self.daily is not None else self.facts.amounts if self.facts is not None else ()

    @property
    def state(self) -> str:
        """Return a text of the rows and stamps of both sides, equal for equal rows and stamps."""
        return ";".join(f"{signal}={side.state}" for signal, side in self.sides.items())

    @property
    def key(self) -> "CellKey":
        """Return the day and the subscription's id, which no other cell has."""
        return self.day, self.subscription.id


CellKey = tuple[date, str]
"""A day and the id of a subscription."""


def key_of(identifier: str) -> str:
    """Return the form in which identifiers are compared: case does not count, as in Azure's resource groups (§7).

    Blanks at the end do not count either: MySQL's older collations ignore them, and SQL filters by those.
    """
    return identifier.casefold().rstrip(" ")


def owner_key(owner: TenantScope | Group) -> tuple[str, ...]:
    """Return the form in which owners are compared: equal keys are the same owner."""
    if isinstance(owner, TenantScope):
        return (key_of(owner.scope_id),)
    return key_of(owner.integration_id), key_of(owner.resource_group)


class Claims:
    """Subscriptions by the owner of the rows they claim. Several may claim the same rows: each then has the cell."""

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        """Keep the enabled `subscriptions`."""
        self.subscriptions: Sequence[Subscription] = sorted(subscriptions)
        self._by_owner: dict[tuple[str, ...], list[Subscription]] = {}
        for one in self.subscriptions:
            self._by_owner.setdefault(owner_key(one.owner), []).append(one)

    def of(self, owner: TenantScope | Group) -> Sequence[Subscription]:
        """Return the subscriptions that claim rows of this owner; none is valid."""
        return self._by_owner.get(owner_key(owner), ())

    @property
    def tenants(self) -> list[str]:
        """Return the scope ids to query, each once."""
        return sorted({one.id for one in self.subscriptions if not one.is_resource_group})

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Return integration and name of each resource group to query, each spelling once."""
        return sorted({(one.integration_id, one.external_id) for one in self.subscriptions if one.is_resource_group})

    @property
    def digest(self) -> str:
        """Return a digest that changes once a subscription claims other rows. Names and providers do not count."""
        return digest(f"{one.id}|{one.is_resource_group}|{one.integration_id}|{one.external_id}"
                      for one in self.subscriptions)  # fmt: skip


def cells_of(pieces: Iterable[Piece], claims: Claims) -> dict[CellKey, Cell]:
    """Build cells of these pieces: pieces of one side are added up, unclaimed ones are left out."""
    sides: dict[tuple[date, Subscription, Signal], Side] = {}
    for piece in pieces:
        for one in claims.of(piece.owner):
            place = (piece.day, one, piece.signal)
            sides[place] = sides[place] + piece.side if place in sides else piece.side
    cells: dict[CellKey, Cell] = {}
    for day, one in sorted({(day, one) for day, one, _ in sides}):
        daily, facts = sides.get((day, one, Signal.DAILY)), sides.get((day, one, Signal.FACTS))
        cell = Cell(one, day, daily, facts)
        cells[cell.key] = cell
    return cells


def states_of_days(cells: Iterable[Cell]) -> dict[date, str]:
    """Return for each day a digest of its cells' rows and stamps, equal for equal rows and stamps."""
    texts: dict[date, list[str]] = {}
    for cell in cells:
        texts.setdefault(cell.day, []).append(f"{cell.subscription.id}:{cell.state}")
    return {day: digest(sorted(found)) for day, found in texts.items()}


def microseconds_of(instant: datetime) -> int:
    """Return an instant in microseconds since 1970, exactly."""
    return (instant - _EPOCH) // _MICROSECOND


def instant_of(microseconds: int) -> datetime:
    """Invert `microseconds_of`; the instant is in UTC."""
    return _EPOCH + microseconds * _MICROSECOND


def digest(texts: Iterable[str]) -> str:
    """Return a digest of 48 bits: enough to tell states of one thing apart, not to tell things from each other."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=6).hexdigest()


def _added(one: Amounts, other: Amounts) -> Amounts:
    sums: dict[str, Decimal] = dict(one)
    for currency, amount in other:
        sums[currency] = sums.get(currency, Decimal()) + amount
    return tuple(sorted(sums.items()))


def newest_of_days(cells: Mapping[CellKey, Cell]) -> dict[date, datetime]:
    """Return the latest stamp of each day; days without a stamp are left out."""
    found: dict[date, datetime] = {}
    for cell in cells.values():
        stamp = cell.last_ingested_at
        if stamp is not None:
            found[cell.day] = max(found.get(cell.day, stamp), stamp)
    return found
