"""What the project meets on the billing side: a MariaDB that a collector of cloud-billing data writes into.

Tables and columns are written down here once more, as the collectors have them, so that a wrong name in the project
shows. Spoken to with PyMySQL alone.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import pymysql

INTEGRATION = "e2e-azure"
NOW = timedelta()
TABLES = (
    """CREATE TABLE cmdb_cloud_billing_daily (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, scope_id VARCHAR(64) NOT NULL, date DATE NOT NULL,
    amount DECIMAL(20,6) NOT NULL, currency CHAR(3) NOT NULL, fetched_at DATETIME(6), updated_at DATETIME(6),
    UNIQUE (scope_id, date)) CHARSET=utf8mb4""",
    """CREATE TABLE cmdb_cost_facts (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, scope_id VARCHAR(64) NOT NULL, integration_id VARCHAR(64) NOT NULL,
    resource_group VARCHAR(255), service VARCHAR(255) NOT NULL, date DATE NOT NULL, amount DECIMAL(20,6) NOT NULL,
    currency CHAR(3) NOT NULL, fetched_at DATETIME(6), updated_at DATETIME(6),
    UNIQUE (scope_id, date, integration_id, resource_group, service)) CHARSET=utf8mb4""",
    """CREATE TABLE cmdb_billing_subscriptions (
    id VARCHAR(64) PRIMARY KEY, integration_id VARCHAR(64), external_id VARCHAR(255), name VARCHAR(255),
    provider VARCHAR(64), is_resource_group TINYINT(1) NOT NULL DEFAULT 0, enabled TINYINT(1) NOT NULL DEFAULT 1
    ) CHARSET=utf8mb4""",
)
Cells: TypeAlias = dict[str, tuple[Decimal, datetime]]
"""By subscription: what it costs on a day, and when that was ingested last."""


class Collector:
    """A database of its own on a server, with the three tables in it; every statement is committed by itself."""

    def __init__(self, url: str) -> None:
        """`url` names server, user and database, as the project is told."""
        where = urlsplit(url)
        self._connection = pymysql.connect(
            host=where.hostname, port=where.port or 3306, user=where.username, password=where.password or "",
            database=where.path.strip("/"), autocommit=True, init_command="SET time_zone = '+00:00'",
        )  # fmt: skip
        for table in TABLES:
            self._do(table)

    def subscribe(self, tenants: Iterable[str], groups: Mapping[str, str]) -> None:
        """Tenants by their scope, resource groups by id and name."""
        rows = [(scope, scope, 0) for scope in tenants] + [(one, group, 1) for one, group in groups.items()]
        for one, external_id, is_group in rows:
            self._do(
                "INSERT INTO cmdb_billing_subscriptions VALUES (%s, %s, %s, %s, 'azure', %s, 1)",
                one, INTEGRATION, external_id, f"Name of {one}", is_group,
            )  # fmt: skip

    def ingest_daily(self, scope: str, day: date, amount: Decimal, *, ago: timedelta = NOW) -> None:
        """A day of a tenant, as a collector upserts it `ago`: whatever it costs, `fetched_at` advances."""
        self._do(
            """INSERT INTO cmdb_cloud_billing_daily (scope_id, date, amount, currency, fetched_at, updated_at)
            SELECT %s, %s, %s, 'EUR', at, at FROM (SELECT UTC_TIMESTAMP(6) - INTERVAL %s SECOND AS at) AS clock
            ON DUPLICATE KEY UPDATE amount = VALUES(amount), fetched_at = VALUES(fetched_at)""",
            scope, day, amount, ago.total_seconds(),
        )  # fmt: skip

    def ingest_fact(
        self, scope: str, group: str, service: str, day: date, amount: Decimal, *, ago: timedelta = NOW
    ) -> None:
        """A service of a resource group on a day: whatever it costs, `updated_at` advances."""
        self._do(
            """INSERT INTO cmdb_cost_facts (scope_id, integration_id, resource_group, service, date, amount, currency,
            fetched_at, updated_at) SELECT %s, %s, %s, %s, %s, %s, 'EUR', at, at
            FROM (SELECT UTC_TIMESTAMP(6) - INTERVAL %s SECOND AS at) AS clock
            ON DUPLICATE KEY UPDATE amount = VALUES(amount), updated_at = VALUES(updated_at)""",
            scope, INTEGRATION, group, service, day, amount, ago.total_seconds(),
        )  # fmt: skip

    def cells(self, day: date) -> Cells:
        """What ought to be reported of a day, by the database itself: the daily row says what a tenant costs, and of
        both tables the later stamp counts; a resource group is the facts' alone, however it is spelled.
        """
        cells: Cells = {}
        for scope, amount, stamp in self._ask(
            """SELECT d.scope_id, d.amount, GREATEST(d.fetched_at, COALESCE(MAX(f.updated_at), d.fetched_at))
            FROM cmdb_cloud_billing_daily d LEFT JOIN cmdb_cost_facts f ON f.scope_id = d.scope_id AND f.date = d.date
            JOIN cmdb_billing_subscriptions s ON s.id = d.scope_id AND NOT s.is_resource_group
            WHERE d.date = %s GROUP BY d.id""",
            day,
        ):
            cells[scope] = (amount, stamp.replace(tzinfo=UTC))
        for one, amount, stamp in self._ask(
            """SELECT s.id, SUM(f.amount), MAX(f.updated_at) FROM cmdb_billing_subscriptions s
            JOIN cmdb_cost_facts f ON f.integration_id = s.integration_id
            AND LOWER(f.resource_group) = LOWER(s.external_id)
            WHERE s.is_resource_group AND f.date = %s GROUP BY s.id""",
            day,
        ):
            cells[one] = (amount, stamp.replace(tzinfo=UTC))
        return cells

    def _do(self, statement: str, *values: Any) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values)

    def _ask(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(question, values)
            return list(cursor.fetchall())

    def close(self) -> None:
        self._connection.close()
