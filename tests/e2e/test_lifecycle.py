"""From an event in the queue to a closed license, by sensors alone: everything here goes by the real clock."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from tests.e2e.conftest import PROJECT
from tests.e2e.instance import webserver_and_daemon
from tests.e2e.marketplace import DIMENSIONS, Marketplace
from tests.e2e.processes import until

pytestmark = pytest.mark.services

LEAVING, STAYING = 41, 42
CALLS, _ = DIMENSIONS
SENSORS = {
    "marketplace_events": "apply_marketplace_events",
    "deprovisioning_flush": "flush_deprovisioning",
    "deprovisioned_finalizer": "finalize_deprovisioned",
}
LEFT = timedelta(seconds=150)
"""Of the flush window when the event comes."""


def test_an_event_leads_to_the_last_usage_billed_and_the_license_inactive(marketplace: Marketplace, tmp_path) -> None:
    environment = marketplace.environment() | {
        "AWS_ENDPOINT_URL_SQS": marketplace.dynamodb_url, "MARKETPLACE_EVENTS_QUEUE_URL": marketplace.queue_url,
        "METERING_EVENTS_SECONDS": "2", "METERING_FLUSH_SECONDS": "2", "METERING_FINALIZE_SECONDS": "2",
        "METERING_LOCK_HOURS": "20",
    }  # fmt: skip
    del environment["METERING_NOW"]
    marketplace.control("clock", {"now": None})
    marketplace.subscribe([LEAVING, STAYING])
    with webserver_and_daemon(tmp_path, PROJECT, environment) as dagster:
        for sensor in SENSORS:
            dagster.start_sensor(sensor)
        idle = {sensor: dagster.sensor_ticks(sensor)[0] for sensor in SENSORS}
        assert {tick["status"] for tick in idle.values()} == {"SKIPPED"}, idle

        now = datetime.now(UTC).replace(microsecond=0)
        for number in (LEAVING, STAYING):
            marketplace.put_row(number, CALLS, f"{now:%Y-%m-%dT%H:%M:%S}", Decimal("2.5"))
        hour = f"{now:%Y-%m-%dT%H}"
        marketplace.expect(LEAVING, CALLS, hour, Decimal("2.5"))
        marketplace.deprovision(LEAVING, now - timedelta(hours=1) + LEFT)
        until(lambda: marketplace.bill() or None, "the last usage to be billed")
        marketplace.check()
        assert marketplace.statuses(LEAVING, hour) == {"Aggregated": 1}
        assert marketplace.subscriber(LEAVING)["subscriptionStatus"] == "deprovisioning"

        row = until(
            lambda: ((row := marketplace.subscriber(LEAVING))["subscriptionStatus"] == "inactive" and row) or None,
            "the license to be inactive",
        )
        assert not {"deprovisioningPendingFlag", "deprovisioningExpiry"} & set(row)
        for job in SENSORS.values():
            runs = dagster.runs_of(job)
            for run in runs:
                assert dagster.run_ended(run["runId"]) == "SUCCESS", job
                assert {"key": "metering/lane", "value": "deprovision"} in run["tags"]
            assert runs, job
        assert dagster.materialized("metered_usage") == set(), "an hour that is not over is not green"

    assert marketplace.messages() == 0
    assert marketplace.statuses(STAYING, hour) == {"pending": 1}
    assert marketplace.subscriber(STAYING)["subscriptionStatus"] == "active"
