"""The queue of lifecycle events as the pipeline has it: in memory, and on the emulator's SQS."""

import uuid
from collections import Counter

import pytest

from metering_dagster.core.errors import SettingsError
from metering_dagster.devstack.queues import MAX_RECEIVE_COUNT, create_queue
from metering_dagster.licenses.stores import events_queue
from metering_dagster.licenses.stores.events_queue import BATCH, EventsQueue, Message
from tests.conftest import MEMORY, MINISTACK
from tests.contracts.engines import deviates
from tests.memory_stack import MemoryStack


class Place:
    """A queue of its own with its dead letters, and what others do with it."""

    def __init__(self, stack):
        self.name = f"contract-{uuid.uuid4().hex[:12]}"
        create_queue(stack.sqs, self.name, f"{self.name}-dead")
        self.sqs, self.url, self.dead = stack.sqs(), stack.queue_url(self.name), stack.queue_url(f"{self.name}-dead")
        self.queue = EventsQueue(self.sqs, self.url)

    def send(self, *bodies):
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def come_back(self, *messages):
        """Let the time-out of these be over now."""
        for message in messages:
            self.sqs.change_message_visibility(QueueUrl=self.url, ReceiptHandle=message.receipt, VisibilityTimeout=0)

    def receive_all(self):
        """Everything that can be received now."""
        found = []
        while some := self.queue.receive():
            found += some
        return found


@pytest.fixture(params=[MEMORY, MINISTACK])
def place(request, monkeypatch):
    monkeypatch.setattr(events_queue, "WAIT_SECONDS", 0)  # nothing comes later than it is sent
    stack = MemoryStack() if request.param == MEMORY else request.getfixturevalue("emulator")
    ours = Place(stack)
    yield ours
    ours.sqs.close()


def test_an_empty_queue_gives_nothing_and_says_so(place):
    assert place.queue.receive() == []
    state = place.queue.state()
    assert (state.waiting, state.in_other_hands, state.visibility_seconds, state.has_dead_letters) == (0, 0, 30, True)


def test_ten_come_at_a_time_and_none_twice_while_somebody_holds_it(place):
    bodies = [f'{{"number": {number}, "word": "ü"}}' for number in range(23)]
    place.send(*bodies)
    first = place.queue.receive()
    assert len(first) == BATCH
    rest = place.receive_all()
    assert Counter(message.body for message in [*first, *rest]) == Counter(bodies)
    assert len({message.id for message in [*first, *rest]}) == 23


def test_what_was_received_and_not_deleted_comes_again_as_the_same_message(place):
    place.send("one")
    (first,) = place.queue.receive()
    assert (place.queue.state().waiting, place.queue.state().in_other_hands) == (0, 1)
    place.come_back(first)
    assert (place.queue.state().waiting, place.queue.state().in_other_hands) == (1, 0)
    (again,) = place.queue.receive()
    assert (again.id, again.body) == (first.id, first.body)


def test_what_was_deleted_never_comes_again(place):
    place.send(*(str(number) for number in range(15)))
    messages = place.receive_all()
    assert place.queue.delete(messages[:BATCH]) == []
    place.come_back(*messages[BATCH:])
    assert Counter(m.body for m in place.receive_all()) == Counter(m.body for m in messages[BATCH:])


def test_deleting_nothing_is_no_request(place):
    assert EventsQueue(place.sqs, "nowhere").delete([]) == []


def test_deleting_again_is_no_fault(place, request):
    deviates(request, MINISTACK, "does not know the receipt of a message that was deleted")
    place.send("one", "two")
    messages = place.receive_all()
    assert place.queue.delete(messages) == []
    assert place.queue.delete(messages) == []


def test_what_is_not_deleted_is_told_in_words_and_its_neighbors_are(place):
    place.send("one", "two")
    one, two = place.receive_all()
    (said,) = place.queue.delete([one, Message("strange", "", "no receipt"), two])
    assert "message strange was applied and not deleted" in said
    state = place.queue.state()
    assert (state.waiting, state.in_other_hands) == (0, 0)


def test_what_is_received_too_often_is_buried_and_stops_no_neighbor(place):
    place.send("bad")
    for _ in range(MAX_RECEIVE_COUNT):
        (bad,) = place.queue.receive()
        place.come_back(bad)
    place.send("good")
    assert [message.body for message in place.receive_all()] == ["good"]
    (buried,) = place.sqs.receive_message(QueueUrl=place.dead, MaxNumberOfMessages=10)["Messages"]
    assert buried["Body"] == "bad"


def test_a_queue_that_is_not_there_is_told_with_its_setting(place):
    nowhere = EventsQueue(place.sqs, place.url.replace(place.name, "nowhere"))
    for ask in (nowhere.state, nowhere.receive):
        with pytest.raises(SettingsError, match="MARKETPLACE_EVENTS_QUEUE_URL"):
            ask()
