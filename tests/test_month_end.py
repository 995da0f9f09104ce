"""A month ends: the real tick functions and use cases, stepped through its last day and into the next month.

At minutes 0 and 30 of each hour every schedule ticks by METERING_NOW; what it asks for is done at once. Usage of every
hour is billed by 06:00 on the 1st or has ended in a state that says why not; none is billed twice.
"""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import dagster as dg
import pytest

from metering_dagster.core import hours
from metering_dagster.core.hours import HOUR
from metering_dagster.definitions import build_defs
from metering_dagster.expiry.services.sweep import hours_of_sweep, sweep
from metering_dagster.metering.defs.metadata import PENDING_AGGREGATES, PENDING_ROWS
from tests.items import Item, a_usage
from tests.world import World

STEP = timedelta(minutes=30)
ABC = {"S": "abc"}
ENDS = ["2026-12-01", "2024-03-01", "2025-01-01"]
"""The 1st of the month that begins; 2024 has a February 29th."""

pytestmark = pytest.mark.services  # each lives through two days in half a minute or more


class Month:
    """The end of one month, lived through half an hour at a time."""

    def __init__(self, world: World, instance: dg.DagsterInstance, first: datetime, lock: int) -> None:
        self.world, self.instance, self.first = world, instance, first
        self.used: dict[str, Decimal] = defaultdict(Decimal)
        """What sellers wrote that can be counted, by hour."""
        self.due: dict[datetime, list[Item]] = defaultdict(list)
        """What sellers write, by the step at which it is there."""
        world.configure(lock_hours=lock)
        defs = build_defs(world.settings, {"metering": world.deployment}, first - timedelta(days=40))
        self.repository = defs.get_repository_def()

    def write(self, at: datetime, second: int, quantity: str | dict, hour: datetime, **where: str) -> None:
        """Let a row of this hour arrive then."""
        self.due[at].append(a_usage(second, quantity, hour=hours.bucket(hour), **where))
        if isinstance(quantity, str):
            self.used[hours.bucket(hour)] += Decimal(quantity)

    def live(self, since: datetime, until: datetime) -> None:
        """Step through the time, at each step what has arrived first."""
        now = since
        while now <= until:
            self.world.put(*self.due.pop(now, []))
            self.world.at(now.isoformat())
            self.world.configure(frozen_now=now)
            for name in self._schedules():
                for request in self._tick(name):
                    self._run(request)
            now += STEP

    def _schedules(self) -> list[str]:
        return [*(f"meter_offset_{n:02d}" for n in range(1, 24)), *(f"age_out_shard_{n}" for n in range(7))]

    def _tick(self, name: str) -> list[dg.RunRequest]:
        world = self.world
        schedule = self.repository.get_schedule_def(name)
        with (
            dg.partition_loading_context(effective_dt=world.clock.now),
            dg.build_schedule_context(
                instance=self.instance,
                scheduled_execution_time=world.clock.now,
                resources={"metering": world.deployment},
                repository_def=self.repository,
            ) as context,
        ):
            answer = schedule(context)
        if isinstance(answer, dg.SkipReason):
            return []
        return [answer] if isinstance(answer, dg.RunRequest) else list(answer)

    def _run(self, request: dg.RunRequest) -> None:
        """Do what was asked for, and leave behind what a run of Dagster's would."""
        world, key = self.world, str(request.partition_key)
        if "metering/shard" in request.tags:
            config = request.run_config["ops"]["expired_usage"]["config"]
            shard_hours = hours_of_sweep(int(key), world.clock.now, hours.parse_bucket(config["as_of"]))
            sweep(world.deployment.tables, shard_hours, whole=config["whole"])
            return
        done = world.visit(key)
        rows = world.deployment.tables.usage.count_pending(key)
        shown = {"mode": "live", PENDING_ROWS: rows, PENDING_AGGREGATES: 0}
        waiting = {"held_rows": done.aggregation.held_rows, "zero_rows": done.aggregation.zero_rows}
        for asset, metadata in (("aggregated_usage", waiting), ("metered_usage", shown)):
            self.instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=key, metadata=metadata))

    def states(self, hour: datetime) -> Counter[str]:
        """How the raw rows of this hour stand."""
        bucket = hours.bucket(hour)
        rows = [row for row in self.world.rows() if row["timestamp"].startswith(bucket)]
        return Counter("pending" if "meteringPending" in row else row["meteringStatus"] for row in rows)


@pytest.fixture(autouse=True)
def _sweeps_reach_five_days_back(monkeypatch: pytest.MonkeyPatch):
    """The other 395 days are empty: to look at them at every whole sweep shows nothing, and takes minutes."""
    monkeypatch.setattr(hours, "OLDEST_OFFSET", 5 * 24)


@pytest.mark.parametrize("lock", [1, 6, 20])
@pytest.mark.parametrize("end", ENDS)
def test_usage_of_every_hour_is_billed_by_the_months_closing_or_has_a_state_that_says_why_not(
    world: World, instance: dg.DagsterInstance, end: str, lock: int
) -> None:
    first = datetime.fromisoformat(end).replace(tzinfo=UTC)
    month, last_day = Month(world, instance, first, lock), [first - n * HOUR for n in range(24, 0, -1)]
    for hour in last_day:
        month.write(hour + STEP, 10, "1.5", hour)
        month.write(hour + HOUR, 3599, "2", hour)
    held, zero, late = last_day[5], last_day[22], last_day[23]
    month.write(held + HOUR, 1, ABC, held, dimension="held")
    month.write(held + HOUR, 2, "4", held, dimension="held")
    month.write(zero + HOUR, 1, "0", zero, dimension="zero")
    month.write(first + 4 * HOUR + STEP, 30, "8", late)  # the month's last hour is billed by then
    month.write(first + 6 * HOUR, 1, "16", late, dimension="never")  # and closed

    month.live(first - 24 * HOUR, first + 5 * HOUR + STEP)
    billed = {(record.hour, record.dimension): Decimal(record.quantity) for record in world.bill()}
    assert len(billed) == len(world.bill())
    assert billed[hours.bucket(held), "held"] == 4
    assert billed[hours.bucket(zero), "zero"] == 0
    for hour in last_day:
        of_hour = sum(quantity for (bucket, _), quantity in billed.items() if bucket == hours.bucket(hour))
        unbilled = {late: Decimal(24)}.get(hour, Decimal(0))
        assert of_hour == month.used[hours.bucket(hour)] - unbilled, hour
        assert "pending" not in month.states(hour), hour
    assert month.states(late)["LateUsage"] == 1

    month.live(first + 6 * HOUR, first + 7 * HOUR)
    assert month.states(late)["AggregationExpired"] == 1
    assert "pending" not in sum((month.states(hour) for hour in last_day), Counter())
    assert {call.outcome for call in world.calls()} == {"ok"}
    assert set(world.record_statuses()) == {"Success"}
