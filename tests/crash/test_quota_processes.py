"""Five processes share the quota of the marketplace, and one of them is killed half-way and replaced.

What the quota promises exactly is checked exactly, in every run: no slot is used twice, none before its time or long
after it, and ten of them take more than a second. What the sandbox stamps is more than that: between a slot and its
arrival lies the machine, which may hold up one call for a tenth of a second while all its processors are taken, and no
quota can call it back. So the stamps must keep the limit, and the average, in one run of three: a quota that crowds or
leaks does so in each of them, a machine that stumbles does not.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from metering_dagster.devstack.sandbox import faults
from metering_dagster.metering.stores.rate_limiter import MAX_LATE_SECONDS, SLOT_SECONDS
from tests.crash.crew import Crew, Worker
from tests.crash.worker import SLOT
from tests.items import LICENSE, an_aggregate
from tests.world import World

pytestmark = pytest.mark.services

PROCESSES, CALLS_EACH = 5, 28
LIMIT, AVERAGE = 10, 9.0
RUNS = 3
LATENCY_SECONDS = 0.2


@dataclass(frozen=True)
class Run:
    """One run: the slots that were used, with the time when their caller was let go, and the stamps of the calls."""

    slots: list[tuple[int, float]]
    stamps: list[float]

    @property
    def most_in_a_second(self) -> int:
        """Calls in the most crowded sliding second."""
        return max(sum(first <= stamp < first + 1.0 for stamp in self.stamps) for first in self.stamps)

    @property
    def rate(self) -> float:
        """Calls a second from the first to the last: work remained all the time, for any one process can fill it."""
        return (len(self.stamps) - 1) / (self.stamps[-1] - self.stamps[0])

    @property
    def unused(self) -> list[int]:
        """Slots that went by, counted from the first."""
        used = {slot for slot, _ in self.slots}
        return [slot - min(used) for slot in range(min(used), max(used)) if slot not in used]


def five_processes(world: World, crew: Crew, hours: Sequence[str]) -> Run:
    """Let five processes submit an hour each; kill the first half-way, and put another in its place."""
    earlier = len(world.calls())
    for hour in hours:  # of licenses whose product nobody knows, each record goes by itself
        world.put(*(an_aggregate("1", license=f"{LICENSE}{number:03}", hour=hour) for number in range(CALLS_EACH)))
    workers = [crew.start(hour, waits=True, only_submits=True) for hour in hours]
    for worker in workers:
        worker.until_it_stands()
    for worker in workers:
        worker.go()
    victim = workers[0]
    while len(slots_of([victim])) < CALLS_EACH // 2:
        victim.hear()
    victim.kill()
    workers.append(crew.start(hours[0], only_submits=True))
    for worker in workers[1:]:
        worker.end()
    return Run(slots_of(workers), sorted(call.monotonic for call in world.calls()[earlier:]))


def slots_of(workers: Sequence[Worker]) -> list[tuple[int, float]]:
    """The slots that these used, and when."""
    return [(number, at) for worker in workers for word, number, at in worker.words if word == SLOT]


def keeps_what_the_quota_promises(run: Run) -> None:
    """Exactly, whatever the machine is doing."""
    assert max(Counter(slot for slot, _ in run.slots).values()) == 1, "a slot was used twice"
    delays = [at - slot * SLOT_SECONDS for slot, at in run.slots]
    assert min(delays) > -0.001, "a caller was let go before its slot"
    assert SLOT_SECONDS * LIMIT > 1.0 + MAX_LATE_SECONDS
    assert PROCESSES * CALLS_EACH <= len(run.stamps) <= len(run.slots) <= len(run.stamps) + 1
    assert len(run.stamps) <= PROCESSES * CALLS_EACH + 1, "only the killed one's last call is repeated"


def test_five_processes_use_the_whole_quota_and_no_more(world, crew, record_property):
    assert time.get_clock_info("time").resolution < 0.001
    world.sandbox.inject(faults.latency(LATENCY_SECONDS))
    seen = []
    for number in range(RUNS):
        days = [(28, hour) for hour in range(11, -1, -1)] + [(27, 23), (27, 22), (27, 21)]
        hours = [f"2026-11-{day}T{hour:02}" for day, hour in days[number * PROCESSES : (number + 1) * PROCESSES]]
        run = five_processes(world, crew, hours)
        keeps_what_the_quota_promises(run)
        assert {call.outcome for call in world.calls()} <= {"ok", None}
        seen.append((run.most_in_a_second, round(run.rate, 2), run.unused))
        record_property("most in a second, rate, unused slots", str(seen[-1]))
        if run.most_in_a_second <= LIMIT and run.rate >= AVERAGE:
            break
    else:
        pytest.fail(f"calls in the most crowded second, calls a second, slots that went by unused: {seen}")
    assert world.record_statuses() == {"Success": (number + 1) * PROCESSES * CALLS_EACH}
    world.judge()
