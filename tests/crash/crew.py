"""Worker processes as a test handles them: started, listened to, killed with SIGKILL, ended by their pid.

They are forked from a process that has imported everything, so that a worker takes tenths of a second and not seconds.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.crash.worker import ENDED, FAILED, READY, Order, work
from tests.world import HOUR, World

PATIENCE_SECONDS = 120.0
"""For one word of a worker, on the busiest of machines."""
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.crash.worker", "tests.crash.errands", "tests.crash.seller"])

Word = tuple[str, float, Any]


@dataclass
class Worker:
    """One process. It stands still where it was told to, until `go` or `kill`."""

    process: BaseProcess
    pipe: Connection
    log: Path
    words: list[Word] = field(default_factory=list)

    def hear(self) -> Word:
        """Its next word."""
        assert self.pipe.poll(PATIENCE_SECONDS), f"worker {self.process.pid} is silent, after {self.words[-3:]}"
        word: Word = self.pipe.recv()
        self.words.append(word)
        assert word[0] != FAILED, f"{word[2]}\n{self.log.read_text()[-3000:]}"
        return word

    def until_it_stands(self) -> Word:
        """The point where it stands still; or its end, if it never came to one."""
        while True:
            word = self.hear()
            if word[0] == ENDED or word[2] is True:
                return word

    def go(self) -> None:
        """Let it go on."""
        self.pipe.send(None)

    def kill(self) -> None:
        """SIGKILL, at once; what it said before is still heard."""
        self.process.kill()
        self.process.join()
        with suppress(EOFError):
            while self.pipe.poll():
                self.words.append(self.pipe.recv())

    def end(self) -> None:
        """See it end by itself, without a fault."""
        while self.hear()[0] != ENDED:
            pass
        self.process.join(PATIENCE_SECONDS)
        assert self.process.exitcode == 0


class Crew:
    """The workers of one test's world."""

    def __init__(self, world: World, home: Path) -> None:
        self.world, self.home = world, home
        self.workers: list[Worker] = []
        self.environment = {name: os.environ[name] for name in os.environ if name.startswith(("AWS_", "NO_", "no_"))}

    def start(
        self,
        hour: str = HOUR,
        *,
        dagster: bool = False,
        work: Callable[[Connection, Order], None] = work,
        **changes: Any,
    ) -> Worker:
        """A new worker on this hour; or at other work."""
        log = self.world.folder / f"worker-{len(self.workers)}.log"
        home = self.home if dagster else None
        order = Order(self.environment, self.world.settings, hour, log, home=home, **changes)
        ours, its = FORKED.Pipe()
        process = FORKED.Process(target=work, args=(its, order), daemon=True)
        process.start()
        its.close()
        worker = Worker(process, ours, log)
        self.workers.append(worker)
        return worker

    def meter(self, hour: str = HOUR, *, dagster: bool = False) -> None:
        """Meter the hour once more, undisturbed."""
        self.start(hour, dagster=dagster).end()

    def together(self, workers: Sequence[Worker]) -> None:
        """Let them go at one moment, once all are ready, and see them end."""
        for worker in workers:
            assert worker.until_it_stands()[0] == READY
        for worker in workers:
            worker.go()
        for worker in workers:
            worker.end()

    def close(self) -> None:
        """End whoever is left."""
        for worker in self.workers:
            if worker.process.is_alive():
                worker.kill()
            worker.pipe.close()


@contextmanager
def a_crew(world: World, home: Path) -> Iterator[Crew]:
    """A crew, of which nobody outlives the context."""
    crew = Crew(world, home)
    try:
        yield crew
    finally:
        crew.close()
