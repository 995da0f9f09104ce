"""What a process was doing, readable after its death: a few bytes of a file that it and its killer share; and the slots
of the quota that it used.

Belongs here: those records, and the hooks that keep them. Does not: what to do with them (conductor, judge).
"""

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metering_dagster.metering.stores import rate_limiter

_FORM = struct.Struct("<BxHxxxxI40s")
STARTING, WORKING, OVER = range(3)


@dataclass(frozen=True)
class Mark:
    """Where a process stood."""

    state: int
    calls_under_way: int
    """Requests that had left, with no answer yet."""
    calls: int
    """Requests that have left so far."""
    operation: str
    """Of the last one that left."""


class Marks:
    """The record of one process, as that process keeps it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), _FORM.size)
        self._lock = threading.Lock()
        self._state, self._under_way, self._calls, self._operation = STARTING, 0, 0, b""

    def follow(self, events: Any) -> None:
        """Keep count of the requests of all clients that are made of this session from now on.

        Last of all the handlers before a send, so that waiting for a slot of the quota is no request under way.
        """
        events.register_last("before-send", self._left)
        events.register("response-received", self._answered)

    def say(self, state: int) -> None:
        """Say what is done now."""
        with self._lock:
            self._state = state
            self._write()

    def _left(self, event_name: str = "", **_: Any) -> None:
        with self._lock:
            self._under_way, self._calls = self._under_way + 1, self._calls + 1
            self._operation = event_name.rsplit(".", 1)[-1].encode()[:40]
            self._write()

    def _answered(self, **_: Any) -> None:
        with self._lock:
            self._under_way -= 1
            self._write()

    def _write(self) -> None:
        _FORM.pack_into(self._bytes, 0, self._state, self._under_way, self._calls, self._operation)


def new_marks(path: Path) -> None:
    """A record in which nothing stands yet."""
    path.write_bytes(bytes(_FORM.size))


def read_mark(path: Path) -> Mark:
    """Where it stands, or stood when it died."""
    state, under_way, calls, operation = _FORM.unpack(path.read_bytes())
    return Mark(state, under_way, calls, operation.rstrip(b"\0").decode())


def follow_slots(tell: Callable[[int, float], None]) -> None:
    """Let this process tell, before each call, of the slot of the quota that it goes in, and when it was let go."""
    wait = rate_limiter.Quota.wait

    def wait_and_tell(self: rate_limiter.Quota, *, urgent: bool = False) -> int:
        slot = wait(self, urgent=urgent)
        tell(slot, time.time())
        return slot

    rate_limiter.Quota.wait = wait_and_tell  # type: ignore[method-assign]


def note_slots(path: Path) -> None:
    """Let this process keep its slots in this file, with others: when each begins, and when its call was let go."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)  # for as long as it lives: what is added is whole

    def note(slot: int, now: float) -> None:
        os.write(file, f"{slot * rate_limiter.SLOT_SECONDS!r} {now!r}\n".encode())

    follow_slots(note)


def slots_in(path: Path) -> list[tuple[float, float]]:
    """All that were kept there."""
    return [(float(begins), float(let_go)) for begins, let_go in map(str.split, path.read_text().splitlines())]
