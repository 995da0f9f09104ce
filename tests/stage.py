"""Simulated time for many callers, each in a thread of its own: one runs at a time, and a seed decides the rest."""

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

BEGIN = 1_800_000_000.0
Actor = Callable[[], None]


class Stage:
    """Each caller runs alone until it sleeps or waits for a lock, and the one that wakes first goes on."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = BEGIN
        self._turn = threading.Condition()
        self._waiting: list[tuple[float, int]] = []
        self._current: int | None = None
        self._ids = iter(range(10**9))

    def sleep(self, seconds: float) -> None:
        """Let the others act meanwhile."""
        with self._turn:
            self._wait_until(self.now + seconds)

    def lock(self) -> "StageLock":
        """A lock whose waiters leave the stage to the others."""
        return StageLock(self)

    def run(self, actors: Sequence[Actor]) -> None:
        """Let all of them act, until the last has ended."""
        threads = [threading.Thread(target=self._act, args=(actor,)) for actor in actors]
        with self._turn:
            for number, thread in enumerate(threads, start=1):
                thread.start()
                while len(self._waiting) < number:  # one by one, so that the seed alone decides who comes when
                    self._turn.wait()
            self._next()
        for thread in threads:
            thread.join()

    def _act(self, actor: Actor) -> None:
        with self._turn:
            self._wait_until(BEGIN + self.random.uniform(0, 0.5), hand_over=False)
        try:
            actor()
        finally:
            with self._turn:
                self._next()

    def _wait_until(self, instant: float, *, hand_over: bool = True) -> None:
        me = next(self._ids)
        heapq.heappush(self._waiting, (instant, me))
        if hand_over:
            self._next()
        self._await(me)

    def _await(self, me: int) -> None:
        self._turn.notify_all()
        while self._current != me:
            self._turn.wait()

    def _next(self) -> None:
        if self._waiting:
            instant, self._current = heapq.heappop(self._waiting)
            self.now = max(self.now, instant)
        self._turn.notify_all()


class StageLock:
    """First come, first served."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._taken = stage, False
        self._queue: deque[int] = deque()

    def __enter__(self) -> None:
        stage = self._stage
        with stage._turn:
            if not self._taken:
                self._taken = True
                return
            me = next(stage._ids)
            self._queue.append(me)
            stage._next()
            stage._await(me)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        stage = self._stage
        with stage._turn:
            if self._queue:
                heapq.heappush(stage._waiting, (stage.now, self._queue.popleft()))
            else:
                self._taken = False


def most_in_a_second(instants: Sequence[float]) -> int:
    """How many of them lie in the most crowded sliding second."""
    return max(sum(first <= instant < first + 1.0 for instant in instants) for first in instants)
