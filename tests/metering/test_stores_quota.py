"""The quota of calls: nobody shares a slot, nobody crowds a second, a wrong clock is put right."""

import threading
import time
from collections import Counter

import pytest

from metering_dagster.metering.stores.rate_limiter import MAX_LATE_SECONDS, SLOT_SECONDS, SLOTS_AT_ONCE, Quota
from tests.items import an_aggregate
from tests.stage import BEGIN, Stage, most_in_a_second

KEY = {"licenseArn": {"S": "metering-dagster#quota"}, "account_dimension_hour": {"S": "BatchMeterUsage#us-east-1"}}
COUNTER_IS_FAR_AHEAD = 10**6


def a_quota(world, **changes) -> Quota:
    table = world.deployment.tables.aggregated
    return Quota(table.client, table.name, "us-east-1", **changes)


def a_quota_on(stage, world):
    """One that waits on the stage, for its turn too, and wakes up late as real machines do."""

    def sleep(seconds):
        stage.sleep(seconds + stage.random.uniform(0, 1.5 * MAX_LATE_SECONDS))

    quota = a_quota(world, clock=lambda: stage.now, sleep=sleep)
    quota._turn = stage.lock()
    return quota


def counter(world) -> int:
    item = world.client.get_item(TableName=world.names["aggregated"], Key=KEY, ConsistentRead=True)["Item"]
    return int(item["nextSlot"]["N"])


@pytest.mark.lengthy
@pytest.mark.parametrize("seed", range(3))
def test_no_eleven_calls_share_a_sliding_second(world, seed):
    stage = Stage(seed)
    quotas = [a_quota_on(stage, world) for _ in range(2)]
    sent = []

    def caller(quota):
        for _ in range(8):
            quota.wait()
            sent.append(stage.now)

    stage.run([lambda quota=quota: caller(quota) for quota in quotas for _ in range(4)])
    sent.sort()
    assert len(sent) == 64, f"seed {seed}"
    assert most_in_a_second(sent) <= 10, f"seed {seed}"
    assert 64 / (sent[-1] - sent[0]) > 5, f"the quota is hardly used, seed {seed}"


def test_no_slot_is_given_twice(world):
    quotas = [a_quota(world, clock=world.pace.time, sleep=world.pace.sleep) for _ in range(2)]
    taken, start = [], threading.Barrier(6)

    def caller(quota):
        start.wait(timeout=10)
        for _ in range(12):
            taken.append(quota.wait())

    threads = [threading.Thread(target=caller, args=(quota,)) for quota in quotas for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 72
    assert max(Counter(taken).values()) == 1


@pytest.mark.lengthy
def test_real_calls_keep_within_the_quota_of_the_marketplace(world, monkeypatch):
    world.sandbox.configure(calls_per_second=10)
    monkeypatch.setattr(world.pace, "sleep", time.sleep)
    world.put(*(an_aggregate("1", dimension=f"d{number:03}") for number in range(20 * 25)))
    world.visit()
    throttled = [call for call in world.calls() if call.outcome != "ok"]
    assert len(throttled) <= 2  # a busy machine may hold up a call between its slot and its arrival
    times = sorted(call.monotonic for call in world.calls())
    assert times[-1] - times[0] > 1.8
    world.judge()


def test_a_counter_far_ahead_is_put_right(world):
    now = int(BEGIN / SLOT_SECONDS)
    item = KEY | {"nextSlot": {"N": str(now + COUNTER_IS_FAR_AHEAD)}}
    world.client.put_item(TableName=world.names["aggregated"], Item=item)
    slept = []
    quota = a_quota(world, clock=lambda: BEGIN + sum(slept), sleep=slept.append)
    quota.wait()
    assert sum(slept) < 1
    assert counter(world) < now + 20


def test_a_counter_of_the_past_is_no_debt(world):
    item = KEY | {"nextSlot": {"N": "5"}}
    world.client.put_item(TableName=world.names["aggregated"], Item=item)
    slept = []
    a_quota(world, clock=lambda: BEGIN + sum(slept), sleep=slept.append).wait()
    assert sum(slept) < 1


def test_a_slot_that_was_missed_is_given_up(world):
    clock = [BEGIN]
    sleeps = []

    def oversleep(seconds):
        sleeps.append(seconds)
        clock[0] += seconds + (1.0 if len(sleeps) == 1 else 0.0)

    quota = a_quota(world, clock=lambda: clock[0], sleep=oversleep)
    quota.wait()
    assert len(sleeps) == 2
    assert (clock[0] + 1e-6) % SLOT_SECONDS < MAX_LATE_SECONDS


def test_one_reservation_serves_several_callers_but_never_more_than_wait(world):
    requests = []
    table = world.deployment.tables.aggregated
    table.client.meta.events.register("before-call.dynamodb.UpdateItem", lambda **_: requests.append(1))
    stage = Stage(0)
    quota = a_quota_on(stage, world)
    quota.sleep = stage.sleep  # punctual, so that no slot is given up

    def caller():
        for _ in range(6):
            quota.wait()

    stage.run([caller] * 4)
    assert 24 / SLOTS_AT_ONCE <= len(requests) <= 24 / SLOTS_AT_ONCE + 3
    requests.clear()
    stage.run([caller])
    assert 6 <= len(requests) <= 7


def test_each_region_has_a_quota_of_its_own(world):
    table = world.deployment.tables.aggregated
    here, there = (Quota(table.client, table.name, region) for region in ("us-east-1", "eu-west-1"))
    assert abs(here.wait() - there.wait()) < 20
    keys = {item["account_dimension_hour"]["S"] for item in world.client.scan(TableName=table.name)["Items"]}
    assert keys == {"BatchMeterUsage#us-east-1", "BatchMeterUsage#eu-west-1"}
    assert list(table.pending("2026-11-28T10")) == []
