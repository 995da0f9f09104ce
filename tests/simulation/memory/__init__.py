"""AWS in memory: what the stores speak to in the simulation, and a third engine for their tests.

Belongs here: clients with boto3's method names, answers and errors, for the operations that the product and its tests
use, and the services behind them; every clock is an argument. Does not: faults, workers, sellers (the simulation).

    tables = MemoryDynamoDB(clock)
    client = tables.client(around=lambda operation, request, call: call())
"""

from tests.simulation.memory.calls import Around
from tests.simulation.memory.dynamodb import MemoryDynamoDB
from tests.simulation.memory.marketplace import MemoryMarketplace
from tests.simulation.memory.queues import MemoryQueues

__all__ = ["Around", "MemoryDynamoDB", "MemoryMarketplace", "MemoryQueues"]
