"""The embedded stack without a process: the simulation's services in memory, behind the face of the real one.

Belongs here: how a world comes by them. Does not: what the services do (simulation/memory).
"""

import time
from dataclasses import dataclass, field
from typing import Any

from metering_dagster.core.aws.clients import Clients
from metering_dagster.devstack.stack import LocalStack
from metering_dagster.settings import Settings
from tests.simulation.memory import MemoryDynamoDB, MemoryMarketplace, MemoryQueues
from tests.simulation.memory.queues import url_of

NOWHERE = "memory://"


class RealTime:
    """The machine's own time, which a test may move on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        """Seconds since 1970."""
        return time.time() + self.ahead


@dataclass(frozen=True)
class MemoryStack(LocalStack):
    """Tables, queues and a marketplace that end with whoever holds them."""

    dynamodb_url: str = NOWHERE
    sandbox_url: str = NOWHERE
    clock: RealTime = field(default_factory=RealTime)
    tables: MemoryDynamoDB = field(init=False)
    queues: MemoryQueues = field(init=False)
    marketplace: MemoryMarketplace = field(init=False)

    def __post_init__(self) -> None:
        parts = MemoryDynamoDB(self.clock), MemoryQueues(self.clock), MemoryMarketplace(self.clock)
        for name, part in zip(("tables", "queues", "marketplace"), parts, strict=True):
            object.__setattr__(self, name, part)

    def dynamodb(self) -> Any:
        """A client of the tables."""
        return self.tables.client()

    def sqs(self) -> Any:
        """A client of the queues."""
        return self.queues.client()

    def queue_url(self, name: str) -> str:
        """The URL of the queue of this name."""
        return url_of(name)


class MemoryClients(Clients):
    """A deployment's clients, all of this stack."""

    def __init__(self, settings: Settings, stack: MemoryStack) -> None:
        super().__init__(settings)
        self.stack = stack

    def dynamodb(self, region: str | None = None) -> Any:
        """Whatever the Region: the tables are the same."""
        return self.stack.tables.client()

    def probe(self, region: str | None = None) -> Any:
        """It never has to give up."""
        return self.stack.tables.client()

    def metering(self) -> Any:
        """Of the marketplace in memory."""
        return self.stack.marketplace.client()

    def sqs(self) -> Any:
        """Of the queues in memory; the same client each time, as a real deployment has it."""
        if "_sqs" not in self.__dict__:
            self.__dict__["_sqs"] = self.stack.queues.client()
        return self.__dict__["_sqs"]
