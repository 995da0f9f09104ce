"""The queue that brings the marketplace's lifecycle events (SQS).

Belongs here: looking, receiving, deleting, and SQS' errors in words. Does not: what a message says (lifecycle_event),
when it may be deleted (event_application).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from metering_dagster.core.aws.dynamodb import CALLER_CODES, is_connection_error, is_credentials_error
from metering_dagster.core.errors import CallerError, MeteringError, SettingsError, UnreachableError
from metering_dagster.core.masking import mask_text, printable

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeFilterType

BATCH = 10
"""Messages that SQS gives or deletes at a time."""
WAIT_SECONDS = 1
"""For the first message: a request that waits asks all of SQS' servers, and an empty answer means an empty queue."""
KEPT = "What is in the queue stays there."
_ATTRIBUTES: "list[QueueAttributeFilterType]" = [
    "VisibilityTimeout", "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "RedrivePolicy",
]  # fmt: skip
_NO_QUEUE = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "NonExistentQueue"})
_BAD_ADDRESS = frozenset({"InvalidAddress"})
_REFUSED = CALLER_CODES | {
    "AWS.SimpleQueueService.AccessDenied", "InvalidSecurity", "KmsAccessDenied", "KMS.AccessDeniedException",
}  # fmt: skip


@dataclass(frozen=True)
class Message:
    """One message as it was received."""

    id: str
    body: str
    receipt: str


@dataclass(frozen=True)
class QueueState:
    """The state of the queue by its own counts, which are approximate."""

    waiting: int
    in_other_hands: int
    """Received by somebody and not deleted yet."""
    visibility_seconds: int
    """For how long a message that was received is shown to nobody else."""
    has_dead_letters: bool
    """Whether what is received too often is moved to a dead-letter queue."""


class EventsQueue:
    """The queue of one deployment. Errors of SQS come out as `MeteringError`s, in words."""

    def __init__(self, client: "SQSClient", url: str) -> None:
        self.client, self.url = client, url

    def state(self) -> QueueState:
        """Return how much waits, and how the queue is set up."""
        with _Explained(self):
            found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=_ATTRIBUTES)
        attributes = found.get("Attributes") or {}
        if "VisibilityTimeout" not in attributes:
            raise UnreachableError(f"What answers for {_place(self)} is not SQS. {KEPT} Check AWS_ENDPOINT_URL_SQS.")
        return QueueState(
            waiting=int(attributes.get("ApproximateNumberOfMessages", 0)),
            in_other_hands=int(attributes.get("ApproximateNumberOfMessagesNotVisible", 0)),
            visibility_seconds=int(attributes["VisibilityTimeout"]),
            has_dead_letters=bool(attributes.get("RedrivePolicy")),
        )

    def receive(self) -> list[Message]:
        """Up to ten messages; none where the queue is empty."""
        with _Explained(self):
            answer = self.client.receive_message(
                QueueUrl=self.url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=WAIT_SECONDS
            )
        return [
            Message(printable(message["MessageId"]), message["Body"], message["ReceiptHandle"])
            for message in answer.get("Messages", [])
        ]

    def delete(self, messages: Sequence[Message]) -> list[str]:
        """Delete up to ten messages. In words, which SQS did not delete; those come again, which is harmless."""
        if not messages:
            return []
        entries: list[Any] = [{"Id": str(number), "ReceiptHandle": m.receipt} for number, m in enumerate(messages)]
        with _Explained(self):
            answer = self.client.delete_message_batch(QueueUrl=self.url, Entries=entries)
        return [
            f"message {messages[int(failed['Id'])].id} was applied and not deleted ({mask_text(failed['Code'])}): "
            "it comes again, and changes nothing then"
            for failed in answer.get("Failed", [])
        ]


class _Explained:
    """A block whose errors of the AWS SDK come out as `MeteringError`s about this queue."""

    def __init__(self, queue: EventsQueue) -> None:
        self.queue = queue

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (BotoCoreError, ClientError)):
            raise _explain(error, self.queue) from error


def _place(queue: EventsQueue) -> str:
    meta = queue.client.meta
    return mask_text(
        f"the queue {queue.url} (MARKETPLACE_EVENTS_QUEUE_URL) in {meta.region_name} at {meta.endpoint_url}"
    )


def _explain(error: BotoCoreError | ClientError, queue: EventsQueue) -> MeteringError:
    where = _place(queue)
    if is_credentials_error(error):
        return CallerError(
            f"No usable AWS credentials for {where}: {str(error).rstrip('.')}. {KEPT} Set or renew the credentials."
        )
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        said = mask_text(error.response.get("Error", {}).get("Message", "")).rstrip(".")
        if code in _NO_QUEUE:
            return SettingsError(
                f"There is no {where.removeprefix('the ')}, or none that this caller may see: {code}. Nothing was "
                "changed. Create the queue, or set the URL right."
            )
        if code in _BAD_ADDRESS:
            return SettingsError(f"SQS does not take {where}: {code}: {said}. Nothing was changed. Set the URL right.")
        refused = f"{error.operation_name} on {where}: {code}: {said}. {KEPT}"
        if code in _REFUSED:
            action = error.operation_name.removesuffix("Batch")
            return CallerError(f"SQS refuses {refused} Renew the credentials, or allow sqs:{action}.")
        return UnreachableError(f"SQS failed {refused} The next run tries again.")
    said = mask_text(str(error)).rstrip(".")
    if is_connection_error(error):
        return UnreachableError(
            f"{where[0].upper()}{where[1:]} cannot be reached: {said}. {KEPT} "
            "Check the network and AWS_ENDPOINT_URL_SQS."
        )
    return CallerError(f"The AWS SDK cannot use {where}: {said}. {KEPT}")
