"""The questions that are asked of the billing database, in the domain's words (domain: the billing-changes signal).

Belongs here: the queries; each has its bounds, and a chunk of at most 100 where it names whom it asks for. Does not:
connections and snapshots (database), what a database spells its own way (dialects), whose the rows are (cells).
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
    Oddity,
    Piece,
    Side,
    Signal,
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
"""MariaDB turns 1,000 elements of an IN into a derived table, and at 500 pairs the range of the index is lost."""
DAYS_CHUNK = 10
"""Days in one query, each of them a range for each of a hundred."""
SHORT_HISTORY = 0.25
"""A cell costs 3.1 us in one query that walks all days, 4.1 us in chunks that jump to theirs (5 million facts)."""
MOST_EXAMPLES = 5
GROUP = (FACTS.c.integration_id, FACTS.c.resource_group)
NEWEST: tuple[tuple[Signal, Sequence[Column[Any]]], ...] = (
    (Signal.FACTS, GROUP),
    (Signal.FACTS, (FACTS.c.scope_id,)),
    (Signal.DAILY, (DAILY.c.scope_id,)),
)
"""Whose newest stamps the cheap look takes: the signal, and the columns that tell them apart."""


@dataclass(frozen=True)
class OddStamp:
    """Rows of one owner on one day whose stamps tell nothing, or not yet."""

    signal: Signal
    owner: TenantScope | Group
    rows: int
    newest: datetime | None
    """The latest one; None: they have no stamp at all."""
    kind: Oddity


@dataclass(frozen=True)
class OddStamps:
    """The rows of a day without a stamp, with one from before any ingest, or with one ahead of the database's clock."""

    unstamped: int = 0
    future: int = 0
    early: int = 0
    examples: Sequence[OddStamp] = ()


class OddValueError(Exception):
    """A column holds what is none of its type: SQLite takes anything."""


class BillingSnapshot:
    """One snapshot of the billing tables."""

    def __init__(self, connection: Connection, now: datetime) -> None:
        """`connection` is inside a transaction; `now`: the database's clock from just before it, in UTC."""
        self._connection = connection
        self.now = now

    def clock(self) -> datetime:
        """Return the database's clock by now, in UTC: a reading that begins later has all that this one has."""
        if self._connection.dialect.name == "sqlite":
            return datetime.now(UTC)  # as for `now`: SQLite's clock is this machine's
        clock: datetime = self._connection.execute(select(func.utc_timestamp(6))).scalar_one()
        return clock.replace(tzinfo=UTC)

    def claims(self) -> Claims:
        """Return whose a row is, by the enabled subscriptions."""
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
        """Return what carries a stamp at or after its table's start, of `first_day` and later, whoever claims it.

        A table that has one of the `ends` is read up to that stamp, itself excluded. One query a table, along the index
        of its stamps. Of the facts each group of rows is a piece of its tenant and, if it has a resource group, one of
        that group. Raises `PollTooSlowError` where a query runs into its time-out.
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
        """Return all that the tables hold of these days for those who claim something, exactly; amounts only if asked
        for.
        """
        pieces: list[Piece] = []
        groups = self._spellings(claims) if days else []
        for some_days in chunked(sorted(set(days)), DAYS_CHUNK):
            for tenants in chunked(self._spelt_tenants(claims, some_days), CHUNK):
                for signal, stamp in STAMPS.items():
                    asked = stamp.table.c.scope_id.in_(tenants)
                    pieces += self._asked(signal, [stamp.table.c.scope_id], asked, some_days, amounts)
            for pairs in chunked(groups, CHUNK):
                pieces += self._asked(Signal.FACTS, GROUP, tuple_(*GROUP).in_(pairs), some_days, amounts)
        return pieces

    def checksums(self, first_day: date) -> dict[date, str]:
        """For each day from `first_day` on a short text: another one once a cell's newest stamp moves.

        A cheap look at a whole horizon: the newest stamp of each cell, whoever claims it, added up per day by the
        database. It misses what leaves all of them as they were, such as a row deleted beside a newer one. Days without
        rows are not in it.
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

    def odd_stamps(self, day: date) -> OddStamps:
        """Return the rows of a day, whoever claims them, whose stamps do not tell when they were ingested."""
        odd: list[OddStamp] = []
        for signal, stamp in STAMPS.items():
            columns, kind = _spelt(*_owner_columns(stamp.table)), _oddity(stamp)
            query = select(*columns, kind, func.count().label("number"), func.max(real_stamp(stamp)).label("newest"))
            query = query.where(_is_odd(stamp, self.now), stamp.table.c.date == day)
            odd += [
                OddStamp(
                    signal,
                    _owners(found)[-1],
                    int(found["number"]),
                    _instant(found["newest"]),
                    Oddity(found[kind.name]),
                )
                for found in self._rows(_grouped_by(query, *columns, kind))
            ]
        odd.sort(key=lambda one: (-one.rows, one.signal, repr(one.owner), one.kind))
        counts = {kind: sum(one.rows for one in odd if one.kind is kind) for kind in Oddity}
        return OddStamps(
            unstamped=counts[Oddity.MISSING],
            future=counts[Oddity.AHEAD],
            early=counts[Oddity.EARLY],
            examples=tuple(odd[:MOST_EXAMPLES]),
        )

    def odd_days(self, first_day: date, ahead_of: datetime) -> dict[Oddity, dict[date, int]]:
        """Return how many rows of the days from `first_day` on have a stamp that tells nothing, or is later than
        `ahead_of`.

        In both tables, whoever claims them; along the index of the stamps.
        """
        counts: dict[Oddity, dict[date, int]] = {kind: {} for kind in Oddity}
        for stamp in STAMPS.values():
            day, kind = stamp.table.c.date, _oddity(stamp)
            query = select(day.label("day"), kind, func.count().label("number"))
            query = query.where(_is_odd(stamp, ahead_of), day >= first_day).group_by(day)
            for found in self._rows(_grouped_by(query, kind)):
                days = counts[Oddity(found[kind.name])]
                days[found["day"]] = days.get(found["day"], 0) + int(found["number"])
        return {kind: dict(sorted(days.items())) for kind, days in counts.items()}

    def groups_of(self, day: date) -> list[Group]:
        """Return every resource group that the facts hold on a day, in one of its spellings."""
        query = select(*GROUP).where(FACTS.c.date == day).group_by(*GROUP)
        return [Group(*pair) for pair in sorted(self._pairs(query))]

    def tenants_of(self, day: date) -> list[TenantScope]:
        """Return every tenant that either table holds rows of on a day, in one of its spellings."""
        return [TenantScope(scope) for scope in sorted(self._scopes(day))]

    def precision(self, signal: Signal) -> int:
        """Return how many decimals of a second this signal's stamps keep: they may be less than the ingest's by the
        rest.
        """
        return schema_check.precision(self._connection, signal)

    def missing_indexes(self) -> list[str]:
        """Return the advised indexes that are not there, as `table (columns)`."""
        return self._missing.advised

    def _chunks_of_owners(
        self, whose: Sequence[Column[Any]], first_day: date
    ) -> Iterator[Sequence[ColumnElement[bool]]]:
        """Conditions that cut a table's rows by their owners, so that each query jumps along the index to its days.

        Bounded by the days alone a query walks all the days that an owner ever had, and these tables are kept for
        years: that is quicker only where little lies before `first_day`. Without the index each chunk would be a scan
        of the table. In either case there is one query for all.
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
                # With one integration MariaDB reads all rows of its groups; with another one beside it, it jumps.
                yield GROUP[0].in_([*integrations, ""]), GROUP[1].in_(names)
        else:
            for chunk in chunked(sorted(one[0] for one in owners), CHUNK):
                yield (whose[0].in_(chunk),)

    def _is_short(self, first_day: date, firsts: Collection[date]) -> bool:
        """Return whether owners whose rows begin on these days have so little before `first_day` that it is walked
        along.
        """
        walked = sum(max((first_day - first).days, 0) for first in firsts)
        return walked <= SHORT_HISTORY * (self.now.date() - first_day).days * len(firsts)

    @cached_property
    def _missing(self) -> schema_check.MissingSchema:
        return schema_check.missing(self._connection)

    def _scopes(self, day: date) -> set[str]:
        """Return the scope ids of a day in both tables.

        Asked for one day, a query jumps from one to the next in the index; for several MariaDB walks the whole of it.
        """
        scopes: set[str] = set()
        for stamp in STAMPS.values():
            scope = stamp.table.c.scope_id
            found = self._rows(select(scope).where(stamp.table.c.date == day).group_by(scope))
            scopes |= {str(row["scope_id"]) for row in found}
        return scopes

    def _spelt_tenants(self, claims: Claims, days: Sequence[date]) -> list[str]:
        """Return the tenants that are claimed, in each spelling that the tables have on these days, or the
        subscriptions.
        """
        keys = {key_of(scope) for scope in claims.tenants}
        held = (scope for day in days for scope in self._scopes(day)) if keys else ()
        return sorted({*claims.tenants, *(scope for scope in held if key_of(scope) in keys)})

    def _spellings(self, claims: Claims) -> list[tuple[str, str]]:
        """Return the resource groups that are claimed, in each spelling that the facts or the subscriptions have.

        Where the column's collation (or SQLite) tells case apart, equality in SQL would miss rows that are meant.
        """
        keys = {(key_of(integration), key_of(name)) for integration, name in claims.groups}
        spellings = set(claims.groups)
        for integrations in chunked(sorted({integration for integration, _ in spellings}), CHUNK):
            query = select(*GROUP).where(FACTS.c.integration_id.in_(integrations)).group_by(*GROUP)
            spellings |= {pair for pair in self._pairs(query) if (key_of(pair[0]), key_of(pair[1])) in keys}
        return sorted(spellings)

    def _pairs(self, query: Select[Any]) -> list[tuple[str, str]]:
        """Integrations and resource groups; rows without a resource group belong to none."""
        rows = self._rows(query)
        return [(str(found["integration_id"]), str(found["resource_group"])) for found in rows
                if found["resource_group"] is not None]  # fmt: skip

    def _asked(
        self, signal: Signal, whose: Sequence[Column[Any]], asked: ColumnElement[bool], days: list[date], amounts: bool
    ) -> list[Piece]:
        query = _content(signal, _spelt(*whose), real_stamp(STAMPS[signal]), amounts=amounts)
        query = query.where(asked, STAMPS[signal].table.c.date.in_(days))
        return [piece for found in self._rows(query) for piece in _pieces(signal, found)]

    def _rows(self, query: Select[Any]) -> Sequence[RowMapping]:
        """Return those of a day that is none are left out: MySQL lets `0000-00-00` in, and nobody could pull
        that day.
        """
        rows = self._all(query)
        return [found for found in rows if "day" not in found or isinstance(found["day"], date)]

    def _all(self, query: Select[Any]) -> Sequence[RowMapping]:
        result = self._connection.execute(query)
        try:
            return result.mappings().all()
        except (ValueError, TypeError, ArithmeticError) as error:
            raise OddValueError(str(error)) from None


def _newest_stamps(signal: Signal, whose: Sequence[Column[Any]], bounds: ColumnElement[bool]) -> Select[Any]:
    """Of each day the newest stamps of its cells: how many cells, how many have one, and these added up."""
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
    """Return what tells whose a row is."""
    return [table.c.scope_id] if table is DAILY else [table.c.scope_id, *GROUP]


def _spelt(*columns: Column[Any]) -> list[ColumnElement[Any]]:
    return [spelling(column).label(f"spelt_{column.name}") for column in columns]


def _grouped_by(query: Select[Any], *labeled: ColumnElement[Any]) -> Select[Any]:
    """Group by names of the result: under ONLY_FULL_GROUP_BY MariaDB does not take an expression for itself."""
    return query.group_by(*(column.name for column in labeled))


def _at_least(stamp: Column[Any], instant: datetime) -> ColumnElement[bool]:
    return stamp >= literal(_naive(instant), Since())


def _is_odd(stamp: Column[Any], ahead_of: datetime) -> ColumnElement[bool]:
    """Return three ranges of the stamp's index."""
    early = stamp < literal(_naive(EARLIEST_STAMP), Since())
    return or_(stamp.is_(None), early, stamp > literal(_naive(ahead_of), Since()))


def _oddity(stamp: Column[Any]) -> Label[str]:
    """Return which one it is of a stamp that is odd."""
    return case(
        (real_stamp(stamp).is_(None), Oddity.MISSING.value),
        (_at_least(stamp, EARLIEST_STAMP), Oddity.AHEAD.value),
        else_=Oddity.EARLY.value,
    ).label("oddity")


def _content(
    signal: Signal, owner: Sequence[ColumnElement[Any]], stamp: ColumnElement[Any], *, amounts: bool
) -> Select[Any]:
    """Return what there is of each owner and day: the owner's columns, then these that `_pieces` takes.

    `stamp`: the signal's column as it is, where bounds leave zero dates out; else its `real_stamp`.
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
    """Return whose the rows are, by what was asked for: their tenant, their resource group if they have one,
    or both.
    """
    owners: list[TenantScope | Group] = []
    if "spelt_scope_id" in found:
        owners.append(TenantScope(str(found["spelt_scope_id"])))
    if found.get("spelt_resource_group") is not None:
        owners.append(Group(str(found["spelt_integration_id"]), str(found["spelt_resource_group"])))
    return owners


def _naive(instant: datetime) -> datetime:
    """As the columns hold it: in UTC, without its zone."""
    return instant.astimezone(UTC).replace(tzinfo=None)


def _instant(found: Any) -> datetime | None:
    """Return a stamp of a column as an instant. Whatever is no date and time (a zero date of MySQL's) is none."""
    return found.replace(tzinfo=UTC) if isinstance(found, datetime) else None
