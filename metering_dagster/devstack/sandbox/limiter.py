"""The account's call quota in any sliding second, for each Region.

Belongs here: the window. Does not: the limit (world.py), the response to a throttled call (desk.py).
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable

WINDOW_SECONDS = 1.0


class Limiter:
    """Counter of admitted calls, on a monotonic clock. A refused call does not count."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._let_in: defaultdict[str, deque[float]] = defaultdict(deque)

    def admit(self, region: str, limit: int | None) -> tuple[float, bool]:
        """Return when the call arrived, and whether it is admitted."""
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
        """Return the time of a call that is refused for other reasons, and so is not counted."""
        return self._monotonic()

    def forget(self) -> None:
        """Forget all calls."""
        with self._lock:
            self._let_in.clear()
