"""A day by hand: webserver and daemon as in production, a backfill, a rerun."""

from collections.abc import Iterator
from decimal import Decimal

import pytest

from tests.e2e.conftest import PROJECT
from tests.e2e.instance import HOURLY, Instance, webserver_and_daemon
from tests.e2e.marketplace import DIMENSIONS, Marketplace, hour_back

pytestmark = pytest.mark.services

HOURS = [hour_back(offset) for offset in range(23, 0, -1)]
BUYERS = range(1, 6)


@pytest.fixture(scope="module")
def dagster(marketplace: Marketplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    folder = tmp_path_factory.mktemp("dagster")
    with webserver_and_daemon(folder, PROJECT, marketplace.environment()) as running:
        yield running


@pytest.fixture(scope="module")
def backfilled(dagster: Instance, marketplace: Marketplace) -> dict[str, str]:
    """A day of usage, metered by one backfill; its runs, by hour."""
    marketplace.subscribe(BUYERS)
    for place, hour in enumerate(HOURS):
        for number in BUYERS:
            dimension = DIMENSIONS[(place + number) % 2]
            quantities = [Decimal(place * 1000 + number * 10 + row) + Decimal("0.000001") * row for row in range(4)]
            marketplace.use(number, dimension, hour, quantities)
    runs: dict[str, str] = {}
    for run in dagster.backfill_ended(dagster.backfill(HOURS), len(HOURS)):
        (hour,) = (tag["value"] for tag in run["tags"] if tag["key"] == "dagster/partition")
        assert hour not in runs, "one run for each hour"
        runs[hour] = run["status"]
    return runs


def test_a_backfill_of_23_hours_bills_each_group_once(
    dagster: Instance, marketplace: Marketplace, backfilled: dict[str, str]
) -> None:
    assert backfilled == dict.fromkeys(HOURS, "SUCCESS")
    assert len(marketplace.expected) == len(HOURS) * len(BUYERS)
    marketplace.check()
    for asset in HOURLY:
        assert dagster.materialized(asset) == set(HOURS)
    assert dagster.check("metered_usage", "hour_closed", HOURS[0])["status"] == "SUCCEEDED"


def test_a_rerun_of_one_hour_changes_nothing(
    dagster: Instance, marketplace: Marketplace, backfilled: dict[str, str]
) -> None:
    before = marketplace.control("bill")
    calls = len(marketplace.control("calls"))
    assert dagster.run_ended(dagster.materialize(HOURS[5])) == "SUCCESS"
    assert marketplace.control("bill") == before
    assert len(marketplace.control("calls")) == calls, "nothing was pending, so nothing was sent"
