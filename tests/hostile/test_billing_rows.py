"""Any billing row that a database lets in: a look, an answer and a run come to their end, or say what is wrong.

Belongs here: NULLs, odd dates, stamps and types, odd subscriptions. Does not: what good ones mean (tests/billing).
"""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from metering_dagster.billing_changes.feed import changes, frame
from metering_dagster.billing_changes.rules.reconcile import Days
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.billing_changes.services.poll import poll
from metering_dagster.cli.changes_output import answer_csv, answer_json, answer_text
from metering_dagster.core.errors import DatabaseError
from metering_dagster.settings import Settings
from tests.billing_changes.conftest import filled_by_hand, fresh_database
from tests.billing_changes.filling import BillingTables, tenant
from tests.hostile.effort import examples
from tests.hostile.secrets import assert_nothing_leaks
from tests.mariadb import running_server

NOW = datetime.now(UTC)
DAY = NOW.date() - timedelta(days=5)
STAMP = f"{NOW - timedelta(minutes=30):%Y-%m-%d %H:%M:%S.%f}"
TABLES = ("cmdb_cloud_billing_daily", "cmdb_cost_facts")
MARIADB_TAKES: list[Any] = [
    None, "", "0000-00-00", "0000-00-00 00:00:00", "9999-12-31 23:59:59.999999", "1000-01-01", "2026-02-30", 0, -1,
    "1e10", "99999999999999.999999", "-0.000001", "NaN", "\u202e", "a'b\"; --", "x" * 64, "T1", "t1 ", "é",
]  # fmt: skip
SQLITE_TAKES: list[Any] = [*MARIADB_TAKES, 1.5, b"\x00\xff", "yesterday", "2026-11-28T10:00:00Z", "12,5", 10**15]
COLUMNS = ("scope_id", "date", "amount", "currency", "fetched_at", "updated_at", "integration_id", "resource_group")


def hostile_rows(values: list[Any]) -> st.SearchStrategy[list[tuple[str, dict[str, Any]]]]:
    """Rows of either table: a good one with some columns changed."""
    odd = st.dictionaries(st.sampled_from(COLUMNS), st.sampled_from(values), max_size=3)
    return st.lists(st.tuples(st.sampled_from(TABLES), odd), min_size=1, max_size=3)


def insert(url: str, table: str, changed: dict[str, Any]) -> bool:
    """Write the row past whatever the server is strict about; whether the database took it."""
    row = {"scope_id": f"s{uuid.uuid4().hex[:8]}", "date": f"{DAY}", "amount": "1.5", "currency": "EUR",
           "fetched_at": STAMP, "updated_at": STAMP}  # fmt: skip
    if table == "cmdb_cost_facts":
        row |= {"integration_id": "azure", "resource_group": "rg", "service": "vm"}
    row |= {name: value for name, value in changed.items() if name in row}
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            if engine.dialect.name != "sqlite":
                connection.execute(text("SET SESSION sql_mode = ''"))
            names = ", ".join(row)
            connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({', '.join(':' + n for n in row)})"), row)
    except Exception:  # noqa: BLE001  # whatever the driver says: then the row is not there
        return False
    finally:
        engine.dispose()
    return True


def use(tables: BillingTables) -> list[str]:
    """Look, ask and read as the sensor, a person and a run do; what was refused, in words."""
    said = []
    billing = Billing(Settings(billing_database_url=tables.url))

    def looked() -> None:
        with billing.database.reading() as reading:
            found = poll(reading, None, billing.rules, reported=lambda day: None, under_way=(),
                         partitions=Days(DAY - timedelta(days=90), NOW.date()))  # fmt: skip
            assert DAY in {ask.day for ask in found.due_days} | set(found.waiting)

    def asked() -> None:
        answer = changes(NOW - timedelta(hours=1), settings=billing.settings)
        assert "t1" in {row.subscription_id for row in answer.rows}
        for show in (answer_text, answer_json, answer_csv, frame):
            show(answer)

    def read() -> None:
        with billing.database.reading() as reading:
            reading.pieces_of([DAY], reading.claims(), amounts=True)
            reading.invalid_stamps(DAY)
            reading.groups_of(DAY)

    for one in (looked, asked, read):
        try:
            one()
        except DatabaseError as error:
            said.append(str(error))
    billing.database.close()
    return said


def fill(tables: BillingTables, rows: list[tuple[str, dict[str, Any]]]) -> None:
    """A tenant with a good row that was just ingested, and these."""
    tables.run(*(f"DELETE FROM {table}" for table in (*TABLES, "cmdb_billing_subscriptions")))
    tables.subscribe(tenant("t1"))
    tables.daily("t1", DAY, NOW - timedelta(minutes=30), "2.5")
    for table, changed in rows:
        insert(tables.url, table, changed)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BillingTables]:
    """The billing tables in SQLite."""
    with filled_by_hand(f"sqlite:///{tmp_path_factory.mktemp('billing') / 'billing.db'}") as ours:
        yield ours


@examples(30, shrink=False)
@given(rows=hostile_rows(SQLITE_TAKES))
@example(rows=[("cmdb_cloud_billing_daily", {"amount": "12,5"})])
@example(rows=[("cmdb_cloud_billing_daily", {"date": "yesterday"})])
@example(rows=[("cmdb_cloud_billing_daily", {"fetched_at": "yesterday"})])
@example(rows=[("cmdb_cost_facts", {"resource_group": b"\x00\xff"})])
def test_rows_of_any_type_in_sqlite_end_in_an_answer_or_in_words(sqlite: BillingTables, rows):
    fill(sqlite, rows)
    for words in use(sqlite):
        assert "the SQLite file" in words or "The SQLite file" in words
        assert_nothing_leaks(words)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BillingTables]:
    """The billing tables on MariaDB."""
    with (
        running_server(tmp_path_factory.mktemp("mariadb")) as server,
        fresh_database(server) as url,
        filled_by_hand(url) as ours,
    ):
        yield ours


@pytest.mark.services
@examples(15, shrink=False)
@given(rows=hostile_rows(MARIADB_TAKES))
@example(rows=[("cmdb_cloud_billing_daily", {"date": "0000-00-00"})])
@example(rows=[("cmdb_cost_facts", {"date": f"{DAY:%Y-%m}-00"})])
def test_rows_that_mariadb_takes_hide_no_good_one(tables: BillingTables, rows):
    fill(tables, rows)
    assert use(tables) == []
