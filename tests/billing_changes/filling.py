"""The billing tables as others fill them: what a test writes there, with the stamps it wants."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Engine, Table, create_engine, event, insert, text, update

from metering_dagster.billing_changes.rules.cells import Subscription
from metering_dagster.billing_changes.stores.billing_tables import DAILY, FACTS, METADATA, SUBSCRIPTIONS
from metering_dagster.billing_changes.stores.database import Database

OLD = datetime(2026, 1, 1, tzinfo=UTC)
"""A stamp of long ago, which columns that stay frozen carry."""


@dataclass
class BillingTables:
    """One database with the three tables, made by `url` and written to like an ingest does it."""

    url: str
    engine: Engine
    databases: list[Database] = field(default_factory=list)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    def database(self, **options: Any) -> Database:
        """The product's own way in; closed with the test."""
        self.databases.append(Database(self.url, **options))
        return self.databases[-1]

    def create(self) -> None:
        """Make the tables and indexes."""
        METADATA.create_all(self.engine)

    def subscribe(self, *subscriptions: Subscription, enabled: bool = True) -> None:
        """Insert subscriptions."""
        with self.engine.begin() as connection:
            for one in subscriptions:
                row = {"id": one.id, "integration_id": one.integration_id, "external_id": one.external_id,
                       "name": one.name, "provider": one.provider, "is_resource_group": one.is_resource_group,
                       "enabled": enabled}  # fmt: skip
                connection.execute(insert(SUBSCRIPTIONS), row)

    def daily(
        self, scope: str, day: date, stamp: datetime | None, amount: object = 1, *, on: Connection | None = None,
        **columns: Any,
    ) -> None:  # fmt: skip
        """Upsert the daily row of a tenant and day, fetched at `stamp`."""
        row = {"scope_id": scope, "date": day} | columns
        self._upsert(DAILY, row, {"amount": amount, "fetched_at": stamp}, {"updated_at": OLD}, on)

    def fact(
        self, scope: str, day: date, stamp: datetime | None, amount: object = 1, *, integration: str = "azure",
        group: str | None = "rg", service: str = "vm", on: Connection | None = None, **columns: Any,
    ) -> None:  # fmt: skip
        """Upsert a fact, updated at `stamp`."""
        row = {"scope_id": scope, "date": day, "integration_id": integration, "resource_group": group,
               "service": service} | columns  # fmt: skip
        self._upsert(FACTS, row, {"amount": amount, "updated_at": stamp}, {"fetched_at": OLD}, on)

    def run(self, *statements: str) -> None:
        """Run statements as they are."""
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """A session of its own, whose transaction stays open until the test commits it."""
        with self.engine.connect() as connection:
            yield connection

    def kill_sessions(self) -> int:
        """KILL every session that is in this database but our own; how many there were."""
        with self.engine.connect() as connection:
            ids = connection.exec_driver_sql(
                "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            ).scalars()
            killed = [connection.exec_driver_sql(f"KILL {session}") for session in ids.all()]
        return len(killed)

    def now(self) -> datetime:
        """The database's clock."""
        with self.database().reading() as reading:
            return reading.now

    def close(self) -> None:
        """Give all connections back."""
        for database in self.databases:
            database.close()
        self.engine.dispose()

    def _upsert(
        self, table: Table, key: dict[str, Any], moved: dict[str, Any], frozen: dict[str, Any], on: Connection | None
    ) -> None:
        if on is None:
            with self.engine.begin() as connection:
                self._upsert(table, key, moved, frozen, connection)
            return
        moved = {name: _as_column(value) for name, value in moved.items()}
        frozen = {name: _as_column(value) for name, value in frozen.items()}
        same = [table.c[name] == value if value is not None else table.c[name].is_(None)
                for name, value in key.items() if name != "currency"]  # fmt: skip
        if not on.execute(update(table).where(*same).values(**moved)).rowcount:
            on.execute(insert(table).values(**{"currency": "USD"} | key | moved | frozen))


def _as_column(value: Any) -> Any:
    """Stamps in UTC without a zone, amounts as decimals."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None)
    return Decimal(str(value)) if isinstance(value, (int, float, str)) else value


def tenant(scope: str, **fields: Any) -> Subscription:
    """A tenant's subscription."""
    values: dict[str, Any] = {"integration_id": "azure", "external_id": f"ext-{scope}", "name": f"Tenant {scope}",
                              "provider": "azure"} | fields  # fmt: skip
    return Subscription(id=scope, is_resource_group=False, **values)


def resource_group(name: str, integration: str = "azure", id: str | None = None) -> Subscription:
    """A resource group's subscription."""
    return Subscription(id or f"rg:{name}", integration, name, f"Group {name}", "azure", is_resource_group=True)


@contextmanager
def queries_of(database: Database) -> Iterator[list[tuple[str, Any]]]:
    """The SELECTs that it sends of the billing tables while the context is open, with their parameters."""
    seen: list[tuple[str, Any]] = []

    def listen(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if statement.startswith("SELECT") and "cmdb_" in statement:
            seen.append((statement, parameters))

    event.listen(database._engine, "before_cursor_execute", listen)
    try:
        yield seen
    finally:
        event.remove(database._engine, "before_cursor_execute", listen)


def engine_for(url: str) -> Engine:
    """For writing, as an ingest does: in UTC."""
    if url.startswith("sqlite"):
        return create_engine(url)
    return create_engine(url, connect_args={"charset": "utf8mb4", "init_command": "SET time_zone = '+00:00'"})
