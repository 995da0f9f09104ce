"""The queries of the billing database, in the domain's words (domain §7).

Belongs here: the queries. Each is bounded, and names at most 100 owners. Does not: connections and snapshots
(database), differences of SQL (dialects), the owners' subscriptions (rules/cells).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Label,
    RowMapping,
    Select,
    Table,
    and_,
    case,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.exc import DBAPIError

from metering_dagster.billing_changes.rules.cells import (
    EARLIEST_STAMP,
    Amounts,
    Claims,
    Group,
    Piece,
    Side,
    Signal,
    StampFault,
    Subscription,
    TenantScope,
    digest,
    key_of,
)
from metering_dagster.billing_changes.rules.query_pieces import rectangles
from metering_dagster.billing_changes.rules.watermark import PollTooSlowError
from metering_dagster.billing_changes.stores import schema_check
from metering_dagster.billing_changes.stores.billing_tables import DAILY, FACTS, STAMPS, SUBSCRIPTIONS, Since
from metering_dagster.billing_changes.stores.dialects import (
    added_amounts,
    added_stamps,
    real_stamp,
    spelling,
    took_too_long,
)
from metering_dagster.core.chunks import chunked

CHUNK = 100
"""The most owners in one query. MariaDB turns an IN of 1,000 elements into a derived table, and loses the index range
at 500 pairs."""
DAYS_CHUNK = 10
"""The most days in one query: each is an index range for each of 100 owners."""
SHORT_HISTORY = 0.25
"""The share of older days up to which one query walks all days: 3.1 us a cell, against 4.1 us in chunks that jump to
their days (5 million facts)."""
MOST_EXAMPLES = 5
GROUP = (FACTS.c.integration_id, FACTS.c.resource_group)
NEWEST: tuple[tuple[Signal, Sequence[Column[Any]]], ...] = (
    (Signal.FACTS, GROUP),
    (Signal.FACTS, (FACTS.c.scope_id,)),
    (Signal.DAILY, (DAILY.c.scope_id,)),
)
"""The owners whose newest stamps `checksums` reads: the signal, and the owner's columns."""


@dataclass(frozen=True)
class InvalidStamp:
    """Rows of one owner on one day with a missing or invalid stamp."""

    signal: Signal
    owner: TenantScope | Group
    rows: int
    newest: datetime | None
    """The latest stamp; None where they have none."""
    kind: StampFault


@dataclass(frozen=True)
class InvalidStamps:
    """Rows of a day without a stamp, with one from before any ingest, or with one ahead of the database's clock."""

    unstamped: int = 0
    future: int = 0
    early: int = 0
    examples: Sequence[InvalidStamp] = ()


class InvalidValueError(Exception):
    """Value of the wrong type in a column: SQLite accepts any."""


class BillingSnapshot:
    """Snapshot of the billing tables."""

    def __init__(self, connection: Connection, now: datetime) -> None:
        """Keep a `connection` inside a transaction; `now`: the database's clock just before it, in UTC."""
        self._connection = connection
        self.now = now

    def clock(self) -> datetime:
        """Return the database's present clock, in UTC: a reading that begins later includes this one."""
        if self._connection.dialect.name == "sqlite":
            return datetime.now(UTC)  # as for `now`: SQLite's clock is this machine's
        clock: datetime = self._connection.execute(select(func.utc_timestamp(6))).scalar_one()
        return clock.replace(tzinfo=UTC)

    def claims(self) -> Claims:
        """Read the enabled subscriptions, which say whose a row is."""
        c = SUBSCRIPTIONS.c
        query = select(c.id, c.integration_id, c.external_id, c.name, c.provider, c.is_resource_group)
        return Claims(
            Subscription(
                id=str(found["id"]),
                integration_id=str(found["integration_id"] or ""),
                external_id=str(found["external_id"] or ""),
                name=str(found["name"] or ""),
                provider=str(found["provider"] or ""),
                is_resource_group=bool(found["is_resource_group"]),
            )
            for found in self._rows(query.where(c.enabled.is_(True)))
        )

    def pieces_since(
        self, starts: Mapping[Signal, datetime], first_day: date, ends: Mapping[Signal, datetime] | None = None
    ) -> list[Piece]:
        """Read the rows, claimed or not, with a stamp at or after their table's start, of `first_day` and later.

        A table with one of the `ends` is read up to that stamp, itself excluded. Each table takes one query, along the
        index of its stamps. Facts make a piece of their tenant and, if they have a resource group, one of that group.
        Raises `PollTooSlowError` where a query exceeds its time-out.
        """
        pieces: list[Piece] = []
        for signal, start in starts.items():
            stamp, end = STAMPS[signal], (ends or {}).get(signal)
            if end is not None and end <= start:
                continue
            bounds = [_at_least(stamp, start), stamp.table.c.date >= first_day]
            if end is not None:
                bounds.append(stamp < literal(_naive(end), Since()))
            owner = _spelt(*_owner_columns(stamp.table))
            try:
                rows = self._rows(_content(signal, owner, stamp, amounts=False).where(*bounds))
            except DBAPIError as error:
                if took_too_long(error):
                    raise PollTooSlowError(signal) from None
                raise
            for found in rows:
                pieces += _pieces(signal, found)
        return pieces

    def pieces_of(self, days: Collection[date], claims: Claims, *, amounts: bool) -> list[Piece]:
        """Read all rows of these days whose owners are claimed, with amounts only if requested."""
        pieces: list[Piece] = []
        groups = self._spellings(claims) if days else []
        for some_days in chunked(sorted(set(days)), DAYS_CHUNK):
            for tenants in chunked(self._spelt_tenants(claims, some_days), CHUNK):
                for signal, stamp in STAMPS.items():
                    condition = stamp.table.c.scope_id.in_(tenants)
                    pieces += self._matching(signal, [stamp.table.c.scope_id], condition, some_days, amounts)
            for pairs in chunked(groups, CHUNK):
                pieces += self._matching(Signal.FACTS, GROUP, tuple_(*GROUP).in_(pairs), some_days, amounts)
        return pieces

    def checksums(self, first_day: date) -> dict[date, str]:
        """Return for each day from `first_day` on a short text that changes once a cell's newest stamp advances.

        A cheap poll of a whole horizon: the database adds up the newest stamp of each cell, claimed or not, by day.
        It misses changes that leave all newest stamps alone, such as a row deleted beside a newer one. Days without
        rows are left out.
        """
        sums: dict[date, list[tuple[int, int, int]]] = {}
        for place, (signal, whose) in enumerate(NEWEST):
            since = STAMPS[signal].table.c.date >= first_day
            for bounds in self._chunks_of_owners(whose, first_day):
                for found in self._rows(_newest_stamps(signal, whose, and_(since, *bounds))):
                    all_sums = sums.setdefault(found["day"], [(0, 0, 0)] * len(NEWEST))
                    number, stamped, stamps = all_sums[place]
                    all_sums[place] = (
                        number + int(found["number"]),
                        stamped + int(found["stamped"]),
                        stamps + int(found["stamps"] or 0),
                    )
        return {day: digest(str(one) for one in all_sums) for day, all_sums in sorted(sums.items())}

    def invalid_stamps(self, day: date) -> InvalidStamps:
        """Find the rows of a day, claimed or not, whose stamps do not show when they were ingested."""
        invalid: list[InvalidStamp] = []
        for signal, stamp in STAMPS.items():
            columns, kind = _spelt(*_owner_columns(stamp.table)), _fault_of(stamp)
            query = select(*columns, kind, func.count().label("number"), func.max(real_stamp(stamp)).label("newest"))
            query = query.where(_is_invalid(stamp, self.now), stamp.table.c.date == day)
            invalid += [
                InvalidStamp(
                    signal,
                    _owners(found)[-1],
                    int(found["number"]),
                    _instant(found["newest"]),
                    StampFault(found[kind.name]),
                )
                for found in self._rows(_grouped_by(query, *columns, kind))
            ]
        invalid.sort(key=lambda one: (-one.rows, one.signal, repr(one.owner), one.kind))
        counts = {kind: sum(one.rows for one in invalid if one.kind is kind) for kind in StampFault}
        return InvalidStamps(
            unstamped=counts[StampFault.MISSING],
            future=counts[StampFault.AHEAD],
            early=counts[StampFault.EARLY],
            examples=tuple(invalid[:MOST_EXAMPLES]),
        )

    def days_with_invalid_stamps(self, first_day: date, ahead_of: datetime) -> dict[StampFault, dict[date, int]]:
        """Count by day, from `first_day` on, the rows with a missing or invalid stamp, or one later than `ahead_of`.

        Reads both tables, claimed rows or not, along the index of the stamps.
        """
        counts: dict[StampFault, dict[date, int]] = {kind: {} for kind in StampFault}
        for stamp in STAMPS.values():
            day, kind = stamp.table.c.date, _fault_of(stamp)
            query = select(day.label("day"), kind, func.count().label("number"))
            query = query.where(_is_invalid(stamp, ahead_of), day >= first_day).group_by(day)
            for found in self._rows(_grouped_by(query, kind)):
                days = counts[StampFault(found[kind.name])]
                days[found["day"]] = days.get(found["day"], 0) + int(found["number"])
        return {kind: dict(sorted(days.items())) for kind, days in counts.items()}

    def groups_of(self, day: date) -> list[Group]:
        """Return the resource groups of the facts of a day, each in one of its spellings."""
        query = select(*GROUP).where(FACTS.c.date == day).group_by(*GROUP)
        return [Group(*pair) for pair in sorted(self._pairs(query))]

    def tenants_of(self, day: date) -> list[TenantScope]:
        """Return the tenants with rows of a day in either table, each in one of its spellings."""
        return [TenantScope(scope) for scope in sorted(self._scopes(day))]

    def precision(self, signal: Signal) -> int:
        """Return how many decimals of a second this signal's stamps keep: the rest of an ingest's stamp is cut off."""
        return schema_check.precision(self._connection, signal)

    def missing_indexes(self) -> list[str]:
        """Return the missing ones of the advised indexes, as `table (columns)`."""
        return self._missing.advised

    def _chunks_of_owners(
        self, whose: Sequence[Column[Any]], first_day: date
    ) -> Iterator[Sequence[ColumnElement[bool]]]:
        """Yield conditions that cut a table's rows by owner, so that each query jumps along the index to its days.

        Bounded by days alone, a query walks all days that an owner ever had, and these tables are kept for years. That
        is faster only where few rows are older than `first_day`. Without the index each chunk would scan the table. In
        both cases one query reads all owners.
        """
        named = [column.is_not(None) for column in whose if column.nullable]
        if any(index.columns[0] is whose[0] for index in self._missing.indexes):
            yield named
            return
        day = whose[0].table.c.date
        firsts = self._all(select(*whose, func.min(day).label("first")).where(*named).group_by(*whose))
        owners = [tuple(found[column.name] for column in whose) for found in firsts]
        if self._is_short(first_day, [found["first"] for found in firsts if isinstance(found["first"], date)]):
            yield named
        elif whose == GROUP:
            for integrations, names in rectangles(((one[0], one[1]) for one in owners), CHUNK):
                # With a single integration MariaDB reads all rows of its groups; with a second one it jumps.
                yield GROUP[0].in_([*integrations, ""]), GROUP[1].in_(names)
        else:
            for chunk in chunked(sorted(one[0] for one in owners), CHUNK):
                yield (whose[0].in_(chunk),)

    def _is_short(self, first_day: date, firsts: Collection[date]) -> bool:
        """Judge whether owners whose rows begin on these days have so few before `first_day` that walking is faster."""
        walked = sum(max((first_day - first).days, 0) for first in firsts)
        return walked <= SHORT_HISTORY * (self.now.date() - first_day).days * len(firsts)

    @cached_property
    def _missing(self) -> schema_check.MissingSchema:
        return schema_check.missing(self._connection)

    def _scopes(self, day: date) -> set[str]:
        """Return the scope ids of a day in both tables.

        For one day a query jumps from one scope id to the next in the index; for several MariaDB walks all of it.
        """
        scopes: set[str] = set()
        for stamp in STAMPS.values():
            scope = stamp.table.c.scope_id
            found = self._rows(select(scope).where(stamp.table.c.date == day).group_by(scope))
            scopes |= {str(row["scope_id"]) for row in found}
        return scopes

    def _spelt_tenants(self, claims: Claims, days: Sequence[date]) -> list[str]:
        """Return the claimed tenants in each spelling of the subscriptions, and of the tables on these days."""
        keys = {key_of(scope) for scope in claims.tenants}
        held = (scope for day in days for scope in self._scopes(day)) if keys else ()
        return sorted({*claims.tenants, *(scope for scope in held if key_of(scope) in keys)})

    def _spellings(self, claims: Claims) -> list[tuple[str, str]]:
        """Return the claimed resource groups in each spelling of the facts and of the subscriptions.

        Where the column's collation (or SQLite) is case-sensitive, equality in SQL would miss claimed rows.
        """
        keys = {(key_of(integration), key_of(name)) for integration, name in claims.groups}
        spellings = set(claims.groups)
        for integrations in chunked(sorted({integration for integration, _ in spellings}), CHUNK):
            query = select(*GROUP).where(FACTS.c.integration_id.in_(integrations)).group_by(*GROUP)
            spellings |= {pair for pair in self._pairs(query) if (key_of(pair[0]), key_of(pair[1])) in keys}
        return sorted(spellings)

    def _pairs(self, query: Select[Any]) -> list[tuple[str, str]]:
        """Return integrations and resource groups; rows without a resource group are left out."""
        rows = self._rows(query)
        return [(str(found["integration_id"]), str(found["resource_group"])) for found in rows
                if found["resource_group"] is not None]  # fmt: skip

    def _matching(
        self,
        signal: Signal,
        whose: Sequence[Column[Any]],
        condition: ColumnElement[bool],
        days: list[date],
        amounts: bool,
    ) -> list[Piece]:
        query = _content(signal, _spelt(*whose), real_stamp(STAMPS[signal]), amounts=amounts)
        query = query.where(condition, STAMPS[signal].table.c.date.in_(days))
        return [piece for found in self._rows(query) for piece in _pieces(signal, found)]

    def _rows(self, query: Select[Any]) -> Sequence[RowMapping]:
        """Return the rows of valid days: MySQL accepts `0000-00-00`, and no consumer could pull that day."""
        rows = self._all(query)
        return [found for found in rows if "day" not in found or isinstance(found["day"], date)]

    def _all(self, query: Select[Any]) -> Sequence[RowMapping]:
        result = self._connection.execute(query)
        try:
            return result.mappings().all()
        except (ValueError, TypeError, ArithmeticError) as error:
            raise InvalidValueError(str(error)) from None


def _newest_stamps(signal: Signal, whose: Sequence[Column[Any]], bounds: ColumnElement[bool]) -> Select[Any]:
    """Select for each day the number of cells, how many have a stamp, and the sum of each cell's newest stamp."""
    stamp = STAMPS[signal]
    day = stamp.table.c.date
    cells = (
        select(day.label("day"), func.max(stamp).label("stamp")).where(bounds).group_by(*whose, day).subquery("cells")
    )
    return select(
        cells.c.day,
        func.count().label("number"),
        func.count(real_stamp(cells.c.stamp)).label("stamped"),
        added_stamps(real_stamp(cells.c.stamp)).label("stamps"),
    ).group_by(cells.c.day)


def _owner_columns(table: Table) -> list[Column[Any]]:
    """Return the columns that say whose a row is."""
    return [table.c.scope_id] if table is DAILY else [table.c.scope_id, *GROUP]


def _spelt(*columns: Column[Any]) -> list[ColumnElement[Any]]:
    return [spelling(column).label(f"spelt_{column.name}") for column in columns]


def _grouped_by(query: Select[Any], *labeled: ColumnElement[Any]) -> Select[Any]:
    """Group by names of the result: under ONLY_FULL_GROUP_BY MariaDB does not recognize a repeated expression."""
    return query.group_by(*(column.name for column in labeled))


def _at_least(stamp: Column[Any], instant: datetime) -> ColumnElement[bool]:
    return stamp >= literal(_naive(instant), Since())


def _is_invalid(stamp: Column[Any], ahead_of: datetime) -> ColumnElement[bool]:
    """Return the condition of a missing or invalid stamp: three ranges of the stamp's index."""
    early = stamp < literal(_naive(EARLIEST_STAMP), Since())
    return or_(stamp.is_(None), early, stamp > literal(_naive(ahead_of), Since()))


def _fault_of(stamp: Column[Any]) -> Label[str]:
    """Return the expression for a stamp's oddity."""
    return case(
        (real_stamp(stamp).is_(None), StampFault.MISSING.value),
        (_at_least(stamp, EARLIEST_STAMP), StampFault.AHEAD.value),
        else_=StampFault.EARLY.value,
    ).label("fault")


def _content(
    signal: Signal, owner: Sequence[ColumnElement[Any]], stamp: ColumnElement[Any], *, amounts: bool
) -> Select[Any]:
    """Select the content of each owner and day: the owner's columns, then those that `_pieces` reads.

    `stamp`: the signal's column itself where bounds exclude zero dates, else its `real_stamp`.
    """
    table = STAMPS[signal].table
    by_currency = [spelling(table.c.currency).label("spelt_currency")] if amounts else []
    added = [added_amounts(table.c.amount).label("amount")] if amounts else []
    query = select(
        *owner,
        table.c.date.label("day"),
        func.count().label("number"),
        func.count(stamp).label("stamped"),
        func.max(stamp).label("newest"),
        added_stamps(stamp).label("stamps"),
        *by_currency,
        *added,
    ).group_by(table.c.date)
    return _grouped_by(query, *owner, *by_currency)


def _pieces(signal: Signal, found: RowMapping) -> list[Piece]:
    amounts: Amounts = ()
    if found.get("amount") is not None:
        amounts = ((str(found["spelt_currency"] or ""), Decimal(str(found["amount"]))),)
    side = Side(
        rows=int(found["number"]),
        unstamped=int(found["number"]) - int(found["stamped"]),
        newest=_instant(found["newest"]),
        stamps=int(found["stamps"] or 0),
        amounts=amounts,
    )
    return [Piece(signal, found["day"], owner, side) for owner in _owners(found)]


def _owners(found: RowMapping) -> list[TenantScope | Group]:
    """Return the owners of the rows by the selected columns: their tenant, their resource group if any, or both."""
    owners: list[TenantScope | Group] = []
    if "spelt_scope_id" in found:
        owners.append(TenantScope(str(found["spelt_scope_id"])))
    if found.get("spelt_resource_group") is not None:
        owners.append(Group(str(found["spelt_integration_id"]), str(found["spelt_resource_group"])))
    return owners


def _naive(instant: datetime) -> datetime:
    """Return the instant as the columns hold it: in UTC, without a zone."""
    return instant.astimezone(UTC).replace(tzinfo=None)


def _instant(found: Any) -> datetime | None:
    """Return a column's stamp as an instant in UTC; None for any other value, such as MySQL's zero date."""
    return found.replace(tzinfo=UTC) if isinstance(found, datetime) else None
