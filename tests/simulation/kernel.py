"""Simulated time, and the processes that live in it: one heap of what comes next, one of them running at a time.

Belongs here: the clock, who goes on when, sleeping, killing. Does not: what anybody does, which faults there are.

A process is a thread, but no two of them ever run at once: whoever waits looks up who comes next and hands on.
So a world is the same each time it is lived through from the same seed, and every wait is a place where another process
may come in between. What takes no time (a seller's write) is a plain function, called by whoever comes upon it.
"""

import heapq
import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime


class Killed(BaseException):  # no error: the end of a process, which nothing in it may take for one
    """The process is dead; whatever it still tries comes to nothing."""


class Process:
    """One simulated process, a run of Dagster's for instance."""

    def __init__(self, name: str, kernel: "Kernel", work: Callable[[], None]) -> None:
        self.name, self.kernel, self.work = name, kernel, work
        self.is_dead, self.is_over = False, False
        self._baton = threading.Lock()
        self._baton.acquire()
        self._thread: threading.Thread | None = None

    def kill(self) -> None:
        """Let it never do anything again. If it is the one that runs, this raises `Killed`."""
        self.is_dead = True
        if self.kernel.current is self:
            raise Killed
        if not self.is_over:
            self.kernel.schedule(self.kernel.now, self)

    def resume(self) -> None:
        """Hand it the baton."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name=self.name, daemon=True)
            self._thread.start()
        self._baton.release()

    def pause(self) -> None:
        """Wait for the baton."""
        self._baton.acquire()

    def end(self) -> bool:
        """See its thread gone, and let it do nothing on the way; whether there was one that had to be woken for it."""
        self.is_dead = True
        if self._thread is None or self.is_over:
            self.is_over = True
            return False
        self._baton.release()
        return True

    def join(self) -> None:
        """Wait for its thread."""
        if self._thread is not None:
            self._thread.join()

    def _live(self) -> None:
        self._baton.acquire()
        try:
            if not self.is_dead:
                self.work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  # whoever lives through the world is told
            self.kernel.stop(error)
        self.is_over = True
        self.kernel.leave()


class Kernel:
    """The clock and the heap."""

    def __init__(self, start: datetime) -> None:
        self.now = start.timestamp()
        """Seconds since 1970."""
        self.current: Process | None = None
        self.failure: BaseException | None = None
        self._heap: list[tuple[float, int, Process | Callable[[], object]]] = []
        self._order = itertools.count()
        self._main = threading.Lock()
        self._main.acquire()
        self._until = self.now
        self._is_closing = False
        self._processes: list[Process] = []

    def instant(self) -> datetime:
        """Now."""
        return datetime.fromtimestamp(self.now, UTC)

    def schedule(self, at: float, what: Process | Callable[[], object]) -> None:
        """Let the process go on, or the function be called, at this time; nothing happens in the past."""
        heapq.heappush(self._heap, (max(at, self.now), next(self._order), what))

    def spawn(self, name: str, work: Callable[[], None]) -> Process:
        """A new process, that begins now."""
        process = Process(name, self, work)
        self._processes = [other for other in self._processes if not other.is_over]
        self._processes.append(process)
        self.schedule(self.now, process)
        return process

    def sleep(self, seconds: float) -> None:
        """Let the process that runs wait; others may come in between. `Killed` if it did not survive that."""
        process = self.current
        assert process is not None, "only a process waits"
        if process.is_dead:
            raise Killed
        until = self.now + seconds if seconds > 0.0 else self.now
        if until <= self._until and (not self._heap or until < self._heap[0][0]) and self.failure is None:
            self.now = until  # nobody comes in between
            return
        self.schedule(until, process)
        following = self._next()
        if following is not process:
            self._give(following)
            process.pause()
        self.current = process
        if process.is_dead:
            raise Killed

    def run(self, until: float) -> None:
        """Live until then. What goes wrong in any process is raised here, and ends the world."""
        self._until = until
        following = self._next()
        if following is not None:
            self._give(following)
            self._main.acquire()
        self.current = None
        if self.failure is not None:
            raise self.failure

    def stop(self, failure: BaseException) -> None:
        """End the world over this (the first of several)."""
        self.failure = self.failure or failure

    def leave(self) -> None:
        """The process that runs is over: let come what comes next."""
        self._give(None if self._is_closing else self._next())

    def close(self) -> None:
        """End every process that is left; none of them does anything more."""
        self._is_closing = True
        for process in self._processes:
            self.current = process
            if process.end():
                self._main.acquire()
            process.join()
        self._processes.clear()
        self._heap.clear()
        self.current = None

    def _next(self) -> Process | None:
        """Who goes on next, once all that comes before it and takes no time is done; None at the end."""
        self.current = None
        while self._heap and self.failure is None and self._heap[0][0] <= self._until:
            self.now, _, what = heapq.heappop(self._heap)
            if isinstance(what, Process):
                if not what.is_over:
                    return what
                continue
            try:
                what()
            except BaseException as error:  # noqa: BLE001  # as above
                self.stop(error)
        return None

    def _give(self, process: Process | None) -> None:
        if process is None:
            self._main.release()
        else:
            self.current = process
            process.resume()
