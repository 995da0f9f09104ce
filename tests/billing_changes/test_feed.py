"""The feed as a program asks it: by time from the database, by name from what was reported."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pandas as pd
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from metering_dagster.billing_changes import feed
from metering_dagster.billing_changes.defs.assets import billing_changes, external_assets
from metering_dagster.billing_changes.defs.io_manager import BillingChangesIO
from metering_dagster.billing_changes.rules import heartbeat
from metering_dagster.billing_changes.rules.cells import Signal
from metering_dagster.billing_changes.rules.heartbeat import Heartbeat
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.billing_changes.stores.day_files import DayFiles
from metering_dagster.core.aws.clients import Clients
from metering_dagster.core.errors import (
    DamagedFileError,
    DatabaseAwayError,
    DatabaseError,
    FeedRefusedError,
    MeteringError,
    SettingsError,
)
from metering_dagster.settings import Settings
from tests.billing_changes.filling import BillingTables, queries_of, resource_group, tenant
from tests.billing_changes.materializing import materialize

HOUR = timedelta(hours=1)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings(billing: BillingTables, tmp_path: Path) -> Settings:
    return Settings(billing_database_url=billing.url, billing_changes_uri=str(tmp_path / "changes"))


@pytest.fixture
def reports(tmp_path: Path) -> Settings:
    """A place of reports, and no database: consumers need none."""
    return Settings(billing_changes_uri=str(tmp_path / "changes"))


def a_day_before(billing: BillingTables, days: int = 3) -> tuple[date, datetime]:
    """A day well inside the horizon, and the database's clock."""
    now = billing.now()
    return now.date() - timedelta(days=days), now


def test_a_stamp_equal_to_since_is_reported_and_an_older_one_is_not(billing, settings):
    day, now = a_day_before(billing)
    billing.subscribe(tenant("t1"), tenant("t2"))
    billing.daily("t1", day, now - HOUR)
    billing.daily("t2", day, now - HOUR - timedelta(microseconds=1))
    told = feed.changes(now - HOUR, settings=settings)
    assert [row.subscription_id for row in told.rows] == ["t1"]


@pytest.mark.case("both_tables")
def test_both_tables_make_one_row_with_both_signals(billing, settings):
    day, now = a_day_before(billing)
    billing.subscribe(tenant("t1"))
    billing.fact("t1", day, now - 2 * HOUR)
    billing.daily("t1", day, now - HOUR)
    told = feed.changes(now - 2 * HOUR, settings=settings)
    (row,) = told.rows
    assert (row.last_ingested_at, row.signals) == (now - HOUR, tuple(Signal))
    assert told.meta.signals == tuple(Signal)


@pytest.mark.case("frozen_column")
def test_the_frozen_columns_tell_nothing(billing, settings):
    day, now = a_day_before(billing)
    billing.subscribe(tenant("t1"), tenant("t2"))
    billing.daily("t1", day, now - HOUR)
    billing.fact("t2", day, now - HOUR)
    told = feed.changes(now - HOUR, settings=settings)
    assert [(row.subscription_id, row.signals) for row in told.rows] == [
        ("t1", (Signal.DAILY,)), ("t2", (Signal.FACTS,)),
    ]  # fmt: skip


@pytest.mark.case("resource_group_case")
def test_spellings_of_one_resource_group_are_one_row(billing, settings):
    day, now = a_day_before(billing)
    billing.subscribe(resource_group("rg-prod"))
    billing.fact("s1", day, now - 2 * HOUR, group="RG-Prod", service="vm")
    billing.fact("s1", day, now - HOUR, group="rg-prod", service="disk")
    (row,) = feed.changes(now - 2 * HOUR, settings=settings).rows
    assert row.last_ingested_at == now - HOUR


@pytest.mark.case("client_zone")
def test_since_in_another_zone_means_the_same_instant(billing, settings):
    day, now = a_day_before(billing)
    billing.subscribe(tenant("t1"))
    billing.daily("t1", day, now - HOUR)
    there = timezone(timedelta(hours=8))
    asked = (now - HOUR).astimezone(there)
    assert asked.isoformat().endswith("+08:00")
    told = feed.changes(asked.isoformat(timespec="microseconds"), settings=settings)
    assert told.meta.since == now - HOUR
    assert len(told.rows) == 1
    assert not feed.changes(asked + timedelta(microseconds=1), settings=settings).rows


@pytest.mark.case("no_subscriptions")
def test_without_subscriptions_the_answer_is_empty_and_asks_for_no_rows(billing, settings, monkeypatch):
    day, now = a_day_before(billing)
    billing.daily("t1", day, now - HOUR)
    billing.subscribe(tenant("t1"), enabled=False)
    database = billing.database()
    monkeypatch.setattr(Billing, "database", database)
    with queries_of(database) as queries:
        told = feed.changes(now - HOUR, settings=settings)
    assert told.rows == ()
    assert told.meta.does_not_detect
    assert ["cmdb_billing_subscriptions" in statement for statement, _ in queries] == [True]


@pytest.mark.parametrize("kind", ["tenant", "resource group"])
@pytest.mark.case("no_subscriptions")
def test_with_one_kind_of_subscriptions_that_kinds_rows_come(billing, settings, kind):
    day, now = a_day_before(billing)
    billing.subscribe(tenant("t1") if kind == "tenant" else resource_group("rg", id="g1"))
    billing.fact("t1", day, now - HOUR, group="rg")
    (row,) = feed.changes(now - HOUR, settings=settings).rows
    assert row.subscription_id == ("t1" if kind == "tenant" else "g1")


@pytest.mark.case("horizon")
def test_a_day_older_than_the_horizon_is_not_detected_and_the_answer_says_so(billing, settings):
    day, now = a_day_before(billing, 40)
    billing.subscribe(tenant("t1"))
    billing.daily("t1", day, now - HOUR)
    told = feed.changes(now - HOUR, settings=settings)
    assert told.rows == ()
    assert any("older than the horizon of 32 days" in words for words in told.meta.does_not_detect)
    assert len(feed.changes(now - HOUR, horizon_days=60, settings=settings).rows) == 1


@pytest.mark.parametrize("horizon", [0, 93, "x", -1, "", 32.5, True, "9" * 5000, "٣٢", "1e1"])
@pytest.mark.case("horizon")
def test_a_horizon_that_makes_no_sense_is_refused_in_words(billing_sqlite, horizon):
    with pytest.raises(FeedRefusedError, match=r"(1 to 92 days|a whole number)\. Nothing was read") as refused:
        feed.changes("2026-01-01T00:00:00Z", horizon_days=horizon,
                     settings=Settings(billing_database_url=billing_sqlite.url))  # fmt: skip
    assert len(str(refused.value)) < 100


def test_a_since_in_the_future_is_refused_by_the_databases_clock(billing, settings):
    with pytest.raises(FeedRefusedError, match="the database's clock says"):
        feed.changes(billing.now() + HOUR, settings=settings)


@pytest.mark.case("null_stamp")
def test_days_with_rows_that_have_no_stamp_are_named(billing, settings):
    day, now = a_day_before(billing)
    billing.subscribe(tenant("t1"))
    billing.daily("t1", day, None)
    billing.fact("t1", day, None)
    told = feed.changes(now - HOUR, settings=settings)
    assert told.rows == ()
    assert [(each.first_day, each.last_day, each.why[:6]) for each in told.meta.repull_by_hand] == [
        (day, day, "2 rows")
    ]


@pytest.mark.services
@pytest.mark.case("late_commit")
def test_a_commit_that_was_under_way_is_found_by_asking_again_with_complete_until(billing_mariadb):
    settings = Settings(billing_database_url=billing_mariadb.url)
    day, now = a_day_before(billing_mariadb)
    billing_mariadb.subscribe(tenant("t1"))
    with billing_mariadb.session() as writer:
        billing_mariadb.daily("t1", day, now - timedelta(minutes=59), on=writer)
        before = feed.changes(now - 2 * HOUR, settings=settings)
        writer.commit()
    assert before.rows == ()
    assert len(feed.changes(before.meta.complete_until, settings=settings).rows) == 1


@pytest.mark.services
@pytest.mark.case("stamp_precision")
def test_in_a_column_of_whole_seconds_the_second_of_since_is_reported(billing_mariadb):
    settings = Settings(billing_database_url=billing_mariadb.url)
    billing_mariadb.run("ALTER TABLE cmdb_cloud_billing_daily MODIFY fetched_at DATETIME(0)")
    day, now = a_day_before(billing_mariadb)
    second = (now - HOUR).replace(microsecond=0)
    billing_mariadb.subscribe(tenant("t1"))
    billing_mariadb.daily("t1", day, second)
    assert len(feed.changes(second + timedelta(microseconds=900_000), settings=settings).rows) == 1
    assert not feed.changes(second + timedelta(seconds=1), settings=settings).rows


@pytest.mark.services
def test_a_wrong_password_is_told_without_it(billing_mariadb):
    from sqlalchemy import make_url

    url = make_url(billing_mariadb.url).set(username="nobody", password="s3cret-pw")
    with pytest.raises(DatabaseError) as refused:
        feed.changes("2026-01-01T00:00:00Z",
                     settings=Settings(billing_database_url=url.render_as_string(hide_password=False)))  # fmt: skip
    assert "s3cret-pw" not in str(refused.value)


def test_a_database_that_is_away_is_told_in_words():
    settings = Settings(billing_database_url="mysql+pymysql://user:s3cret-pw@127.0.0.1:1/billing")
    with pytest.raises(DatabaseAwayError) as away:
        feed.changes("2026-01-01T00:00:00Z", settings=settings)
    assert "s3cret-pw" not in str(away.value)


def test_a_missing_table_is_told_in_words(billing, settings):
    billing.run("DROP TABLE cmdb_cost_facts")
    billing.subscribe(tenant("t1"))
    with pytest.raises(DatabaseError, match="cmdb_cost_facts"):
        feed.changes("2026-01-01T00:00:00Z", settings=settings)


def test_without_a_database_the_setting_is_named():
    with pytest.raises(SettingsError, match="BILLING_DATABASE_URL"):
        feed.changes("2026-01-01T00:00:00Z", settings=Settings())


@effort(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(
    since=st.text() | st.datetimes(timezones=st.timezones() | st.none()), horizon=st.none() | st.integers() | st.text()
)
def test_whatever_is_asked_for_ends_in_an_answer_or_in_words(billing_sqlite, since, horizon):
    refused = ""
    try:
        feed.changes(since, horizon_days=horizon, settings=Settings(billing_database_url=billing_sqlite.url))
    except MeteringError as error:
        refused = str(error)
    assert not refused or "Nothing" in refused


def test_a_consumer_is_given_what_moved_until_it_acknowledges(billing, settings):
    day, now = a_day_before(billing)
    billing.subscribe(tenant("t1"), tenant("t2"))
    billing.daily("t1", day, now - HOUR, "12.5")
    billing.daily("t2", day, now - HOUR)
    materialize(settings, day)
    first = feed.new_for("warehouse", settings=settings)
    assert [row.subscription_id for row in first.rows] == ["t1", "t2"]
    assert feed.new_for("warehouse", settings=settings).rows == first.rows
    assert feed.new_for("warehouse", settings=settings).meta.token == first.meta.token
    assert feed.acknowledge("warehouse", first.meta.token, settings=settings) is True
    assert feed.acknowledge("warehouse", first.meta.token, settings=settings) is False
    assert feed.new_for("warehouse", settings=settings).rows == ()
    billing.daily("t2", day, now, 3)
    materialize(settings, day)
    (row,) = feed.new_for("warehouse", settings=settings).rows
    assert (row.subscription_id, row.last_ingested_at, row.amounts) == ("t2", now, (("USD", Decimal(3)),))
    assert len(feed.new_for("another", settings=settings).rows) == 2


@pytest.mark.case("deleted_cell")
def test_a_consumer_is_given_a_cell_that_vanished(billing, settings):
    day, now = a_day_before(billing)
    billing.subscribe(tenant("t1"))
    billing.daily("t1", day, now - HOUR)
    materialize(settings, day)
    with feed.consumer("warehouse", settings=settings):
        pass
    billing.run("DELETE FROM cmdb_cloud_billing_daily")
    materialize(settings, day)
    (row,) = feed.new_for("warehouse", settings=settings).rows
    assert (row.vanished, row.last_ingested_at) == (True, now - HOUR)


@contextmanager
def something_new(billing: BillingTables, settings: Settings) -> Iterator[date]:
    """A day of one cell, materialized."""
    day, now = a_day_before(billing)
    billing.subscribe(tenant("t1"))
    billing.daily("t1", day, now - HOUR)
    materialize(settings, day)
    yield day


@pytest.fixture
def reported(billing_sqlite: BillingTables, reports: Settings) -> Settings:
    """A place with one reported day of one cell."""
    with something_new(billing_sqlite, Settings(
        billing_database_url=billing_sqlite.url, billing_changes_uri=reports.billing_changes_uri
    )):  # fmt: skip
        return reports


def test_a_block_that_fails_is_given_the_same_again(reported):
    taken = []

    def take_and_fail() -> None:
        with feed.consumer("w", settings=reported) as new:
            taken.extend(new.rows)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        take_and_fail()
    assert len(taken) == 1
    with feed.consumer("w", settings=reported) as again:
        assert list(again.rows) == taken
    with feed.consumer("w", settings=reported) as later:
        assert later.rows == ()


def test_files_that_were_taken_are_not_read_again(reported, monkeypatch):
    with feed.consumer("w", settings=reported):
        pass
    monkeypatch.setattr(DayFiles, "read", lambda *_: pytest.fail("a file was read"))
    assert feed.new_for("w", settings=reported).rows == ()


def test_a_place_with_no_reports_gives_an_empty_answer(reports):
    told = feed.new_for("w", settings=reports)
    assert (told.rows, told.meta.complete_until, told.meta.horizon) == ((), None, 32)
    assert feed.acknowledge("w", told.meta.token, settings=reports) is False
    assert not Path(reports.billing_changes_uri).exists(), "a wrong place is not made a right one"


def test_the_sensors_word_says_how_far_the_answer_goes(reported):
    beat = Heartbeat(*(datetime.fromisoformat(f"2026-11-28T{hour}:00:00Z") for hour in (12, 11)), date(2026, 10, 27))
    DayFiles(reported.billing_changes_uri, reported).replace_document(heartbeat.NAME, beat.content(), None)
    with feed.consumer("w", settings=reported) as new:
        assert new.meta.complete_until == beat.complete_until
    assert feed.new_for("w", settings=reported).meta.since == beat.complete_until


def test_a_report_that_is_gone_is_said(reported):
    with feed.consumer("w", settings=reported) as new:
        (day,) = {row.day for row in new.rows}
    (Path(reported.billing_changes_uri) / f"day={day}" / "cells.parquet").unlink()
    (repull,) = feed.new_for("w", settings=reported).meta.repull_by_hand
    assert repull.first_day == day


def test_a_token_that_is_unknown_is_refused_and_moves_nothing(reported):
    feed.new_for("w", settings=reported)
    with pytest.raises(FeedRefusedError, match="never offered"):
        feed.acknowledge("w", "0" * 12, settings=reported)
    with pytest.raises(FeedRefusedError, match="invalid token"):
        feed.acknowledge("w", "null", settings=reported)
    assert len(feed.new_for("w", settings=reported).rows) == 1


@pytest.fixture
def one_of_two_damaged(billing_sqlite: BillingTables, reports: Settings) -> tuple[Settings, date, date]:
    """Two days are reported, and the file of the second one cannot be understood."""
    settings = replace(reports, billing_database_url=billing_sqlite.url)
    whole, now = a_day_before(billing_sqlite, 4)
    damaged = whole + timedelta(days=1)
    billing_sqlite.subscribe(tenant("t1"))
    for day in (whole, damaged):
        billing_sqlite.daily("t1", day, now - HOUR)
        materialize(settings, day)
    place = Path(str(settings.billing_changes_uri))
    beat = Heartbeat(now, now - HOUR, whole - timedelta(days=20))
    DayFiles(str(place), settings).replace_document(heartbeat.NAME, beat.content(), None)
    (place / f"day={damaged}/cells.parquet").write_bytes(b"damaged")
    return settings, whole, damaged


def test_a_damaged_day_is_named_and_all_others_are_given(one_of_two_damaged):
    settings, whole, damaged = one_of_two_damaged
    told = feed.new_for("w", settings=settings)
    assert [row.day for row in told.rows] == [whole]
    assert told.meta.complete_until is None
    assert [f"day={damaged}" in words for words in told.meta.damaged] == [True]
    assert [(one.first_day, one.last_day) for one in told.meta.repull_by_hand] == [(damaged, damaged)]
    assert any(str(damaged) in words for words in told.meta.does_not_detect)


def test_a_damaged_day_stays_due_until_it_is_mended(one_of_two_damaged):
    settings, _, damaged = one_of_two_damaged
    feed.acknowledge("w", feed.new_for("w", settings=settings).meta.token, settings=settings)
    again = feed.new_for("w", settings=settings)
    assert (again.rows, len(again.meta.damaged), again.meta.since) == ((), 1, None)
    Path(str(settings.billing_changes_uri), f"day={damaged}/cells.parquet").unlink()
    materialize(settings, damaged)
    mended = feed.new_for("w", settings=settings)
    assert [row.day for row in mended.rows] == [damaged]
    assert (mended.meta.damaged, mended.meta.repull_by_hand) == ((), ())
    assert mended.meta.complete_until is not None


def test_a_block_with_a_damaged_day_takes_the_others_and_fails(one_of_two_damaged):
    settings, whole, damaged = one_of_two_damaged
    taken = []
    for _ in range(2):
        with pytest.raises(DamagedFileError, match=f"day={damaged}"), feed.consumer("w", settings=settings) as new:
            taken.append([row.day for row in new.rows])
    assert taken == [[whole], []]


def test_a_damaged_document_of_a_consumer_is_named_and_left_alone(reported):
    kept = Path(reported.billing_changes_uri) / "_consumers" / "w.json"
    kept.parent.mkdir()
    for damage in ("", "{", "[]", "{}", '{"version": 1}'):
        kept.write_text(damage)
        with pytest.raises(DamagedFileError, match=r"_consumers/w\.json"):
            feed.new_for("w", settings=reported)
        assert kept.read_text() == damage


def test_many_that_acknowledge_at_once_leave_the_mark_moved_once(reported):
    token = feed.new_for("w", settings=reported).meta.token
    with ThreadPoolExecutor(8) as pool:
        moved = list(pool.map(lambda _: feed.acknowledge("w", token, settings=reported), range(8)))
    assert sorted(moved) == [False] * 7 + [True]


def test_consumers_that_ask_at_once_are_all_answered(reported):
    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(lambda n: feed.new_for(f"w{n % 2}", settings=reported), range(8)))
    assert {len(one.rows) for one in told} == {1}
    assert all(feed.acknowledge(f"w{n}", told[n].meta.token, settings=reported) for n in range(2))


def test_acknowledging_while_days_are_reported_again_loses_nothing(billing_sqlite, tmp_path):
    settings = Settings(billing_database_url=billing_sqlite.url, billing_changes_uri=str(tmp_path / "changes"))
    day, now = a_day_before(billing_sqlite)
    billing_sqlite.subscribe(tenant("t1"))
    held: list[datetime | None] = []

    def ingest() -> None:
        for minute in range(20):
            billing_sqlite.daily("t1", day, now - HOUR + minute * timedelta(minutes=1))
            materialize(settings, day)

    with ThreadPoolExecutor(1) as pool:
        ingesting = pool.submit(ingest)
        while not ingesting.done():
            with feed.consumer("w", settings=settings) as new:
                held += [row.last_ingested_at for row in new.rows]
        ingesting.result()
    with feed.consumer("w", settings=settings) as new:
        held += [row.last_ingested_at for row in new.rows]
    assert held[-1] == now - HOUR + timedelta(minutes=19)
    assert held == sorted(set(held))


KILLED = """
import os, sys
from metering_dagster.billing_changes import feed

real = os.replace
def dying(source, target, **named):
    if "_consumers" in str(target):
        os.kill(os.getpid(), 9)
    return real(source, target, **named)

with feed.consumer("w") as new:
    if sys.argv[1] == "in the block":
        os.kill(os.getpid(), 9)
    os.replace = dying
"""


@pytest.mark.parametrize("at", ["in the block", "while it acknowledges"])
def test_a_consumer_that_is_killed_is_given_the_same_again(reported, at):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, at], cwd=ROOT, check=False,
        env=os.environ | {"BILLING_CHANGES_URI": str(reported.billing_changes_uri)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    with feed.consumer("w", settings=reported) as new:
        assert len(new.rows) == 1
    assert feed.new_for("w", settings=reported).rows == ()


def test_without_a_place_reports_lie_beside_dagsters_storage(reported, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    Path(reported.billing_changes_uri).rename(home / "billing_changes")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    assert len(feed.new_for("w", settings=Settings()).rows) == 1


@pytest.mark.parametrize(("home", "words"), [
    ("", "BILLING_CHANGES_URI"), ("relative", "no working Dagster instance"),
    ("/there/is/none", "no working Dagster instance"),
])  # fmt: skip
def test_without_a_place_and_an_instance_both_settings_are_named(monkeypatch, home, words):
    monkeypatch.setenv("DAGSTER_HOME", home)
    with pytest.raises(SettingsError, match=words) as missing:
        feed.new_for("w", settings=Settings())
    assert "DAGSTER_HOME" in str(missing.value)


def test_a_downstream_asset_takes_what_is_new(billing, settings, instance, monkeypatch):
    day, now = a_day_before(billing)
    billing.subscribe(tenant("t1"))
    billing.daily("t1", day, now - HOUR)
    monkeypatch.setenv("BILLING_DATABASE_URL", str(settings.billing_database_url))
    monkeypatch.setenv("BILLING_CHANGES_URI", str(settings.billing_changes_uri))
    pulled = []

    def re_pull(rows):
        pulled.append([(row.subscription_id, row.day) for row in rows])

    # As the README shows it.
    @dg.asset(deps=["billing_changes"])
    def warehouse_costs() -> None:
        with feed.consumer("warehouse") as new:  # acknowledged when the block ends without an error
            re_pull(new.rows)

    billing = Billing(settings)
    ours = dg.Definitions(
        assets=[billing_changes(settings), *external_assets(settings), warehouse_costs],
        jobs=[dg.define_asset_job("days", selection=["billing_changes"]),
              dg.define_asset_job("costs", selection=["warehouse_costs"])],
        resources={"billing": billing, "billing_changes_io": BillingChangesIO(billing=billing)},
    )  # fmt: skip
    assert ours.resolve_job_def("days").execute_in_process(instance=instance, partition_key=str(day)).success
    for _ in range(2):
        assert ours.resolve_job_def("costs").execute_in_process(instance=instance).success
    assert pulled == [[("t1", day)], []]


def test_the_frame_of_a_consumers_answer_reads_like_a_table(reported):
    frame = feed.frame(feed.new_for("w", settings=reported))
    assert list(frame["subscription_id"]) == ["t1"]
    with feed.consumer("w", settings=reported):
        pass
    assert list(feed.frame(feed.new_for("w", settings=reported)).columns) == list(frame.columns)
    assert isinstance(frame["reported_at"].dtype, pd.DatetimeTZDtype)


def test_reports_on_s3_are_taken_as_well(billing_sqlite, emulator, tmp_path, monkeypatch):
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)
    bucket = f"feed-{uuid4().hex}"
    Clients(Settings()).s3().create_bucket(Bucket=bucket)
    settings = Settings(billing_database_url=billing_sqlite.url, billing_changes_uri=f"s3://{bucket}/changes")
    with something_new(billing_sqlite, settings) as day:
        with feed.consumer("w", settings=settings) as new:
            assert [(row.subscription_id, row.day) for row in new.rows] == [("t1", day)]
        assert feed.new_for("w", settings=settings).rows == ()
        token = feed.new_for("v", settings=settings).meta.token
        with ThreadPoolExecutor(4) as pool:
            moved = list(pool.map(lambda _: feed.acknowledge("v", token, settings=settings), range(4)))
        assert sorted(moved) == [False] * 3 + [True]


def test_asking_by_name_needs_no_database_library(reported):
    code = (
        "import sys; from metering_dagster.billing_changes import feed\n"
        "new = feed.new_for('w'); assert len(new.rows) == 1\n"
        "print([name for name in ('sqlalchemy', 'pandas', 'boto3', 'dagster') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True,
        env=os.environ | {"BILLING_CHANGES_URI": str(reported.billing_changes_uri)},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
