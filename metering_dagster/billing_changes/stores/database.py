"""The billing database: connections, one snapshot for each reading, and its error messages.

Belongs here: engines for MySQL, MariaDB and SQLite, read-only transactions, errors. Does not: queries (queries), the
missing tables and columns (schema_check).

No message contains the password or the whole URL.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchTableError, SQLAlchemyError

from metering_dagster.billing_changes.rules.watermark import PollTooSlowError
from metering_dagster.billing_changes.stores import dialects, schema_check
from metering_dagster.billing_changes.stores.queries import BillingSnapshot, InvalidValueError
from metering_dagster.core.errors import DatabaseAwayError, DatabaseError, MeteringError, SettingsError
from metering_dagster.core.masking import mask_text

_UNTOUCHED = "Nothing was written; earlier reports stay valid."

_LOGIN_ERRORS = {
    1045: "refuses the login: user or password is wrong",
    1698: "refuses the login: user or password is wrong",
    1130: "does not let this machine connect",
    1129: "has blocked this machine after too many failed connections",
    1044: "does not let this user into the database: GRANT SELECT on the three billing tables",
    1049: "has no such database",
    1142: "does not let this user read a table: GRANT SELECT on the three billing tables",
    1143: "does not let this user read a column: GRANT SELECT on the three billing tables",
}
"""MySQL's error codes about the caller: a retry does not help."""
_AWAY = frozenset({1040, 1053, 1080, 1159, 1161, 1203, 1205, 1213, 1226, 1317, 1927, 2002, 2003, 2006, 2013, 2014,
                   2055, 4031}) | dialects.TOO_SLOW  # fmt: skip
"""Error codes of refused, killed or lost connections, and of a server that stops or is overloaded."""
_NOT_AS_NEEDED = frozenset({1054, 1146})
"""Error codes of an unknown column and an unknown table."""


class Database:
    """Billing database. Making one does not connect; threads may share it."""

    def __init__(self, url: str, read_timeout: float = 30, connect_timeout: int = 5) -> None:
        """Set time-outs in seconds, of one query (SQLite has none) and of connecting.

        Raises `SettingsError` if the URL is invalid or of another kind of database.
        """
        self._url = _parsed(url)
        self._read_timeout = read_timeout
        make = _sqlite if self._is_sqlite else _mysql
        with self._parameters():
            self._engine = make(self._url, read_timeout, connect_timeout)

    @property
    def _is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    @property
    def place(self) -> str:
        """Return the database's name for messages, without user and password."""
        if self._is_sqlite:
            return f"the SQLite file {self._url.database}"
        port = f":{self._url.port}" if self._url.port else ""
        return f"the database {self._url.database} at {self._url.host or 'localhost'}{port}"

    @contextmanager
    def reading(self) -> Iterator[BillingSnapshot]:
        """Give a block a new read-only transaction; all its queries read one snapshot.

        Raises `DatabaseError` where the database refuses, or a table or column is missing or invalid. Raises
        `DatabaseAwayError` where it does not answer, or not in time.
        """
        with self._explained(), self._connected() as connection:
            now = _begin(connection, self._read_timeout)
            try:
                yield BillingSnapshot(connection, now)
            finally:
                with suppress(SQLAlchemyError):  # it may be gone; it is read-only in any case
                    connection.rollback()

    def missing(self) -> schema_check.MissingSchema:
        """Find missing tables, columns and advised indexes. Raises the errors of `reading`."""
        with self._explained(), self._connected() as connection:
            return schema_check.missing(connection)

    def other_charsets(self) -> list[str]:
        """Find the columns of owners that are not in utf8mb4, as text. Raises the errors of `reading`."""
        with self._explained(), self._connected() as connection:
            return schema_check.other_charsets(connection)

    @property
    def dialect(self) -> Any:
        """Return SQLAlchemy's dialect of this database."""
        return self._engine.dialect

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        if self._is_sqlite and not Path(str(self._url.database)).is_file():
            raise DatabaseError(
                f"{_capital(self.place)} does not exist. It was not created, and nothing was read. Does "
                "BILLING_DATABASE_URL name the right one?"
            )
        try:
            with self._parameters():
                connection = self._engine.connect()
        except RuntimeError as error:  # of PyMySQL, where MySQL's password check needs another package
            raise DatabaseError(
                f"{_capital(self.place)} cannot be connected to: {mask_text(str(error))}. {_UNTOUCHED}"
            ) from None
        with connection:
            yield connection

    @contextmanager
    def _parameters(self) -> Iterator[None]:
        """Replace the driver's error about the URL's parameters, which quotes their values."""
        try:
            yield
        except (TypeError, ValueError):
            names = ", ".join(sorted(self._url.query)) or "none"
            raise SettingsError(
                f"BILLING_DATABASE_URL has parameters that the driver refuses (it has: {names}). {_UNTOUCHED} Remove "
                "or correct them."
            ) from None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            # Without its cause: a driver's message names the user, SQLAlchemy's the accounts of the query.
            raise self._error_of(error) from None
        except PollTooSlowError:
            raise self._too_slow() from None
        except InvalidValueError as error:
            raise DatabaseError(
                f"{_capital(self.place)} holds a value of the wrong type: {mask_text(str(error))[:200]}. {_UNTOUCHED} "
                "Correct the row."
            ) from None

    def _error_of(self, error: SQLAlchemyError) -> MeteringError:
        if isinstance(error, NoSuchTableError):
            return self._not_as_needed(f"there is no table {error}")
        origin = error.orig if isinstance(error, DBAPIError) else None
        if isinstance(origin, sqlite3.Error):
            return self._sqlite_error_of(origin)
        code = origin.args[0] if origin is not None and origin.args else None
        where = _capital(self.place)
        if code in _NOT_AS_NEEDED:
            return self._not_as_needed(str(origin.args[-1]) if origin is not None else "")
        if code in _LOGIN_ERRORS:
            return DatabaseError(
                f"{where} {_LOGIN_ERRORS[code]} ({code}). {_UNTOUCHED} Correct BILLING_DATABASE_URL or the grant."
            )
        if isinstance(error, DBAPIError) and dialects.took_too_long(error):
            return self._too_slow()
        if code in _AWAY or (isinstance(error, DBAPIError) and error.connection_invalidated):
            return DatabaseAwayError(
                f"{where} cannot be reached, or the connection was lost ({code}). {_UNTOUCHED} The next poll tries "
                "again."
            )
        message = mask_text(str(origin.args[-1] if origin is not None and origin.args else error))
        return DatabaseError(f"{where} refuses a query: {message} ({code}). {_UNTOUCHED}")

    def _too_slow(self) -> DatabaseAwayError:
        return DatabaseAwayError(
            f"{_capital(self.place)} did not answer within {self._read_timeout:g} s. {_UNTOUCHED} The next poll tries "
            "again; `metering-dagster init` names the indexes that are missing."
        )

    def _sqlite_error_of(self, origin: sqlite3.Error) -> MeteringError:
        message = str(origin)
        if message.startswith(("no such table", "no such column")):
            return self._not_as_needed(message)
        if "locked" in message or "busy" in message:
            return DatabaseAwayError(
                f"{_capital(self.place)} is being written to ({message}). {_UNTOUCHED} The next poll tries again."
            )
        return DatabaseError(f"{_capital(self.place)} cannot be read: {message}. {_UNTOUCHED}")

    def _not_as_needed(self, message: str) -> DatabaseError:
        """Return the error of an unsuitable database: it names everything missing, not only the first item."""
        lacking = ""
        with suppress(SQLAlchemyError), self._connected() as connection:
            lacking = "; ".join(schema_check.missing(connection).needed)
        return DatabaseError(
            f"{_capital(self.place)} is not as needed: {lacking or mask_text(message)}. {_UNTOUCHED} `metering-dagster "
            "init` prints the tables and columns needed. Does BILLING_DATABASE_URL name the right database?"
        )


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise SettingsError(f"BILLING_DATABASE_URL is an invalid database URL. {_VALID_URLS}") from None
    backend = parsed.get_backend_name()
    if backend not in ("mysql", "mariadb", "sqlite"):
        raise SettingsError(f"BILLING_DATABASE_URL names {backend}, which is not supported. {_VALID_URLS}")
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise SettingsError(f"BILLING_DATABASE_URL names no database. {_VALID_URLS}")
    # A password with an @ or a / is cut there: its end would pass for a host or a database, and be shown.
    # A file has neither user nor host.
    if (
        (parsed.username or parsed.password or parsed.host or parsed.port)
        if backend == "sqlite"
        else (not re.fullmatch(r"[\w.:-]*", parsed.host or "") or re.search(r"[@/#?]", parsed.database))
    ):
        raise SettingsError(f"BILLING_DATABASE_URL cannot be split into its parts. {_VALID_URLS}")
    return parsed


_VALID_URLS = (
    "Nothing was read. Use mysql+pymysql://USER:PASSWORD@HOST:PORT/DATABASE (special characters of the password as "
    "%XX), or sqlite:////absolute/path of a file."
)


_SESSION = (
    # Stamps are UTC, whatever the server's zone: a TIMESTAMP is shown and compared in the session's zone.
    "time_zone = '+00:00'",
    # No mode that changes how a statement is read, such as ANSI, ORACLE, NO_BACKSLASH_ESCAPES or
    # PAD_CHAR_TO_FULL_LENGTH. Comparisons with zero dates are allowed.
    "sql_mode = ''",
    # Whole results: a server may cut them, or refuse statements that examine many rows.
    "sql_select_limit = 18446744073709551615",
    "sql_big_selects = 1",
)
"""Session variables that the queries rely on, and that a server may set otherwise. They are set before SQLAlchemy and
the driver read them."""


def _mysql(url: URL, read_timeout: float, connect_timeout: int) -> Engine:
    return create_engine(
        url.set(drivername="mysql+pymysql"),
        pool_pre_ping=True,
        hide_parameters=True,
        isolation_level="REPEATABLE READ",  # one snapshot for the whole transaction, whatever the server's default
        connect_args={
            "charset": "utf8mb4",
            "collation": "utf8mb4_bin",
            "init_command": f"SET SESSION {', '.join(_SESSION)}",
            "connect_timeout": connect_timeout,
            "read_timeout": read_timeout + 5,  # the server ends the statement before, if it can
        },
    )


def _sqlite(url: URL, read_timeout: float, connect_timeout: int) -> Engine:
    path = quote(str(Path(str(url.database)).absolute()))

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=connect_timeout, check_same_thread=False)
        dialects.add_exact_sums(connection)
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)


def _begin(connection: Connection, read_timeout: float) -> datetime:
    """Begin the transaction; return the database's clock just before its snapshot, in UTC."""
    if connection.dialect.name == "sqlite":
        now = datetime.now(UTC)  # SQLite's clock is this machine's, in milliseconds only
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("SELECT COUNT(*) FROM sqlite_master")  # only the first read fixes the snapshot
        return now
    if connection.dialect.is_mariadb:  # type: ignore[attr-defined]
        connection.execute(text(f"SET SESSION max_statement_time = {read_timeout}"))
    else:
        connection.execute(text(f"SET SESSION max_execution_time = {round(read_timeout * 1000)}"))
    clock: datetime = connection.execute(text("SELECT UTC_TIMESTAMP(6)")).scalar_one()
    connection.execute(text("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"))
    return clock.replace(tzinfo=UTC)


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
