"""Find the hours in which something is pending of the buyers whose flush window is open (no Dagster).

Belongs here: targeted Queries side by side, stopping early, running out of time. Does not: which hours are looked at
(flush_plan), what is done with what is found.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from metering_dagster.core.errors import UnreachableError
from metering_dagster.licenses.rules.flush_plan import FlushHour, hours_to_flush
from metering_dagster.metering.rules.raw_row import account_of
from metering_dagster.metering.stores.pending_index import RANGE_KEY

if TYPE_CHECKING:
    from metering_dagster.metering.services.deployment import Probe
    from metering_dagster.metering.stores.pending_index import PendingIndex

SEARCHERS = 8
"""Hours that are looked at side by side."""


@dataclass(frozen=True)
class Need:
    """The need for a flush."""

    windows: int
    """Buyers whose flush window is open."""
    pending: str | None = None
    """An hour with something pending of one of them; there may be more."""


def pending_hours(probe: "Probe", wanted: Sequence[FlushHour]) -> list[FlushHour]:
    """Return those of the hours in which something is pending, in either table. In each it stops at the first find."""
    with _searching() as search:
        found = [search.start(probe, each) for each in wanted]
        return [each for each, future in zip(wanted, found, strict=True) if future.result()]


def need_of_flush(probe: "Probe", now: datetime, seconds: float) -> Need:
    """Return whether anything at all is pending of the buyers whose window is open: it stops at the first find.

    Raises `UnreachableError` where that takes longer than `seconds`, and what the tables raise.
    """
    until = time.monotonic() + seconds
    with _searching() as search:
        try:
            windows = search.pool.submit(probe.subscribers.deprovisioning).result(timeout=seconds)
            futures = {search.start(probe, each): each for each in reversed(hours_to_flush(now, windows))}
            for future in as_completed(futures, timeout=max(until - time.monotonic(), 0.0)):
                if future.result():
                    return Need(len(windows), futures[future].bucket)
        except TimeoutError:
            raise UnreachableError(f"The look did not come to its end within {seconds:.0f} seconds.") from None
    return Need(len(windows))


class _Search:
    """The threads of one search. They end after their present Query once it is over."""

    def __init__(self) -> None:
        self.pool, self.over = ThreadPoolExecutor(SEARCHERS), threading.Event()

    def start(self, probe: "Probe", wanted: FlushHour) -> Future[bool]:
        """Look at one hour."""
        return self.pool.submit(self._look, probe, wanted)

    def _look(self, probe: "Probe", wanted: FlushHour) -> bool:
        return any(self._holds(index, wanted) for index in (probe.rows, probe.aggregates))

    def _holds(self, index: "PendingIndex", wanted: FlushHour) -> bool:
        """Read the index no further than to the first find, or to the end of the search."""
        licenses, key = [arn for arn, _ in wanted.buyers], index.shape.range_key
        for page in index.pages(wanted.bucket, licenses, f"{RANGE_KEY}, {key}"):
            if self.over.is_set():
                return False
            if any((item[RANGE_KEY]["S"], account_of(item[key]["S"])) in wanted.buyers for item in page):
                return True
        return False


@contextmanager
def _searching() -> Iterator[_Search]:
    search = _Search()
    try:
        yield search
    finally:
        search.over.set()
        search.pool.shutdown(wait=False, cancel_futures=True)
