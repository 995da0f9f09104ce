"""Dagster, as far as the simulation needs it: ticks, sensors, a queue with lanes, runs that are seen dead too late.

Belongs here: when something is asked for, what is remembered of runs. Does not: what runs do (runs), the product's
decisions (its own ticks).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from metering_dagster.core import hours
from metering_dagster.core.errors import MeteringError
from metering_dagster.expiry.rules import sweep_decision as expiry_ticks
from metering_dagster.licenses.rules.window_end import is_over
from metering_dagster.licenses.services.connections import events_queue_of
from metering_dagster.licenses.services.flush_search import need_of_flush
from metering_dagster.licenses.stores.open_windows import ClosingStore
from metering_dagster.metering.rules import run_decision
from metering_dagster.metering.stores.aggregated_table import has_commits
from tests.simulation import runs
from tests.simulation.kernel import Kernel
from tests.simulation.plan import HOUR, Plan
from tests.simulation.runs import Doing, Memory, SimulatedDeployment
from tests.simulation.wire import Errand

_LIMITS = {"regular": 6, "expiry": 2, "deprovision": 3, "hand": 6}
_LONGEST = {"regular": 3000.0, "expiry": 3000.0, "deprovision": 600.0, "hand": 3000.0}
"""After how long a run that is still under way is ended (dagster.yaml, licenses/lane.py)."""
_LOOK_SECONDS = 20.0
_PROBE_SECONDS = 30.0


@dataclass
class Run:
    """One run, and what came of it."""

    job: str
    lane: str
    work: Callable[[Doing], None]
    mode: str = "live"
    """`shadow` for a run of another deployment, which writes nothing; else the plan says."""
    looks_at: str = ""
    """The hour that a shadow run looks at; it is none of this deployment's runs of that hour."""
    bucket: str | None = None
    shard: int | None = None
    whole_sweep: str | None = None
    as_of: float = 0.0
    """The hour of whose slice it is a sweep."""
    asked: float = 0.0
    started: float | None = None
    ended: float | None = None
    result: str = "queued"
    failure: str = ""
    errand: Errand | None = None
    doing: Doing | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether Dagster takes it for queued or running."""
        return self.ended is None

    @property
    def is_undisturbed(self) -> bool:
        """Whether nothing at all stood in its way."""
        return self.errand is not None and not self.errand.troubles and self.result in ("ok", "failed")


@dataclass
class Tick:
    """One look at one hour (or at the flush windows), and what came of it."""

    at: float
    asked: bool
    reason: str
    run: Run | None = None
    due: float = 0.0
    """The instant that it goes by; it comes a little later, and much later where every call is slow."""
    was_running: bool = False
    """Whether a run of this hour was queued or under way, at its beginning or at its end."""


class Daemon:
    """Asks for runs, and starts them."""

    def __init__(
        self,
        kernel: Kernel,
        plan: Plan,
        chance: random.Random,
        deploy: Callable[[Errand], SimulatedDeployment],
        says: Callable[[str], None],
        over: Callable[[Run], None],
    ) -> None:
        """`says` hears all words that would be stored; `over` of each run that has come to its end by itself."""
        self.kernel, self.plan, self.chance = kernel, plan, chance
        self.deploy, self.says, self.over = deploy, says, over
        self.runs: list[Run] = []
        self.memories: dict[str, Memory] = {}
        self.ticks: dict[str, list[Tick]] = {}
        """By hour bucket."""
        self.flush_ticks: list[Tick] = []
        self._active: list[Run] = []

    def begin(self) -> None:
        """Start all that ticks."""
        self.kernel.spawn("schedules", self._schedules)
        for name, seconds, look in (
            ("deprovisioning_flush", 300.0, self._look_for_flush),
            ("deprovisioned_finalizer", 900.0, self._look_for_ends),
            ("marketplace_events", 60.0, self._look_for_events),
        ):
            self._sensor(name, seconds, look)
        for since, until in self.plan.away:
            self.kernel.schedule(since, self._go_away)
            self.kernel.schedule(until, self._launch)
        for _ in range(self.plan.by_hand):
            at = self.kernel.now + self.chance.uniform(2, self.plan.hours + 20) * HOUR
            self.kernel.schedule(at, self._by_hand)
        self.shadow = random.Random(f"shadow {self.plan.seed}")
        for _ in range(self.plan.shadows):
            # Shortly before everybody's ticks, when there is something to tell.
            top = (self.kernel.now // HOUR + self.shadow.randint(2, self.plan.hours + 20)) * HOUR
            self.kernel.schedule(top - self.shadow.uniform(20, 600), self._in_shadow)
        for at in self.plan.last_minute:
            self.kernel.schedule(at, lambda: self._run_by_hand(23))

    # Ticks.

    def _sensor(self, name: str, seconds: float, look: Callable[[SimulatedDeployment, Errand], None]) -> None:
        def work() -> None:
            errand = Errand(name, is_run=False, started=self.kernel.now)
            deployment = self.deploy(errand)
            self.kernel.sleep(self.chance.uniform(0, seconds))
            while True:
                if not self.plan.is_away(self.kernel.now):
                    errand.started = self.kernel.now
                    look(deployment, errand)
                self.kernel.sleep(errand.started + seconds - self.kernel.now)
                errand.started = self.kernel.now

        self.kernel.spawn(name, work)

    def _schedules(self) -> None:
        done = 0.0
        while True:
            now = self.kernel.now
            top = now // HOUR * HOUR
            if top > done and not self.plan.is_away(now):
                done = top
                tick_at = datetime.fromtimestamp(top, UTC)
                for look in self._looks(tick_at):
                    look()
            back = next((until for since, until in self.plan.away if since <= now < until), None)
            self.kernel.sleep((back or top + HOUR) - self.kernel.now + self.chance.uniform(0.1, 3.0))

    def _looks(self, tick_at: datetime) -> list[Callable[[], None]]:
        """The ticks of all schedules, in any order."""
        offsets = range(hours.FIRST_OFFSET, hours.LAST_OFFSET + 1)
        looks: list[Callable[[], None]] = [partial(self._meter_tick, offset, tick_at) for offset in offsets]
        looks += [partial(self._age_out_tick, shard, tick_at) for shard in range(hours.SHARDS)]
        self.chance.shuffle(looks)
        return looks

    def _meter_tick(self, offset: int, tick_at: datetime) -> None:
        errand = Errand(f"meter_offset_{offset:02d}", is_run=False, started=self.kernel.now)
        deployment = self.deploy(errand)
        until = self.kernel.now + _PROBE_SECONDS
        for hour in run_decision.hours_of_tick(offset, tick_at):
            bucket = hours.bucket(hour)
            began, was_running = self.kernel.now, self.is_running(bucket)
            decision = run_decision.decide(
                hour, tick_at, deployment.settings.lock_hours, _HourEvidence(self, deployment, bucket, until)
            )
            self.says(decision.reason)
            was_running = was_running or self.is_running(bucket)
            tick = Tick(began, decision.run, decision.reason, due=tick_at.timestamp(), was_running=was_running)
            self.ticks.setdefault(bucket, []).append(tick)
            if decision.run:
                tick.run = self.ask(self._hour_run(bucket, "regular"))

    def _hour_run(self, bucket: str, lane: str) -> Run:
        memory = self.memories.setdefault(bucket, Memory())
        return Run("meter_hour", lane, lambda doing: runs.meter_hour(doing, bucket, memory), bucket=bucket)

    def _age_out_tick(self, shard: int, tick_at: datetime) -> None:
        errand = Errand(f"age_out_shard_{shard}", is_run=False, started=self.kernel.now)
        deployment = self.deploy(errand)
        decision = expiry_ticks.decide(shard, tick_at, _ShardEvidence(self, deployment, shard))
        self.says(decision.reason)
        if decision.run:
            as_of, whole = decision.as_of, decision.whole
            self.ask(Run(
                "age_out", "expiry", lambda doing: runs.age_out(doing, shard, as_of, whole=whole), shard=shard,
                whole_sweep=decision.day if whole else None, as_of=as_of.timestamp(),
            ))  # fmt: skip

    def _look_for_flush(self, deployment: SimulatedDeployment, errand: Errand) -> None:
        tick = Tick(self.kernel.now, asked=False, reason="")
        self.flush_ticks.append(tick)
        running = self._is_under_way("flush_deprovisioning")
        if running is not None:
            tick.reason, tick.run = "under way", running
            return
        try:
            need = need_of_flush(deployment.probe, deployment.settings.now(), _LOOK_SECONDS)
        except MeteringError as error:
            self.says(str(error))
            tick.asked, tick.reason = True, "could not look"
        else:
            tick.asked, tick.reason = need.pending is not None, f"{need.windows} windows, pending: {need.pending}"
        if tick.asked:
            tick.run = self.ask(Run("flush_deprovisioning", "deprovision", runs.flush))

    def _look_for_ends(self, deployment: SimulatedDeployment, errand: Errand) -> None:
        if self._is_under_way("finalize_deprovisioned"):
            return
        subscribers = deployment.probe.subscribers
        try:
            windows = ClosingStore(subscribers.client, subscribers.name).open_windows()
            due = any(is_over(window, deployment.settings.now()) for window in windows)
        except MeteringError as error:
            self.says(str(error))
            due = True
        if due:
            self.ask(Run("finalize_deprovisioned", "deprovision", runs.finalize))

    def _look_for_events(self, deployment: SimulatedDeployment, errand: Errand) -> None:
        name = "apply_marketplace_events"
        if self._is_under_way(name):
            return
        last = next((run for run in reversed(self.runs) if run.job == name), None)
        if last is not None and last.result != "ok" and last.ended and self.kernel.now < last.ended + 300:
            return
        try:
            waiting = events_queue_of(deployment).state().waiting > 0
        except MeteringError as error:
            self.says(str(error))
            waiting = True
        if waiting:
            self.ask(Run(name, "deprovision", runs.apply_events))

    def _by_hand(self) -> None:
        """A person starts a run of some hour, on another instance perhaps: nobody keeps it from meeting another run."""
        self._run_by_hand(self.chance.randint(1, 24))

    def _in_shadow(self) -> None:
        """A deployment in shadow mode looks at an hour, beside whatever this one does."""
        bucket = hours.bucket(datetime.fromtimestamp(self.kernel.now - self.shadow.randint(1, 23) * HOUR, UTC))
        run = Run("shadow", "hand", lambda doing: runs.shadow(doing, bucket))
        run.mode, run.looks_at = "shadow", bucket
        self.ask(run)

    def _run_by_hand(self, offset: int) -> None:
        if self.plan.is_away(self.kernel.now):
            return
        bucket = hours.bucket(datetime.fromtimestamp(self.kernel.now - offset * HOUR, UTC))
        self.ask(self._hour_run(bucket, "hand"))
        if self.chance.random() < 0.5:
            self.ask(self._hour_run(bucket, "hand"))

    # Runs.

    def ask(self, run: Run) -> Run:
        """Queue a run."""
        run.asked = self.kernel.now
        self.runs.append(run)
        self._active.append(run)
        self._launch()
        return run

    def under_way(self) -> list[Run]:
        """The runs that are queued or running."""
        return list(self._active)

    def is_running(self, bucket: str) -> bool:
        """Whether a run of this hour is queued or under way."""
        return any(run.bucket == bucket and run.lane != "hand" for run in self._active)

    def of_shard(self, shard: int) -> list[Run]:
        """All runs of a shard."""
        return [run for run in self.runs if run.shard == shard]

    def _is_under_way(self, job: str) -> Run | None:
        return next((run for run in self._active if run.job == job), None)

    def _launch(self) -> None:
        if self.plan.is_away(self.kernel.now):
            return
        for run in list(self._active):
            busy = [other for other in self._active if other.started is not None]
            if run.started is not None or sum(other.lane == run.lane for other in busy) >= _LIMITS[run.lane]:
                continue
            if (
                run.bucket
                and run.lane != "hand"
                and any(other.bucket == run.bucket and other.lane != "hand" for other in busy)
            ):
                continue
            self._start(run)

    def _start(self, run: Run) -> None:
        run.started, run.result = self.kernel.now, "started"
        run.errand = errand = Errand(
            f"{run.job} {run.bucket or run.shard or ''}".strip(), True, self.kernel.now, mode=run.mode
        )  # fmt: skip
        run.doing = doing = Doing(self.deploy(errand), errand, self.says)

        def work() -> None:
            self.kernel.sleep(self.chance.uniform(2, 8))  # a process of Python
            try:
                run.work(doing)
            except MeteringError as error:
                run.failure = str(error)
                self.says(run.failure)
                self._finish(run, "failed")
            else:
                self._finish(run, "ok")

        errand.process = self.kernel.spawn(errand.name, work)
        # Whether its process is gone, nobody sees before its time is up; at times somebody does.
        seen_after = _LONGEST[run.lane] + self.chance.uniform(0, 120)
        if self.chance.random() < 0.3:
            self.kernel.schedule(self.kernel.now + self.chance.uniform(60, 400), lambda: self._bury(run, dead=True))
        self.kernel.schedule(self.kernel.now + seen_after, lambda: self._bury(run, dead=False))

    def _finish(self, run: Run, result: str) -> None:
        if run.ended is not None:
            return
        run.ended, run.result = self.kernel.now, result
        self._active.remove(run)
        self.over(run)
        if run.doing is not None:
            run.doing.entries.clear()
        self.kernel.schedule(self.kernel.now + self.chance.uniform(0.5, 2), self._launch)

    def _bury(self, run: Run, *, dead: bool) -> None:
        """See that a run's process is dead, or end it for its time is up."""
        process = run.errand.process if run.errand else None
        if run.ended is not None or process is None or (dead and not process.is_dead):
            return
        assert run.errand is not None
        if not process.is_dead:
            run.errand.troubles.append("its time was up")
            process.kill()
        run.ended, run.result = self.kernel.now, "killed"
        self._active.remove(run)
        self._launch()

    def _go_away(self) -> None:
        """The machine goes: what runs is killed with it, or goes on elsewhere."""
        if self.chance.random() < 0.6:
            for run in list(self._active):
                if run.errand is not None and run.errand.process is not None:
                    run.errand.troubles.append("killed")
                    run.errand.process.kill()


class _HourEvidence:
    """As metering/evidence.py looks it up."""

    def __init__(self, daemon: Daemon, deployment: SimulatedDeployment, bucket: str, until: float) -> None:
        self.daemon, self.deployment, self.bucket, self.until = daemon, deployment, bucket, until

    def is_running(self) -> bool:
        return self.daemon.is_running(self.bucket)

    def last_run(self) -> run_decision.LastRun | None:
        memory = self.daemon.memories.get(self.bucket)
        return memory.last_run() if memory else None

    def has_commits(self) -> bool:
        try:
            probe = self.deployment.probe.aggregates
            return has_commits(probe.client, probe.table, self.bucket)
        except MeteringError:
            return True

    def pending(self, expected: run_decision.LastRun | None) -> run_decision.PendingFound:
        rows, aggregates = (expected.pending_rows, expected.pending_aggregates) if expected else (0, 0)
        try:
            probe = self.deployment.probe
            found = probe.rows.count(self.bucket, 1 + rows, self.until)
            return run_decision.PendingFound(found, probe.aggregates.count(self.bucket, 1 + aggregates, self.until))
        except MeteringError as error:
            return run_decision.PendingFound(0, 0, str(error))


class _ShardEvidence:
    """As expiry/schedules.py looks it up."""

    def __init__(self, daemon: Daemon, deployment: SimulatedDeployment, shard: int) -> None:
        self.daemon, self.deployment, self.shard = daemon, deployment, shard

    def is_running(self) -> bool:
        return any(run.is_under_way for run in self.daemon.of_shard(self.shard))

    def has_swept(self, day: str) -> bool:
        of_day = [run for run in self.daemon.of_shard(self.shard) if run.whole_sweep == day]
        failed = sum(run.result in ("failed", "killed") for run in of_day)
        return failed >= 3 or any(run.is_under_way or run.result == "ok" for run in of_day)

    def has_swept_before(self, day: str) -> bool:
        days = expiry_ticks.earlier_days(day)
        return any(run.whole_sweep in days and run.result == "ok" for run in self.daemon.of_shard(self.shard))

    def first_pending(self, these: Sequence[str]) -> expiry_ticks.ProbedHour:
        try:
            probe = self.deployment.probe
            found = [
                bucket for bucket in these
                if probe.rows.count(bucket, most=1) or probe.aggregates.count(bucket, most=1)
            ]  # fmt: skip
        except MeteringError as error:
            return expiry_ticks.ProbedHour(None, str(error))
        return expiry_ticks.ProbedHour(found[0] if found else None)
