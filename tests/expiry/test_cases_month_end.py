"""Case: after an outage of a day, on a month's last day, some hours are past their window and open again on the 1st."""

from collections import Counter

import pytest

from metering_dagster.core import hours
from metering_dagster.metering.rules.run_decision import hours_of_tick
from tests.expiry.sweeping import age_out
from tests.items import LICENSE, OTHER_ACCOUNT, OTHER_LICENSE, a_deprovisioning, a_usage, an_aggregate
from tests.world import World

EVENING = [f"2026-12-30T{hour}" for hour in (18, 19, 20, 21, 22, 23)]
LEFT, *WAITING = EVENING
"""18:00 is 30 hours back at the turn of the month: never to be billed again."""
ENDING = {"license": OTHER_LICENSE, "account": OTHER_ACCOUNT}


@pytest.fixture(autouse=True)
def _sweeps_reach_five_days_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hours, "OLDEST_OFFSET", 5 * 24)


def sweep_all(world: World) -> Counter[str]:
    """A whole sweep of every shard; how much each hour has lost by it."""
    lost: Counter[str] = Counter()
    for shard in range(7):
        swept = age_out(world, shard, whole=True)
        assert swept.success
        for line in swept.metadata.get("lost", []):
            lost[line["hour"]] += line["rows"] + line["records"]
    return lost


def billed_hours(world: World, license: str) -> Counter[str]:
    return Counter(record.hour for record in world.bill() if record.license_arn == license)


@pytest.mark.case("month_end_reopens")
def test_what_the_months_grace_opens_again_is_sent_on_the_1st_and_expires_only_after_that(world):
    world.at("2026-12-31T23:30:00Z")
    for hour in EVENING:
        world.put(a_usage(0, "5", hour=hour), an_aggregate("7", hour=hour, dimension="direct"))
        world.put(a_usage(0, "3", hour=hour, **ENDING))
    world.put(an_aggregate("4", hour=WAITING[0], dimension="direct", **ENDING))

    assert sweep_all(world) == {LEFT: 3}
    assert world.row_statuses() == {"AggregationExpired": 2, "pending": 2 * len(WAITING)}
    assert world.record_statuses() == {"SubmissionExpired": 1, "pending": len(WAITING) + 1}

    world.at("2027-01-01T00:10:00Z")
    world.put(a_deprovisioning("2027-01-01T01:10:00Z", **ENDING))
    world.at("2027-01-01T00:15:00Z")
    assert world.flush().success
    assert billed_hours(world, OTHER_LICENSE) == {hour: 2 if hour == WAITING[0] else 1 for hour in WAITING}
    assert not billed_hours(world, LICENSE), "the flush is of the deprovisioned license alone"

    world.at("2027-01-01T00:30:00Z")
    asked = [hours.bucket(hour) for hour in hours_of_tick(23, world.clock.now)]
    assert set(WAITING) <= set(asked)
    for hour in WAITING[1:]:
        assert world.meter(hour).success
    assert billed_hours(world, LICENSE) == dict.fromkeys(WAITING[1:], 2)

    world.at("2027-01-01T05:59:00Z")
    assert sweep_all(world) == {}, "what was not sent in the grace waits for its end all the same"
    assert not world.meter(WAITING[0]).success
    world.at("2027-01-01T06:00:00Z")
    assert sweep_all(world) == {WAITING[0]: 2}
    reason = world.row(hour=WAITING[0])["meteringStatusReason"]
    assert reason == "Still pending when its hour could no longer be billed, at 2027-01-01T01:00Z"
    assert "pending" not in world.row_statuses() + world.record_statuses()
    assert {call.outcome for call in world.calls()} == {"ok"}


@pytest.mark.case("month_end_reopens")
def test_a_sweep_of_the_evening_that_runs_late_meets_them_on_the_1st(world):
    """Its hours are those of its tick, and on the last day these were none of them: the 1st's own sweeps meet them."""
    world.put(a_usage(0, "5", hour=WAITING[0]))
    world.at("2027-01-01T06:00:00Z")
    for shard in range(7):
        age_out(world, shard, whole=True, as_of="2026-12-31T20")
    assert world.row_statuses() == {"pending": 1}
    sweep_all(world)
    assert world.row_statuses() == {"AggregationExpired": 1}
