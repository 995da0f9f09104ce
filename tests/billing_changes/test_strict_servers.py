"""Servers that are set up in other ways than ours give the same answers: what is relied on, the session sets."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url

from metering_dagster.billing_changes import feed
from metering_dagster.billing_changes.rules.cells import Signal, cells_of
from metering_dagster.billing_changes.stores.database import Database
from metering_dagster.settings import Settings
from tests.billing_changes.conftest import filled_by_hand, fresh_database
from tests.billing_changes.filling import BillingTables, resource_group, tenant
from tests.billing_changes.watching import DAY, NOON, OTHER_DAY, Watching
from tests.mariadb import PrivateServer, Server

STRICT = (
    "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION"
)
"""MySQL 8's default."""
SETTINGS = {
    "strict": {"sql_mode": f"'{STRICT}'"},
    "ansi": {"sql_mode": "'ANSI'"},
    "pipes_as_concat": {"sql_mode": "'PIPES_AS_CONCAT'"},
    "no_backslash_escapes": {"sql_mode": "'NO_BACKSLASH_ESCAPES'"},
    "oracle": {"sql_mode": "'ORACLE,EMPTY_STRING_IS_NULL,PAD_CHAR_TO_FULL_LENGTH'"},
    "tokyo": {"time_zone": "'+09:00'"},
    "all_at_once": {"sql_mode": f"'ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,{STRICT}'",
                    "time_zone": "'+09:00'"},
    "short_answers": {"sql_select_limit": "1"},
    "no_big_selects": {"sql_big_selects": "0", "max_join_size": "1"},
    "read_committed": {"tx_isolation": "'READ-COMMITTED'"},
    "other_collation": {"collation_server": "'latin1_swedish_ci'", "collation_connection": "'latin1_swedish_ci'"},
}  # fmt: skip
ODD_NAMES = ("it's", 'say "hi"', "back\\slash", "a%b_c", "naïve 🧾", "a||b")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of our own, whose settings tests change."""
    private = PrivateServer(tmp_path_factory.mktemp("strict") / "mariadb")
    private.start()
    try:
        yield private.server
    finally:
        private.end()


@pytest.fixture(scope="module")
def tables(plain: Server) -> Iterator[BillingTables]:
    """Rows of every kind, on the server as it is by itself."""
    with fresh_database(plain) as url, filled_by_hand(url) as tables:
        fill(tables)
        yield tables


@pytest.fixture(scope="module")
def right(tables: BillingTables) -> "Answers":
    """What a plain server answers."""
    return answers(tables.url)


def fill(tables: BillingTables) -> None:
    tables.subscribe(tenant("t1"), *(tenant(name) for name in ODD_NAMES))
    tables.subscribe(*(resource_group(f"rg {name}") for name in ODD_NAMES), resource_group("RG"))
    tables.subscribe(tenant("off"), enabled=False)
    for day in (DAY, OTHER_DAY):
        tables.daily("t1", day, NOON + timedelta(microseconds=123_456), "12.345678", currency="EUR")
        for name in ODD_NAMES:
            tables.daily(name, day, NOON - timedelta(days=1))
            tables.fact(name, day, NOON, "0.1", group=f"rg {name}")
        tables.fact("t1", day, NOON, "-3.5", group="Rg", service="a", currency="")
        tables.fact("t1", day, None, group=None, service="b")
        tables.fact("off", day, NOON, group="rG")
    with tables.engine.begin() as connection:
        connection.exec_driver_sql("SET SESSION sql_mode = ''")
        connection.exec_driver_sql(
            "INSERT INTO cmdb_cloud_billing_daily (scope_id, date, amount, currency, fetched_at) VALUES "
            f"('t1', '{DAY - timedelta(days=1)}', 1, 'U', '0000-00-00 00:00:00'), ('t1', '0000-00-00', 1, 'USD', NULL)"
        )


@dataclass(frozen=True)
class Answers:
    """All that is asked of a database."""

    precise: dict[str, Any]
    looked: list[Any]
    by_since: Any
    missing: Any


def answers(url: str) -> Answers:
    database = Database(url)
    start, days = dict.fromkeys(Signal, NOON - timedelta(days=1)), [DAY - timedelta(days=1), DAY, OTHER_DAY]
    with database.reading() as reading:
        claims = reading.claims()
        precise = {
            "clock": abs(reading.now - datetime.now(UTC)) < timedelta(minutes=10),
            "later": abs(reading.clock() - datetime.now(UTC)) < timedelta(minutes=10),
            "subscriptions": claims.subscriptions,
            "since": sorted(map(repr, reading.pieces_since(start, days[0]))),
            "until": sorted(map(repr, reading.pieces_since(start, days[0], dict.fromkeys(Signal, NOON)))),
            "exactly": cells_of(reading.pieces_of(days, claims, amounts=True), claims),
            "sums": reading.checksums(days[0]),
            "odd": [reading.invalid_stamps(day) for day in days],
            "odd days": reading.days_with_invalid_stamps(days[0], NOON),
            "groups": [reading.groups_of(day) for day in days],
            "tenants": [reading.tenants_of(day) for day in days],
            "decimals": [reading.precision(signal) for signal in Signal],
            "indexes": reading.missing_indexes(),
        }
    missing = (database.missing().needed, database.other_charsets())
    database.close()
    with_tables = BillingTables(url, database._engine)
    watching = Watching(with_tables, NOON + timedelta(minutes=5))
    looked: list[Any] = [watching.settle(), watching.watch(hours=2), watching.reported, watching.amounts(DAY)]
    with_tables.close()
    told = feed.changes(NOON - timedelta(days=1), horizon_days=92, settings=Settings(billing_database_url=url))
    return Answers(precise, looked, (told.rows, [each.why for each in told.meta.repull_by_hand]), missing)


@pytest.mark.services
@pytest.mark.case("strict_server")
@pytest.mark.parametrize("name", SETTINGS)
def test_whatever_the_servers_settings_the_answers_are_the_same(plain, tables, right, name):
    before = settings_of(plain, SETTINGS[name])
    plain.run(*(f"SET GLOBAL {setting} = {value}" for setting, value in SETTINGS[name].items()))
    try:
        assert answers(tables.url) == right
    finally:
        plain.run(*(f"SET GLOBAL {setting} = '{value}'" if not str(value).isdigit() else
                    f"SET GLOBAL {setting} = {value}" for setting, value in before.items()))  # fmt: skip


def settings_of(server: Server, names: dict[str, str]) -> dict[str, Any]:
    """What the server has by itself."""
    engine = create_engine(server.url)
    try:
        with engine.connect() as connection:
            return {name: connection.exec_driver_sql(f"SELECT @@GLOBAL.{name}").scalar_one() for name in names}
    finally:
        engine.dispose()


@pytest.mark.services
@pytest.mark.case("strict_server")
def test_a_user_who_may_select_and_nothing_else_gets_the_same_answers(plain, tables, right):
    url = make_url(tables.url)
    plain.run("CREATE USER reader@'%%' IDENTIFIED BY 'only-reads'",
              *(f"GRANT SELECT ON {url.database}.{table} TO reader@'%%'" for table in
                ("cmdb_cloud_billing_daily", "cmdb_cost_facts", "cmdb_billing_subscriptions")))  # fmt: skip
    try:
        reader = url.set(username="reader", password="only-reads")
        assert answers(reader.render_as_string(hide_password=False)) == right
    finally:
        plain.run("DROP USER reader@'%%'")


@pytest.mark.services
@pytest.mark.case("strict_server")
def test_a_server_that_disregards_the_case_of_tables_gives_the_same_answers(tmp_path: Path, right):
    private = PrivateServer(tmp_path / "mariadb", "--lower-case-table-names=1", f"--sql-mode={STRICT}",
                            "--default-time-zone=+09:00")  # fmt: skip
    private.start()
    try:
        with fresh_database(private.server) as url, filled_by_hand(url) as tables:
            fill(tables)
            assert answers(tables.url) == right
    finally:
        private.end()


@pytest.mark.services
@pytest.mark.case("strict_server")
def test_each_statement_passes_only_full_group_by_by_itself(tables):
    """Whatever a pool between us and the server does to the session."""
    day: date = DAY
    with tables.database().reading() as reading:
        reading._connection.exec_driver_sql(f"SET SESSION sql_mode = '{STRICT}'")
        claims = reading.claims()
        assert reading.pieces_since(dict.fromkeys(Signal, NOON), day)
        assert reading.pieces_of([day], claims, amounts=True)
        assert reading.checksums(day)
        assert reading.invalid_stamps(day).unstamped == 1
        assert reading.days_with_invalid_stamps(day, NOON)
        assert reading.groups_of(day)
        assert reading.tenants_of(day)
