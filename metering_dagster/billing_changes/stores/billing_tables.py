"""The billing tables, which billing jobs fill and this project reads (domain §7).

Belongs here: their columns, keys and advised indexes. Does not: queries (queries), what a database lacks of them
(schema_check). Tables may have more columns than these. The product only reads them; tests and the sample data create
them.
"""

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    CHAR,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Dialect,
    Index,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeDecorator, UserDefinedType

from metering_dagster.billing_changes.rules.cells import Signal

METADATA = MetaData()


class _SqliteAmount(UserDefinedType[Decimal]):
    """Amount column of SQLite, which has no decimals: a number, exact up to 15 digits, and a decimal in Python."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "DECIMAL(20, 6)"

    def bind_processor(self, dialect: Dialect) -> Callable[[Decimal | None], str | None]:
        return lambda amount: None if amount is None else f"{amount:f}"

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Decimal | None]:
        return lambda found: None if found is None else Decimal(str(found))


class Since(TypeDecorator[datetime]):
    """Bound that stamps are compared with; on SQLite, which compares texts, the shortest text of the instant.

    There `10:00:00` and `10:00:00.000000` are one instant, but the second is the greater text.
    """

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """Return the type: text on SQLite, DATETIME(6) elsewhere."""
        return dialect.type_descriptor(String() if dialect.name == "sqlite" else mysql.DATETIME(fsp=6))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        """Return the value to send."""
        if value is None or dialect.name != "sqlite":
            return value
        return value.isoformat(" ", "microseconds").rstrip("0").rstrip(".")


AMOUNT = Numeric(20, 6).with_variant(_SqliteAmount(), "sqlite")
STAMP = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")
"""To the microsecond, in UTC, without a zone. A text on SQLite, `YYYY-MM-DD HH:MM:SS.ffffff`."""
ID = BigInteger().with_variant(Integer(), "sqlite")
_TEXT: dict[str, Any] = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
"""A collation that MySQL 8 and MariaDB both have, and in which different names differ. In utf8mb4_general_ci all
characters of 4 bytes are equal, so two resource groups could collide on the unique key. Python ignores case."""

DAILY = Table(
    "cmdb_cloud_billing_daily",
    METADATA,
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("scope_id", String(64), nullable=False),
    Column("date", Date, nullable=False),
    Column("amount", AMOUNT),
    Column("currency", CHAR(3)),
    Column("fetched_at", STAMP),
    Column("updated_at", STAMP),
    UniqueConstraint("scope_id", "date", name="uq_cloud_billing_daily"),
    **_TEXT,
)
"""One row for each tenant and day. `fetched_at` advances at each ingest, `updated_at` stays frozen."""

FACTS = Table(
    "cmdb_cost_facts",
    METADATA,
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("scope_id", String(64), nullable=False),
    Column("integration_id", String(64), nullable=False),
    Column("resource_group", String(255)),
    Column("service", String(255), nullable=False),
    Column("date", Date, nullable=False),
    Column("amount", AMOUNT),
    Column("currency", CHAR(3)),
    Column("fetched_at", STAMP),
    Column("updated_at", STAMP),
    UniqueConstraint("scope_id", "date", "integration_id", "resource_group", "service", name="uq_cost_facts"),
    **_TEXT,
)
"""One row for each tenant, day, resource group and service. `updated_at` advances at each ingest, `fetched_at` stays
frozen."""

SUBSCRIPTIONS = Table(
    "cmdb_billing_subscriptions",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("integration_id", String(64)),
    Column("external_id", String(255)),
    Column("name", String(255)),
    Column("provider", String(64)),
    Column("is_resource_group", Boolean, nullable=False, default=False),
    Column("enabled", Boolean, nullable=False, default=True),
    **_TEXT,
)
"""The owners to report: tenants by `id`, resource groups by `integration_id` and `external_id`."""

STAMPS = {Signal.DAILY: DAILY.c.fetched_at, Signal.FACTS: FACTS.c.updated_at}
"""The column that advances at each ingest, by its signal."""

ADVISED = (
    Index("ix_cost_facts_moved", FACTS.c.updated_at, FACTS.c.scope_id, FACTS.c.date, FACTS.c.integration_id,
          FACTS.c.resource_group),
    Index("ix_cost_facts_scope", FACTS.c.scope_id, FACTS.c.date, FACTS.c.updated_at),
    Index("ix_cost_facts_group", FACTS.c.integration_id, FACTS.c.resource_group, FACTS.c.date, FACTS.c.updated_at),
    Index("ix_cloud_billing_daily_moved", DAILY.c.fetched_at, DAILY.c.scope_id, DAILY.c.date),
    Index("ix_cloud_billing_daily_scope", DAILY.c.scope_id, DAILY.c.date, DAILY.c.fetched_at),
)  # fmt: skip
"""The indexes that the queries use. Without them everything works, but slower."""
