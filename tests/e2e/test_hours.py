"""Under a plain `dagster dev`: ticks, refusals, checks. Each test has buyers and hours of its own."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.e2e.conftest import PROJECT
from tests.e2e.instance import LOCATION, Instance, plain_dagster_dev
from tests.e2e.marketplace import DIMENSIONS, Marketplace, hour_back

pytestmark = pytest.mark.services

CALLS, GPU = DIMENSIONS
WORK, IDLE, FIRST, OVERDUE = 5, 6, 1, 20
"""Offsets of the schedules that are switched on."""


@pytest.fixture(scope="module")
def dagster(marketplace: Marketplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    environment = marketplace.environment() | {"METERING_CRON": "* * * * *"}
    with plain_dagster_dev(tmp_path_factory.mktemp("dagster"), PROJECT, environment) as running:
        yield running


def test_plain_dagster_dev_loads_the_project(dagster: Instance) -> None:
    assert dagster.loaded() == {LOCATION: "RepositoryLocation"}
    instance = dagster.graphql("{ instance { info runQueuingSupported } }")["instance"]
    assert "applyLimitPerUniqueValue" in instance["info"], "the top-level dagster.yaml is in use"


def test_a_schedule_asks_for_a_run_only_where_there_is_something_to_do(
    dagster: Instance, marketplace: Marketplace
) -> None:
    marketplace.subscribe([11])
    hour = hour_back(WORK)
    marketplace.use(11, CALLS, hour, [Decimal(3), Decimal("4.5")])
    schedules = {offset: f"meter_offset_{offset:02d}" for offset in (WORK, IDLE, FIRST, OVERDUE)}
    for name in schedules.values():
        dagster.start_schedule(name)
    asked = {offset: dagster.ticks(schedules[offset])[0] for offset in (WORK, FIRST, OVERDUE)}
    idle = dagster.ticks(schedules[IDLE])[0]
    dagster.stop_schedule(schedules[IDLE])

    assert (idle["status"], idle["runIds"]) == ("SKIPPED", []), repr(idle)
    assert idle["skipReason"] == f"Nothing is pending in {hour_back(IDLE)}."
    for offset, tick in asked.items():
        assert tick["status"] == "SUCCESS", tick
        (run,) = tick["runIds"]
        assert dagster.run_ended(run) == "SUCCESS"
        assert _tags(dagster, run) >= {
            ("dagster/partition", hour_back(offset)), ("metering/offset", str(offset)), ("metering/lane", "regular"),
        }  # fmt: skip
    assert marketplace.statuses(11, hour) == {"Aggregated": 2}
    marketplace.check()

    # The hours are closed now, and the clock stands still: the next tick has nothing to do.
    again = dagster.ticks(schedules[WORK], at_least=2)[1]
    for offset in asked:
        dagster.stop_schedule(schedules[offset])
    assert (again["status"], again["runIds"]) == ("SKIPPED", []), repr(again)
    assert again["skipReason"] == f"{hour} is closed: it was metered, and nothing is pending in it."


def test_the_current_hour_is_refused(dagster: Instance, marketplace: Marketplace) -> None:
    marketplace.subscribe([21])
    marketplace.use(21, CALLS, hour_back(0), [Decimal(7)], billed=False)
    run = dagster.materialize(hour_back(0))
    assert dagster.run_ended(run) == "FAILURE"
    (said,) = dagster.failures(run).values()
    assert "2026-03-18T13:00Z" in said, "it says when it opens"
    assert marketplace.statuses(21, hour_back(0)) == {"pending": 1}
    assert hour_back(0) not in dagster.materialized("metered_usage")


def test_a_rejected_row_warns_and_the_run_is_green(dagster: Instance, marketplace: Marketplace) -> None:
    hour = hour_back(9)
    marketplace.subscribe([31, 32])
    marketplace.use(31, GPU, hour, [Decimal("0.25"), Decimal("0.5")])
    marketplace.use(32, GPU, hour, [Decimal(1), "abc", Decimal(2)], billed=False)
    assert dagster.run_ended(dagster.materialize(hour)) == "SUCCESS"

    rejected = dagster.check("aggregated_usage", "no_rejected_rows", hour)
    assert (rejected["status"], rejected["partition"]) == ("FAILED", hour)
    assert rejected["evaluation"]["severity"] == "WARN"
    assert "ejected" in rejected["evaluation"]["description"]
    assert {("rejected_rows", 1), ("held_groups", 1)} <= _numbers(rejected)
    closed = dagster.check("metered_usage", "hour_closed", hour)
    assert (closed["status"], closed["evaluation"]["severity"]) == ("FAILED", "WARN")
    assert {("pending_rows", 2), ("pending_aggregates", 0)} <= _numbers(closed)
    for asset, check in (("aggregated_usage", "quantity_conserved"), ("metered_usage", "all_submitted")):
        assert dagster.check(asset, check, hour)["status"] == "SUCCEEDED"
    assert marketplace.statuses(32, hour) == {"pending": 2, "RejectedClientSide": 1}
    marketplace.check()

    # Mended, the whole hour is billed.
    marketplace.use(32, GPU, hour, [Decimal(1), Decimal("1.5"), Decimal(2)])
    assert dagster.run_ended(dagster.materialize(hour)) == "SUCCESS"
    assert dagster.check("aggregated_usage", "no_rejected_rows", hour)["status"] == "SUCCEEDED"
    assert dagster.check("metered_usage", "hour_closed", hour)["status"] == "SUCCEEDED"


def _numbers(check: dict[str, Any]) -> set[tuple[str, int | None]]:
    return {(entry["label"], entry.get("intValue")) for entry in check["evaluation"]["metadataEntries"]}


def _tags(dagster: Instance, run: str) -> set[tuple[str, str]]:
    found = dagster.graphql(
        "query ($id: ID!) { runOrError(runId: $id) { ... on Run { tags { key value } } } }", id=run
    )["runOrError"]["tags"]  # fmt: skip
    return {(tag["key"], tag["value"]) for tag in found}
