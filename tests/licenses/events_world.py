"""A world with a queue of lifecycle events: what is sent, what the job does with it, what became of the rows."""

import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import dagster as dg

from metering_dagster.definitions import build_defs
from metering_dagster.devstack.queues import create_queue
from metering_dagster.devstack.stack import LocalStack
from metering_dagster.licenses.services.connections import events_queue_of, subscribers_of
from metering_dagster.licenses.services.event_application import ApplicationReport, apply_events
from metering_dagster.licenses.stores.events_queue import EventsQueue
from metering_dagster.metering.services.deployment import Deployment
from tests.items import ACCOUNT, LICENSE, a_subscriber
from tests.world import World, last_run

JOB = "apply_marketplace_events"


@dataclass(frozen=True)
class Outcome:
    """What became of one run of the job."""

    success: bool
    message: str
    """The run's failure in its own words; empty if it succeeded."""
    allows_retries: bool
    shown: Mapping[str, Any]
    """The metadata of the op, or of its failure."""
    tags: Mapping[str, str]
    warnings: list[str]
    said: str
    """The whole event log, and the run with its tags, as it is all stored."""


class EventsWorld:
    """A queue of its own in a world, with its dead-letter queue."""

    def __init__(self, world: World, stack: LocalStack, **attributes: str) -> None:
        self.world, self.stack = world, stack
        self.name = f"events-{uuid.uuid4().hex[:12]}"
        create_queue(stack.sqs, self.name, self.dead, **attributes)
        self.url = stack.queue_url(self.name)
        self.sqs = stack.sqs()
        self._receipts: dict[str, str] = {}
        world.configure(events_queue_url=self.url)
        world.secrets |= {LICENSE, ACCOUNT}

    @property
    def dead(self) -> str:
        """The name of the dead-letter queue."""
        return f"{self.name}-dead"

    def send(self, *bodies: str) -> None:
        """Put these messages into the queue."""
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def configure(self, **attributes: str) -> None:
        """Change the queue's own attributes."""
        self.sqs.set_queue_attributes(QueueUrl=self.url, Attributes=attributes)

    def waiting(self) -> int:
        """How many messages can be received now."""
        return self._count("ApproximateNumberOfMessages", self.url)

    def left(self) -> int:
        """How many messages are in the queue, whether they can be received now or not."""
        return self.waiting() + self._count("ApproximateNumberOfMessagesNotVisible", self.url)

    def buried(self) -> int:
        """How many messages are in the dead-letter queue."""
        return self._count("ApproximateNumberOfMessages", self.stack.queue_url(self.dead))

    def _count(self, name: str, url: str) -> int:
        found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
        return int(found["Attributes"][name])

    def come_back(self, receipts: Mapping[str, str] = MappingProxyType({})) -> None:
        """Let the visibility time-out of whatever was received, here and with these receipts, be over now."""
        for receipt in [*self._receipts.values(), *receipts.values()]:
            entries = [{"Id": "0", "ReceiptHandle": receipt, "VisibilityTimeout": 0}]
            self.sqs.change_message_visibility_batch(QueueUrl=self.url, Entries=entries)
        self._receipts.clear()

    def row(self, license: str = LICENSE, account: str = ACCOUNT) -> dict[str, Any]:
        """A subscriber's row as it stands now; empty if there is none."""
        return self.world.item(a_subscriber(license, account))

    def rows(self) -> list[dict[str, Any]]:
        """All subscribers' rows."""
        return self.world.dump()["subscribers"]

    def meanwhile(self, action: Callable[[int], object], operation: str = "UpdateItem") -> None:
        """Do this just before each of the pipeline's requests of this kind to the subscribers table leaves."""
        count = 0

        def hook(**_: Any) -> object:
            nonlocal count
            count += 1
            return action(count)

        events = self.world.deployment.tables.subscribers.client.meta.events
        events.register(f"before-call.dynamodb.{operation}", hook)

    def queue(self, deployment: Deployment | None = None) -> EventsQueue:
        """The queue as the pipeline has it; what is received from it can `come_back`."""
        queue = events_queue_of(deployment or self.world.deployment)
        queue.client.meta.events.register("after-call.sqs.ReceiveMessage", self._note, unique_id="receipts")
        return queue

    def receive(self) -> None:
        """Receive what waits, as another consumer that then does nothing with it."""
        self._note(self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10))

    def _note(self, parsed: Mapping[str, Any], **_: Any) -> None:
        self._receipts |= {m["MessageId"]: m["ReceiptHandle"] for m in parsed.get("Messages", [])}

    def work(self, **how: Any) -> ApplicationReport:
        """Apply what is in the queue, without Dagster."""
        return apply_events(self.queue(), subscribers_of(self.world.deployment), **how)

    def run(self, instance: dg.DagsterInstance | None = None) -> Outcome:
        """Apply what is in the queue by the job. Whatever it says, it never names a buyer in full."""
        world = self.world
        with ExitStack() as stack:
            instance = instance or stack.enter_context(dg.DagsterInstance.ephemeral())
            job = build_defs(settings=world.settings, resources={"metering": world.deployment}).resolve_job_def(JOB)
            quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
            failure: Exception | None = None
            try:
                job.execute_in_process(instance=instance, run_config=quiet)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is the run's outcome
                failure = error
            run, log, said = last_run(instance)
        assert not [secret for secret in world.secrets if secret in said]
        shown: Mapping[str, Any] = failure.metadata if isinstance(failure, dg.Failure) else {}
        for entry in log:
            if entry.dagster_event and entry.dagster_event.is_successful_output:
                shown = entry.dagster_event.step_output_data.metadata
        words = failure.description if isinstance(failure, dg.Failure) else failure and f"{failure!r}"
        return Outcome(
            success=failure is None,
            message=words or "",
            allows_retries=failure.allow_retries if isinstance(failure, dg.Failure) else failure is not None,
            shown={name: _value(value) for name, value in shown.items()},
            tags=run.tags,
            warnings=[entry.user_message for entry in log if entry.level == 30],
            said=said,
        )


def _value(value: Any) -> Any:
    if isinstance(value, dg.TableMetadataValue):
        return {record.data["event"]: record.data["messages"] for record in value.records}
    return value.value
