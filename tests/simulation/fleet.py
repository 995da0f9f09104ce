"""Many worlds, each in a process of its own.

Belongs here: what of a world goes back to whoever counts them, and the sums over all. Does not: the command line
(__main__), which a process that is spawned does not read again: what it is to do must lie elsewhere.
"""

import multiprocessing
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from tests.simulation import situations
from tests.simulation.wire import JudgeBrokeError
from tests.simulation.world import Outcome, simulate


@dataclass(frozen=True)
class Lived:
    """What is told of a world."""

    seed: int
    violation: str | None
    """In words, with the command that repeats it; None: there is none."""
    trace: str = ""
    hours: int = 0
    """For how long usage arose."""
    figures: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Groups that were lost, by why."""
    sums: dict[str, Decimal] = field(default_factory=dict)
    """Quantities, by what became of them."""


def live(seed: int) -> Lived:
    """Live through the world of this seed."""
    try:
        outcome: Outcome = simulate(seed)
    except (Exception, JudgeBrokeError):  # noqa: BLE001  # whatever it is, it belongs to its seed, and the others go on
        return Lived(seed, f"seed {seed}: the product broke\n{traceback.format_exc()}\n{again(seed)}")
    return Lived(
        seed,
        f"{outcome.words()}\n{again(seed)}" if outcome.violation else None,
        outcome.trace,
        outcome.plan.hours,
        Counter(outcome.figures),
        Counter(why for why, _ in {(loss.why, loss.group.name) for loss in outcome.losses}),
        dict(outcome.sums),
    )


def again(seed: int) -> str:
    """The command that lives through this world again."""
    return f"    again: .venv/bin/python -m tests.simulation --seeds 1 --first {seed}"


def live_all(seeds: Sequence[int], jobs: int) -> Iterator[Lived]:
    """All of them, as they are done with."""
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(seeds))) as pool:
        yield from pool.imap_unordered(live, seeds)


class Totals:
    """Sums over all seeds."""

    def __init__(self) -> None:
        self.violations: dict[int, str] = {}
        self.figures: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.sums: dict[str, Decimal] = {}
        self.drawn: Counter[str] = Counter()
        """How many worlds drew each situation."""

    def add(self, lived: Lived) -> None:
        """One more."""
        if lived.violation is not None:
            self.violations[lived.seed] = lived.violation
        self.figures += lived.figures
        self.reasons += lived.reasons
        self.drawn.update(situations.of(lived.seed))
        for name, quantity in lived.sums.items():
            self.sums[name] = self.sums.get(name, Decimal(0)) + quantity

    def words(self) -> str:
        """In four or five lines."""
        lost = ", ".join(f"{why}: {count} groups" for why, count in self.reasons.most_common())
        lines = [
            ", ".join(f"{name}: {count}" for name, count in self.figures.items()),
            "quantities: " + ", ".join(f"{name} {quantity}" for name, quantity in sorted(self.sums.items())),
            f"lost, and excused: {lost or 'nothing'}",
            situations.words(self.drawn),
        ]
        if self.violations:
            lines.append(f"violations in seeds {', '.join(map(str, sorted(self.violations)))}")
        return "\n".join(lines)
