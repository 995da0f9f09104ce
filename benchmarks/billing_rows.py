"""Millions of facts for the benchmark of billing, made by the server itself from a few small tables.

Belongs here: what the rows look like. Does not: what is asked of them.

Each day was ingested in an hour of its own, a day after the day before it, the last one four hours ago; so fresh rows
are few until some are touched.
"""

from datetime import date, datetime, timedelta

from sqlalchemy import Connection, Engine, text
from sqlalchemy.schema import DropIndex

from metering_dagster.billing_changes.stores.billing_tables import ADVISED, METADATA

FULL = 5_000_000
DAYS, TENANTS, GROUPS, INTEGRATIONS = 92, 200, 1_500, 20
INGESTED = timedelta(hours=4)
_AN_HOUR = "(g.n * 2400000 + s.n * 1013)"
"""Where in its hour a row was written, in microseconds: one resource group after the other."""

_FACTS = f"""
    INSERT INTO cmdb_cost_facts (scope_id, integration_id, resource_group, service, date, amount, currency, fetched_at,
                                 updated_at)
    SELECT g.scope_id, g.integration_id, g.resource_group, s.service, :day, (g.n * 31 + s.n * 17) % 10007 / 13, 'USD',
           :ended, DATE_SUB(:ended, INTERVAL {_AN_HOUR} MICROSECOND)
    FROM benchmark_groups g JOIN benchmark_services s ON s.n < g.services
    ORDER BY g.scope_id, g.integration_id, g.resource_group, s.service"""
_DAILY = """
    INSERT INTO cmdb_cloud_billing_daily (scope_id, date, amount, currency, fetched_at, updated_at)
    SELECT scope_id, :day, SUM(n), 'USD', DATE_SUB(:ended, INTERVAL MIN(n) * 1000003 MICROSECOND), :ended
    FROM benchmark_groups GROUP BY scope_id"""
_SUBSCRIPTIONS = (
    """INSERT INTO cmdb_billing_subscriptions
           (id, integration_id, external_id, name, provider, is_resource_group, enabled)
       SELECT DISTINCT scope_id, integration_id, CONCAT('tenant-', scope_id), CONCAT('Tenant ', scope_id), 'azure', 0, 1
       FROM benchmark_groups""",
    """INSERT INTO cmdb_billing_subscriptions
           (id, integration_id, external_id, name, provider, is_resource_group, enabled)
       SELECT CONCAT('rg-', n), integration_id, resource_group, resource_group, 'azure', 1, 1 FROM benchmark_groups""",
)


def build(engine: Engine, rows: int, now: datetime) -> None:
    """Make and fill the tables; the indexes come last, which is quicker. Today is `now`'s day in UTC."""
    METADATA.create_all(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for index in ADVISED:
            connection.execute(DropIndex(index))
        _fill_helpers(connection, rows / (DAYS * GROUPS))
        for back in reversed(range(DAYS)):
            ended = (now - INGESTED - timedelta(days=back)).replace(tzinfo=None)
            bound = {"day": now.date() - timedelta(days=back), "ended": ended}
            connection.execute(text(_FACTS), bound)
            connection.execute(text(_DAILY), bound)
        for statement in _SUBSCRIPTIONS:
            connection.execute(text(statement))
        for table in {index.table.name for index in ADVISED if index.table is not None}:
            connection.execute(text(f"ALTER TABLE {table} {', '.join(_additions(table))}"))
            connection.execute(text(f"ANALYZE TABLE {table}"))


def touch(engine: Engine) -> None:
    """Ingest a few cells again, now: of three days, 200 facts and 20 rows of tenants."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE cmdb_cost_facts SET updated_at = UTC_TIMESTAMP(6) WHERE id % 25000 = 1"))
        connection.execute(text("UPDATE cmdb_cloud_billing_daily SET fetched_at = UTC_TIMESTAMP(6) WHERE id % 900 = 1"))


def ingest_again(engine: Engine, day: date) -> None:
    """Ingest a whole day again, its rows spread over the last ten minutes."""
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE cmdb_cost_facts SET updated_at = DATE_SUB(UTC_TIMESTAMP(6), INTERVAL id % 600000000 "
                 "MICROSECOND) WHERE date = :day"), {"day": day}
        )  # fmt: skip
        connection.execute(
            text("UPDATE cmdb_cloud_billing_daily SET fetched_at = UTC_TIMESTAMP(6) WHERE date = :day"), {"day": day}
        )


def _fill_helpers(connection: Connection, services: float) -> None:
    """Which resource groups there are, and how many services each has: so many on average."""
    connection.execute(text(
        "CREATE TABLE benchmark_groups (n INT PRIMARY KEY, scope_id VARCHAR(64), integration_id VARCHAR(64), "
        "resource_group VARCHAR(255), services INT)"
    ))  # fmt: skip
    connection.execute(text("CREATE TABLE benchmark_services (n INT PRIMARY KEY, service VARCHAR(255))"))
    groups = [
        {
            "n": n,
            "scope": _id_like(n % TENANTS, 0x5C0E),
            "integration": _id_like(n % TENANTS % INTEGRATIONS, 0x1A7E),
            "name": f"rg-{'prod' if n % 3 else 'Test'}-{n:04d}-westeurope",
            "services": int(services) + (n * 7919 % 1000 / 1000 < services % 1),
        }
        for n in range(GROUPS)
    ]
    connection.execute(text("INSERT INTO benchmark_groups VALUES (:n, :scope, :integration, :name, :services)"), groups)
    names = [{"n": n, "service": f"Microsoft.Service{n:03d}/resources"} for n in range(int(services) + 1)]
    connection.execute(text("INSERT INTO benchmark_services VALUES (:n, :service)"), names)


def _id_like(number: int, kind: int) -> str:
    """As long as the identifiers of clouds are."""
    return f"{number:08x}-{kind:04x}-4000-8000-{number * 104729:012x}"


def _additions(table: str) -> list[str]:
    return [f"ADD INDEX {index.name} ({', '.join(column.name for column in index.columns)})"
            for index in ADVISED if index.table is not None and index.table.name == table]  # fmt: skip
