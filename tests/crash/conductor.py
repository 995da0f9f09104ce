"""The plot of a crash test: hours pass, usage is written, licenses end, and the work of each hour is done and killed.

Belongs here: the clock, what each step asks for, when it is over. Does not: killing (killing), judging (judge).

The clock stands while work is done, and moves on when all of it is: so nothing may be lost for want of time, and the
judge excuses nothing. The seller goes on writing all the while.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from metering_dagster.devstack.environment import using_environment
from metering_dagster.devstack.stack import LocalStack
from tests.crash.crew import FORKED, PATIENCE_SECONDS
from tests.crash.errands import Errand, Kind
from tests.crash.judge import Verdict, judge
from tests.crash.killing import CrashTestError, Figures, Killers
from tests.crash.outlook import Memory, hours_to_meter, is_closing_due, is_flush_needed, sweeps
from tests.crash.seller import STOP, sell
from tests.crash.town import BEGIN, Buyer, Town

LEFT_FOR_THE_END = 0.08
"""Of the kills: for the hours after the last usage, with their last calls and expiries."""
LEAST_HOURS = 2
"""Of usage, however few kills are asked for: a license ends in the second."""
HOURS_TO_THE_END = 26
"""After the last usage: then no window is open any more."""
ENDINGS = (1, 4, 7, 10, 13)
"""Hours in which a license ends, at 20 past."""
ENDS_AT_MINUTE = 20
WINDOW_MINUTES = (15, 35, 55)
"""Of the looks at open flush windows, beside five past: the one at 15 past is in a window's last ten minutes."""
VISITS_SIDE_BY_SIDE = 3
RUN_OF_DAGSTER, RIVAL = 0.2, 0.2
EVENTS_AGAIN_SECONDS = 0.7
Say = Callable[[str], None]


class Conductor:
    """One crash test."""

    def __init__(self, town: Town, seed: int, kills: int, say: Say) -> None:
        self.town, self.seed, self.wanted, self.say = town, seed, kills, say
        self.chance = random.Random(seed)
        self.now, self.memory, self.rows = BEGIN, Memory(), 0
        self.killers = Killers(town, self.chance, kills, self.memory.keep)
        self.leaving = self.chance.sample(town.buyers, len(ENDINGS))
        self.late_news: list[tuple[Buyer, datetime]] = []
        self.outcomes: dict[str, int] = {}

    @property
    def figures(self) -> Figures:
        """What was done to whom."""
        return self.killers.figures

    def run(self) -> Verdict:
        """The whole test, and the judge at its end."""
        for buyer in self.chance.choices(self.town.buyers, k=4) + self.town.buyers:
            self.town.tell(buyer, "License Updated", BEGIN - timedelta(days=3))
        with self._selling() as seller:
            hours = 0
            while self.figures.killed < self.wanted:
                enough = self.wanted * (1 - LEFT_FOR_THE_END) if hours == 0 else self.wanted
                seller.go_on(self.now, self.town.ended)
                while self.figures.killed < enough or hours < LEAST_HOURS:
                    self._hour(seller, hours)
                    hours += 1
                self.rows = seller.stop()
                self.say("the seller has stopped; what is left comes to its end")
                for _ in range(HOURS_TO_THE_END):
                    self._hour(None, hours)
                    hours += 1
        self.outcomes = self.town.sandbox.outcomes()
        return judge(self.town.evidence())

    def _hour(self, seller: "_Selling | None", number: int) -> None:
        """One hour of the clock."""
        if seller is not None:
            self._disturb_the_marketplace()
        top = self.now
        self._step(seller, schedules=True)
        is_ending = seller is not None and number in ENDINGS
        for minute in WINDOW_MINUTES:
            self.now = top.replace(minute=minute)
            if is_ending and minute > ENDS_AT_MINUTE:
                self._end_a_license(self.leaving[ENDINGS.index(number)], top.replace(minute=ENDS_AT_MINUTE))
                is_ending = False
            if self.town.has_open_windows(self.now):
                self._step(seller, schedules=False)
        figures = self.figures
        self.say(
            f"{top:%Y-%m-%dT%H} {figures.killed:>4} of {self.wanted} kills ({figures.within_a_call.total()} within a "
            f"call), marketplace {self.town.sandbox.kills}, {self.rows} rows, {figures.ended.total()} errands done"
        )
        self.now = top + timedelta(hours=1)

    def _step(self, seller: "_Selling | None", *, schedules: bool) -> None:
        """Move the clock here, and do all that is to be done at this time."""
        self.town.sandbox.set_now(self.now)
        if seller is not None:
            self.rows = seller.go_on(self.now, self.town.ended)
        deployment = self.town.deployment(self.now)
        errands = [*self._visits(hours_to_meter(deployment, self.memory)), *sweeps(deployment, self.memory)]
        errands = errands if schedules else []
        if self.town.messages(self.town.queue):
            errands.append(Errand(Kind.EVENTS))
        if is_flush_needed(deployment):
            errands.insert(0, Errand(Kind.FLUSH))
        if is_closing_due(deployment):
            errands.append(Errand(Kind.CLOSE))
        self.killers.work_off(errands, self.now)
        while self.town.messages(self.town.queue):
            time.sleep(EVENTS_AGAIN_SECONDS)  # a killed worker holds them for as long as the queue says
            self.killers.work_off([Errand(Kind.EVENTS)], self.now)
        if Errand(Kind.EVENTS) in errands and is_flush_needed(deployment):
            self.killers.work_off([Errand(Kind.FLUSH)], self.now)
        if is_closing_due(deployment):
            self.killers.work_off([Errand(Kind.CLOSE)], self.now)
        self._tell_late_news()

    def _visits(self, buckets: list[str]) -> list[Errand]:
        """The hours in a few workers; some by a run of Dagster, some by two workers at once."""
        self.chance.shuffle(buckets)
        errands = []
        if buckets and self.chance.random() < RUN_OF_DAGSTER:
            errands.append(Errand(Kind.RUN, (buckets.pop(),)))
        parts = [tuple(buckets[n::VISITS_SIDE_BY_SIDE]) for n in range(VISITS_SIDE_BY_SIDE)]
        errands += [Errand(Kind.METER, part) for part in parts if part]
        if errands and self.chance.random() < RIVAL:
            errands.append(Errand(Kind.METER, errands[0].hours))
        self.chance.shuffle(errands)
        return errands

    def _end_a_license(self, buyer: Buyer, at: datetime) -> None:
        """The marketplace ends it; its event comes now or ten minutes later, twice, with an old one behind it."""
        self.town.end_license(buyer, at)
        if self.chance.random() < 0.5:
            self.late_news.append((buyer, at))
        else:
            self._tell_of_the_end(buyer, at)

    def _tell_late_news(self) -> None:
        while self.late_news:
            self._tell_of_the_end(*self.late_news.pop())

    def _tell_of_the_end(self, buyer: Buyer, at: datetime) -> None:
        self.town.tell(buyer, "License Deprovisioned", at)
        self.town.tell(buyer, "License Updated", at - timedelta(hours=2))
        self.town.tell(buyer, "License Deprovisioned", at)

    def _disturb_the_marketplace(self) -> None:
        """Its usual troubles: slow answers, and each of the others at one of its next calls."""
        kinds: list[dict[str, Any]] = [
            {"kind": "lost_answer"}, {"kind": "drop"}, {"kind": "http_503"}, {"kind": "unprocessed", "count": 2},
            {"kind": "error", "code": "InternalServiceErrorException"},
        ]  # fmt: skip
        faults = [each | {"calls": self.chance.randint(1, 12)} for each in kinds]
        faults.append({"kind": "latency", "calls": "all", "seconds": self.chance.uniform(0.02, 0.15)})
        self.town.sandbox.control("faults", {"faults": faults})

    @contextmanager
    def _selling(self) -> Iterator["_Selling"]:
        ours, its = FORKED.Pipe()
        contract = self.town.contract(self.seed)
        process = FORKED.Process(target=sell, args=(its, contract, self.now), daemon=True)
        process.start()
        its.close()
        selling = _Selling(process, ours)
        try:
            self.rows = selling.hear()
            yield selling
        finally:
            process.kill()
            process.join()


class _Selling:
    """The seller's process."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe

    def hear(self) -> int:
        """How many rows it has written, as soon as it says so."""
        if not self.pipe.poll(PATIENCE_SECONDS) or not self.process.is_alive():
            raise CrashTestError("the seller is silent, or gone; what it says stands above")
        return int(self.pipe.recv())

    def go_on(self, now: datetime, ended: dict[str, datetime]) -> int:
        """From now on by this clock."""
        self.pipe.send((now, ended))
        return self.hear()

    def stop(self) -> int:
        """Write no more, until it is told to go on."""
        self.pipe.send(STOP)
        return self.hear()


def crash_test(
    stack: LocalStack, folder: Path, project: Path, *, seed: int, kills: int, say: Say
) -> tuple[Verdict, Conductor]:
    """One crash test on this emulator, in this empty folder."""
    town = Town(stack, folder, project)
    with using_environment(os.environ | town.environment):
        try:
            town.open()
            conductor = Conductor(town, seed, kills, say)
            try:
                return conductor.run(), conductor
            finally:
                conductor.killers.close()
        finally:
            town.close()
