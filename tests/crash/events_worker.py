"""One process that applies lifecycle events and says how far it is: the same life as that of a worker on an hour.

Announced are the requests to SQS and to the subscribers table, as they leave and as they are answered.
"""

import os
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from metering_dagster.definitions import build_defs
from metering_dagster.licenses.services.connections import events_queue_of, subscribers_of
from metering_dagster.licenses.services.event_application import apply_events
from metering_dagster.licenses.stores import events_queue
from metering_dagster.metering.services.deployment import Deployment
from tests.crash.worker import ENDED, FAILED, READY, Order, Teller

RECEIPTS = "receipts"
"""Not a point: what was received, so that a test can let it come back."""
RECEIVED = "events received"
WRITE_LEAVES, WRITE_ANSWERED = "write leaves", "write answered"
"""The first of each is the write that never happens, by which the table is tried."""
DELETE_LEAVES, DELETED = "delete leaves", "events deleted"
_POINTS = {
    "sqs": (
        ("after-call.sqs.ReceiveMessage", RECEIVED),
        ("before-call.sqs.DeleteMessageBatch", DELETE_LEAVES),
        ("after-call.sqs.DeleteMessageBatch", DELETED),
    ),
    "dynamodb": (
        ("before-call.dynamodb.UpdateItem", WRITE_LEAVES),
        ("after-call.dynamodb.UpdateItem", WRITE_ANSWERED),
    ),
}  # fmt: skip


def work_on_events(pipe: Connection, order: Order) -> None:
    """The whole life of a worker; with a `home`, as a run of Dagster's."""
    with order.log.open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(order.environment)
    events_queue.WAIT_SECONDS = 0
    try:
        deployment = Deployment(order.settings)
        teller = Teller(pipe, order)
        clients = {"sqs": deployment.clients.sqs(), "dynamodb": deployment.tables.subscribers.client}
        clients["sqs"].meta.events.register("after-call.sqs.ReceiveMessage", lambda parsed, **_: _tell(pipe, parsed))
        for service, points in _POINTS.items():
            for event, point in points:
                clients[service].meta.events.register(event, lambda point=point, **_: teller.announce(point))
        if order.waits:
            pipe.send((READY, 1, True))
            pipe.recv()
        _apply(deployment, order)
    except Exception as error:
        pipe.send((FAILED, 1, f"{type(error).__name__}: {error}"))
        raise
    pipe.send((ENDED, 1, False))


def _tell(pipe: Connection, parsed: Mapping[str, Any]) -> None:
    received = {message["MessageId"]: message["ReceiptHandle"] for message in parsed.get("Messages", [])}
    pipe.send((RECEIPTS, len(received), received))


def _apply(deployment: Deployment, order: Order) -> None:
    if order.home is None:
        report = apply_events(events_queue_of(deployment), subscribers_of(deployment))
        assert report.fault is None, report.fault
        return
    import dagster as dg

    os.environ["DAGSTER_HOME"] = str(order.home)
    defs = build_defs(settings=order.settings, resources={"metering": deployment})
    with dg.DagsterInstance.get() as instance:
        defs.resolve_job_def("apply_marketplace_events").execute_in_process(instance=instance)
