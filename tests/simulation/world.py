"""One world from a seed: everything put together, lived through, judged.

Belongs here: the wiring, what a world reports. Does not: any of its parts.
"""

import gc
import hashlib
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from unittest.mock import patch

from metering_dagster.core import hours
from metering_dagster.core.aws.dynamodb import create_table
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table
from metering_dagster.settings import Mode
from tests.simulation.books import Books, GroupBook, moment
from tests.simulation.buyers import QUEUE, Market, some_buyers
from tests.simulation.calls import Teller
from tests.simulation.daemon import Daemon, Run
from tests.simulation.judge import Judge, Violation
from tests.simulation.kernel import Kernel
from tests.simulation.losses import Loss, Losses
from tests.simulation.memory import MemoryDynamoDB, MemoryMarketplace, MemoryQueues
from tests.simulation.memory.queues import url_of
from tests.simulation.plan import Plan, draw, within
from tests.simulation.product_time import simulated
from tests.simulation.runs import Aws, SimulatedDeployment, SimulatedSettings
from tests.simulation.sellers import AGGREGATED, SUBSCRIBERS, USAGE, Sellers, Shop
from tests.simulation.strangers import Strangers
from tests.simulation.wire import Errand, Wire

_SHAPES = {USAGE: usage_table.SHAPE, AGGREGATED: aggregated_table.SHAPE, SUBSCRIBERS: subscribers_table.SHAPE}


@dataclass(frozen=True)
class Outcome:
    """What a world came to."""

    plan: Plan
    trace: str
    """Stands for every call in its order: equal for equal worlds."""
    figures: Mapping[str, int]
    sums: Mapping[str, Decimal] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    violation: Violation | None = None
    at: str = ""
    """When that was."""

    def words(self) -> str:
        """The violation in words, with the seed and when it was."""
        return f"seed {self.plan.seed}, step {self.figures['calls']}, {self.at}: {self.violation}"


class World:
    """The parts of one world."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kernel = kernel = Kernel(plan.start)
        # Each part draws from a chance of its own: one that draws more or less changes none of the others.
        part = {name: random.Random(f"{name} {plan.seed}") for name in (
            "wire", "lag", "queue", "buyers", "market", "sellers", "daemon", "product",
        )}  # fmt: skip
        self.chance = part
        self.tables = MemoryDynamoDB(lambda: kernel.now, self._lag)
        self.queues = MemoryQueues(lambda: kernel.now, self._choose, lambda _: part["queue"].random() < 0.02)
        self.marketplace = MemoryMarketplace(lambda: kernel.now)
        for name, shape in _SHAPES.items():
            create_table(self.tables.client(), name, shape)
        self.books = Books()
        self.buyers = some_buyers(part["buyers"])
        for buyer in self.buyers:
            self.books.secrets |= {buyer.account} | ({buyer.license} if not buyer.is_legacy else set())
            if buyer.identifier:
                self.books.identifiers[buyer.license, buyer.identifier] = [buyer.account, *([""] if plan.twins else [])]
        self._secret = re.compile("|".join(re.escape(each) for each in sorted(self.books.secrets)))
        self.shop = Shop(kernel, self.tables, self.books)
        self.market = Market(kernel, plan, part["market"], self.queues, self.marketplace, self.buyers)
        self.sellers = Sellers(kernel, plan, part["sellers"], self.shop, self.buyers)
        self.judge = Judge(kernel, self.books, self.shop, self.market, plan.lock)
        self.teller = Teller(kernel, self.books, self.judge, self.marketplace)
        self.losses = Losses(kernel, plan, self.books, self.judge, self.market, self.marketplace)
        self.judge.on_loss = self._lost
        for name in _SHAPES:
            self.tables.watch(name, self.judge.changed)
        self.wire = Wire(kernel, plan, part["wire"], self)
        self.aws = Aws(self.tables, self.queues, self.marketplace)
        self.settings = SimulatedSettings(
            usage_table=USAGE, aggregated_usage_table=AGGREGATED, subscribers_table=SUBSCRIBERS, mode=Mode.LIVE,
            lock_hours=plan.lock, quantities=plan.quantities, product_code=plan.default_product,
            events_queue_url=url_of(QUEUE), clock=kernel.instant,
        )  # fmt: skip
        self.daemon = Daemon(kernel, plan, part["daemon"], self.deploy, self.says, self._over)
        self.losses.daemon = self.daemon
        self.strangers = Strangers(
            kernel, plan, self.shop, self.buyers, self.tables, self.marketplace, self.teller, self.daemon
        )  # fmt: skip
        self.steps = hashlib.blake2b(digest_size=16)

    def deploy(self, errand: Errand) -> SimulatedDeployment:
        """A deployment of its own for whoever has something to do."""
        if errand.is_run and errand.mode != "shadow":
            errand.mode = self.plan.mode_at(self.kernel.now)
        errand.region = self.plan.region_at(self.kernel.now)
        settings = replace(self.settings, mode=Mode(errand.mode))
        return SimulatedDeployment(settings, self.aws, self.wire, errand, self.kernel)

    def _over(self, run: Run) -> None:
        """A run has ended by itself."""
        self.losses.over(run)
        if run.job == "shadow" and run.doing is not None and run.errand is not None:
            told = {entry.group: entry.quantity for entry in run.doing.entries if entry.outcome == "WouldBill"}
            self.judge.foretold(run.errand, run.looks_at, told)

    def says(self, words: str) -> None:
        """Something was said where it is stored: invariant (g)."""
        found = self._secret.search(words)
        if found is not None:
            raise Violation("g", f"buyers' data is said in full: {words}")

    def carried_out(self, errand: Errand, kind: str, operation: str, request: Any, answer: Any, error: Any) -> None:
        """A call took effect."""
        self.steps.update(f"{self.kernel.now:.6f} {errand.name} {operation} {type(error).__name__}\n".encode())
        if kind == "metering":
            self.teller.carried_out(errand, request, answer, error)
            return
        if operation == "Query" and request["TableName"] == USAGE and "IndexName" not in request:
            values = request["ExpressionAttributeValues"]
            group = values[":l"]["S"], values[":p"]["S"]
            first = errand.reads[group][0] if "ExclusiveStartKey" in request else self.kernel.now
            errand.reads[group] = (first, self.kernel.now)
        self.judge.settle(errand)

    def live(self) -> None:
        """Begin, and live to the end."""
        self.market.begin()
        ends = {buyer: ending.at for buyer, ending in self.market.endings.items()}
        self.sellers.begin(ends)
        self.strangers.begin(ends)
        self.losses.begin()
        self.daemon.begin()
        self.kernel.run(self.plan.end)

    def _lost(self, group: GroupBook, since: float) -> None:
        record = group.commit is not None or bool(group.direct)
        quantity = group.commit.quantity if group.commit else group.direct[-1][1] if group.direct else Decimal(0)
        if not record:
            quantity = group.good_sum(self.kernel.now - 0.000001)
        self.losses.expired(group, since, quantity, record=record)

    def _lag(self, table: str, index: str) -> float:
        chance = self.chance["lag"]
        if within(self.plan.behind, self.kernel.now):
            return chance.uniform(0.002, self.plan.lag_most)
        drawn = chance.random()
        if drawn < 0.75 or self.kernel.now >= self.plan.calm_from:
            return chance.uniform(0.002, 0.4)
        return chance.uniform(0.4, 4.0 if drawn < 0.97 else max(self.plan.lag_most, 4.0))

    def _choose(self, visible: Any, most: int) -> Any:
        """Messages come in any order, and not always all at once."""
        these = list(visible)
        self.chance["queue"].shuffle(these)
        return these[: self.chance["queue"].randint(1, most)]


def simulate(plan: Plan | int, watch: Callable[[Any], None] | None = None) -> Outcome:
    """Live through the world of this plan, or of this seed; a violation ends it."""
    plan = draw(plan) if isinstance(plan, int) else plan
    world = World(plan)
    violation, sums = None, {}
    gc.disable()  # a world keeps what it makes: looking for what it does not keep is a quarter of its time
    with simulated(world.kernel, world.chance["product"]), patch.object(hours, "OLDEST_OFFSET", plan.oldest_offset):
        try:
            world.live()
            sums = world.losses.at_the_end(world.tables)
            if watch is not None:
                watch(world)
        except Violation as found:
            violation = found
        finally:
            world.kernel.close()
            gc.enable()
    runs = world.daemon.runs
    figures = {
        "calls": world.wire.calls, "faults": world.wire.faults, "kills": world.wire.kills,
        "stalls": world.wire.stalls, "runs": len(runs), "failed": sum(run.result == "failed" for run in runs),
        "killed": sum(run.result == "killed" for run in runs), "groups": len(world.books.groups),
        "rows": len(world.books.rows), "metering calls": world.teller.calls,
        "billed": len(world.marketplace.books.lines),
        "lost groups": len({loss.group.name for loss in world.losses.lost}),
    }  # fmt: skip
    return Outcome(
        plan, world.steps.hexdigest(), figures, sums, tuple(world.losses.lost), violation, moment(world.kernel.now)
    )
