"""Looking for a bug: worlds from one seed on, until the judge finds something.

Belongs here: one world with a bug, the first of many in which it shows. Does not: the bugs, what is printed.
"""

import multiprocessing
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from tests.simulation import situations
from tests.simulation.planted.bugs import BUGS
from tests.simulation.planted.edits import edited
from tests.simulation.planted.more_bugs import MORE
from tests.simulation.planted.stranger_bugs import NEEDS, STRANGERS
from tests.simulation.world import simulate

ALL = {**BUGS, **MORE, **STRANGERS}


@dataclass(frozen=True)
class Find:
    """What the judge said, and in which world."""

    seed: int
    worlds: int
    """How many were lived through for it, this one included."""
    invariant: str
    words: str
    """The judge's, without the group's history."""


def judged(bug: str | None, seed: int) -> tuple[str, str] | None:
    """The invariant that is broken in this world and the judge's words, or None. `bug` None: the product as it is."""
    edits = [ALL[bug]()] if bug else []
    with edited(*edits):
        violation = simulate(seed).violation
    return (violation.invariant, violation.words) if violation else None


def hunt(bug: str | None, seeds: Iterable[int], jobs: int = 1) -> Find | None:
    """The first of these worlds, in their order, in which the judge finds something.

    Of a bug that needs a situation, only worlds that draw it are lived through.
    """
    needs = NEEDS.get(bug or "", frozenset())
    seeds = [seed for seed in seeds if not needs or needs <= situations.of(seed)]
    if jobs == 1:
        return _first(seeds, map(partial(judged, bug), seeds))
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        return _first(seeds, pool.imap(partial(judged, bug), seeds))


def _first(seeds: Iterable[int], verdicts: Iterable[tuple[str, str] | None]) -> Find | None:
    for worlds, (seed, verdict) in enumerate(zip(seeds, verdicts, strict=False), 1):
        if verdict is not None:
            return Find(seed, worlds, *verdict)
    return None
