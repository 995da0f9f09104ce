"""SQL functions that hide the differences of MySQL and SQLite.

Belongs here: expressions, and exact sums, which SQLite lacks. Does not: queries (queries), types of columns
(billing_tables), connections (database).
"""

from datetime import UTC, datetime
from decimal import Decimal
from sqlite3 import Connection
from typing import Any

from sqlalchemy import String
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from metering_dagster.billing_changes.rules.cells import microseconds_of
from metering_dagster.billing_changes.stores.billing_tables import STAMP

TOO_SLOW = frozenset({1969, 3024})
"""Error codes of MariaDB and MySQL: the server has ended a statement at its time-out."""
_SIX_PLACES = Decimal("0.000001")


class spelling(GenericFunction[str]):  # noqa: N801 - functions of SQL
    """Text as the row spells it: it tells rows apart that the column's collation takes for equal."""

    type = String()
    inherit_cache = True


class real_stamp(GenericFunction[datetime]):  # noqa: N801
    """Stamp, or NULL for MySQL's zero date, which counts as none.

    MAX needs it only where all stamps may be zero dates: a zero date is less than any other.
    """

    type = STAMP
    inherit_cache = True


class added_stamps(GenericFunction[Any]):  # noqa: N801
    """Sum of the rows' stamps, in microseconds since 1970; NULL where no row has one."""

    type = String()
    inherit_cache = True


class added_amounts(GenericFunction[Any]):  # noqa: N801
    """Exact sum of the rows' amounts; NULL where no row has one."""

    type = String()
    inherit_cache = True


@compiles(spelling, "mysql")
def _spelling_mysql(element: spelling, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CONVERT({compiler.process(element.clauses, **kw)} USING utf8mb4) COLLATE utf8mb4_bin"


@compiles(spelling, "sqlite")
def _spelling_sqlite(element: spelling, compiler: SQLCompiler, **kw: Any) -> str:
    return f"{compiler.process(element.clauses, **kw)} COLLATE BINARY"


@compiles(real_stamp)
def _real_stamp(element: real_stamp, compiler: SQLCompiler, **kw: Any) -> str:
    stamp = compiler.process(element.clauses, **kw)
    return f"CASE WHEN {stamp} >= '0001-01-01' THEN {stamp} END"  # texts compare alike on SQLite


@compiles(added_stamps, "mysql")
def _added_stamps_mysql(element: added_stamps, compiler: SQLCompiler, **kw: Any) -> str:
    return f"SUM(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {compiler.process(element.clauses, **kw)}))"


@compiles(added_amounts, "mysql")
def _added_amounts_mysql(element: added_amounts, compiler: SQLCompiler, **kw: Any) -> str:
    return f"SUM({compiler.process(element.clauses, **kw)})"


def took_too_long(error: DBAPIError) -> bool:
    """Judge whether a statement exceeded its time-out, the server's or the driver's."""
    code = error.orig.args[0] if error.orig is not None and error.orig.args else None
    return code in TOO_SLOW or "timed out" in str(error.orig)


def add_exact_sums(connection: Connection) -> None:
    """Add exact sums to a connection of SQLite: its own are floats, or overflow (at 5,000 stamps in microseconds)."""
    # Each step of an aggregate is a Python call of some microseconds: fast enough for a database of this size.
    connection.create_aggregate("added_stamps", 1, _AddedStamps)  # type: ignore[arg-type]
    connection.create_aggregate("added_amounts", 1, _AddedAmounts)  # type: ignore[arg-type]


class _AddedStamps:
    def __init__(self) -> None:
        self.sum: int | None = None

    def step(self, stamp: str | None) -> None:
        if stamp is not None:
            instant = datetime.fromisoformat(stamp)
            self.sum = (self.sum or 0) + microseconds_of(instant if instant.tzinfo else instant.replace(tzinfo=UTC))

    def finalize(self) -> str | None:
        return None if self.sum is None else str(self.sum)


class _AddedAmounts:
    def __init__(self) -> None:
        self.sum: Decimal | None = None

    def step(self, amount: float | str | None) -> None:
        if amount is not None:
            self.sum = (self.sum or Decimal()) + Decimal(str(amount)).quantize(_SIX_PLACES)

    def finalize(self) -> str | None:
        return None if self.sum is None else f"{self.sum:f}"
