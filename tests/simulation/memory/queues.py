"""SQS in memory: the service, and its client.

Belongs here: standard queues with their visibility time-out and dead letters, messages that come out of order or again.
Does not: what a message says.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any

from tests.simulation.memory.calls import Answer, Around, MemoryClient, Request

REGION = "us-east-1"
ACCOUNT = "000000000000"
MOST_MESSAGES = 10
_DEFAULTS = {"VisibilityTimeout": "30", "MessageRetentionPeriod": "345600", "DelaySeconds": "0"}
_NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


@dataclass
class Held:
    """A message in a queue."""

    id: str
    body: str
    sent: float
    visible_at: float
    received: int = 0
    receipt: str = ""
    """The last one that was given out."""


Choose = Callable[[Sequence[Held], int], Sequence[Held]]
"""Which of the visible messages, oldest first, a request for so many gets."""
Again = Callable[[Held], bool]
"""Whether a message that was just deleted comes once more, as SQS allows itself."""


def first_come(visible: Sequence[Held], most: int) -> Sequence[Held]:
    """The oldest, as many as were asked for."""
    return visible[:most]


@dataclass
class Queue:
    """One standard queue."""

    name: str
    attributes: dict[str, str]
    messages: list[Held] = field(default_factory=list)

    @property
    def visibility(self) -> float:
        """For how many seconds a message that was received is shown to nobody else."""
        return float(self.attributes["VisibilityTimeout"])


class MemoryQueues:
    """Queues that all clients share."""

    def __init__(
        self, clock: Callable[[], float] = time.time, choose: Choose = first_come, again: Again = lambda message: False
    ) -> None:
        """`clock`: seconds since 1970; `choose` and `again` are how order and the number of copies are disturbed."""
        self.clock, self.choose, self.again = clock, choose, again
        self.queues: dict[str, Queue] = {}
        self.lock = threading.RLock()
        self._numbers = itertools.count(1)

    def client(self, around: Around | None = None, region: str = REGION) -> "SQSClient":
        """A client of its own, as one process has it."""
        return SQSClient(self, around, region)

    def create(self, name: str, **attributes: str) -> str:
        """A queue of this name; its URL."""
        self.queues.setdefault(name, Queue(name, {**_DEFAULTS, **attributes}))
        return url_of(name)

    def send(self, name: str, body: str, delay: float = 0.0) -> Held:
        """Put a message in, visible after so many seconds."""
        now = self.clock()
        message = Held(f"00000000-0000-0000-0000-{next(self._numbers):012d}", body, now, now + delay)
        self.queues[name].messages.append(message)
        return message

    def bodies(self, name: str) -> list[str]:
        """What the queue holds, visible or not."""
        return [message.body for message in self.queues[name].messages]

    def receive(self, queue: Queue, most: int, visibility: float | None = None) -> list[Held]:
        """Give out what can be seen, and bury what was given out too often."""
        now = self.clock()
        policy = json.loads(queue.attributes.get("RedrivePolicy") or "{}")
        visible = []
        for message in [each for each in queue.messages if each.visible_at <= now]:
            if policy and message.received >= int(policy["maxReceiveCount"]):
                queue.messages.remove(message)
                message.receipt, message.received = "", 0
                self.queues[policy["deadLetterTargetArn"].split(":")[-1]].messages.append(message)
            else:
                visible.append(message)
        given = list(self.choose(visible, most))
        for message in given:
            message.received += 1
            message.visible_at = now + (queue.visibility if visibility is None else visibility)
            message.receipt = f"{queue.name}:{message.id}:{next(self._numbers)}"
        return given

    def delete(self, queue: Queue, receipt: str) -> None:
        """Delete the message of this receipt, whoever received it since; one that is gone is gone."""
        message = self._find(queue, receipt)
        if message is not None and not self.again(message):
            queue.messages.remove(message)

    def show_after(self, queue: Queue, receipt: str, seconds: float) -> bool:
        """Let a message be seen again after so many seconds; False where it is not in somebody's hands."""
        message = self._find(queue, receipt)
        if message is None or message.visible_at <= self.clock():
            return False
        message.visible_at = self.clock() + seconds
        return True

    def _find(self, queue: Queue, receipt: str) -> Held | None:
        # An old receipt still deletes: SQS may take it or not, and the worse case is that it does.
        name = receipt.split(":")[1]
        return next((each for each in queue.messages if each.id == name), None)


def url_of(name: str) -> str:
    """The URL of the queue of this name."""
    return f"memory://sqs/{ACCOUNT}/{name}"


class SQSClient(MemoryClient):
    """boto3's method names and answers."""

    service = "sqs"

    def __init__(self, queues: MemoryQueues, around: Around | None, region: str) -> None:
        super().__init__(around, region)
        self.queues = queues

    def create_queue(self, **request: Any) -> Answer:
        """One that exists is left alone."""
        return self._call("CreateQueue", request, lambda given: {
            "QueueUrl": self.queues.create(given["QueueName"], **given.get("Attributes", {}))
        })  # fmt: skip

    def get_queue_url(self, **request: Any) -> Answer:
        """By its name."""
        return self._call("GetQueueUrl", request, lambda given: {
            "QueueUrl": url_of(self._queue("GetQueueUrl", given["QueueName"]).name)
        })  # fmt: skip

    def get_queue_attributes(self, **request: Any) -> Answer:
        """Those that are asked for; the counts are exact."""
        return self._call("GetQueueAttributes", request, self._get_queue_attributes)

    def set_queue_attributes(self, **request: Any) -> Answer:
        """At once."""
        return self._call("SetQueueAttributes", request, self._set_queue_attributes)

    def send_message(self, **request: Any) -> Answer:
        """To the end of the queue."""
        return self._call("SendMessage", request, self._send_message)

    def receive_message(self, **request: Any) -> Answer:
        """What is visible now; nobody waits."""
        return self._call("ReceiveMessage", request, self._receive_message)

    def delete_message(self, **request: Any) -> Answer:
        """By its receipt."""
        return self._call("DeleteMessage", request, self._delete_message)

    def delete_message_batch(self, **request: Any) -> Answer:
        """Up to ten."""
        return self._call("DeleteMessageBatch", request, self._delete_message_batch)

    def change_message_visibility(self, **request: Any) -> Answer:
        """Of a message that somebody holds."""
        return self._call("ChangeMessageVisibility", request, self._change_message_visibility)

    def change_message_visibility_batch(self, **request: Any) -> Answer:
        """Up to ten."""
        return self._call("ChangeMessageVisibilityBatch", request, self._change_message_visibility_batch)

    def _call(self, operation: str, request: Request, work: Callable[[Request], Answer]) -> Answer:
        def answer(given: Request) -> Answer:
            with self.queues.lock:
                return {**work(given), "ResponseMetadata": {"HTTPStatusCode": 200, "RequestId": ""}}

        return self._invoke(operation, request, answer)

    def _queue(self, operation: str, place: str) -> Queue:
        found = self.queues.queues.get(place.rsplit("/", 1)[-1])
        if found is None:
            said = "The specified queue does not exist."
            failure = self.exceptions.QueueDoesNotExist(
                {"Error": {"Code": _NO_QUEUE, "Message": said}, "ResponseMetadata": {"HTTPStatusCode": 400}}, operation
            )
            raise failure
        return found

    def _get_queue_attributes(self, request: Request) -> Answer:
        queue = self._queue("GetQueueAttributes", request["QueueUrl"])
        now = self.queues.clock()
        waiting = sum(each.visible_at <= now for each in queue.messages)
        hidden = [each for each in queue.messages if each.visible_at > now]
        all_of_them = {
            **queue.attributes,
            "QueueArn": f"arn:aws:sqs:{self.meta.region_name}:{ACCOUNT}:{queue.name}",
            "ApproximateNumberOfMessages": str(waiting),
            "ApproximateNumberOfMessagesNotVisible": str(sum(each.received > 0 for each in hidden)),
            "ApproximateNumberOfMessagesDelayed": str(sum(each.received == 0 for each in hidden)),
        }
        asked = request.get("AttributeNames", [])
        shown = all_of_them if "All" in asked else {name: all_of_them[name] for name in asked if name in all_of_them}
        return {"Attributes": shown}

    def _set_queue_attributes(self, request: Request) -> Answer:
        self._queue("SetQueueAttributes", request["QueueUrl"]).attributes.update(request["Attributes"])
        return {}

    def _send_message(self, request: Request) -> Answer:
        queue = self._queue("SendMessage", request["QueueUrl"])
        delay = float(request.get("DelaySeconds", queue.attributes["DelaySeconds"]))
        return {"MessageId": self.queues.send(queue.name, request["MessageBody"], delay).id}

    def _receive_message(self, request: Request) -> Answer:
        queue = self._queue("ReceiveMessage", request["QueueUrl"])
        most = request.get("MaxNumberOfMessages", 1)
        if not 1 <= most <= MOST_MESSAGES:
            raise self.error("ReceiveMessage", "InvalidParameterValue", f"MaxNumberOfMessages must be 1 to 10: {most}")
        found = self.queues.receive(queue, most, request.get("VisibilityTimeout"))
        messages = [
            {
                "MessageId": each.id,
                "ReceiptHandle": each.receipt,
                "Body": each.body,
                "MD5OfBody": md5(each.body.encode(), usedforsecurity=False).hexdigest(),
            }
            for each in found
        ]
        return {"Messages": messages} if messages else {}

    def _delete_message(self, request: Request) -> Answer:
        queue = self._queue("DeleteMessage", request["QueueUrl"])
        if _is_foreign(queue, request["ReceiptHandle"]):
            raise self.error("DeleteMessage", "ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
        self.queues.delete(queue, request["ReceiptHandle"])
        return {}

    def _delete_message_batch(self, request: Request) -> Answer:
        queue = self._queue("DeleteMessageBatch", request["QueueUrl"])
        entries = self._entries("DeleteMessageBatch", request)
        answer: dict[str, list[Any]] = {"Successful": [], "Failed": []}
        for entry in entries:
            if _is_foreign(queue, entry["ReceiptHandle"]):
                answer["Failed"].append({"Id": entry["Id"], "Code": "ReceiptHandleIsInvalid", "SenderFault": True})
            else:
                self.queues.delete(queue, entry["ReceiptHandle"])
                answer["Successful"].append({"Id": entry["Id"]})
        return {name: each for name, each in answer.items() if each}

    def _change_message_visibility(self, request: Request) -> Answer:
        queue = self._queue("ChangeMessageVisibility", request["QueueUrl"])
        if not self.queues.show_after(queue, request["ReceiptHandle"], float(request["VisibilityTimeout"])):
            raise self.error("ChangeMessageVisibility", "AWS.SimpleQueueService.MessageNotInflight")
        return {}

    def _change_message_visibility_batch(self, request: Request) -> Answer:
        queue = self._queue("ChangeMessageVisibilityBatch", request["QueueUrl"])
        answer: dict[str, list[Any]] = {"Successful": [], "Failed": []}
        for entry in self._entries("ChangeMessageVisibilityBatch", request):
            if self.queues.show_after(queue, entry["ReceiptHandle"], float(entry["VisibilityTimeout"])):
                answer["Successful"].append({"Id": entry["Id"]})
            else:
                code = "AWS.SimpleQueueService.MessageNotInflight"
                answer["Failed"].append({"Id": entry["Id"], "Code": code, "SenderFault": True})
        return {name: each for name, each in answer.items() if each}

    def _entries(self, operation: str, request: Request) -> list[Any]:
        entries = request["Entries"]
        if not 1 <= len(entries) <= MOST_MESSAGES:
            code = "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"
            raise self.error(operation, code if entries else "AWS.SimpleQueueService.EmptyBatchRequest")
        if len({entry["Id"] for entry in entries}) < len(entries):
            raise self.error(operation, "AWS.SimpleQueueService.BatchEntryIdsNotDistinct")
        return list(entries)


def _is_foreign(queue: Queue, receipt: str) -> bool:
    return receipt.split(":", maxsplit=1)[0] != queue.name or receipt.count(":") != 2
