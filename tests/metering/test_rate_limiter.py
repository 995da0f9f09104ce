"""The quota by itself, in simulated time: five processes of eight callers, a table that answers late, a kill."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from metering_dagster.metering.stores.rate_limiter import (
    AHEAD_SLOTS,
    MAX_LATE_SECONDS,
    SLOT_SECONDS,
    SLOTS_AT_ONCE,
    Quota,
)
from tests.stage import BEGIN, Stage, most_in_a_second

LIMIT, AVERAGE = 10, 9.0
SERVICE_SECONDS = 0.2
SLACK_SECONDS = LIMIT * SLOT_SECONDS - 1.0 - MAX_LATE_SECONDS
"""What may lie between the end of a wait and the arrival at the service."""


class KilledError(Exception):
    """The process of this caller is no more."""


class OneItem:
    """The table as the quota uses it: one counter, updated on conditions, an answer that takes its time."""

    class exceptions:  # noqa: N801  # as the SDK's clients name it
        ConditionalCheckFailedException = ClientError

    def __init__(self, stage: Stage) -> None:
        self.stage, self.slot = stage, None
        self.requests = self.refused = 0

    def update_item(self, **request: Any) -> dict[str, Any]:
        """One of the three updates of the quota."""
        self.requests += 1
        self.stage.sleep(self.stage.random.uniform(0.001, 0.02))
        values = {name: int(value["N"]) for name, value in request["ExpressionAttributeValues"].items()}
        in_future = self.slot is not None and self.slot > values.get(":now", 0)
        holds = {
            "nextSlot > :now": in_future,
            "nextSlot > :now AND nextSlot <= :ahead": in_future and self.slot <= values.get(":ahead", 0),
            "attribute_not_exists(nextSlot) OR nextSlot <= :now": self.slot is None
            or self.slot <= values.get(":now", 0),
            "nextSlot >= :end": self.slot is not None and self.slot >= values.get(":end", 0),
        }[request["ConditionExpression"]]
        if not holds:
            self.refused += 1
            stands = {} if self.slot is None else {"Item": {"nextSlot": {"N": str(self.slot)}}}
            raise ClientError({"Error": {"Code": "ConditionalCheckFailedException"}, **stands}, "UpdateItem")
        self.slot = {
            "SET nextSlot = nextSlot + :some": (self.slot or 0) + values.get(":some", 0),
            "SET nextSlot = :end": values.get(":end"),
            "SET nextSlot = :soon": values.get(":soon"),
        }[request["UpdateExpression"]]
        answer = {"Attributes": {"nextSlot": {"N": str(self.slot)}}}
        self.stage.sleep(self.stage.random.uniform(0.001, 0.02))
        return answer


class Process:
    """Eight callers that share a number of calls, and a quota; from `dies` on none of them does anything."""

    def __init__(
        self, table: OneItem, calls: int, dies: float = float("inf"), begins: float = BEGIN, *, urgent: bool = False
    ) -> None:
        self.stage, self.left, self.dies, self.begins = table.stage, calls, dies, begins
        self.urgent = urgent
        self.quota = Quota(table, "table", "us-east-1", clock=self.clock, sleep=self.sleep)  # type: ignore[arg-type]
        self.quota._turn = self.stage.lock()  # type: ignore[assignment]
        self.slots: list[int] = []
        self.stamps: list[float] = []

    def clock(self) -> float:
        """The time, as long as the process lives."""
        if self.stage.now >= self.dies:
            raise KilledError
        return self.stage.now

    def sleep(self, seconds: float) -> None:
        """Mostly oversleep by a few milliseconds, seldom by so much that a slot is missed."""
        chance = self.stage.random
        self.stage.sleep(seconds + chance.uniform(0.0, 0.004 if chance.random() < 0.99 else 0.2))

    def call(self) -> None:
        """One caller: wait, send, be answered, until nothing is left."""
        self.stage.sleep(max(0.0, self.begins - self.stage.now))
        try:
            while self.left > 0:
                self.left -= 1
                self.slots.append(self.quota.wait(urgent=self.urgent))
                self.stage.sleep(self.stage.random.uniform(0.001, SLACK_SECONDS))
                self.stamps.append(self.stage.now)
                self.stage.sleep(SERVICE_SECONDS)
        except KilledError:
            self.left += 1


@pytest.mark.parametrize("seed", range(6))
def test_the_whole_quota_is_used_and_no_more_though_a_process_dies(seed):
    stage = Stage(seed)
    table = OneItem(stage)
    processes = [Process(table, 60, dies=BEGIN + 12.0 if number == 0 else float("inf")) for number in range(5)]
    successor = Process(table, 30, begins=BEGIN + 12.5)
    stage.run([process.call for process in (*processes, successor) for _ in range(8)])

    slots = [slot for process in (*processes, successor) for slot in process.slots]
    assert len(set(slots)) == len(slots), "a slot was used twice"
    stamps = sorted(stamp for process in (*processes, successor) for stamp in process.stamps)
    assert 0 < processes[0].left < 60, "it died half-way"
    assert not any(process.left for process in (*processes[1:], successor))
    assert most_in_a_second(stamps) <= LIMIT
    assert (len(stamps) - 1) / (stamps[-1] - stamps[0]) >= AVERAGE
    assert table.requests - table.refused < len(slots), "slots are reserved several at a time"
    assert table.refused < 4 * len(slots), "who is refused does not come back at once"


@pytest.mark.parametrize("seed", range(6))
def test_few_calls_go_before_an_urgent_one_and_the_quota_stays_in_use(seed):
    stage = Stage(seed)
    table = OneItem(stage)
    patient = [Process(table, 24) for _ in range(12)]
    begins = BEGIN + 6.0
    flush = Process(table, 30, begins=begins, urgent=True)
    stage.run([process.call for process in (*patient, flush) for _ in range(8)])

    stamps = sorted(stamp for process in patient for stamp in process.stamps)
    urgent = sorted(flush.stamps)
    assert sum(begins <= stamp < urgent[0] for stamp in stamps) <= AHEAD_SLOTS + SLOTS_AT_ONCE + 2
    assert urgent[-1] - urgent[0] <= 30 / 9.0 * 3, "side by side with others it gets a third of the quota or more"
    together = sorted([*stamps, *urgent])
    assert most_in_a_second(together) <= LIMIT
    assert (len(together) - 1) / (together[-1] - together[0]) >= AVERAGE


@pytest.mark.parametrize("seed", range(4))
def test_no_eleven_calls_share_a_second_as_long_as_none_is_held_up_after_its_slot(seed):
    # Wakers are late by anything up to half as much again as a slot bears, and then the call takes what is left.
    stage = Stage(seed)
    table = OneItem(stage)
    stamps: list[float] = []

    def caller(quota: Quota) -> None:
        for _ in range(10):
            quota.wait()
            stamps.append(stage.now + stage.random.uniform(0.0, SLACK_SECONDS))

    def oversleep(seconds: float) -> None:
        stage.sleep(seconds + stage.random.uniform(0.0, 1.5 * MAX_LATE_SECONDS))

    quotas = [Quota(table, "table", "us-east-1", lambda: stage.now, oversleep) for _ in range(3)]  # type: ignore[arg-type]
    for quota in quotas:
        quota._turn = stage.lock()  # type: ignore[assignment]
    stage.run([lambda quota=quota: caller(quota) for quota in quotas for _ in range(4)])
    assert len(stamps) == 120
    assert most_in_a_second(sorted(stamps)) <= LIMIT


def test_one_caller_alone_reserves_no_more_than_it_uses():
    stage = Stage(0)
    table = OneItem(stage)
    process = Process(table, 30)
    stage.run([process.call])
    assert SLOTS_AT_ONCE > 1
    assert table.slot == process.slots[-1] + 1
