"""The sample in SQLite: loaded once, added to, and ingested again as a collector does it."""

import random
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from metering_dagster.devstack.billing_arrivals import Collector
from metering_dagster.devstack.billing_db import fill, write_again
from metering_dagster.devstack.billing_reingest import ExpectedChange, again, reingest
from metering_dagster.devstack.billing_sample import generate

NOW = datetime(2026, 11, 28, 10, 20, 30, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def sample():
    return generate(NOW)


@pytest.fixture
def database(tmp_path, sample):
    path = tmp_path / "new" / "billing.sqlite"
    fill(path, sample)
    return path


def ask(path, question):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchall()


def counted(path):
    tables = ("cmdb_cost_facts", "cmdb_cloud_billing_daily", "cmdb_billing_subscriptions")
    return [ask(path, f"SELECT count(*) FROM {table}")[0][0] for table in tables]


def test_everything_is_there_once_however_often_it_is_loaded(database, sample):
    expected = [len(sample.facts), len(sample.daily), len(sample.subscriptions)]
    assert counted(database) == expected
    fill(database, sample)
    assert counted(database) == expected


def test_stamps_are_texts_in_utc_to_the_microsecond_and_amounts_exact(database, sample):
    found = ask(database, "SELECT amount, fetched_at, updated_at FROM cmdb_cost_facts ORDER BY id LIMIT 50")
    for (amount, fetched, updated), row in zip(found, sample.facts, strict=False):
        assert Decimal(str(amount)) == row.amount
        assert fetched == f"{row.fetched_at:%Y-%m-%d %H:%M:%S.%f}"
        assert updated == f"{row.updated_at:%Y-%m-%d %H:%M:%S.%f}"


def test_the_next_days_are_added_and_what_is_there_stays(database, sample):
    before = ask(database, "SELECT * FROM cmdb_cost_facts")
    fill(database, generate(NOW + timedelta(days=2)))
    after = ask(database, "SELECT * FROM cmdb_cost_facts")
    assert after[: len(before)] == before
    assert {row[5] for row in after[len(before) :]} == {"2026-11-28", "2026-11-29"}


def test_ingesting_again_replaces_adds_and_deletes_and_touches_nothing_else(database, sample):
    later = reingest(sample, NOW + timedelta(minutes=1))
    before = dict(by_key(database))
    write_again(database, later)
    after = dict(by_key(database))
    assert len(after) == len(before) + 1 - len(later.gone_facts)
    moved = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert len(moved) == len(later.facts) + len(later.gone_facts)
    stamps = ask(database, "SELECT fetched_at FROM cmdb_cloud_billing_daily WHERE fetched_at > '2026-11-28 10:21'")
    assert sorted(stamps) == [("2026-11-28 10:21:30.000005",)] * 7 + [("2026-11-28 12:21:30.000005",)]


def by_key(path):
    for scope, integration, group, service, day, amount, stamp in ask(
        path, "SELECT scope_id, integration_id, resource_group, service, date, amount, updated_at FROM cmdb_cost_facts"
    ):
        yield (scope, integration, group, service, day), (amount, stamp)


@pytest.mark.parametrize("seed", range(6))
def test_a_tenants_day_again_still_adds_up(sample, seed):
    later = again(sample, NOW, random.Random(seed))
    (daily,) = later.daily
    assert NOW.date() - timedelta(days=8) < daily.day < NOW.date()
    assert daily.amount == sum(row.amount for row in later.facts if row.currency == daily.currency)
    (move,) = set(later.due.values()) or {ExpectedChange.TOUCHED}  # nobody asks for a disabled subscription's
    was = next(row for row in sample.daily if (row.day, row.scope_id) == (daily.day, daily.scope_id))
    assert (move is ExpectedChange.CHANGED) == (daily.amount != was.amount) or later.due == {}
    assert {row.updated_at for row in later.facts} == {NOW} == {daily.fetched_at}


def test_the_collector_of_make_dev_makes_up_and_goes_on(tmp_path, monkeypatch):
    collector = Collector(tmp_path / "billing.sqlite")
    collector.catch_up()
    assert collector.url == f"sqlite:///{tmp_path}/billing.sqlite"
    before = ask(collector.database, "SELECT max(fetched_at) FROM cmdb_cloud_billing_daily")
    collector.ingest()
    assert ask(collector.database, "SELECT max(fetched_at) FROM cmdb_cloud_billing_daily") == before, "not yet"
    monkeypatch.setattr(collector, "_again_at", 0.0)
    collector.ingest()
    assert ask(collector.database, "SELECT max(fetched_at) FROM cmdb_cloud_billing_daily") > before
