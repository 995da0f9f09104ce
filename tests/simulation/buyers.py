"""Buyers: who they are, when their licenses end, and the events that tell of it, late, doubled and out of order.

Belongs here: the marketplace's side of a license's life. Does not: what the pipeline makes of events (judge checks it).
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.simulation.kernel import Kernel
from tests.simulation.memory import MemoryMarketplace, MemoryQueues
from tests.simulation.plan import HOUR, Plan
from tests.simulation.sellers import DIMENSIONS, Buyer

QUEUE = "events"
_DEAD = "dead-letters"
UPDATED, DEPROVISIONED = "License Updated", "License Deprovisioned"


@dataclass
class Ending:
    """The end of one license."""

    at: float
    """When it was deprovisioned: the earliest time that an event states."""
    stated: set[float] = field(default_factory=set)
    """All times that events state."""
    told: list[tuple[float, float]] = field(default_factory=list)
    """When each event of it reached the queue, and the time that it states."""


def some_buyers(chance: random.Random) -> list[Buyer]:
    """Licenses of two products, one of which two accounts share; one whose product is not known; a legacy customer."""
    numbers = chance.sample(range(100000, 999999), 8)
    arns = [f"arn:aws:license-manager::{number}654321:license:l-{number:032x}" for number in numbers[:6]]
    products = ["prod-a", "prod-a", "prod-b", "prod-b", "prod-default", "prod-a"]
    buyers = [
        Buyer(arn, f"{number}{number}", product) for arn, number, product in zip(arns, numbers, products, strict=False)
    ]
    buyers.append(Buyer(arns[0], f"{numbers[6]}{numbers[6]}", "prod-a"))
    legacy = f"{numbers[7]}{numbers[7]}"
    return [*buyers, Buyer("legacyproductcode1", legacy, None), Buyer("legacyproductcode2", legacy, None, "customer-7")]


class Market:
    """Tells the service and the queue what happens to licenses."""

    def __init__(
        self,
        kernel: Kernel,
        plan: Plan,
        chance: random.Random,
        queues: MemoryQueues,
        service: MemoryMarketplace,
        buyers: Sequence[Buyer],
    ) -> None:
        self.kernel, self.plan, self.chance = kernel, plan, chance
        self.queues, self.service, self.buyers = queues, service, buyers
        self.endings: dict[tuple[str, str], Ending] = {}
        self.unsubscribed: set[str] = set()
        self.agreements: dict[tuple[str, str], str] = {}
        """The agreement that each license has, by the latest event."""
        self.no_events: list[str] = []
        """Bodies that were sent, and that no reader can make sense of."""

    def begin(self) -> None:
        """Plan all that happens to licenses."""
        dead = self.queues.create(_DEAD)
        assert dead
        policy = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:000000000000:{_DEAD}", "maxReceiveCount": "20"}
        self.queues.create(QUEUE, VisibilityTimeout="300", RedrivePolicy=json.dumps(policy))
        licenses = {buyer.license: buyer.product for buyer in self.buyers if not buyer.is_legacy}
        if self.chance.random() < 0.3:
            self.unsubscribed = {self.chance.choice([b for b in self.buyers if not b.is_legacy]).account}
        self.service.configure(licenses=licenses, dimensions=sorted(DIMENSIONS), unsubscribed=sorted(self.unsubscribed))
        start = self.plan.start.timestamp()
        if self.plan.partial:
            self._subscribe_late()
        for buyer in self.buyers:
            if not buyer.is_legacy and buyer.product != "prod-default":
                self._send(UPDATED, start - 60, start - 50, buyer)
        if "ends" in self.plan.quiet:
            return
        # A license that two accounts share never ends here: the service knows one end for both.
        shared = self.buyers[0].license
        alone = [b for b in self.buyers if not b.is_legacy and b.license != shared]
        for buyer in self.chance.sample(alone, self.chance.randint(1, 4)):
            self._end(buyer, start + self.chance.uniform(3, self.plan.hours) * HOUR)
        self._move_some([buyer for buyer in alone if (buyer.license, buyer.account) not in self.endings])
        for _ in range(2):
            body = "no event at all" if self.chance.random() < 0.5 else json.dumps({"detail-type": UPDATED})
            self.no_events.append(body)
            self._put(body, start)

    def is_buried(self, buyer: tuple[str, str], kind: str = DEPROVISIONED) -> bool:
        """Whether an event of its end was received so often in vain that it lies in the dead-letter queue."""
        return any(kind in body and buyer[1] in body for body in self.queues.bodies(_DEAD))

    def _subscribe_late(self) -> None:
        """Some buyers subscribe within an hour in which they are metered: the service takes nothing from before."""
        chance = random.Random(f"subscriptions {self.plan.seed}")
        first = self.plan.start.timestamp() // HOUR
        since = {
            buyer.license: datetime.fromtimestamp(int((first + chance.uniform(0, 30)) * HOUR), UTC)
            for buyer in chance.sample([buyer for buyer in self.buyers[1:] if not buyer.is_legacy], 3)
        }
        self.service.configure(subscribed_from=since)

    def _move_some(self, buyers: Sequence[Buyer]) -> None:
        """Some licenses get another agreement, and the one before ends: told in any order, the end of no license."""
        chance = random.Random(f"moves {self.plan.seed}")
        known = [buyer for buyer in buyers if buyer.product != "prod-default"]
        for buyer in chance.sample(known, min(self.plan.moves, len(known))):
            key, old = (buyer.license, buyer.account), _agreement(buyer)
            at = self.plan.start.timestamp() + chance.uniform(1, self.plan.hours) * HOUR
            for number in range(chance.choice((1, 1, 2))):
                at += number * chance.uniform(60, 5 * HOUR)
                new = f"{_agreement(buyer)}-{number}"
                for _ in range(chance.choice((1, 1, 2))):
                    arrives = at + chance.choice((chance.uniform(1, 120), chance.uniform(1, 3 * HOUR)))
                    self._send(UPDATED, at, arrives, buyer, agreement=new, chance=chance)
                ended = at + chance.choice((-60.0, 0.0, 60.0))
                arrives = at + chance.choice((chance.uniform(1, 120), chance.uniform(1, 3 * HOUR)))
                self._send("Purchase Agreement Ended", ended, arrives, buyer, agreement=old, chance=chance)
                self.agreements[key] = old = new

    def lost(self) -> list[str]:
        """Bodies that no reader can make sense of, and that lie neither in the queue nor among its dead letters."""
        kept = Counter(self.queues.bodies(QUEUE) + self.queues.bodies(_DEAD))
        return list((Counter(self.no_events) - kept).elements())

    def _end(self, buyer: Buyer, at: float) -> None:
        chance = self.chance
        at = float(int(at))
        ending = self.endings[buyer.license, buyer.account] = Ending(at, {at})

        def deprovision() -> None:
            known = {arn: datetime.fromtimestamp(e.at, UTC) for (arn, _), e in self.endings.items()
                     if e.at <= self.kernel.now}  # fmt: skip
            self.service.configure(deprovisioned=known)

        self.kernel.schedule(at, deprovision)
        delay = chance.choice((chance.uniform(1, 60), chance.uniform(1, 600), chance.uniform(600, 2 * HOUR)))
        self._send(DEPROVISIONED, at, at + delay, buyer)
        for _ in range(chance.randint(0, 2)):  # the same event again
            self._send(DEPROVISIONED, at, at + chance.uniform(1, 3 * HOUR), buyer)
        if chance.random() < 0.5:  # another one, which states a later time
            later = float(int(at + chance.uniform(1, 50 * 60)))
            ending.stated.add(later)
            self._send(DEPROVISIONED, later, later + chance.uniform(1, 1200), buyer)
        for _ in range(chance.randint(0, 2)):  # an update from before or after, which must not revive it
            told = at + chance.uniform(-HOUR, HOUR)
            self._send(UPDATED, told, max(told, at) + chance.uniform(1, 3 * HOUR), buyer)
        if chance.random() < 0.4:
            self._send("Purchase Agreement Ended", at, at + chance.uniform(1, HOUR), buyer)

    def _send(
        self,
        kind: str,
        time: float,
        arrives: float,
        buyer: Buyer,
        *,
        agreement: str | None = None,
        chance: random.Random | None = None,
    ) -> None:
        chance = chance or self.chance
        if kind == DEPROVISIONED:
            self.endings[buyer.license, buyer.account].told.append((arrives, float(int(time))))
        arn = buyer.license.removeprefix("arn:") if chance.random() < 0.1 else buyer.license
        detail: dict[str, Any] = {
            "acceptor": {"accountId": buyer.account},
            "agreement": {"id": agreement or _agreement(buyer)},
            "license": {"arn": arn},
            "product": {"code": buyer.product},
        }
        if kind.startswith("Purchase"):
            del detail["license"]
        content = {
            "detail-type": f"{kind} - {chance.choice(('Manufacturer', 'Proposer'))}",
            "time": f"{datetime.fromtimestamp(int(time), UTC):%Y-%m-%dT%H:%M:%SZ}",
            "detail": detail,
        }
        self._put(json.dumps(content), arrives)

    def _put(self, body: str, arrives: float) -> None:
        self.kernel.schedule(arrives, lambda: self.queues.send(QUEUE, body))


def _agreement(buyer: Buyer) -> str:
    """The first agreement of a license."""
    return f"agmt-{buyer.license[-12:]}-{buyer.account[-4:]}"
