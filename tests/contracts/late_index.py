"""An index that stands still while its table changes, as DynamoDB's may for a while.

Belongs here: how that comes about on each engine. Memory lags by itself. The servers show each change at once: there
the index that the pipeline asks is a copy of what the table held before.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from metering_dagster.core.aws.dynamodb import create_table, pages
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table
from tests.memory_stack import MemoryStack
from tests.simulation.memory import MemoryDynamoDB
from tests.world import World

_SHAPES = {
    "usage": usage_table.SHAPE,
    "aggregated": aggregated_table.SHAPE,
    "subscribers": subscribers_table.SHAPE,
}
_LONG = 3_600.0


@contextmanager
def indexes_stand_still(world: World) -> Iterator[None]:
    """What is written meanwhile reaches the tables, and no index before the end."""
    stack = world.emulator
    if isinstance(stack, MemoryStack):
        stack.tables.lag = lambda table, index: _LONG
        yield
        stack.tables.lag = None
        stack.clock.ahead += _LONG
        return
    held = MemoryDynamoDB()
    copy = held.client()
    for kind, shape in _SHAPES.items():
        create_table(copy, world.names[kind], shape)
        for page in pages(world.client.scan, TableName=world.names[kind]):
            for item in page:
                copy.put_item(TableName=world.names[kind], Item=item)

    def answer(params: dict[str, Any], **_: Any) -> Any:
        request = json.loads(params["body"])
        return (SimpleNamespace(status_code=200), copy.query(**request)) if "IndexName" in request else None

    clients = {id(table.client): table.client for table in (world.deployment.tables.usage,
                                                            world.deployment.tables.subscribers)}  # fmt: skip
    for client in clients.values():
        client.meta.events.register("before-call.dynamodb.Query", answer)
    yield
    for client in clients.values():
        client.meta.events.unregister("before-call.dynamodb.Query", answer)
