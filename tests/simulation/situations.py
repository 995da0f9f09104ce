"""What a seed draws, told without living through its world, and seeds chosen by it.

Belongs here: the names of situations, in which of them a world gets, seeds that cover some. Does not: drawing (plan,
buyers), living (world).

A situation is drawn, not reached: whether a sweep really meets the outage, only the world itself shows.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tests.simulation.books import month_after
from tests.simulation.buyers import Market, some_buyers
from tests.simulation.kernel import Kernel
from tests.simulation.memory import MemoryMarketplace, MemoryQueues
from tests.simulation.plan import HOUR, Plan, Span, draw

_GRACE, _REOPENED = 6 * HOUR, 5 * HOUR
"""How long after a month's end its hours are taken, and how long before it the hours lie that the grace opens again."""
_LONG = 20 * HOUR
"""An outage of so many hours leaves an hour hardly a tick."""
STRANGERS = {
    "others": "others", "stamps": "stamps", "odd_rows": "odd_rows", "unread": "pending_is_no_hour",
    "deletions": "deleted", "restores": "restored", "short_lived": "ttl", "twins": "twins", "moves": "moved",
    "dry": "dry_run", "shadows": "shadow", "elsewhere": "region", "partial": "first_partial_hour",
    "odd_answers": "odd_answers", "partial_reads": "unprocessed_keys",
}  # fmt: skip
"""What others do, by the plan's names and by those of the situations."""
_IN_GRACE = ("outage", "away", "refused", "storm", "deprovisioned", "restored", "dry_run", "region")
MOST, _NEAR = 20_000, 1_000
"""So many seeds are looked at for those that cover some situations, and for a spread of all."""
SITUATIONS: tuple[str, ...] = (
    "month_end", "lock_gives_way", "no_month_end", "long_lock", "integer", "small_pages",
    "outage", "outage_of_20_hours", "outage_before_grace", "away", "away_before_grace", "refused", "storm", "by_hand",
    "last_minute", "deprovisioned", *STRANGERS.values(), *(f"{name}_in_grace" for name in _IN_GRACE),
)  # fmt: skip
"""All of them."""


def of(seed: int) -> frozenset[str]:
    """What this seed draws; costs a millisecond."""
    plan = draw(seed)
    kernel = Kernel(plan.start)
    clock = lambda: kernel.now  # noqa: E731  # three services ask it
    part = {name: random.Random(f"{name} {seed}") for name in ("buyers", "market")}
    market = Market(
        kernel, plan, part["market"], MemoryQueues(clock), MemoryMarketplace(clock), some_buyers(part["buyers"])
    )
    market.begin()
    return frozenset(_of(plan, [ending.at for ending in market.endings.values()]))


def _of(plan: Plan, ends: Sequence[float]) -> Iterator[str]:
    turn = month_after(f"{plan.start:%Y-%m-%dT%H}")
    has_turn = turn < plan.end_of_usage
    spans: dict[str, Sequence[Span]] = {
        "outage": plan.down,
        "away": plan.away,
        "refused": [*plan.locked_out, *plan.shut_out],
        "storm": plan.storms,
        "deprovisioned": [(end, end + HOUR) for end in ends],
        "restored": [(at, at + HOUR) for at, _ in plan.restores],
        "dry_run": plan.dry,
        "region": plan.elsewhere,
    }
    yield "month_end" if has_turn else "no_month_end"
    for name in _IN_GRACE:
        if spans[name]:
            yield name
        if has_turn and _meets(spans[name], turn, turn + _GRACE):
            yield f"{name}_in_grace"
    for name in ("outage", "away"):
        if has_turn and _meets(spans[name], turn - _REOPENED, turn):
            yield f"{name}_before_grace"
    told = {
        "lock_gives_way": has_turn and plan.lock > 3,
        "long_lock": plan.lock >= 6,
        "integer": plan.quantities.value == "integer",
        "small_pages": plan.page is not None and plan.page < 7,
        "outage_of_20_hours": any(until - since >= _LONG for since, until in plan.down),
        "by_hand": plan.by_hand > 0,
        "last_minute": len(plan.last_minute) > 0,
    }
    yield from (name for name, holds in told.items() if holds)
    yield from (name for field, name in STRANGERS.items() if getattr(plan, field))


def _meets(spans: Sequence[Span], since: float, until: float) -> bool:
    return any(begin < until and end > since for begin, end in spans)


def covering(wanted: Iterable[str], first: int, count: int) -> list[int]:
    """The next seeds, from the first one on, that each draw all of these; `LookupError` where there are none such."""
    wanted, found = set(wanted), list[int]()
    for seed in range(first, first + MOST):
        if wanted <= of(seed):
            found.append(seed)
            if len(found) == count:
                return found
    raise LookupError(f"only {len(found)} of the {MOST} seeds from {first} on draw {', '.join(sorted(wanted))}")


def spread(first: int, count: int, each: int) -> list[int]:
    """At most so many seeds, from the first one on: each draws a situation that fewer than `each` before it draw."""
    drawn: Counter[str] = Counter()
    found: list[int] = []
    for seed in range(first, first + _NEAR):
        these = of(seed)
        if any(drawn[name] < each for name in these):
            found.append(seed)
            drawn.update(these)
            if len(found) == count:
                break
    return found


def words(drawn: Counter[str]) -> str:
    """How many worlds drew each situation; those that none drew at the end."""
    there = [f"{name} {drawn[name]}" for name in SITUATIONS if drawn[name]]
    missing = [name for name in SITUATIONS if not drawn[name]]
    return "drawn: " + ", ".join(there) + (f"; never drawn: {', '.join(missing)}" if missing else "")


__all__ = ["SITUATIONS", "covering", "of", "spread", "words"]
