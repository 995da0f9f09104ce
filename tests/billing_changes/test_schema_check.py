"""What is told of missing tables and indexes, and the DDL that a person may run."""

from datetime import UTC, date, datetime

import pytest
from sqlalchemy.dialects import mysql, sqlite

from metering_dagster.billing_changes.stores.billing_tables import ADVISED, DAILY, FACTS, SUBSCRIPTIONS
from metering_dagster.billing_changes.stores.schema_check import MissingSchema
from tests.billing_changes.filling import queries_of


def drop(billing, name, table):
    billing.run(f"DROP INDEX {name}" + ("" if billing.is_sqlite else f" ON {table}"))


def test_with_all_indexes_nothing_is_advised(billing):
    missing = billing.database().missing()
    assert missing == MissingSchema(tables=[], columns=[], indexes=[])


def test_a_missing_index_is_named_by_table_and_columns(billing):
    drop(billing, "ix_cost_facts_group", "cmdb_cost_facts")
    with billing.database().reading() as reading:
        assert reading.missing_indexes() == ["cmdb_cost_facts (integration_id, resource_group, date, updated_at)"]


def test_an_index_that_begins_with_the_advised_columns_is_as_good(billing):
    drop(billing, "ix_cloud_billing_daily_moved", "cmdb_cloud_billing_daily")
    billing.run("CREATE INDEX mine ON cmdb_cloud_billing_daily (fetched_at, scope_id, date, currency)")
    assert billing.database().missing().indexes == []


def test_an_index_in_another_order_is_none(billing):
    drop(billing, "ix_cloud_billing_daily_moved", "cmdb_cloud_billing_daily")
    billing.run("CREATE INDEX mine ON cmdb_cloud_billing_daily (scope_id, fetched_at, date)")
    assert [index.name for index in billing.database().missing().indexes] == ["ix_cloud_billing_daily_moved"]


def test_of_a_view_no_index_is_advised(billing):
    for name in ("cmdb_cost_facts", "cmdb_cloud_billing_daily"):
        billing.run(f"ALTER TABLE {name} RENAME TO {name}_base", f"CREATE VIEW {name} AS SELECT * FROM {name}_base")
    assert billing.database().missing() == MissingSchema(tables=[], columns=[], indexes=[])


def test_the_ddl_makes_what_is_missing(billing):
    for name in ("cmdb_cost_facts", "cmdb_billing_subscriptions"):
        billing.run(f"DROP TABLE {name}")
    drop(billing, "ix_cloud_billing_daily_scope", "cmdb_cloud_billing_daily")
    database = billing.database()
    missing = database.missing()
    assert [table.name for table in missing.tables] == ["cmdb_cost_facts", "cmdb_billing_subscriptions"]
    assert len(missing.indexes) == 4
    billing.run(*(statement.rstrip(";") for statement in missing.ddl(database.dialect)))
    assert database.missing() == MissingSchema(tables=[], columns=[], indexes=[])


@pytest.mark.parametrize(("dialect", "stamp"), [(mysql.dialect(), "DATETIME(6)"), (sqlite.dialect(), "DATETIME")])
def test_the_ddl_is_in_the_databases_own_dialect(dialect, stamp):
    everything = MissingSchema(tables=[DAILY, FACTS, SUBSCRIPTIONS], indexes=ADVISED)
    statements = everything.ddl(dialect)
    assert len(statements) == 8
    assert f"updated_at {stamp}" in statements[0]
    assert "amount DECIMAL(20, 6)" in statements[0].replace("NUMERIC", "DECIMAL")
    assert all(statement.endswith(";") for statement in statements)


def test_checksums_without_an_index_ask_each_table_once(billing):
    day, stamp = date(2026, 11, 20), datetime(2026, 11, 20, 10, tzinfo=UTC)
    billing.fact("t1", day, stamp)
    billing.daily("t1", day, stamp)
    with billing.database().reading() as reading:
        before = reading.checksums(day)
    for index in ADVISED:
        if index.name.endswith(("_group", "_scope")):
            drop(billing, index.name, index.table.name)
    database = billing.database()
    with queries_of(database) as queries, database.reading() as reading:
        assert reading.checksums(day) == before
    asked = [query for query, _ in queries if "GROUP BY" in query]
    assert len(asked) == 3
