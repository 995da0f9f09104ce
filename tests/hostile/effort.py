"""How much of each entry's input is tried.

Belongs here: the number of examples, by default and for a long hunt. Does not: what is tried (strategies).

By default the examples are the same each time, so that a green commit stays green; `FUZZ=N` (`make fuzz`) tries N times
as many, others each time, and hypothesis prints how to see a failing one again.
"""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

TIMES = int(os.environ.get("FUZZ", "0"))


def examples(count: int, *, shrink: bool = True) -> Any:
    """A decorator: so many examples by default. `shrink`: whether a failing one is made small, which takes hundreds."""
    return settings(
        phases=set(Phase) - (set() if shrink else {Phase.shrink, Phase.explain}),
        max_examples=count * max(TIMES, 1),
        derandomize=not TIMES,
        database=None,
        deadline=None,
        # The fixtures that are shared by all examples hold no state of an example.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )
