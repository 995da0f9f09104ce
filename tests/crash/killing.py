"""Workers that die: some of those that work are killed with SIGKILL at a random moment, and all of it is done again.

Belongs here: who works beside whom, when one is killed, what is counted as a kill. Does not: what is to be done
(conductor), the work itself (errands).

A kill counts where it hit a living process between its first step and its last; one that came too soon or too late is
none. The moment is a part, drawn from the seed, of the time that such an errand took lately.
"""

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.crash.crew import FORKED, PATIENCE_SECONDS
from tests.crash.errands import BEGUN, BROKEN, DONE, FAILED, Errand, Kind, carry_out
from tests.crash.marks import WORKING, new_marks, read_mark
from tests.crash.town import Town

SIDE_BY_SIDE = 4
MARKED_FOR_DEATH = 0.75
"""Of the workers, while there are kills left."""
BEYOND_ITS_END = 1.05
"""How far the moment may lie, in the time that an errand takes: a few come too late, and no part is spared."""
MOST_KILLS = 4
"""Of one errand: then it is let live, or its next step would never come."""
MOST_KILLS_OF_EVENTS = 2
"""An event that was received five times is given up by the queue."""
MOST_FAILURES = 20
AFTER_A_FAILURE = 0.4
LEFT_TO_THE_NEXT_TICK = 0.25
"""Of the killed visits of hours: nobody starts them again, as a run of Dagster that died."""
LAST_TICKS_HOURS = 20
_EXPECTED_SECONDS = 0.5


class CrashTestError(Exception):
    """The test itself cannot go on: a worker broke, or never succeeds."""


@dataclass
class Figures:
    """What was done to whom."""

    kills: Counter[Kind] = field(default_factory=Counter)
    within_a_call: Counter[str] = field(default_factory=Counter)
    """Kills while a request was under way, by its operation."""
    between_calls: int = 0
    missed: int = 0
    """Kills that came before the work began, or after its end."""
    ended: Counter[Kind] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """Errands that ended with an error that a person would read, and were done again."""
    left_to_the_next_tick: int = 0

    @property
    def killed(self) -> int:
        """Those that count."""
        return self.kills.total()


@dataclass
class _Worker:
    errand: Errand
    process: BaseProcess
    pipe: Connection
    marks: Path
    log: Path
    part: float | None
    """Of its expected time, after which it is killed; None: it lives."""
    started: float
    began: float | None = None
    dies: float | None = None
    result: tuple[str, Any] | None = None


class Killers:
    """Lets errands be carried out, and kills."""

    def __init__(self, town: Town, chance: random.Random, kills: int, done: Callable[[Errand, Any], None]) -> None:
        """`done` hears of each errand that has come to its end, with what it found."""
        self.town, self.chance, self.wanted, self.done = town, chance, kills, done
        self.figures = Figures()
        self.workers: list[_Worker] = []
        self._expected: dict[Kind, float] = {}
        self._number = 0
        self._marketplace_dies: float | None = None
        self._marketplace_next = self._until_next()

    def work_off(self, errands: Iterable[Errand], now: datetime) -> None:
        """Carry them out, a few side by side, until each has come to its end or is left to the next tick."""
        waiting = deque((0.0, errand) for errand in errands)
        while waiting or self.workers:
            at = time.monotonic()
            for entry in list(waiting):
                if len(self.workers) < SIDE_BY_SIDE and entry[0] <= at:
                    waiting.remove(entry)
                    self._start(entry[1], now)
            moments = [worker.dies for worker in self.workers if worker.dies is not None]
            moments += [not_before for not_before, _ in waiting if not_before > at]
            moments += [] if self._marketplace_dies is None else [self._marketplace_dies]
            pause = max(min([*moments, at + PATIENCE_SECONDS]) - at, 0.0)
            heard = wait([worker.pipe for worker in self.workers], pause)
            for worker in list(self.workers):
                if worker.pipe in heard:
                    self._hear(worker)
                elif worker.dies is not None and worker.dies <= time.monotonic():
                    self._kill(worker)
                elif time.monotonic() - worker.started > PATIENCE_SECONDS:
                    raise CrashTestError(f"{worker.errand} does not come to its end\n{worker.log.read_text()[-3000:]}")
                if not worker.process.is_alive() and worker not in self.workers:
                    again = self._after(worker, now)
                    if again is not None:
                        waiting.append(again)
            self._kill_the_marketplace()

    def close(self) -> None:
        """End whoever is left."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.join()

    def _start(self, errand: Errand, now: datetime) -> None:
        self._number += 1
        marks, log = self.town.folder / f"marks-{self._number}", self.town.folder / "workers.log"
        new_marks(marks)
        ours, its = FORKED.Pipe()
        process = FORKED.Process(target=carry_out, args=(its, self.town.place(now), errand, marks, log), daemon=True)
        process.start()
        its.close()
        self.workers.append(_Worker(errand, process, ours, marks, log, self._part(errand), time.monotonic()))

    def _part(self, errand: Errand) -> float | None:
        part, marked = self.chance.uniform(0, BEYOND_ITS_END), self.chance.random() < MARKED_FOR_DEATH
        most = MOST_KILLS_OF_EVENTS if errand.kind is Kind.EVENTS else MOST_KILLS
        doomed = sum(worker.part is not None for worker in self.workers)
        return part if marked and errand.kills < most and self.figures.killed + doomed < self.wanted else None

    def _hear(self, worker: _Worker) -> None:
        """Its next word; or that it is gone."""
        try:
            word, what = worker.pipe.recv()
        except EOFError:
            worker.process.join(PATIENCE_SECONDS)
            self.workers.remove(worker)
            return
        if word == BEGUN:
            worker.began = time.monotonic()
            if worker.part is not None:
                expected = self._expected.get(worker.errand.kind, _EXPECTED_SECONDS)
                worker.dies = worker.began + worker.part * expected
            return
        worker.result, worker.dies = (word, what), None
        if word == DONE and worker.began is not None:
            kind, seconds = worker.errand.kind, time.monotonic() - worker.began
            self._expected[kind] = 0.7 * self._expected.get(kind, seconds) + 0.3 * seconds

    def _kill(self, worker: _Worker) -> None:
        """SIGKILL. What it said before is still heard."""
        worker.process.kill()
        worker.process.join()
        with suppress(EOFError):
            while worker.pipe.poll():
                worker.result = worker.pipe.recv()
        self.workers.remove(worker)

    def _after(self, worker: _Worker, now: datetime) -> tuple[float, Errand] | None:
        """What came of an errand whose process is gone; when it is to be done again, if it is."""
        worker.pipe.close()
        errand, (word, what) = worker.errand, worker.result or ("killed", None)
        mark = read_mark(worker.marks)
        worker.marks.unlink()
        if word == DONE:
            self.figures.ended[errand.kind] += 1
            self.done(errand, what)
            return None
        if word == BROKEN or (word != FAILED and worker.dies is None):
            raise CrashTestError(f"{errand} broke (exit {worker.process.exitcode}):\n{what}")
        if word == FAILED:
            self.figures.failures[f"{errand.kind}: {str(what)[:90]}"] += 1
            if errand.failures >= MOST_FAILURES:
                raise CrashTestError(f"{errand} never succeeds: {what}")
            return time.monotonic() + AFTER_A_FAILURE, replace(errand, failures=errand.failures + 1)
        if mark.state != WORKING:
            self.figures.missed += 1
            return 0.0, errand
        self.figures.kills[errand.kind] += 1
        if mark.calls_under_way:
            self.figures.within_a_call[mark.operation] += 1
        else:
            self.figures.between_calls += 1
        if errand.hours and self._can_wait(errand, now) and self.chance.random() < LEFT_TO_THE_NEXT_TICK:
            self.figures.left_to_the_next_tick += 1
            return None
        return 0.0, replace(errand, kills=errand.kills + 1)

    def _can_wait(self, errand: Errand, now: datetime) -> bool:
        """Whether the schedules come back to all its hours while they can be billed."""
        begun = [datetime.fromisoformat(f"{bucket}:00:00+00:00") for bucket in errand.hours]
        return all((now - hour).total_seconds() < LAST_TICKS_HOURS * 3600 for hour in begun)

    def _until_next(self) -> int:
        """After how many kills more the marketplace is killed."""
        return self.chance.randint(8, 16)

    def _kill_the_marketplace(self) -> None:
        at = time.monotonic()
        if self._marketplace_dies is not None and at >= self._marketplace_dies:
            self._marketplace_dies = None
            self.town.sandbox.kill_and_restart()
        elif self._marketplace_dies is None and self.figures.killed >= self._marketplace_next:
            self._marketplace_next = self.figures.killed + self._until_next()
            self._marketplace_dies = at + self.chance.uniform(0.0, 0.6)
