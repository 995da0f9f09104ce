"""One world of many, in a process of its own.

Belongs here: what of a world goes back to whoever counts them. Does not: the command line (__main__), which a process
that is spawned does not read again: what it is to do must lie elsewhere.
"""

import traceback
from collections import Counter
from decimal import Decimal

from tests.simulation.world import Outcome, simulate


def live(seed: int) -> tuple[int, str | None, Counter[str], Counter[str], dict[str, Decimal]]:
    """The seed, its violation in words (None: it has none), its figures, what was lost and why, its quantities."""
    try:
        outcome: Outcome = simulate(seed)
    except Exception:  # noqa: BLE001  # whatever it is, it belongs to its seed, and the others go on
        return seed, f"seed {seed}: the product broke\n{traceback.format_exc()}", Counter(), Counter(), {}
    words = outcome.words() if outcome.violation else None
    why = Counter(loss.why for loss in outcome.losses)
    return seed, words, Counter(outcome.figures), why, dict(outcome.sums)
