"""The way into the billing database, and what goes wrong there in words."""

import sqlite3
import traceback
from datetime import UTC, date, datetime, timedelta
from urllib.parse import quote

import pytest
from sqlalchemy import make_url

from metering_dagster.billing_changes.rules.cells import Signal
from metering_dagster.billing_changes.stores.database import Database
from metering_dagster.billing_changes.stores.queries import BillingSnapshot
from metering_dagster.core.errors import DatabaseAwayError, DatabaseError, MeteringError, SettingsError
from tests.billing_changes.filling import BillingTables, tenant
from tests.mariadb import Server

DAY = date(2026, 11, 20)
TEN = datetime(2026, 11, 20, 10, tzinfo=UTC)
SECRET = "Ge/heim!1"


def refusal(database: Database) -> MeteringError:
    """What it says when it is looked into."""
    with pytest.raises(MeteringError) as caught:
        look_into(database)
    database.close()
    shown = "".join(traceback.format_exception_only(caught.value)) + str(caught.value.__cause__)
    assert SECRET not in shown
    assert "://" not in shown
    assert not is_shown_with_its_context(caught.value)
    return caught.value


def look_into(database: Database) -> None:
    with database.reading() as reading:
        claims = reading.claims()
        reading.pieces_of([DAY], claims, amounts=True)
        reading.pieces_since(dict.fromkeys(Signal, TEN), DAY)


def is_shown_with_its_context(error: BaseException) -> bool:
    """Whether a traceback would show what a driver said, which names users and parameters."""
    return error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__)


@pytest.mark.parametrize(
    "url",
    ["nonsense", "postgresql://u:Ge%2Fheim!1@h/d", "mysql://u:Ge%2Fheim!1@host", "sqlite://", "sqlite:///:memory:",
     "mysql://u:Ge/heim!1@host:x/d"],
)  # fmt: skip
def test_a_url_that_names_no_such_database_is_refused_without_repeating_it(url):
    with pytest.raises(SettingsError, match="BILLING_DATABASE_URL") as caught:
        Database(url)
    assert SECRET not in str(caught.value)
    assert "heim" not in str(caught.value)
    assert not is_shown_with_its_context(caught.value)


def test_a_missing_file_is_an_error_and_is_not_created(tmp_path):
    path = tmp_path / "nobody.db"
    error = refusal(Database(f"sqlite:///{path}"))
    assert isinstance(error, DatabaseError)
    assert str(path) in str(error)
    assert not path.exists()


def test_a_file_that_is_no_database_is_an_error(tmp_path):
    path = tmp_path / "text.db"
    path.write_text("this is no database, and long enough to be told from an empty one. " * 20)
    assert "cannot be read" in str(refusal(Database(f"sqlite:///{path}")))


def test_a_file_is_opened_for_reading_only(billing_sqlite):
    with billing_sqlite.database().reading() as reading, pytest.raises(Exception, match="readonly"):
        reading._connection.exec_driver_sql("DELETE FROM cmdb_cost_facts")


def test_a_path_with_special_characters_is_found(tmp_path):
    path = tmp_path / "a b#c%20ü?.db"
    path.touch()
    assert "there is no table" in str(refusal(Database(f"sqlite:///{quote(str(path))}")))


def test_a_file_that_is_being_written_to_is_away(billing_sqlite):
    writer = sqlite3.connect(str(make_url(billing_sqlite.url).database))
    writer.execute("BEGIN EXCLUSIVE")
    try:
        assert isinstance(refusal(billing_sqlite.database(connect_timeout=0)), DatabaseAwayError)
    finally:
        writer.close()


def test_all_tables_and_columns_that_are_missing_are_named_at_once(billing):
    billing.run(
        "DROP TABLE cmdb_billing_subscriptions",
        *([] if billing.is_sqlite else ["ALTER TABLE cmdb_cost_facts DROP KEY uq_cost_facts"]),
        "DROP INDEX ix_cloud_billing_daily_moved" + ("" if billing.is_sqlite else " ON cmdb_cloud_billing_daily"),
        "DROP INDEX ix_cloud_billing_daily_scope" + ("" if billing.is_sqlite else " ON cmdb_cloud_billing_daily"),
        "ALTER TABLE cmdb_cloud_billing_daily DROP COLUMN fetched_at",
        "ALTER TABLE cmdb_cost_facts DROP COLUMN amount",
    )
    error = refusal(billing.database())
    assert isinstance(error, DatabaseError)
    for what in ("cmdb_billing_subscriptions", "cmdb_cloud_billing_daily.fetched_at", "cmdb_cost_facts.amount"):
        assert what in str(error)


def test_columns_that_nobody_reads_may_be_missing(billing):
    billing.run("ALTER TABLE cmdb_cost_facts DROP COLUMN fetched_at")
    assert billing.database().missing().columns == []


def test_an_error_of_the_caller_passes_through_a_reading(billing):
    with pytest.raises(KeyError), billing.database().reading():
        raise KeyError("mine")


@pytest.mark.services
def test_a_wrong_password_is_a_refusal_that_does_not_tell_it(billing_mariadb):
    wrong = make_url(billing_mariadb.url).set(username="nobody", password=SECRET)
    error = refusal(Database(wrong.render_as_string(hide_password=False)))
    assert isinstance(error, DatabaseError)
    assert "user or password is wrong" in str(error)
    assert "nobody" not in str(error)


@pytest.mark.services
def test_a_database_that_does_not_exist_is_named(mariadb: Server):
    error = refusal(Database(mariadb.url_of("billing_of_nobody")))
    assert isinstance(error, DatabaseError)
    assert "billing_of_nobody" in str(error)
    assert "no such database" in str(error)


@pytest.mark.services
@pytest.mark.parametrize("grant", [None, "SELECT ON {}.cmdb_billing_subscriptions"])
def test_a_user_without_permission_is_told_what_to_grant(billing_mariadb, mariadb, grant):
    url = make_url(billing_mariadb.url)
    user = f"reader_{str(url.database)[-8:]}"
    mariadb.run(f"CREATE USER {user} IDENTIFIED BY '{SECRET}'")
    try:
        if grant:
            mariadb.run(f"GRANT {grant.format(url.database)} TO {user}")
            billing_mariadb.subscribe(tenant("t1"))
        reader = url.set(username=user, password=SECRET)
        error = refusal(Database(reader.render_as_string(hide_password=False)))
    finally:
        mariadb.run(f"DROP USER {user}")
    assert isinstance(error, DatabaseError)
    assert "GRANT SELECT" in str(error)
    assert user not in str(error)


@pytest.mark.services
def test_a_server_that_nobody_answers_for_is_away(mariadb, unused_port):
    nobody = mariadb.url.set(host="127.0.0.1", port=unused_port, database="d")
    error = refusal(Database(nobody.render_as_string(hide_password=False)))
    assert isinstance(error, DatabaseAwayError)
    assert f"127.0.0.1:{unused_port}" in str(error)


@pytest.mark.services
def test_a_query_that_takes_too_long_is_ended_by_the_server(billing_mariadb):
    database = billing_mariadb.database(read_timeout=1)
    with pytest.raises(DatabaseAwayError, match="within 1 s"), database.reading() as reading:
        reading._connection.exec_driver_sql(
            "SELECT SLEEP(20) FROM cmdb_cost_facts RIGHT JOIN (SELECT 1) AS one ON TRUE"
        )
    with database.reading() as reading:
        assert reading.claims().subscriptions == []


@pytest.mark.services
@pytest.mark.case("client_zone")
def test_a_start_of_another_zone_is_bound_in_utc_whatever_the_servers_zone(own_mariadb):
    server, billing = own_mariadb
    server.run("SET GLOBAL time_zone = '+02:00'")
    start = datetime.fromisoformat("2026-09-01T12:00:00+08:00")
    four = datetime(2026, 9, 1, 4, tzinfo=UTC)
    billing.subscribe(tenant("t1"), tenant("t2"))
    billing.daily("t1", DAY, four)
    billing.daily("t2", DAY, four - timedelta(microseconds=1))
    with billing.database().reading() as reading:
        (piece,) = reading.pieces_since(dict.fromkeys(Signal, start), DAY)
    assert piece.side.newest == four
    before = datetime.now(UTC)
    assert abs(reading.now - before) < timedelta(minutes=10)


@pytest.mark.services
@pytest.mark.case("client_zone")
def test_columns_of_the_type_timestamp_are_read_in_utc(own_mariadb):
    server, billing = own_mariadb
    server.run("SET GLOBAL time_zone = '+02:00'")
    billing.run("ALTER TABLE cmdb_cloud_billing_daily MODIFY fetched_at TIMESTAMP(6) NULL")
    billing.subscribe(tenant("t1"))
    billing.daily("t1", DAY, TEN)
    with billing.database().reading() as reading:
        (piece,) = reading.pieces_since(dict.fromkeys(Signal, TEN), DAY)
    assert piece.side.newest == TEN
    assert piece.side.stamps == int(TEN.timestamp()) * 1_000_000


@pytest.mark.services
@pytest.mark.case("server_gone")
def test_a_connection_that_is_killed_between_two_readings_is_replaced(billing_mariadb):
    billing_mariadb.subscribe(tenant("t1"))
    billing_mariadb.engine.dispose()
    database = billing_mariadb.database()
    with database.reading() as reading:
        assert len(reading.claims().subscriptions) == 1
    assert billing_mariadb.kill_sessions() == 1
    with database.reading() as reading:
        assert len(reading.claims().subscriptions) == 1


@pytest.mark.services
@pytest.mark.case("server_gone")
def test_a_connection_that_is_killed_within_a_reading_is_away_and_the_next_reading_succeeds(billing_mariadb):
    billing_mariadb.engine.dispose()
    database = billing_mariadb.database()
    with pytest.raises(DatabaseAwayError, match="lost"), database.reading() as reading:
        lose_and_read(billing_mariadb, reading)
    with database.reading() as reading:
        assert reading.claims().subscriptions == []


def lose_and_read(billing: BillingTables, reading: BillingSnapshot) -> None:
    assert billing.kill_sessions() == 1
    reading.claims()


@pytest.mark.services
@pytest.mark.case("server_gone")
def test_a_server_that_restarts_is_away_meanwhile_and_answers_afterwards(restartable):
    server, billing = restartable
    database = billing.database()
    with database.reading() as reading:
        assert reading.claims().subscriptions == []
    server.stop()
    assert isinstance(refusal(database), DatabaseAwayError)
    server.start()
    with database.reading() as reading:
        assert reading.claims().subscriptions == []


def precision(billing: BillingTables, signal: Signal) -> int:
    with billing.database().reading() as reading:
        return reading.precision(signal)


@pytest.mark.services
@pytest.mark.case("stamp_precision")
def test_a_column_of_whole_seconds_works_and_says_so(billing_mariadb):
    billing_mariadb.run("ALTER TABLE cmdb_cost_facts MODIFY updated_at DATETIME(0)")
    assert precision(billing_mariadb, Signal.FACTS) == 0
    assert precision(billing_mariadb, Signal.DAILY) == 6
    billing_mariadb.subscribe(tenant("t1"))
    billing_mariadb.fact("t1", DAY, TEN)
    with billing_mariadb.database().reading() as reading:
        (found, *_) = reading.pieces_since({Signal.FACTS: TEN}, DAY)
        assert found.side.newest == TEN
        assert reading.pieces_since({Signal.FACTS: TEN + timedelta(microseconds=1)}, DAY) == []


@pytest.mark.case("stamp_precision")
def test_stamps_keep_their_microseconds(billing):
    stamps = [TEN + timedelta(microseconds=part) for part in (148_758, 726_846)]
    billing.fact("t1", DAY, stamps[0], service="vm")
    billing.fact("t1", DAY, stamps[1], service="disk")
    with billing.database().reading() as reading:
        tenants, _ = reading.pieces_since({Signal.FACTS: stamps[0]}, DAY)
        later, _ = reading.pieces_since({Signal.FACTS: stamps[1]}, DAY)
    assert (tenants.side.rows, later.side.rows) == (2, 1)
    assert tenants.side.newest == later.side.newest == stamps[1]
    assert precision(billing, Signal.FACTS) == 6


@pytest.mark.parametrize("written", ["2026-11-20 10:00:00", "2026-11-20 10:00:00.000000", "2026-11-20 10:00:00.0"])
def test_sqlite_takes_a_stamp_as_others_write_it(billing_sqlite, written):
    billing_sqlite.daily("t1", DAY, TEN)
    billing_sqlite.run(f"UPDATE cmdb_cloud_billing_daily SET fetched_at = '{written}'")
    with billing_sqlite.database().reading() as reading:
        (piece,) = reading.pieces_since({Signal.DAILY: TEN}, DAY)
        assert reading.pieces_since({Signal.DAILY: TEN + timedelta(microseconds=1)}, DAY) == []
    assert piece.side.newest == TEN
    assert piece.side.stamps == int(TEN.timestamp()) * 1_000_000
