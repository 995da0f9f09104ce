"""What ticks and sensors look up before they ask for work, without Dagster: its memory is a dictionary here.

Belongs here: the evidence for the project's own decisions. Does not: the decisions (the project's ticks and sensors).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from metering_dagster.core import hours
from metering_dagster.expiry.rules import sweep_decision as expiry_ticks
from metering_dagster.licenses.rules.window_end import is_over
from metering_dagster.licenses.services.flush_search import need_of_flush
from metering_dagster.licenses.stores.open_windows import ClosingStore
from metering_dagster.metering.rules import run_decision
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.metering.stores.aggregated_table import has_commits
from tests.crash.errands import Errand, Kind

_LOOK_SECONDS = 60.0


@dataclass
class Memory:
    """What Dagster would remember of runs that came to their end."""

    last_runs: dict[str, run_decision.LastRun] = field(default_factory=dict)
    swept: set[tuple[int, str]] = field(default_factory=set)
    """Shards with the days of their whole sweeps."""

    def keep(self, errand: Errand, found: dict[str, run_decision.LastRun] | None) -> None:
        """Remember what an errand has done."""
        self.last_runs |= found or {}
        if errand.kind is Kind.AGE_OUT and errand.whole and errand.as_of is not None:
            self.swept.add((errand.shard, expiry_ticks.day_of(errand.as_of)))


def hours_to_meter(deployment: Deployment, memory: Memory) -> list[str]:
    """The hours for which the schedules of this hour ask."""
    tick_at = hours.floor_hour(deployment.settings.now())
    wanted = []
    for offset in range(hours.FIRST_OFFSET, hours.LAST_OFFSET + 1):
        for hour in run_decision.hours_of_tick(offset, tick_at):
            bucket = hours.bucket(hour)
            evidence = _HourEvidence(deployment, memory, bucket)
            if run_decision.decide(hour, tick_at, deployment.settings.lock_hours, evidence).run:
                wanted.append(bucket)
    return wanted


def sweeps(deployment: Deployment, memory: Memory) -> list[Errand]:
    """The sweeps for which the schedules of this hour ask."""
    tick_at = hours.floor_hour(deployment.settings.now())
    found = []
    for shard in range(hours.SHARDS):
        decision = expiry_ticks.decide(shard, tick_at, _ShardEvidence(deployment, memory, shard))
        if decision.run:
            found.append(Errand(Kind.AGE_OUT, shard=shard, whole=decision.whole, as_of=decision.as_of))
    return found


def is_flush_needed(deployment: Deployment) -> bool:
    """As the sensor of the flush looks."""
    return need_of_flush(deployment.probe, deployment.settings.now(), _LOOK_SECONDS).pending is not None


def is_closing_due(deployment: Deployment) -> bool:
    """As the sensor of the finalizer looks."""
    subscribers = deployment.probe.subscribers
    windows = ClosingStore(subscribers.client, subscribers.name).open_windows()
    return any(is_over(window, deployment.settings.now()) for window in windows)


@dataclass(frozen=True)
class _HourEvidence:
    deployment: Deployment
    memory: Memory
    bucket: str

    def is_running(self) -> bool:
        return False  # a tick comes when all work of the tick before is done

    def last_run(self) -> run_decision.LastRun | None:
        return self.memory.last_runs.get(self.bucket)

    def has_commits(self) -> bool:
        probe = self.deployment.probe.aggregates
        return has_commits(probe.client, probe.table, self.bucket)

    def pending(self, expected: run_decision.LastRun | None) -> run_decision.PendingFound:
        rows, aggregates = (expected.pending_rows, expected.pending_aggregates) if expected else (0, 0)
        probe = self.deployment.probe
        return run_decision.PendingFound(
            probe.rows.count(self.bucket, 1 + rows), probe.aggregates.count(self.bucket, 1 + aggregates)
        )  # fmt: skip


@dataclass(frozen=True)
class _ShardEvidence:
    deployment: Deployment
    memory: Memory
    shard: int

    def is_running(self) -> bool:
        return False

    def has_swept(self, day: str) -> bool:
        return (self.shard, day) in self.memory.swept

    def has_swept_before(self, day: str) -> bool:
        return any(shard == self.shard and earlier < day for shard, earlier in self.memory.swept)

    def first_pending(self, these: Sequence[str]) -> expiry_ticks.ProbedHour:
        probe = self.deployment.probe
        looks: list[Callable[[str], int]] = [
            lambda b: probe.rows.count(b, 1), lambda b: probe.aggregates.count(b, 1)
        ]  # fmt: skip
        return expiry_ticks.ProbedHour(next((bucket for bucket in these if any(look(bucket) for look in looks)), None))
