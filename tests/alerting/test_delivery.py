"""An alert over each channel: to a real server, to a real topic; and what a refusal says."""

import json
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config

from metering_dagster.alerting.stores.delivery import ATTEMPTS, LogChannel, SnsChannel, WebhookChannel
from metering_dagster.core.aws.clients import Clients
from metering_dagster.core.errors import CallerError, SettingsError, UnreachableError
from metering_dagster.devstack.stack import DUMMY_CREDENTIAL, LocalStack
from metering_dagster.settings import Settings
from tests.alerting.test_alert_text import RUN, an_alert
from tests.items import ACCOUNT, LICENSE
from tests.webhook import SECRET, Webhook


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as ours:
        yield ours


def send(url: str, answer_seconds: float = 4.0, **changes: str) -> None:
    WebhookChannel(url, answer_seconds=answer_seconds, sleep=lambda _: None).send(an_alert(**changes))


def test_a_webhook_gets_text_and_parts(webhook):
    send(webhook.url)
    (taken,) = webhook.taken
    assert taken["text"].startswith("Metering: meter_hour failed for 2026-11-28T10\n")
    assert (taken["hour"], taken["link"]) == ("2026-11-28T10", f"/runs/{RUN}")


def test_a_proxy_of_the_machine_is_no_way_to_itself(webhook, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    send(webhook.url)
    assert webhook.taken


@pytest.mark.parametrize(("status", "kind", "attempts"), [
    (503, UnreachableError, ATTEMPTS), (429, UnreachableError, ATTEMPTS), (404, CallerError, 1), (302, CallerError, 1),
])  # fmt: skip
def test_a_refusal_names_the_host_and_the_status_and_never_the_address(webhook, status, kind, attempts):
    webhook.status, webhook.location = status, webhook.url + "/elsewhere"
    with pytest.raises(kind, match=f"webhook at 127.0.0.1 .*{status}") as refused:
        send(webhook.url)
    assert webhook.asked == attempts
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_webhook_that_hangs_is_given_up_soon(webhook):
    webhook.delay = 0.3
    with pytest.raises(UnreachableError, match=r"no answer within 0\.1 s"):
        send(webhook.url, answer_seconds=0.1)


def test_a_webhook_that_is_down_is_unreachable():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(UnreachableError, match="Connection refused") as refused:
        send(f"http://127.0.0.1:{port}/{SECRET}")
    assert SECRET not in str(refused.value)


def test_the_log_takes_the_text():
    said: list[str] = []
    LogChannel(said.append).send(an_alert())
    assert said[0].startswith("Metering: meter_hour failed")


# SNS.


class Topic:
    """A topic with a queue that hears all of it."""

    def __init__(self, emulator: LocalStack, fifo: bool = False) -> None:
        def client(service: str) -> Any:
            return boto3.client(
                service, endpoint_url=emulator.dynamodb_url, region_name=emulator.region, config=Config(proxies={}),
                aws_access_key_id=DUMMY_CREDENTIAL, aws_secret_access_key=DUMMY_CREDENTIAL,
            )  # type: ignore[call-overload]  # fmt: skip

        self.sns, self.sqs = client("sns"), client("sqs")
        name = f"alerts-{uuid.uuid4().hex[:8]}" + (".fifo" if fifo else "")
        kind = {"FifoTopic": "true"} if fifo else {}
        self.arn = self.sns.create_topic(Name=name, Attributes=kind)["TopicArn"]
        kind = {"FifoQueue": "true"} if fifo else {}
        self._queue = self.sqs.create_queue(QueueName=name, Attributes=kind)["QueueUrl"]
        attributes = self.sqs.get_queue_attributes(QueueUrl=self._queue, AttributeNames=["QueueArn"])["Attributes"]
        self.sns.subscribe(TopicArn=self.arn, Protocol="sqs", Endpoint=attributes["QueueArn"])

    def heard(self) -> list[dict[str, str]]:
        """What was published since."""
        found = []
        while messages := self.sqs.receive_message(QueueUrl=self._queue, MaxNumberOfMessages=10).get("Messages", []):
            for message in messages:
                self.sqs.delete_message(QueueUrl=self._queue, ReceiptHandle=message["ReceiptHandle"])
                found.append(json.loads(message["Body"]))
        return found


@pytest.fixture
def clients(emulator, monkeypatch, _models_read_once) -> Clients:
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)
    return Clients(Settings())


def publish(clients: Clients, arn: str, **changes: str) -> None:
    SnsChannel(arn, lambda: clients.sns(arn.split(":")[3])).send(an_alert(**changes))


def test_a_topic_hears_subject_and_text(emulator, clients):
    topic = Topic(emulator)
    publish(clients, topic.arn, cause=f"Refused: {LICENSE} of {ACCOUNT}.")
    (heard,) = topic.heard()
    assert heard["Subject"] == "Metering: meter_hour failed for 2026-11-28T10"
    assert "\nlane: regular\n" in heard["Message"]
    assert LICENSE not in heard["Message"]
    assert ACCOUNT not in heard["Message"]


def test_a_fifo_topic_hears_a_repeated_alert_once(emulator, clients):
    topic = Topic(emulator, fifo=True)
    publish(clients, topic.arn)
    publish(clients, topic.arn)
    assert len(topic.heard()) == 1


def test_a_topic_that_does_not_exist_is_named_without_its_account(clients):
    arn = "arn:aws:sns:us-east-1:123412341234:nowhere"
    with pytest.raises(CallerError, match=r"topic nowhere .* in us-east-1 does not exist") as refused:
        publish(clients, arn)
    assert "123412341234" not in str(refused.value)


def test_a_topic_that_cannot_be_reached_says_so(clients, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SNS", "http://127.0.0.1:1")
    with pytest.raises(UnreachableError, match="cannot be reached"):
        publish(clients, "arn:aws:sns:us-east-1:123412341234:nowhere")


def test_a_frozen_clock_publishes_on_loopback_only(clients, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL_SNS")
    frozen = Clients(Settings(frozen_now=Settings().now()))
    with pytest.raises(SettingsError, match="METERING_NOW is refused: sns"):
        publish(frozen, "arn:aws:sns:us-east-1:123412341234:nowhere")
