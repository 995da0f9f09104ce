"""The asset `billing_changes` through real runs: on SQLite always, and on MariaDB among the service tests."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import dagster as dg
import pandas as pd
import pytest

from metering_dagster.billing_changes.defs import metadata
from metering_dagster.billing_changes.defs.assets import BILLING_CHANGES, JOB, RUN_TAGS
from metering_dagster.billing_changes.rules.cells import Signal, Subscription
from metering_dagster.billing_changes.stores.day_files import DayFiles
from metering_dagster.core.dagster_history import last_materialization
from tests.billing_changes.changes_runs import Runs, a_runs, checks_of, definitions, failure_of, metadata_of
from tests.billing_changes.filling import BillingTables, resource_group, tenant

DAY = date(2026, 11, 20)
OLD_DAY = date(2026, 1, 2)
"""Older than any horizon, by whatever clock the database has."""
TEN = datetime(2026, 11, 20, 10, tzinfo=UTC)
ELEVEN = TEN + timedelta(hours=1)


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    """One for all: a day's file is what a run compares with, and each test has its own files."""
    with dg.DagsterInstance.ephemeral() as ours:
        yield ours


@pytest.fixture
def runs(billing: BillingTables, tmp_path: Path, instance: dg.DagsterInstance) -> Runs:
    return a_runs(billing, tmp_path, instance)


@pytest.fixture
def sqlite_runs(billing_sqlite: BillingTables, tmp_path: Path, instance: dg.DagsterInstance) -> Runs:
    return a_runs(billing_sqlite, tmp_path, instance)


def test_the_definitions_are_loadable_and_the_sources_are_upstream(sqlite_runs: Runs):
    found = definitions(sqlite_runs.settings)
    dg.Definitions.validate_loadable(found)
    node = found.resolve_asset_graph().get(BILLING_CHANGES)
    assert {key.to_user_string() for key in node.parent_keys} == {"cloud_billing_daily", "cost_facts"}
    assert node.group_name == "billing"
    assert node.kinds == {"sqlite", "parquet"}
    assert found.resolve_job_def(JOB).tags == RUN_TAGS


def test_what_dagster_loads_of_this_room_imports_neither_arrow_nor_pandas_nor_sqlalchemy():
    code = """
import sys
from metering_dagster.billing_changes.defs import assets, io_manager
from metering_dagster.billing_changes.services import deployment
print(sorted({"pandas", "pyarrow", "sqlalchemy", "boto3"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_a_first_run_reports_each_cell_with_both_tables(runs: Runs):
    runs.tables.subscribe(tenant("t1"))
    runs.tables.daily("t1", DAY, ELEVEN, "12.34")
    runs.tables.fact("t1", DAY, TEN, "10")
    (row,) = runs.report(DAY).rows
    assert (row.touched, row.changed, row.amount, row.amount_before) == (True, False, Decimal("12.34"), None)
    assert (row.last_ingested_at, row.signals) == (ELEVEN, (Signal.DAILY, Signal.FACTS))


@pytest.mark.case("both_tables")
def test_one_row_tells_of_both_tables_with_the_later_time(runs: Runs):
    runs.tables.subscribe(tenant("t1"))
    runs.tables.daily("t1", DAY, TEN - timedelta(days=1))
    runs.tables.fact("t1", DAY, TEN - timedelta(days=1))
    runs.report(DAY)
    runs.tables.fact("t1", DAY, TEN)
    runs.tables.daily("t1", DAY, ELEVEN)
    result = runs.run(DAY)
    (row,) = runs.files.read(DAY).report.rows
    assert (row.last_ingested_at, row.signals) == (ELEVEN, (Signal.DAILY, Signal.FACTS))
    assert metadata_of(result)["signals"] == "billing_daily.fetched_at, cost_facts.updated_at"


@pytest.mark.case("same_amount_again")
def test_a_cell_fetched_again_with_the_same_amount_is_reported(runs: Runs):
    runs.tables.subscribe(tenant("t1"), tenant("t2"))
    for scope in ("t1", "t2"):
        runs.tables.daily(scope, DAY, TEN, 5)
    runs.report(DAY)
    runs.tables.daily("t1", DAY, ELEVEN, 5)
    result = runs.run(DAY)
    touched = runs.files.read(DAY).report.touched
    assert [(row.cell.subscription.id, row.changed) for row in touched] == [("t1", False)]
    shown = metadata_of(result)
    assert (shown["changed_cells"], shown["amounts_changed"], shown["rows"]) == (1, 0, 2)


def test_a_run_again_of_what_did_not_move_touches_nothing(runs: Runs):
    runs.tables.subscribe(tenant("t1"), resource_group("rg"))
    runs.tables.daily("t1", DAY, TEN, "0.1")
    for service in ("vm", "disk", "network"):
        runs.tables.fact("t1", DAY, TEN, "0.1", service=service)
    first = runs.report(DAY)
    again = runs.report(DAY)
    assert (again.touched, again.since, again.state) == ([], first.read_at, first.state)
    assert [row.reported_at for row in again.rows] == [row.reported_at for row in first.rows]


@pytest.mark.case("deleted_cell")
def test_a_cell_that_is_gone_is_reported_as_vanished(runs: Runs):
    runs.tables.subscribe(tenant("t1"))
    runs.tables.daily("t1", DAY, TEN, "12.5")
    runs.report(DAY)
    runs.tables.run("DELETE FROM cmdb_cloud_billing_daily")
    result = runs.run(DAY)
    (row,) = runs.files.read(DAY).report.rows
    assert (row.vanished, row.touched, row.amount, row.amount_before) == (True, True, None, Decimal("12.5"))
    shown = metadata_of(result)
    assert (shown["vanished"], shown["changed_cells"], shown["state"]) == (1, 1, "")
    assert runs.report(DAY).touched == []


@pytest.mark.case("two_subscriptions_one_resource_group")
def test_two_subscriptions_of_one_resource_group_both_have_the_row(runs: Runs):
    runs.tables.subscribe(resource_group("rg-prod", id="one"), resource_group("RG-Prod", id="two"))
    runs.tables.fact("t1", DAY, TEN, 3, group="rg-prod")
    rows = runs.report(DAY).rows
    assert [(row.cell.subscription.id, row.amount) for row in rows] == [("two", 3), ("one", 3)]


@pytest.mark.case("old_day_by_hand")
def test_a_day_older_than_the_horizon_is_materialized_by_hand(runs: Runs):
    runs.tables.subscribe(tenant("t1"))
    runs.tables.daily("t1", OLD_DAY, TEN, 5)
    result = runs.run(OLD_DAY)
    assert [row.amount for row in runs.files.read(OLD_DAY).report.rows] == [5]
    shown = metadata_of(result)
    assert shown["why"] == "by hand"
    assert f"later changes of {OLD_DAY}: it is older than the horizon" in shown["does_not_detect"]


@pytest.mark.case("horizon")
def test_each_run_says_what_is_not_detected(sqlite_runs: Runs):
    sqlite_runs.tables.subscribe(tenant("t1"))
    first_day = (sqlite_runs.tables.now() - timedelta(days=32)).date()
    shown = metadata_of(sqlite_runs.run(DAY))
    assert shown["horizon"] == 32
    assert f"days before {first_day}, which are older than the horizon of 32 days" in shown["does_not_detect"]


@pytest.mark.case("no_subscriptions")
def test_without_subscriptions_a_day_is_reported_empty(sqlite_runs: Runs):
    sqlite_runs.tables.daily("t1", DAY, TEN)
    result = sqlite_runs.run(DAY)
    assert result.success
    shown = metadata_of(result)
    assert (shown["rows"], shown["subscriptions"], shown["state"], shown["changed_cells"]) == (0, 0, "", 0)
    assert shown["nothing"] == "No subscription has a row on 2026-11-20, in either table."


def test_a_day_without_cells_is_materialized_with_a_file(sqlite_runs: Runs):
    sqlite_runs.tables.subscribe(tenant("t1"))
    assert sqlite_runs.report(DAY).rows == ()
    assert list(sqlite_runs.files.generations()) == [DAY]


def test_a_subscription_that_came_has_its_old_days_and_one_that_went_is_told_to_have_vanished(sqlite_runs: Runs):
    tables = sqlite_runs.tables
    tables.subscribe(tenant("t1"))
    for scope in ("t1", "t2"):
        tables.daily(scope, DAY, TEN)
    sqlite_runs.report(DAY)
    tables.subscribe(tenant("t2"))
    tables.run("UPDATE cmdb_billing_subscriptions SET enabled = 0 WHERE id = 't1'")
    went, came = sqlite_runs.report(DAY).rows
    assert (went.cell.subscription.id, went.touched, went.vanished) == ("t1", True, True)
    assert (came.cell.subscription.id, came.touched, came.amounts_before) == ("t2", True, None)


def test_several_currencies_and_credits_are_kept_apart(runs: Runs):
    runs.tables.subscribe(resource_group("rg"))
    runs.tables.fact("t1", DAY, TEN, "10.5", service="vm", currency="USD")
    runs.tables.fact("t1", DAY, TEN, "-3", service="credit", currency="EUR")
    first = runs.report(DAY)
    assert [(row.amount, row.currency, row.amounts) for row in first.rows] == [
        (None, "EUR+USD", (("EUR", Decimal(-3)), ("USD", Decimal("10.5"))))
    ]
    runs.tables.fact("t1", DAY, ELEVEN, "-5", service="credit", currency="EUR")
    shown = metadata_of(runs.run(DAY))
    (money,) = shown["money_moved"].records
    assert money.data == {"of": "resource groups", "currency": "EUR", "moved": "-2.00", "moved_up_or_down": "2.00"}


def test_what_moved_stands_first_in_the_metadata_and_nothing_stands_twice(sqlite_runs: Runs):
    sqlite_runs.tables.subscribe(tenant("t1"))
    sqlite_runs.tables.daily("t1", DAY, TEN)
    shown = metadata_of(sqlite_runs.run(DAY))
    assert list(shown)[:2] == ["changed_cells", "table"], "where no money moved there is no table of it"
    assert {"since", "horizon", "signals", "detects", "does_not_detect", "rows"} < set(shown)
    assert "dagster/partition_row_count" not in shown
    sqlite_runs.tables.daily("t1", DAY, ELEVEN, 7)
    assert list(metadata_of(sqlite_runs.run(DAY)))[:3] == ["changed_cells", "money_moved", "table"]


def test_money_that_moved_once_is_counted_once_whoever_claims_it(runs: Runs):
    runs.tables.subscribe(tenant("t1"), resource_group("rg", id="one"), resource_group("RG", id="two"))
    runs.tables.fact("t1", DAY, TEN, "100")
    runs.report(DAY)
    runs.tables.fact("t1", DAY, ELEVEN, "65.29")
    found = [record.data for record in metadata_of(runs.run(DAY))["money_moved"].records]
    moved = {"currency": "USD", "moved": "-34.71", "moved_up_or_down": "34.71"}
    assert found == [{"of": "tenants"} | moved, {"of": "resource groups"} | moved]


def test_the_sensor_finds_when_the_day_was_read_and_in_which_state(sqlite_runs: Runs):
    sqlite_runs.tables.subscribe(tenant("t1"))
    sqlite_runs.tables.daily("t1", DAY, TEN)
    report = sqlite_runs.report(DAY)
    _, found = last_materialization(sqlite_runs.instance, BILLING_CHANGES, DAY.isoformat())
    assert datetime.fromisoformat(str(found[metadata.READ_AT].value)) == report.read_at
    assert found[metadata.STATE].value == report.state != ""


def test_account_ids_are_masked_in_what_is_shown_and_whole_in_the_file(sqlite_runs: Runs):
    account = "123456789012"
    sqlite_runs.tables.subscribe(Subscription(account, "aws", account, "", "aws", is_resource_group=False))
    sqlite_runs.tables.daily(account, DAY, None)
    sqlite_runs.tables.fact(account, DAY, TEN, group=account)
    result = sqlite_runs.run(DAY)
    assert sqlite_runs.files.read(DAY).report.rows[0].cell.subscription.id == account
    events = [repr(record.dagster_event) for record in sqlite_runs.instance.all_logs(result.run_id)]
    assert not [event for event in events if account in event]
    assert [event for event in events if "****9012" in event]


class TestChecks:
    """What the run answers beside the day's cells."""

    def test_all_pass_on_a_sound_day_in_one_step(self, sqlite_runs: Runs):
        sqlite_runs.tables.subscribe(tenant("t1"), resource_group("rg"))
        sqlite_runs.tables.daily("t1", DAY, TEN)
        sqlite_runs.tables.fact("t1", DAY, TEN)
        result = sqlite_runs.run(DAY)
        checks = checks_of(result)
        assert {name: check.passed for name, check in checks.items()} == dict.fromkeys(
            ("groups_are_claimed", "stamps_are_sound", "no_gap"), True
        )
        assert {check.partition for check in checks.values()} == {DAY.isoformat()}
        assert sum(event.event_type_value == "STEP_START" for event in result.all_events) == 1

    def test_a_resource_group_that_nobody_claims_is_named_once_whatever_its_spelling(self, runs: Runs):
        runs.tables.subscribe(tenant("t1"), resource_group("claimed"))
        for service, group in enumerate(("Claimed", "nobodys", "NoBodys", None)):
            runs.tables.fact("t1", DAY, TEN, group=group, service=str(service))
        check = checks_of(runs.run(DAY))["groups_are_claimed"]
        assert not check.passed
        assert check.severity is dg.AssetCheckSeverity.WARN
        assert check.metadata["unclaimed_groups"].value == 1
        assert check.metadata["examples"].value.lower() == "nobodys (azure)"

    def test_tenants_that_nobody_claims_are_counted_and_named_with_the_groups(self, runs: Runs):
        runs.tables.subscribe(tenant("t1"), resource_group("rg"))
        runs.tables.subscribe(tenant("t2"), enabled=False)
        runs.tables.fact("T1", DAY, TEN)
        runs.tables.daily("t2", DAY, TEN)
        runs.tables.fact("123456789012", DAY, TEN, group="nobodys")
        check = checks_of(runs.run(DAY))["groups_are_claimed"]
        assert not check.passed
        assert (check.metadata["unclaimed_tenants"].value, check.metadata["unclaimed_groups"].value) == (2, 1)
        assert check.metadata["examples"].value == "tenant ****9012; tenant t2; nobodys (azure)"
        assert "these tenants: 2, such as tenant ****9012; tenant t2" in check.description

    @pytest.mark.case("null_stamp")
    def test_rows_without_a_stamp_are_counted_and_named(self, runs: Runs):
        runs.tables.subscribe(tenant("t1"))
        runs.tables.fact("t1", DAY, None)
        runs.tables.daily("t1", DAY, TEN)
        check = checks_of(runs.run(DAY))["stamps_are_sound"]
        assert not check.passed
        assert check.metadata["unstamped_rows"].value == 1
        assert check.metadata["examples"].value == "cost_facts.updated_at of rg (azure): 1 rows without a stamp"
        (row,) = runs.files.read(DAY).report.rows
        assert row.cell.facts.unstamped == 1

    @pytest.mark.case("future_stamp")
    def test_rows_ahead_of_the_databases_clock_are_counted_and_named(self, runs: Runs):
        runs.tables.subscribe(tenant("t1"))
        ahead = runs.tables.now() + timedelta(hours=2)
        runs.tables.daily("t1", DAY, ahead)
        check = checks_of(runs.run(DAY))["stamps_are_sound"]
        assert (check.passed, check.metadata["future_rows"].value) == (False, 1)
        assert f"tenant t1: 1 rows up to {ahead:%Y-%m-%dT%H:%M:%S.%fZ}" in check.metadata["examples"].value

    def test_a_gap_is_told_in_the_sensors_words(self, sqlite_runs: Runs):
        words = "The sensor did not poll from 10:00 to 12:30, longer than the overlap of 60 min."
        result = sqlite_runs.run(DAY, gap=words, why="first poll")
        check = checks_of(result)["no_gap"]
        assert (check.passed, check.description) == (False, words)
        assert metadata_of(result)["why"] == "first poll"


class TestRivals:
    """Several runs of one day, and runs that end in the middle."""

    def test_a_run_that_was_overtaken_reads_again_and_succeeds(self, sqlite_runs: Runs, monkeypatch):
        sqlite_runs.tables.subscribe(tenant("t1"))
        sqlite_runs.tables.daily("t1", DAY, TEN)
        put, overtaken = DayFiles.replace, []

        def overtake(files: DayFiles, replacement: object) -> str:
            if not overtaken:
                overtaken.append(True)
                sqlite_runs.tables.daily("t1", DAY, ELEVEN, 7)
                assert sqlite_runs.run(DAY).success
            return put(files, replacement)

        monkeypatch.setattr(DayFiles, "replace", overtake)
        result = sqlite_runs.run(DAY)
        assert result.success
        assert [event.event_type_value for event in result.all_events].count("STEP_UP_FOR_RETRY") == 1
        (row,) = sqlite_runs.files.read(DAY).report.rows
        assert (row.amount, row.last_ingested_at) == (7, ELEVEN)
        assert metadata_of(result)["since"] != "first"

    def test_runs_side_by_side_all_succeed_and_report_once(self, sqlite_runs: Runs, tmp_path: Path):
        sqlite_runs.tables.subscribe(tenant("t1"))
        sqlite_runs.tables.daily("t1", DAY, TEN)
        home = tmp_path / "dagster"
        home.mkdir()
        # On disk: the in-memory storage of an ephemeral instance is not made for several threads.
        with dg.DagsterInstance.local_temp(str(home)) as on_disk, ThreadPoolExecutor(3) as pool:
            side_by_side = replace(sqlite_runs, instance=on_disk)
            results = list(pool.map(lambda _: side_by_side.run(DAY), range(3)))
        assert [result.success for result in results] == [True] * 3
        assert sorted(metadata_of(result)["changed_cells"] for result in results) == [0, 0, 1]


class TestFailures:
    """Each says what happened and what to do; the day's file stays."""

    def test_a_damaged_file_fails_at_once_and_names_it(self, sqlite_runs: Runs):
        sqlite_runs.tables.subscribe(tenant("t1"))
        sqlite_runs.report(DAY)
        path = Path(sqlite_runs.files.uri_of(DAY))
        path.write_bytes(b"damaged")
        result = sqlite_runs.run(DAY)
        assert f"{path} is damaged, or not a file of this project" in failure_of(result)
        assert "STEP_UP_FOR_RETRY" not in [event.event_type_value for event in result.all_events]
        path.unlink()
        assert sqlite_runs.run(DAY).success

    def test_a_database_that_is_not_set_is_named(self, sqlite_runs: Runs):
        unset = replace(sqlite_runs, settings=replace(sqlite_runs.settings, billing_database_url=None))
        assert "Not set: BILLING_DATABASE_URL" in failure_of(unset.run(DAY))

    def test_a_database_that_is_away_is_tried_again_and_its_password_is_not_told(self, sqlite_runs: Runs, monkeypatch):
        monkeypatch.setattr("dagster.RetryPolicy.calculate_delay", lambda self, attempt: 0)
        url = "mysql+pymysql://reader:hush-hush@127.0.0.1:1/billing"
        away = replace(sqlite_runs, settings=replace(sqlite_runs.settings, billing_database_url=url))
        result = away.run(DAY)
        assert "The database billing at 127.0.0.1:1 cannot be reached" in failure_of(result)
        assert [event.event_type_value for event in result.all_events].count("STEP_UP_FOR_RETRY") == 3
        assert "hush-hush" not in repr(sqlite_runs.instance.all_logs(result.run_id))

    def test_a_missing_table_fails_at_once_and_leaves_the_file(self, sqlite_runs: Runs):
        before = sqlite_runs.report(DAY)
        sqlite_runs.tables.run("DROP TABLE cmdb_cost_facts")
        assert "cmdb_cost_facts" in failure_of(sqlite_runs.run(DAY))
        assert sqlite_runs.files.read(DAY).report == before

    def test_a_place_that_cannot_be_written_is_named_after_retries(
        self, sqlite_runs: Runs, tmp_path: Path, monkeypatch
    ):
        monkeypatch.setattr("dagster.RetryPolicy.calculate_delay", lambda self, attempt: 0)
        (tmp_path / "changes").write_text("in the way")
        result = sqlite_runs.run(DAY)
        assert "(BILLING_CHANGES_URI) cannot be used" in failure_of(result)
        assert [event.event_type_value for event in result.all_events].count("STEP_UP_FOR_RETRY") == 3


class TestDownstream:
    """Assets that take the table as a DataFrame."""

    def test_one_day_is_a_frame_and_several_are_frames_by_day(self, sqlite_runs: Runs):
        sqlite_runs.tables.subscribe(tenant("t1"))
        days = [DAY, DAY + timedelta(days=1)]
        for day in days:
            sqlite_runs.tables.daily("t1", day, TEN, "12.34")
            sqlite_runs.report(day)
        seen: list[object] = []

        @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-11-20", end_date="2026-11-22"))
        def by_day(billing_changes: pd.DataFrame) -> None:
            seen.append(billing_changes)

        @dg.asset(
            ins={"found": dg.AssetIn("billing_changes", partition_mapping=dg.SpecificPartitionsPartitionMapping(
                [day.isoformat() for day in days]))}
        )  # fmt: skip
        def at_once(found: dict[str, pd.DataFrame]) -> None:
            seen.append(found)

        job = definitions(sqlite_runs.settings, by_day, at_once).resolve_implicit_global_asset_job_def()
        for asset, key in ((by_day, DAY.isoformat()), (at_once, None)):
            ran = job.execute_in_process(
                partition_key=key, instance=sqlite_runs.instance, asset_selection=[asset.key]
            )  # fmt: skip
            assert ran.success
        frame, frames = seen
        assert list(frame["amount"]) == [Decimal("12.34")]
        assert list(frames) == [day.isoformat() for day in days]

    def test_a_day_that_was_never_materialized_is_named(self, sqlite_runs: Runs):
        @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-11-20", end_date="2026-11-22"))
        def by_day(billing_changes: pd.DataFrame) -> None: ...

        job = definitions(sqlite_runs.settings, by_day).resolve_implicit_global_asset_job_def()
        ran = job.execute_in_process(
            partition_key=DAY.isoformat(), instance=sqlite_runs.instance, asset_selection=[by_day.key],
            raise_on_error=False,
        )  # fmt: skip
        assert "Materialize that day of billing_changes first" in failure_of(ran)
