"""A queue for each test, beside the tables of its world."""

from collections.abc import Iterator

import pytest

from metering_dagster.licenses import events_queue
from metering_dagster.local.stack import LocalStack
from tests.licenses.events_world import EventsWorld
from tests.world import World


@pytest.fixture
def events(world: World, emulator: LocalStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventsWorld]:
    """A queue with nothing in it yet. Nobody waits for a message that does not come: the emulator is one server."""
    monkeypatch.setattr(events_queue, "WAIT_SECONDS", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", emulator.dynamodb_url)
    ours = EventsWorld(world, emulator)
    yield ours
    ours.sqs.close()
