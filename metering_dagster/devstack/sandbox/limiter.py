"""How many calls the account may make in any sliding second, for each Region.

Belongs here: the window. Does not: how many are allowed (world.py), what a throttled call is told (desk.py).
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable

WINDOW_SECONDS = 1.0


class Limiter:
    """Counts the calls let in, on a clock that never jumps. A call turned away does not count."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._let_in: defaultdict[str, deque[float]] = defaultdict(deque)

    def admit(self, region: str, limit: int | None) -> tuple[float, bool]:
        """Return when the call arrived, and whether it is let in."""
        with self._lock:
            now = self._monotonic()
            let_in = self._let_in[region]
            while let_in and now - let_in[0] >= WINDOW_SECONDS:
                let_in.popleft()
            if limit is not None and len(let_in) >= limit:
                return now, False
            let_in.append(now)
            return now, True

    def stamp(self) -> float:
        """Return the time of a call that is turned away for other reasons, and so is not counted."""
        return self._monotonic()

    def forget(self) -> None:
        """As if no call had ever come."""
        with self._lock:
            self._let_in.clear()
