"""Cases: the month's closing, and clocks on the wall."""

import time

import pytest

from tests.items import HOUR, a_subscriber, a_usage, an_aggregate, some_usage

LAST_DAY = "2026-10-31T22"
FIRST = "2026-11-01T"


@pytest.fixture
def wall_clock(monkeypatch):
    """Set the host's time zone."""

    def set_zone(zone):
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


@pytest.mark.case("previous_month")
def test_before_three_the_last_day_is_locked_as_any_other(world):
    world.configure(lock_hours=6)
    world.at(f"{FIRST}02:59:59Z")
    world.put(a_usage(0, "5", hour=LAST_DAY))
    outcome = world.meter(LAST_DAY)
    assert not outcome.success
    assert "still open for late usage until 2026-11-01T03:00Z" in outcome.message
    assert world.row_statuses() == {"pending": 1}


@pytest.mark.case("previous_month")
@pytest.mark.parametrize("clock", ["03:00:00Z", "05:59:59Z"])
def test_from_three_to_six_the_last_day_is_billed_at_once(world, clock):
    world.configure(lock_hours=6)
    world.at(FIRST + clock)
    world.put(a_usage(0, "5", hour=LAST_DAY))
    assert world.meter(LAST_DAY).success
    assert [(record.hour, record.quantity) for record in world.bill()] == [(LAST_DAY, "5")]
    world.judge()


@pytest.mark.case("previous_month")
def test_in_the_grace_the_new_month_keeps_its_lock(world):
    world.configure(lock_hours=6)
    world.at(f"{FIRST}05:30:00Z")
    assert "still open for late usage" in world.meter(f"{FIRST}00").message


@pytest.mark.case("previous_month")
def test_from_six_on_nothing_of_the_last_day_is_sent(world):
    world.at(f"{FIRST}06:00:00Z")
    world.put(a_usage(0, "5", hour=LAST_DAY), an_aggregate("7", hour=LAST_DAY, dimension="direct"))
    before = world.dump()
    outcome = world.meter(LAST_DAY)
    assert not outcome.success
    assert "its window closed at 2026-11-01T06:00Z" in outcome.message
    assert "1 raw rows and 1 aggregates are still pending" in outcome.message
    assert world.dump() == before
    assert world.calls() == []


@pytest.mark.case("previous_month")
def test_six_strikes_between_two_calls(world, monkeypatch):
    monkeypatch.setattr("metering_dagster.metering.services.submission.CALLERS", 1)
    world.at(f"{FIRST}05:59:59Z")
    world.put(*(an_aggregate("1", hour=LAST_DAY, dimension=f"d{number:02}") for number in range(50)))
    world.meanwhile(lambda: world.at(f"{FIRST}06:00:00Z"))  # the first answer is being written down
    outcome = world.meter(LAST_DAY)
    assert f"25 records of {LAST_DAY} are left: 25 because the hour's window closed" in outcome.message
    assert world.record_statuses() == {"Success": 25, "pending": 25}
    assert [call.outcome for call in world.calls()] == ["ok"]


@pytest.mark.case("previous_month")
def test_six_strikes_between_two_commits(world, monkeypatch):
    monkeypatch.setattr("metering_dagster.metering.services.aggregation.WINDOW_GROUPS", 1)
    world.at(f"{FIRST}05:59:59Z")
    world.put(*(a_usage(0, "5", hour=LAST_DAY, dimension=dimension) for dimension in ("a", "b")))
    world.meanwhile(lambda: world.at(f"{FIRST}06:00:00Z"))  # the first group is being committed
    outcome = world.meter(LAST_DAY)
    assert f"The window of {LAST_DAY} closed during the aggregation" in outcome.message
    assert world.row_statuses() == {"Aggregated": 1, "pending": 1}
    assert world.calls() == []


@pytest.mark.case("previous_month")
@pytest.mark.parametrize(("clock", "hour", "offset"), [
    ("03:20:00Z", "2026-10-31T03", 24), ("05:20:00Z", "2026-10-31T00", 29), ("05:20:00Z", "2026-10-31T06", 23),
])  # fmt: skip
def test_the_whole_last_day_is_billable_in_the_grace(world, clock, hour, offset):
    world.at(FIRST + clock)
    world.put(a_usage(0, "5", hour=hour))
    assert world.meter(hour).success
    assert [(record.hour, record.quantity) for record in world.bill()] == [(hour, "5")]
    assert offset <= 29


@pytest.mark.case("previous_month")
def test_should_the_service_refuse_the_old_hours_of_the_grace_they_are_rejected_visibly(world):
    world.sandbox.configure(grace_accepts_old_hours=False)
    world.at(f"{FIRST}05:20:00Z")
    world.put(a_usage(0, "5", hour="2026-10-31T00"))
    outcome = world.meter("2026-10-31T00")
    assert outcome.metadata["metered_usage"]["rejected"] == {"TimestampOutOfBoundsException": 1}
    assert world.record_statuses() == {"RejectedClientSide": 1}


@pytest.mark.case("previous_month")
def test_the_last_call_of_the_last_day_is_at_five(world):
    world.put(*some_usage("1", "2", hour=LAST_DAY), a_usage(2, {"S": "abc"}, hour=LAST_DAY))
    world.at(f"{FIRST}04:59:59Z")
    world.visit(LAST_DAY)
    assert world.bill() == []
    world.at(f"{FIRST}05:00:00Z")
    world.visit(LAST_DAY)
    assert [record.quantity for record in world.bill()] == ["3"]


@pytest.mark.case("previous_month")
def test_at_the_turn_of_the_year_the_grace_is_the_same(world):
    world.at("2027-01-01T05:59:00Z")
    world.put(a_usage(0, "5", hour="2026-12-31T23"))
    world.visit("2026-12-31T23")
    assert [record.hour for record in world.bill()] == ["2026-12-31T23"]


@pytest.mark.case("host_time_zone")
@pytest.mark.parametrize(("zone", "day", "next_day"), [
    ("Asia/Kolkata", "2026-11-28", "2026-11-29"),
    ("Europe/Berlin", "2026-10-25", "2026-10-26"),  # 25 hours on the wall
    ("Europe/Berlin", "2026-03-29", "2026-03-30"),  # 23
    ("America/New_York", "2026-11-01", "2026-11-02"),
])  # fmt: skip
def test_a_day_has_24_buckets_wherever_the_host_stands(world, wall_clock, zone, day, next_day):
    wall_clock(zone)
    buckets = [f"{day}T{hour:02}" for hour in range(24)]
    world.put(*(a_usage(1800, str(number + 1), hour=bucket) for number, bucket in enumerate(buckets)))
    world.put(a_subscriber(productCode="product"))
    for number, bucket in enumerate(buckets):
        hours_later = number + 2
        world.at(f"{day}T{hours_later:02}:20:00Z" if hours_later < 24 else f"{next_day}T{hours_later - 24:02}:20:00Z")
        world.visit(bucket)
    assert [(r.hour, r.quantity) for r in world.bill()] == [(b, str(n + 1)) for n, b in enumerate(buckets)]
    assert world.record_statuses() == {"Success": 24}
    world.judge()


@pytest.mark.case("host_time_zone")
def test_a_run_in_another_zone_bills_the_same_hour(world, wall_clock):
    wall_clock("Asia/Kolkata")
    world.put(a_usage(3599, "5"))
    assert world.meter().success
    assert [record.hour for record in world.bill()] == [HOUR]
    assert world.row(3599)["updatedAt"] == "2026-11-28T12:20:00Z"
    world.judge()
