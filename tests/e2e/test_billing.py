"""Billing data in a real MariaDB: what is ingested again is reported by the sensor alone, and a backfill is right."""

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.e2e.collector import Cells, Collector
from tests.e2e.conftest import PROJECT
from tests.e2e.instance import ENDED, Instance, webserver_and_daemon
from tests.e2e.processes import until
from tests.mariadb import running_server

pytestmark = pytest.mark.services

ASSET, SENSOR, JOB = "billing_changes", "billing_changes", "refresh_billing_changes"
TODAY = datetime.now(UTC).date()
HORIZON = 10
RECENT = [TODAY - timedelta(days=back) for back in (5, 4, 3)]
OLD = [TODAY - timedelta(days=back) for back in range(70, 40, -1)]
"""Beyond the horizon: the sensor never asks for these."""
TENANTS = ("tenant-a", "tenant-b", "tenant-c")
GROUPS = {"group-1": "rg-prod", "group-2": "rg-test"}
SPELLED = ("RG-Prod", "rg-prod", "rg-test")
LONG_AGO = timedelta(hours=3)


class Reports:
    """The files of what was reported, as a consumer reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self, day: date) -> dict[str, dict[str, Any]]:
        """The rows of a day, by subscription."""
        path = self.folder / f"day={day}" / "cells.parquet"
        rows = pq.ParquetFile(path).read().to_pylist() if path.exists() else []
        assert {row["date"] for row in rows} <= {day}
        return {row["subscription_id"]: row for row in rows}

    def cells(self, day: date) -> Cells:
        """What they say each cell costs, and when it was ingested last."""
        return {one: (row["amount"], row["last_ingested_at"]) for one, row in self.rows(day).items()}


@pytest.fixture(scope="module")
def _the_bill_is_right() -> None:
    """No marketplace is needed here, so there is none."""


@pytest.fixture(scope="module")
def mariadb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database of its own on a real server, dropped afterwards."""
    name = f"billing_e2e_{uuid.uuid4().hex[:12]}"
    with running_server(tmp_path_factory.mktemp("mariadb")) as server:
        server.run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        yield server.url_of(name)
        server.run(f"DROP DATABASE {name}")


@pytest.fixture(scope="module")
def collector(mariadb_url: str) -> Iterator[Collector]:
    """Two kinds of days, ingested some hours ago: a few of late, and a month of long ago."""
    collector = Collector(mariadb_url)
    collector.subscribe(TENANTS, GROUPS)
    for place, day in enumerate(OLD + RECENT):
        for number, tenant in enumerate(TENANTS[: 1 + (place + 2) % len(TENANTS)]):
            collector.ingest_daily(tenant, day, Decimal(place * 100 + number) + Decimal("0.000001"), ago=LONG_AGO)
            for group in SPELLED:
                amount = Decimal(place) - number + Decimal("0.25")
                collector.ingest_fact(tenant, group, f"service {group}", day, amount, ago=LONG_AGO)
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return Reports(tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="module")
def dagster(mariadb_url: str, reports: Reports, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """With what billing needs in its environment, and nothing of metering."""
    environment = {
        "BILLING_DATABASE_URL": mariadb_url, "BILLING_CHANGES_URI": str(reports.folder),
        "BILLING_CHANGES_SECONDS": "2", "BILLING_QUIET_SECONDS": "1", "BILLING_HORIZON_DAYS": str(HORIZON),
    }  # fmt: skip
    with webserver_and_daemon(tmp_path_factory.mktemp("dagster"), PROJECT, environment) as running:
        yield running


def test_an_upsert_leads_by_the_sensor_alone_to_that_days_partition(
    dagster: Instance, collector: Collector, reports: Reports
) -> None:
    dagster.start_sensor(SENSOR)
    until(lambda: all(reports.rows(day) for day in RECENT) or None, "the sensor's first look")
    settled(dagster)
    assert green(dagster) == set(RECENT), "the sensor looks at the horizon, and at nothing beyond"
    assert {day: reports.cells(day) for day in RECENT} == {day: collector.cells(day) for day in RECENT}

    day, (tenant, *_) = RECENT[1], TENANTS
    first = reports.rows(day)
    before, _ = collector.cells(day)[tenant]
    collector.ingest_daily(tenant, day, before + Decimal("7.5"))
    until(lambda: reports.cells(day) != {one: (row["amount"], row["last_ingested_at"]) for one, row in first.items()}
          or None, "the upsert to be reported")  # fmt: skip
    assert reports.cells(day) == collector.cells(day)
    reported = {one: row["reported_at"] for one, row in reports.rows(day).items()}
    moved = {one for one, at in reported.items() if at != first[one]["reported_at"]}
    assert moved == {tenant}, "the other cells of the day stand as they were reported first"
    settled(dagster)
    told = dagster.told(ASSET, day.isoformat())
    assert [each["changed_cells"] for each in told[:2]] == [len(first), 1]
    for other in {*RECENT} - {day}:
        assert len(dagster.told(ASSET, other.isoformat())) == 1, "nothing of it moved"
    for run in dagster.runs_of(JOB):
        assert {"key": "metering/lane", "value": "billing"} in run["tags"]


def test_a_backfill_of_30_days_is_right_day_by_day(dagster: Instance, collector: Collector, reports: Reports) -> None:
    keys = [day.isoformat() for day in OLD]
    runs = dagster.backfill_ended(dagster.backfill(keys, [ASSET]), len(OLD))
    done = {tag["value"]: run["status"] for run in runs for tag in run["tags"] if tag["key"] == "dagster/partition"}
    assert done == dict.fromkeys(keys, "SUCCESS")
    assert len(runs) == len(OLD), "one run for each day"
    for day in OLD:
        assert reports.cells(day) == collector.cells(day)
        assert reports.cells(day), "there is something of each day"
    assert green(dagster) >= set(OLD)


def green(dagster: Instance) -> set[date]:
    return {date.fromisoformat(key) for key in dagster.materialized(ASSET)}


def settled(dagster: Instance) -> None:
    """Wait until no run is under way."""

    def look() -> bool | None:
        statuses = [run["status"] for run in dagster.runs_of(JOB)]
        assert "FAILURE" not in statuses
        return all(status in ENDED for status in statuses) or None

    until(look, "the runs to end")
