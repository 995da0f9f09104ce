"""Subscriptions, cells and what the two tables hold of them (domain: the billing-changes signal). Pure.

Belongs here: whose a row is, how rows of both tables make a cell, when two looks at a day saw the same. Does not: SQL
(queries), from when on to look (watermark), what is reported of a cell (day_diff).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST_STAMP = datetime(2000, 1, 1, tzinfo=UTC)
"""No row of cloud costs was ingested before: an earlier stamp stands for none, such as 1970-01-01 00:00:01."""
_MICROSECOND = timedelta(microseconds=1)
Amounts = tuple[tuple[str, Decimal], ...]
"""Sums by currency, ordered by currency: amounts of different currencies are never added."""


class Signal(StrEnum):
    """The columns that tell of an ingest; the others of these two tables stay frozen."""

    DAILY = "billing_daily.fetched_at"
    FACTS = "cost_facts.updated_at"


class Oddity(StrEnum):
    """A reason why a stamp does not say when its row was ingested."""

    MISSING = "missing"
    """NULL, or a zero date of MySQL's, `0000-00-00 00:00:00`."""
    EARLY = "early"
    """Before `EARLIEST_STAMP`."""
    AHEAD = "ahead"
    """Later than the database's clock."""


@dataclass(frozen=True)
class TenantScope:
    """The tenant of a row by its `scope_id`."""

    scope_id: str


@dataclass(frozen=True)
class Group:
    """The resource group of a row of the facts, as the row spells it."""

    integration_id: str
    resource_group: str


@dataclass(frozen=True, order=True)
class Subscription:
    """An enabled row of `cmdb_billing_subscriptions`: a tenant, or a resource group of an integration."""

    id: str
    """For a tenant this is the `scope_id`."""
    integration_id: str
    external_id: str
    """For a resource group this is its name."""
    name: str
    provider: str
    is_resource_group: bool

    @property
    def owner(self) -> TenantScope | Group:
        """Return whose rows it claims."""
        return Group(self.integration_id, self.external_id) if self.is_resource_group else TenantScope(self.id)


@dataclass(frozen=True)
class Side:
    """One table's content for a cell: enough to notice another row or another stamp."""

    rows: int
    unstamped: int = 0
    """Rows without a stamp (NULL, or a zero date): nothing tells when they were ingested."""
    newest: datetime | None = None
    """The latest stamp, in UTC, to the microsecond; None where no row has one."""
    stamps: int = 0
    """The stamps added up, in microseconds since 1970: one stamp that moves changes it."""
    amounts: Amounts = ()
    """Empty where amounts were not asked for."""

    def __add__(self, other: "Side") -> "Side":
        """Return both together, as one side of one cell."""
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
        """Its rows and stamps as a short text; the same text for the same rows and stamps. Amounts do not count."""
        newest = "" if self.newest is None else self.newest.isoformat(timespec="microseconds")
        return f"{self.rows}/{self.unstamped}/{newest}/{self.stamps}"


@dataclass(frozen=True)
class Piece:
    """A group of rows that one of the queries found."""

    signal: Signal
    day: date
    owner: TenantScope | Group
    side: Side


@dataclass(frozen=True)
class Cell:
    """A subscription on a day, with what the two tables hold of it. At least one of them holds something."""

    subscription: Subscription
    day: date
    daily: Side | None = None
    facts: Side | None = None

    @property
    def sides(self) -> dict[Signal, Side]:
        """Return what there is, by the signal that tells of it."""
        found = {Signal.DAILY: self.daily, Signal.FACTS: self.facts}
        return {signal: side for signal, side in found.items() if side is not None}

    @property
    def last_ingested_at(self) -> datetime | None:
        """Return the later one of both signals (domain: the later time wins); None where no row has a stamp."""
        return max((side.newest for side in self.sides.values() if side.newest is not None), default=None)

    @property
    def amounts(self) -> Amounts:
        """Return what the cell costs: the daily row says it where there is one, else the facts' sum."""
        return self.daily.amounts if self.daily is not None else self.facts.amounts if self.facts is not None else ()

    @property
    def state(self) -> str:
        """Its rows and stamps as a text."""
        return ";".join(f"{signal}={side.state}" for signal, side in self.sides.items())

    @property
    def key(self) -> "CellKey":
        """Return what tells it from every other cell."""
        return self.day, self.subscription.id


CellKey = tuple[date, str]
"""A day and the id of a subscription."""


def key_of(identifier: str) -> str:
    """Return the form in which identifiers are compared: without regard to case, as Azure treats resource groups.

    Blanks at the end do not count either: MySQL's older collations ignore them, and SQL filters by those.
    """
    return identifier.casefold().rstrip(" ")


def owner_key(owner: TenantScope | Group) -> tuple[str, ...]:
    """Return the form in which owners are compared: rows of equal keys are the same owner's."""
    if isinstance(owner, TenantScope):
        return (key_of(owner.scope_id),)
    return key_of(owner.integration_id), key_of(owner.resource_group)


class Claims:
    """Whose a row is. Several subscriptions may claim the same rows, and then each of them has the cell."""

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        """`subscriptions`: the enabled ones."""
        self.subscriptions: Sequence[Subscription] = sorted(subscriptions)
        self._by_owner: dict[tuple[str, ...], list[Subscription]] = {}
        for one in self.subscriptions:
            self._by_owner.setdefault(owner_key(one.owner), []).append(one)

    def of(self, owner: TenantScope | Group) -> Sequence[Subscription]:
        """Return the subscriptions that claim rows of this owner; none is an answer."""
        return self._by_owner.get(owner_key(owner), ())

    @property
    def tenants(self) -> list[str]:
        """Return the scope ids to ask for, each once."""
        return sorted({one.id for one in self.subscriptions if not one.is_resource_group})

    @property
    def groups(self) -> list[tuple[str, str]]:
        """Return the integrations and names of the resource groups to ask for, each spelling once."""
        return sorted({(one.integration_id, one.external_id) for one in self.subscriptions if one.is_resource_group})

    @property
    def digest(self) -> str:
        """Short, and another one as soon as a subscription claims other rows. Its name and provider do not count."""
        return digest(f"{one.id}|{one.is_resource_group}|{one.integration_id}|{one.external_id}"
                      for one in self.subscriptions)  # fmt: skip


def cells_of(pieces: Iterable[Piece], claims: Claims) -> dict[CellKey, Cell]:
    """Return the cells that these pieces make; pieces that nobody claims make none. Pieces of one side are added up."""
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
    """For each day a short digest of the rows and stamps of its cells: the same one for the same rows and stamps."""
    texts: dict[date, list[str]] = {}
    for cell in cells:
        texts.setdefault(cell.day, []).append(f"{cell.subscription.id}:{cell.state}")
    return {day: digest(sorted(found)) for day, found in texts.items()}


def microseconds_of(instant: datetime) -> int:
    """Return an instant in microseconds since 1970, exactly."""
    return (instant - _EPOCH) // _MICROSECOND


def instant_of(microseconds: int) -> datetime:
    """Return the inverse of `microseconds_of`, in UTC."""
    return _EPOCH + microseconds * _MICROSECOND


def digest(texts: Iterable[str]) -> str:
    """Short (48 bits): it tells states of one thing apart, not things from each other."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=6).hexdigest()


def _added(one: Amounts, other: Amounts) -> Amounts:
    sums: dict[str, Decimal] = dict(one)
    for currency, amount in other:
        sums[currency] = sums.get(currency, Decimal()) + amount
    return tuple(sorted(sums.items()))


def newest_of_days(cells: Mapping[CellKey, Cell]) -> dict[date, datetime]:
    """Return the latest stamp of each day."""
    found: dict[date, datetime] = {}
    for cell in cells.values():
        stamp = cell.last_ingested_at
        if stamp is not None:
            found[cell.day] = max(found.get(cell.day, stamp), stamp)
    return found
