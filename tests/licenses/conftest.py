"""A queue for each test, beside the tables of its world."""

from collections.abc import Iterator

import pytest

from metering_dagster.devstack.stack import LocalStack
from metering_dagster.licenses.stores import events_queue
from tests.licenses.events_world import EventsWorld
from tests.memory_stack import MemoryStack
from tests.world import World


@pytest.fixture
def events(world: World, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventsWorld]:
    """A queue with nothing in it yet: in memory beside a world in memory, else on the emulator.

    Nobody waits for a message that does not come: the emulator is one server.
    """
    monkeypatch.setattr(events_queue, "WAIT_SECONDS", 0)
    in_memory = isinstance(world.emulator, MemoryStack)
    stack: LocalStack = world.emulator if in_memory else request.getfixturevalue("emulator")
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", stack.dynamodb_url)
    ours = EventsWorld(world, stack)
    yield ours
    ours.sqs.close()
