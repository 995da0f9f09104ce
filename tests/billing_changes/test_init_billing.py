"""`metering-dagster init` on a billing database: what is missing, as statements to be run by a person."""

import json
import sqlite3
from contextlib import closing

import pymysql
import pytest
from click.testing import CliRunner, Result
from pymysql.constants import CLIENT
from sqlalchemy import text

from metering_dagster.cli import main
from tests.billing_changes.filling import BillingTables


def init(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["init", *arguments], env={
        "BILLING_DATABASE_URL": url, "USAGE_TABLE": "", "AGGREGATED_USAGE_TABLE": "", "SUBSCRIBERS_TABLE": "",
    })  # fmt: skip


def test_tables_as_needed_want_nothing(billing):
    done = init(billing.url)
    assert (done.exit_code, done.output.count("\n")) == (0, 1)
    assert "there, as needed" in done.output


def test_missing_indexes_are_advised_with_their_statements_and_nothing_is_made(billing):
    on = "" if billing.is_sqlite else " ON cmdb_cost_facts"
    billing.run(f"DROP INDEX ix_cost_facts_moved{on}")
    for _ in range(2):
        done = init(billing.url)
        assert done.exit_code == 0
        assert "cmdb_cost_facts (updated_at, scope_id, date, integration_id, resource_group)" in done.output
        assert "CREATE INDEX ix_cost_facts_moved" in done.output


@pytest.mark.services
def test_a_column_that_is_not_in_utf8mb4_is_named(billing_mariadb):
    billing_mariadb.run("ALTER TABLE cmdb_cost_facts MODIFY resource_group VARCHAR(255) CHARACTER SET latin1")
    done = init(billing_mariadb.url)
    assert (done.exit_code, "utf8mb4 for cmdb_cost_facts.resource_group (latin1)" in done.stdout) == (0, True)
    told = json.loads(init(billing_mariadb.url, "--json").stdout)["billing"]
    assert told["other_charsets"] == ["cmdb_cost_facts.resource_group (latin1)"]


def test_the_statements_printed_make_what_is_missing(billing):
    billing.run("DROP TABLE cmdb_cost_facts", "DROP TABLE cmdb_cloud_billing_daily")
    done = init(billing.url, "--json")
    assert done.exit_code == 1
    said = json.loads(done.output)["billing"]
    assert len(said["missing"]) == 2
    with billing.engine.begin() as connection:
        for statement in said["ddl"]:
            connection.execute(text(statement))
    assert init(billing.url).exit_code == 0


def run_as_it_is(billing: BillingTables, script: str) -> None:
    """The whole text at once, comments included."""
    url = billing.engine.url
    if billing.is_sqlite:
        with closing(sqlite3.connect(str(url.database))) as connection:
            connection.executescript(script)
        return
    with closing(pymysql.connect(
        host=url.host, port=url.port or 3306, user=url.username, password=url.password or "", database=url.database,
        client_flag=CLIENT.MULTI_STATEMENTS,
    )) as connection, connection.cursor() as cursor:  # fmt: skip
        cursor.execute(script)
        while cursor.nextset():
            pass


def test_what_it_prints_can_be_run_as_it_is(billing):
    billing.run("DROP TABLE cmdb_cost_facts")
    run_as_it_is(billing, init(billing.url).stdout)
    done = init(billing.url)
    assert (done.exit_code, "there, as needed" in done.stdout) == (0, True)
    assert all(line.startswith("-- ") for line in done.stdout.splitlines()), "nothing to do: comments alone"


def test_a_database_that_is_away_ends_in_words_without_the_password(unused_port):
    done = init(f"mysql+pymysql://root:hush-hush@127.0.0.1:{unused_port}/billing")
    assert done.exit_code == 2
    assert "hush" not in done.output
    assert "Traceback" not in done.output
