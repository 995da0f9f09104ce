"""The common counter of call slots, whatever engine it lies on."""

import pytest

from metering_dagster.metering.stores.rate_limiter import AHEAD_SLOTS, SLOT_SECONDS, URGENT_SLOTS_AT_ONCE, Quota
from tests.items import HOUR, an_aggregate
from tests.stage import BEGIN

KEY = {"licenseArn": {"S": "metering-dagster#quota"}, "account_dimension_hour": {"S": "BatchMeterUsage#us-east-1"}}
NOW = int(BEGIN / SLOT_SECONDS)


class Time:
    """Goes on by sleeping alone."""

    def __init__(self):
        self.now, self.slept = BEGIN, 0.0

    def sleep(self, seconds):
        self.slept += seconds
        self.now += seconds


def a_quota(world, time):
    table = world.deployment.tables.aggregated
    return Quota(table.client, table.name, "us-east-1", clock=lambda: time.now, sleep=time.sleep)


def counter(world):
    found = world.client.get_item(TableName=world.names["aggregated"], Key=KEY, ConsistentRead=True)["Item"]
    return int(found["nextSlot"]["N"])


def stand_at(world, slot):
    world.client.put_item(TableName=world.names["aggregated"], Item=KEY | {"nextSlot": {"N": str(slot)}})


def test_the_counter_begins_behind_the_slot_of_now_and_only_once(world):
    first, second = (a_quota(world, Time()) for _ in range(2))
    assert first.wait() == NOW + 1
    assert second.wait() == NOW + 2
    assert counter(world) == NOW + 3


def test_callers_that_take_turns_never_share_a_slot(world):
    time = Time()
    quotas = [a_quota(world, time) for _ in range(3)]
    taken = [quota.wait() for _ in range(20) for quota in quotas]
    assert len(set(taken)) == 60
    assert taken == sorted(taken)


@pytest.mark.parametrize("ahead", [AHEAD_SLOTS + 1, 100])
def test_a_patient_caller_reserves_nothing_while_others_hold_what_comes_next(world, ahead):
    stand_at(world, NOW + ahead)
    time, stood = Time(), []
    quota = a_quota(world, time)
    quota.sleep = lambda seconds: (stood.append(counter(world)), time.sleep(seconds))
    assert quota.wait() == NOW + ahead, "the refusal said where the counter stands, so one sleep was enough or few"
    assert stood[0] == NOW + ahead, "nothing was reserved before it slept"


def test_an_urgent_caller_reserves_at_once(world):
    stand_at(world, NOW + 100)
    time, stood = Time(), []
    quota = a_quota(world, time)
    quota.sleep = lambda seconds: (stood.append(counter(world)), time.sleep(seconds))
    assert quota.wait(urgent=True) == NOW + 100
    assert NOW + 100 < stood[0] <= NOW + 100 + URGENT_SLOTS_AT_ONCE


def test_a_counter_that_a_wrong_clock_left_is_put_right_by_one_of_its_finders(world):
    stand_at(world, NOW + 10**6)
    times = [Time(), Time()]
    taken = [a_quota(world, time).wait() for time in times]
    assert len(set(taken)) == 2
    assert max(time.slept for time in times) < 1
    assert counter(world) < NOW + 20


def test_the_counter_is_no_aggregate(world):
    a_quota(world, Time()).wait()
    world.put(an_aggregate("1"))
    table = world.deployment.tables.aggregated
    assert [each.dimension for each in table.pending(HOUR)] == ["api_calls"]
    assert table.count_pending(HOUR) == 1
