"""A flush gets its turn at once, however much other processes are sending: the order of calls at the marketplace shows.

The demand is 50,000 records in 2,000 calls, later with more processes beside them. The first few dozens of calls are
enough to see; nothing is waited for but the quota itself.
"""

from collections.abc import Sequence

import pytest

from tests.crash.crew import Crew, Worker
from tests.crash.worker import FLUSH_CALLS, RESERVES
from tests.items import OTHER_LICENSE, a_deprovisioning, a_usage, an_aggregate
from tests.world import World

RECORDS = 50_000
OTHER_HOURS = [f"2026-11-28T{hour:02}" for hour in range(10)]
RECORDS_EACH = 2_000
"""Of other processes that come to it: enough for as long as it takes."""
FLUSH_HOUR = "2026-11-28T11"
MOST_BEFORE = 20
"""Regular calls between the first reservation of a flush and its first call, as the design has it."""
UNDER_WAY = 15


def flush_amid(world: World, crew: Crew, regular: Sequence[Worker], second: int) -> int:
    """Flush a row while these workers are sending; how many of their calls went between reservation and call."""
    for worker in regular:
        worker.hear()
    world.put(a_usage(second, "1", license=OTHER_LICENSE, hour=FLUSH_HOUR, dimension=f"d{second}"))
    flush = crew.start(dagster=True, job="flush_deprovisioning", tells_times=True)
    flush.end()
    told = {word: at for word, at, _ in reversed(flush.words) if word in (RESERVES, FLUSH_CALLS)}
    calls = world.calls()
    flushed = next(call for call in reversed(calls) if call.hours == [FLUSH_HOUR])
    assert flushed.monotonic >= told[FLUSH_CALLS] > told[RESERVES]
    assert [worker for worker in regular if not worker.process.is_alive()] == [], "the others had enough to send"
    return sum(call.hours != [FLUSH_HOUR] and told[RESERVES] <= call.monotonic <= flushed.monotonic for call in calls)


@pytest.mark.services
def test_at_most_twenty_regular_calls_go_between_a_flushs_reservation_and_its_call(world, crew, record_property):
    world.configure(product_code="product", lock_hours=6)
    world.sandbox.configure(calls_per_second=10)
    world.put(*(an_aggregate("1", dimension=f"d{number:05}") for number in range(RECORDS)))
    world.put(a_deprovisioning("2026-11-28T13:15:00Z", OTHER_LICENSE))
    regular = [crew.start(only_submits=True)]
    for _ in range(UNDER_WAY):
        regular[0].hear()
    seen = [flush_amid(world, crew, regular, 0)]
    for hour in OTHER_HOURS:
        world.put(*(an_aggregate("1", dimension=f"d{number:04}", hour=hour) for number in range(RECORDS_EACH)))
    regular += [crew.start(hour, only_submits=True) for hour in OTHER_HOURS]
    seen += [flush_amid(world, crew, regular, second) for second in (1, 2)]
    for worker in regular:
        worker.kill()
    record_property("regular calls between reservation and call", str(seen))
    assert max(seen) <= MOST_BEFORE, seen
    assert [record.dimension for record in world.bill() if record.hour == FLUSH_HOUR] == ["d0", "d1", "d2"]
    assert world.record_statuses()["pending"] > RECORDS / 2
