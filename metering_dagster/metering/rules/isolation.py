"""Failures of single items that must not stop the others: counted, named, at rest after twenty alike in a row. Pure.

Belongs here: which errors stop the rest, how failures are counted and worded. Does not: what an item is, what is left
pending (the use cases).
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from metering_dagster.core.errors import CallerError, ItemRefusedError, TableError
from metering_dagster.core.masking import mask_names

T = TypeVar("T")
R = TypeVar("R")
GIVE_UP = 20
"""Alike failures in a row after which their step rests for the run: an outage is not retried item by item."""
_NOTES = 20
_MOST_LETTERS = 300


def stops_the_rest(error: BaseException) -> bool:
    """Return whether the error is the caller's own trouble or ends the process: then no other item can fare better.

    Credentials, Region, a table that is gone or misshapen. A table's refusal of one item is that item's own.
    """
    if isinstance(error, ItemRefusedError):
        return False
    return isinstance(error, (CallerError, TableError)) or not isinstance(error, Exception)


def words_of(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return the kind of error and its words, on one line, masked; `secrets` are names that no form gives away."""
    said = mask_names(" ".join(str(error).split()), secrets)[:_MOST_LETTERS].rstrip(".")
    kind = type(error).__name__
    return f"{kind}: {said}" if said else kind


@dataclass
class _Row:
    """The alike failures of one step, in a row."""

    kind: str = ""
    length: int = 0
    resting: str = ""


class Failures:
    """The failures of one visit, item by item. Threads may share it."""

    def __init__(self, give_up: int = GIVE_UP) -> None:
        self.give_up = give_up
        self.by_why: Counter[str] = Counter()
        """How many items failed, by step and error, masked."""
        self.notes: list[str] = []
        """The first items that failed, each with its error."""
        self._rows: dict[str, _Row] = {}
        self._lock = threading.Lock()

    def add(self, step: str, name: str, error: Exception, secrets: Iterable[str] = (), items: int = 1) -> str:
        """Count an item that failed in this step and return why, in masked words.

        `step` completes "could not be", such as `read`; `name` is what people call the item, masked already.
        Alike are two errors of one class in one step.
        """
        why = words_of(error, secrets)
        with self._lock:
            self.by_why[f"could not be {step}: {why}"] += items
            if len(self.notes) < _NOTES:
                self.notes.append(f"{name} could not be {step}: {why}")
            row = self._rows.setdefault(step, _Row())
            kind = type(error).__name__
            row.length = row.length + 1 if row.kind == kind else 1
            row.kind = kind
            if row.length >= self.give_up and not row.resting:
                row.resting = f"not {step}, after {row.length} alike failures in a row: {why}"
        return why

    def skip(self, step: str, items: int = 1) -> None:
        """Count items that were not tried, for their step is at rest."""
        with self._lock:
            self.by_why[self._rows[step].resting] += items

    def went_well(self, step: str) -> None:
        """End the row of alike failures of this step: an item went through."""
        with self._lock:
            row = self._rows.get(step)
            if row is not None:
                row.length = 0

    def resting(self, step: str) -> str:
        """Return why nothing more is tried of this step in this run; empty while it is."""
        with self._lock:
            row = self._rows.get(step)
            return row.resting if row is not None else ""

    @contextmanager
    def isolated(self, step: str, item: T, name: Callable[[T], tuple[str, Iterable[str]]]) -> Iterator[None]:
        """Count what is raised in the block as this item's failure, and go on behind it.

        `name` is asked only then: how people call the item, masked, and what must not be shown of it. What stops the
        rest is raised. Where nothing is raised, the step's row of failures ends.
        """
        try:
            yield
        except Exception as error:
            if stops_the_rest(error):
                raise
            called, secrets = name(item)
            self.add(step, called, error, secrets)
        else:
            self.went_well(step)

    def each(
        self,
        step: str,
        items: Sequence[T],
        do: Callable[[Sequence[T]], Sequence[R]],
        name: Callable[[T], tuple[str, Iterable[str]]],
    ) -> Iterator[tuple[T, R]]:
        """Do the step for all items together, or one by one where that raises; the items that went through.

        `do` gives a result for each of its items. `name` is how people call an item, masked, and what must not be shown
        of it. Items that fail alone are counted; none is tried any more once the step rests.
        """
        results = None
        try:
            results = do(items) if items else []
        except Exception as error:
            if stops_the_rest(error):
                raise
        if results is not None:
            yield from zip(items, results, strict=True)
            return
        for item in items:
            if self.is_resting(step):
                continue
            alone: Sequence[R] = []
            with self.isolated(step, item, name):
                alone = do([item])
            yield from ((item, result) for result in alone)

    def is_resting(self, step: str, items: int = 1) -> bool:
        """Return whether nothing more is tried of this step; then so many items are counted as left by it."""
        rests = bool(self.resting(step))
        if rests:
            self.skip(step, items)
        return rests

    @property
    def total(self) -> int:
        """Return the items that failed."""
        with self._lock:
            return self.by_why.total()
