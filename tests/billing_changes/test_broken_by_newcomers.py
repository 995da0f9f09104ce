"""What somebody new to it broke, kept: each was wrong once."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from metering_dagster.billing_changes.feed import acknowledge, changes, new_for
from metering_dagster.billing_changes.stores.database import Database
from metering_dagster.cli import main
from metering_dagster.core.errors import DatabaseError, SettingsError
from metering_dagster.settings import Settings
from tests.billing_changes.filling import BillingTables, tenant
from tests.billing_changes.test_billing_sensor import DAY, Watch


@pytest.mark.parametrize("password", ["Geheim@Wort", "Gehe@im/pa", "s3@cr/3t#pw", "hu@sh?x=pa"])
def test_a_password_that_cuts_the_url_short_is_refused_and_no_part_of_it_shown(password):
    url = f"mysql+pymysql://root:{password}@127.0.0.1:1/wn1"
    with pytest.raises(SettingsError, match="BILLING_DATABASE_URL") as refused:
        Database(url)
    done = CliRunner().invoke(main, ["changes", "--since", "2026-01-01T00:00:00Z"], env={"BILLING_DATABASE_URL": url})
    assert done.exit_code == 2
    for part in ("Wort", "im/pa", "3t#pw", "sh?x"):
        assert part not in str(refused.value) + done.output


@pytest.mark.parametrize("parameter", ["foo=s3cr3t", "read_timeout=s3cr3t"])
def test_a_parameter_that_the_driver_does_not_take_is_named_without_what_it_holds(parameter):
    url = f"mysql+pymysql://root@127.0.0.1:1/wn1?{parameter}"
    with pytest.raises(SettingsError, match=parameter.split("=")[0]) as refused, Database(url).reading():
        pass
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("table", ["cmdb_cloud_billing_daily", "cmdb_cost_facts", "cmdb_billing_subscriptions"])
def test_a_missing_table_is_named_with_what_to_do(billing: BillingTables, table: str):
    billing.run(f"DROP TABLE {table}")
    since = datetime.now(UTC) - timedelta(hours=1)
    with pytest.raises(DatabaseError, match=f"no table {table}.*init"):
        changes(since, settings=Settings(billing_database_url=billing.url))


def test_an_answer_without_subscriptions_says_that_it_speaks_of_nothing(billing: BillingTables):
    billing.subscribe(tenant("t1"), enabled=False)
    billing.daily("t1", DAY, billing.now())
    answer = changes(billing.now() - timedelta(hours=1), settings=Settings(billing_database_url=billing.url))
    assert answer.rows == ()
    assert "no subscription is enabled" in answer.meta.does_not_detect[0]


@pytest.mark.parametrize("gone", ["UPDATE {} SET enabled = 0", "DELETE FROM {}"])
def test_a_cell_whose_subscription_went_is_told_to_whoever_took_it(instance, billing, tmp_path: Path, gone: str):
    billing.subscribe(tenant("t1"), tenant("t2"))
    billing.daily("t1", DAY, billing.now() - timedelta(days=2))
    watch = Watch(instance, billing, tmp_path)
    watch.run(*watch.look())
    acknowledge("warehouse", new_for("warehouse", settings=watch.settings).meta.token, settings=watch.settings)
    billing.run(gone.format("cmdb_billing_subscriptions") + " WHERE id = 't1'", "DELETE FROM cmdb_cloud_billing_daily")
    watch.run(*watch.look())
    (row,) = new_for("warehouse", settings=watch.settings).rows
    assert (row.subscription_id, row.vanished) == ("t1", True)


def test_a_damaged_word_for_consumers_keeps_nobody_from_looking(instance, billing, tmp_path: Path):
    billing.subscribe(tenant("t1"))
    billing.daily("t1", DAY, billing.now())
    watch = Watch(instance, billing, tmp_path)
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "_looked.json").write_text("{bad")
    assert [one.partition_key for one in watch.look()] == [DAY.isoformat()]
