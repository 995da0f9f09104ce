"""The embedded queues.

Belongs here: making a queue and its dead-letter queue in the emulator. Does not: their messages.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

MAX_RECEIVE_COUNT = 5
"""A message received this often without being deleted is moved to the dead-letter queue."""


def create_queue(connect: Callable[[], Any], name: str, dead: str, **attributes: str) -> None:
    """Create a queue and its dead-letter queue, with a client of SQS from `connect`; keep existing ones."""
    with closing(connect()) as client:
        # By name: a queue of an earlier start has a URL with another port.
        if not _queue_exists(client, name):
            _create_queue(client, name, dead, attributes)


def _queue_exists(client: Any, name: str) -> bool:
    try:
        client.get_queue_url(QueueName=name)
    except client.exceptions.QueueDoesNotExist:
        return False
    return True


def _create_queue(client: Any, name: str, dead: str, attributes: Mapping[str, str]) -> None:
    dead_url = client.create_queue(QueueName=dead)["QueueUrl"]
    found = client.get_queue_attributes(QueueUrl=dead_url, AttributeNames=["QueueArn"])["Attributes"]
    redrive = {"deadLetterTargetArn": found["QueueArn"], "maxReceiveCount": MAX_RECEIVE_COUNT}
    client.create_queue(QueueName=name, Attributes={"RedrivePolicy": json.dumps(redrive), **attributes})
