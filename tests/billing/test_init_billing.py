"""`metering-dagster init` on a billing database: what is missing, as statements to be run by a person."""

import json

from click.testing import CliRunner, Result
from sqlalchemy import text

from metering_dagster.cli import main


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


def test_a_database_that_is_away_ends_in_words_without_the_password(unused_port):
    done = init(f"mysql+pymysql://root:hush-hush@127.0.0.1:{unused_port}/billing")
    assert done.exit_code == 2
    assert "hush" not in done.output
    assert "Traceback" not in done.output
