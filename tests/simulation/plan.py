"""What is drawn for one world before it begins: when, under which settings, what fails and who is away.

Belongs here: everything that a seed decides about the surroundings. Does not: sellers and buyers (they draw their own),
the single fault of a single call (wire).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from metering_dagster.core.quantity_kind import Quantities

HOUR = 3600.0
Span = tuple[float, float]
"""From when to when, in seconds since 1970."""
_MONTHS = ((2026, 12), (2027, 1), (2024, 3), (2025, 3), (2026, 5), (2026, 11))
"""Months that begin in a simulation: after 30 and 31 days, a year's end, a February of 28 and one of 29 days."""


@dataclass(frozen=True)
class Plan:
    """One world's surroundings."""

    seed: int
    start: datetime
    """When the first usage is written."""
    hours: int
    """For how many hours usage arises."""
    tail: int = 52
    """For how many hours the world lives on, so that every window closes and a day more goes by."""
    calm: int = 28
    """How many of these, the last ones, have no fault but such as the SDK's own retries mend."""
    lock: int = 1
    quantities: Quantities = Quantities.DECIMAL
    default_product: str | None = None
    oldest_offset: int = 240
    """How far back the age-out looks: as a rule less than its 400 days, which the world has not."""
    page: int | None = None
    """How many items a page of DynamoDB has; None: as many as fit."""
    fault_rate: float = 0.06
    stubborn: float = 0.03
    """Which part of the faults outlasts the SDK's own retries."""
    kill_rate: float = 0.0003
    """How often a process is killed, for each call that it makes."""
    stall_rate: float = 0.0003
    """How often it stands still for up to an hour, and goes on as if nothing had been."""
    lag_most: float = 60.0
    """How many seconds an index is behind, at most."""
    behind: Sequence[Span] = ()
    """When each write takes up to that long to be seen in an index, and not only one in a hundred."""
    away: Sequence[Span] = ()
    """When the whole system is."""
    down: Sequence[Span] = ()
    """When the metering service is."""
    storms: Sequence[Span] = ()
    """When DynamoDB refuses every third call."""
    locked_out: Sequence[Span] = ()
    """When AWS refuses the caller's credentials for the Metering API."""
    shut_out: Sequence[Span] = ()
    """When AWS refuses them for the tables and the queue."""
    groups_an_hour: float = 6.0
    by_hand: int = 12
    """How often a person starts a run of some hour, whoever else is at it."""
    last_minute: Sequence[float] = ()
    """When a person does so for the hour that closes, within its last minute, and sellers hasten as well."""
    slow: float = 0.02
    """Which part of the metering service's answers takes seconds."""
    rush: float = 0.0
    """Which part of the tables' batches and transactions takes seconds in an hour's first minute, when everybody's
    jobs begin."""
    others: float = 0.0
    """Of which part of the groups another pipeline makes the aggregate, and cleans up what it counted by halves."""
    stamps: float = 0.0
    """Which part another pipeline rejects as a whole, by rules that are stricter."""
    odd_rows: float = 0.0
    """Which part of the rows is spelt as the reference takes it: another form of `timestamp`, an empty list of
    allocations."""
    unread: float = 0.0
    """Which part of the rows is filed under what no Query ever names."""
    deletions: float = 0.0
    """Which part of the aggregates a person deletes."""
    restores: Sequence[tuple[float, float]] = ()
    """When the aggregated table is restored from a backup, and the moment at which it is again as it was then."""
    short_lived: float = 0.0
    """Which part of the rows and of others' aggregates has a `ttl` that comes before the end of the hour's window."""
    twins: float = 0.0
    """For which part of the groups of a legacy customer usage is filed under another key of that customer as well."""
    moves: int = 0
    """How many licenses get another agreement."""
    dry: Sequence[Span] = ()
    """When the deployment is told to be in dry-run mode."""
    shadows: int = 0
    """How often a deployment in shadow mode looks at an hour."""
    elsewhere: Sequence[Span] = ()
    """When the deployment is told to be in another Region."""
    partial: bool = False
    """Whether the service refuses what is stated to be from before a buyer's subscription within its first hour."""
    odd_answers: float = 0.0
    """Which part of the metering service's answers is not what its model says."""
    partial_reads: float = 0.0
    """Which part of the batches read from a table comes back in part, with the rest of the keys unprocessed."""
    quiet: frozenset[str] = field(default_factory=frozenset)
    """What sellers and buyers do not do in this world, by the names of their habits."""

    @cached_property
    def end_of_usage(self) -> float:
        """When the last usage arises."""
        return self.start.timestamp() + self.hours * HOUR

    @cached_property
    def end(self) -> float:
        """When the world ends."""
        return self.end_of_usage + self.tail * HOUR

    @cached_property
    def calm_from(self) -> float:
        """From when on nothing is disturbed for long."""
        return self.end - self.calm * HOUR

    def is_away(self, now: float) -> bool:
        """Whether the system is."""
        return within(self.away, now)

    def mode_at(self, now: float) -> str:
        """In which mode the deployment is told to be."""
        return "dry-run" if within(self.dry, now) else "live"

    def region_at(self, now: float) -> str:
        """In which Region."""
        return "eu-west-1" if within(self.elsewhere, now) else "us-east-1"

    def is_down(self, now: float) -> bool:
        """Whether the metering service is."""
        return within(self.down, now)


def within(spans: Sequence[Span], now: float) -> bool:
    """Whether one of them holds this moment."""
    return any(since <= now < until for since, until in spans)


def draw(seed: int) -> Plan:
    """The surroundings that this seed stands for."""
    chance = random.Random(f"plan {seed}")
    hours = chance.randint(48, 56)
    if chance.random() < 0.5:
        year, month = chance.choice(_MONTHS)
        start = datetime(year, month, 1, tzinfo=UTC) - timedelta(hours=chance.randint(20, hours - 4))
    else:
        start = datetime(2026, 6, chance.randint(2, 20), chance.randint(0, 23), tzinfo=UTC)
    since, busy = start.timestamp(), (hours + 20) * HOUR

    def spans(most: int, shortest: float, longest: float) -> list[Span]:
        found = []
        for _ in range(chance.randint(0, most)):
            begin = since + chance.uniform(0, busy)
            found.append((begin, min(begin + chance.uniform(shortest, longest) * HOUR, since + busy + 4 * HOUR)))
        return found

    plan = Plan(
        seed=seed,
        start=start,
        hours=hours,
        lock=chance.choice((1, 1, 1, 2, 3, 6, 20)),
        quantities=Quantities.INTEGER if chance.random() < 0.15 else Quantities.DECIMAL,
        default_product=chance.choice((None, "prod-default")),
        oldest_offset=9600 if chance.random() < 0.05 else 240,
        page=chance.choice((None, None, 1, 2, 7)),
        fault_rate=0.06,
        stubborn=chance.choice((0.01, 0.03, 0.1)),
        kill_rate=chance.choice((0.0, 0.0003, 0.001)),
        stall_rate=chance.choice((0.0, 0.0003, 0.001)),
        lag_most=chance.choice((1.0, 20.0, 60.0)),
        away=spans(1, 1, 10),
        down=spans(1, 0.5, 24),
        storms=spans(3, 0.1, 2),
        locked_out=spans(1, 0.1, 2),
        by_hand=chance.randint(0, 20),
        last_minute=[
            (since // HOUR + chance.randint(24, hours + 24)) * HOUR - chance.uniform(2, chance.choice((14, 40)))
            for _ in range(chance.randint(0, 30))
        ],
        slow=chance.choice((0.0, 0.02, 0.5)),
        shut_out=spans(1, 0.1, 2) if chance.random() < 0.3 else (),
        behind=spans(4, 0.5, 6),
        rush=chance.choice((0.0, 0.5)),
    )
    return _with_strangers(plan, random.Random(f"strangers {seed}"))


def _with_strangers(plan: Plan, chance: random.Random) -> Plan:
    """The same with what others do to the tables and to the settings, each of it in every third or fourth world."""
    since, busy = plan.start.timestamp(), (plan.hours + 20) * HOUR
    drawn: dict[str, Any] = {}

    def some(name: str, often: float, draw_it: Callable[[], object]) -> None:
        is_drawn, value = chance.random() < often, draw_it()  # in any case, so that no habit moves the others' chance
        if is_drawn:
            drawn[name] = value

    def span(shortest: float, longest: float) -> Span:
        begin = since + chance.uniform(2 * HOUR, busy)
        return begin, min(begin + chance.uniform(shortest, longest) * HOUR, since + busy + 4 * HOUR)

    def restore() -> tuple[float, float]:
        at = since + chance.uniform(5 * HOUR, busy)
        return at, at - chance.uniform(0.2, 12) * HOUR

    some("others", 0.35, lambda: chance.choice((0.03, 0.1)))
    some("stamps", 0.3, lambda: chance.choice((0.02, 0.06)))
    some("odd_rows", 0.4, lambda: chance.choice((0.03, 0.2)))
    some("unread", 0.3, lambda: 0.01)
    some("deletions", 0.3, lambda: chance.choice((0.02, 0.06)))
    some("restores", 0.2, lambda: (restore(),))
    some("short_lived", 0.3, lambda: 0.02)
    some("twins", 0.4, lambda: 0.6)
    some("moves", 0.4, lambda: chance.randint(1, 3))
    some("dry", 0.2, lambda: (span(0.5, 8),))
    some("shadows", 0.3, lambda: chance.randint(5, 20))
    some("elsewhere", 0.2, lambda: (span(0.5, 12),))
    some("partial", 0.4, lambda: True)
    some("odd_answers", 0.3, lambda: chance.choice((0.02, 0.1)))
    some("partial_reads", 0.3, lambda: chance.choice((0.02, 0.2)))
    if "restores" in drawn:  # a backup has forgotten which twin was sent, and in which Region
        drawn.pop("twins", None)
        drawn.pop("elsewhere", None)
    return replace(plan, **drawn)
