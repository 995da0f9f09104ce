"""Cases: the age-out meets what the service has answered, and the end of a month."""

import pytest

from metering_dagster.core import hours
from metering_dagster.expiry.services.sweep import hours_of_sweep
from metering_dagster.metering.rules.statuses import RecordStatus
from metering_dagster.metering.rules.usage_record import RecordEnd
from tests.expiry.sweeping import OLD, age_out, sweep_of
from tests.items import ACCOUNT, DIMENSION, LICENSE, a_usage, an_aggregate

LAST_DAY = "2026-10-31T22"
FIRST = "2026-11-01T"


def answer(world, status, quantity=10, hour=OLD, reason=""):
    """Write down what the service has answered; whether that was taken."""
    end = RecordEnd(LICENSE, f"{ACCOUNT}#{DIMENSION}#{hour}", hour, quantity, status, reason, "record-1")
    return world.deployment.tables.aggregated.record([end], world.clock.now) == [True]


@pytest.mark.case("expiry_meets_success")
def test_what_became_success_by_the_time_of_the_write_stays_success(world):
    world.put(an_aggregate(hour=OLD))
    world.meanwhile(lambda: world.put(an_aggregate(hour=OLD, status="Success", meteringRecordId="r")))
    done = sweep_of(world)
    assert world.record_statuses() == {"Success": 1}
    assert world.aggregate(hour=OLD)["meteringRecordId"] == "r"
    assert (done.total.records, done.changed) == (0, 0)


@pytest.mark.case("expiry_meets_success")
def test_what_was_deleted_by_the_time_of_the_write_is_not_brought_back(world):
    world.put(an_aggregate(hour=OLD), a_usage(0, hour=OLD))
    for item in (an_aggregate(hour=OLD), a_usage(0, hour=OLD)):
        world.meanwhile(lambda gone=item: world.delete(gone))
    sweep_of(world)
    assert world.aggregates() == world.rows() == []


@pytest.mark.case("expiry_meets_success")
def test_what_was_rewritten_by_the_time_of_the_write_expires_as_it_is_now(world):
    world.put(an_aggregate("10", hour=OLD))
    world.meanwhile(lambda: world.put(an_aggregate("12", hour=OLD)))
    assert sweep_of(world).total.quantity == 12
    assert world.record_statuses() == {"SubmissionExpired": 1}


@pytest.mark.case("expiry_meets_success")
@pytest.mark.parametrize("status", [RecordStatus.SUCCESS, RecordStatus.DUPLICATE, RecordStatus.NOT_SUBSCRIBED])
def test_the_answer_to_a_call_that_was_under_way_replaces_expired(world, status):
    world.put(an_aggregate(hour=OLD))
    sweep_of(world)
    assert answer(world, status)
    stored = world.aggregate(hour=OLD)
    assert (stored["meteringStatus"], stored["meteringRecordId"]) == (status.value, "record-1")
    assert not {"meteringPending", "meteringStatusReason"} & set(stored)


@pytest.mark.case("expiry_meets_success")
def test_nothing_else_replaces_expired(world):
    world.put(an_aggregate(hour=OLD))
    sweep_of(world)
    expired = world.aggregate(hour=OLD)
    assert not answer(world, RecordStatus.SUCCESS, quantity=11), "another quantity is not what was sent"
    assert not answer(world, RecordStatus.REJECTED, reason="TimestampOutOfBoundsException")
    assert not answer(world, RecordStatus.DRY_RUN)
    assert world.aggregate(hour=OLD) == expired


@pytest.mark.case("expiry_meets_success")
def test_an_answer_brings_back_nothing_that_is_gone_and_ends_nothing_that_is_pending_elsewhere(world):
    assert not answer(world, RecordStatus.SUCCESS)
    assert world.aggregates() == []
    world.put(an_aggregate(hour=OLD, status="SubmissionExpired", meteringPending="2026-11-27T07"))
    assert not answer(world, RecordStatus.SUCCESS)
    assert world.record_statuses() == {"pending": 1}


@pytest.mark.case("expiry_meets_success")
def test_a_call_under_way_when_the_window_closes_is_billed_and_says_so(world):
    world.put(an_aggregate("10", hour=OLD))
    world.at("2026-11-28T05:59:58Z")

    def close_and_sweep():
        world.at("2026-11-28T06:00:05Z")
        sweep_of(world)
        assert world.record_statuses() == {"SubmissionExpired": 1}

    events = world.deployment.marketplace.client.meta.events
    events.register("after-call.marketplace-metering.BatchMeterUsage", lambda **_: close_and_sweep())
    outcome = world.meter(OLD)
    assert outcome.success
    assert world.record_statuses() == {"Success": 1}
    world.judge()


@pytest.mark.case("previous_month")
@pytest.mark.parametrize("clock", ["02:59:59Z", "03:00:00Z", "05:59:59Z"])
def test_until_six_on_the_1st_nothing_of_the_old_month_expires(world, clock):
    world.at(FIRST + clock)
    world.put(a_usage(0, "5", hour=LAST_DAY), a_usage(0, "5", hour="2026-10-29T10"))
    before = world.dump()
    for shard in range(7):
        assert hours_of_sweep(shard, world.clock.now) == []
    assert age_out(world, 4).metadata["hours_looked_at"] == 0
    assert world.dump() == before


@pytest.mark.case("previous_month")
def test_from_six_on_the_1st_what_is_left_of_the_last_day_expires(world):
    world.at(f"{FIRST}06:00:00Z")
    world.put(a_usage(0, "5", hour=LAST_DAY), an_aggregate("7", hour=LAST_DAY, dimension="direct"))
    world.put(a_usage(0, "5", hour=f"{FIRST}02"))  # of the new month
    (shard,) = [m for m in range(7) if hours.parse_bucket(LAST_DAY) in hours_of_sweep(m, world.clock.now)]
    swept = age_out(world, shard)
    assert (swept.metadata["expired_rows"], swept.metadata["expired_records"]) == (1, 1)
    assert world.row_statuses() == {"AggregationExpired": 1, "pending": 1}
    assert world.record_statuses() == {"SubmissionExpired": 1}
    assert world.calls() == []
