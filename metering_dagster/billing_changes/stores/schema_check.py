"""The schema check: which tables, columns and indexes a billing database lacks.

Belongs here: comparing, messages, and DDL for an operator to run. Does not: running DDL, for this project only reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Dialect, Index, Inspector, Table, bindparam, inspect, text
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.schema import CreateIndex, CreateTable

from metering_dagster.billing_changes.rules.cells import Signal
from metering_dagster.billing_changes.stores.billing_tables import ADVISED, DAILY, FACTS, STAMPS, SUBSCRIPTIONS

TABLES = (DAILY, FACTS, SUBSCRIPTIONS)
_UNREAD = {(DAILY.name, "id"), (DAILY.name, "updated_at"), (FACTS.name, "id"), (FACTS.name, "fetched_at"),
           (FACTS.name, "service")}  # fmt: skip
"""Columns that no query reads."""

MOST_DECIMALS = 6
_NAMES = ("scope_id", "integration_id", "resource_group", "id", "external_id")
_CHARSETS = text(
    "SELECT table_name, column_name, character_set_name FROM information_schema.columns "
    "WHERE table_schema = DATABASE() AND table_name IN :tables AND column_name IN :columns "
    "AND character_set_name <> 'utf8mb4' ORDER BY 1, 2"
).bindparams(bindparam("tables", expanding=True), bindparam("columns", expanding=True))

_PRECISION = text(
    "SELECT datetime_precision FROM information_schema.columns "
    "WHERE table_schema = DATABASE() AND table_name = :table AND column_name = :column"
)


@dataclass(frozen=True)
class MissingSchema:
    """Tables, columns and indexes that a database lacks."""

    tables: Sequence[Table] = ()
    columns: Sequence[str] = ()
    """As `table.column`; those of missing tables are left out."""
    indexes: Sequence[Index] = ()
    """Of the advised indexes, those of missing tables included."""

    @property
    def needed(self) -> list[str]:
        """Return messages about missing tables and columns, without which nothing works."""
        return [f"there is no table {table.name} that this user can read" for table in self.tables] + [
            f"there is no column {column}" for column in self.columns
        ]

    @property
    def advised(self) -> list[str]:
        """Return the missing indexes as text; without them everything works, but slower."""
        return [index_words(index) for index in self.indexes]

    def ddl(self, dialect: Dialect) -> list[str]:
        """Return statements for an operator that create the missing tables and indexes; columns are left out."""
        made: list[CreateTable | CreateIndex] = [CreateTable(table) for table in self.tables]
        made += [CreateIndex(index) for index in self.indexes]
        return [" ".join(str(one.compile(dialect=dialect)).split()) + ";" for one in made]


def index_words(index: Index) -> str:
    """Return an index as text: `table (column, column)`."""
    table = index.table.name if index.table is not None else ""
    return f"{table} ({', '.join(_columns(index))})"


def missing(connection: Connection) -> MissingSchema:
    """Find what the database lacks. An index that begins with the advised columns suffices; views need none."""
    inspector = inspect(connection)
    views = set(inspector.get_view_names())
    there = views | set(inspector.get_table_names())
    columns: list[str] = []
    keys: dict[str, list[list[str]]] = {}
    for table in TABLES:
        if table.name not in there:
            keys[table.name] = []
            continue
        found = {column["name"].lower() for column in inspector.get_columns(table.name)}
        columns += [f"{table.name}.{column.name}" for column in table.columns
                    if column.name not in found and (table.name, column.name) not in _UNREAD]  # fmt: skip
        if table.name not in views:
            keys[table.name] = _keys(inspector, table.name)
    return MissingSchema(
        tables=[table for table in TABLES if table.name not in there],
        columns=columns,
        indexes=[index for index in ADVISED if _is_missing(index, keys)],
    )


def other_charsets(connection: Connection) -> list[str]:
    """Find the columns of owners that are not in utf8mb4, as `table.column (charset)`; none on SQLite.

    MariaDB 10.11 misses names with accents in a latin1 column when a query names several integrations and resource
    groups.
    """
    if connection.dialect.name == "sqlite":
        return []
    found = connection.execute(_CHARSETS, {"tables": [table.name for table in TABLES], "columns": _NAMES})
    return [f"{table}.{column} ({charset})" for table, column, charset in found]


def precision(connection: Connection, signal: Signal) -> int:
    """Return how many decimals of a second the signal's column keeps, 0 to 6. SQLite keeps all that are written.

    Raises `NoSuchTableError` where the database has no such table.
    """
    stamp = STAMPS[signal]
    if connection.dialect.name == "sqlite":
        found = (MOST_DECIMALS,) if inspect(connection).has_table(stamp.table.name) else None
    else:
        found = connection.execute(_PRECISION, {"table": stamp.table.name, "column": stamp.name}).one_or_none()
    if found is None:
        raise NoSuchTableError(stamp.table.name)
    return int(found[0] or 0)


def _keys(inspector: Inspector, table: str) -> list[list[str]]:
    """Return the columns of each index, in its order; unique keys are indexes as well."""
    found: list[Sequence[str | None]] = [index["column_names"] for index in inspector.get_indexes(table)]
    found += [unique["column_names"] for unique in inspector.get_unique_constraints(table)]
    return [[(name or "").lower() for name in names] for names in found]


def _is_missing(index: Index, keys: Mapping[str, list[list[str]]]) -> bool:
    wanted = _columns(index)
    table = index.table.name if index.table is not None else ""
    return table in keys and not any(names[: len(wanted)] == wanted for names in keys[table])


def _columns(index: Index) -> list[str]:
    return [column.name for column in index.columns]
