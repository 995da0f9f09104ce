"""The job: what a person reads of a run, and what fails it, in words, with nothing changed and nothing received."""

import socket
from collections.abc import Iterator

import pytest
from botocore.config import Config

from metering_dagster.core.aws import clients
from metering_dagster.settings import Mode
from tests.items import ACCOUNT, LICENSE
from tests.licenses.bodies import CREATED, DEPROVISIONED, ENDED, UPDATED, a_body, of_agreement
from tests.licenses.events_world import EventsWorld
from tests.replier import Replier


@pytest.fixture
def one_attempt(monkeypatch) -> None:
    """The SDK tries once: its back-off is not what is tested."""
    once = Config(retries={"mode": "standard", "total_max_attempts": 1})
    monkeypatch.setattr(clients, "_TABLES", clients._TABLES.merge(once))
    monkeypatch.setattr(clients, "_QUEUE", clients._QUEUE.merge(once))


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def fails_untouched(events: EventsWorld, *words: str) -> str:
    """The run fails with these words; nothing was received, no row has changed. The message."""
    events.send(a_body())
    outcome = events.run()
    assert not outcome.success
    assert not [word for word in words if word not in outcome.message], outcome.message
    assert not outcome.allows_retries
    assert events.rows() == []
    assert events.waiting() == 1
    return outcome.message


def test_a_run_shows_what_it_did(events):
    events.send(a_body(), a_body(), a_body(CREATED), a_body(DEPROVISIONED), "no JSON")
    outcome = events.run()
    assert outcome.success
    counts = {"received": 5, "applied": 2, "unchanged": 1, "ignored": 1, "deleted": 4, "left": 1, "refused": 0}
    assert {name: outcome.shown[name] for name in counts} == counts
    assert outcome.shown["events"] == {UPDATED: 2, CREATED: 1, DEPROVISIONED: 1, "unreadable": 1}
    assert outcome.shown["mode"] == "live"
    assert len(outcome.warnings) == 1


def test_a_run_on_an_empty_queue_is_green(events):
    outcome = events.run()
    assert outcome.success
    assert outcome.shown["received"] == 0
    assert outcome.warnings == []


def test_a_run_is_of_the_lane_that_always_finds_a_place(events):
    tags = events.run().tags
    assert (tags["metering/lane"], tags["dagster/max_retries"]) == ("deprovision", "0")
    assert int(tags["dagster/priority"]) > 29  # the highest of any hour's


def test_what_is_left_is_named_and_no_buyer_is(events):
    events.send(
        of_agreement(ENDED, "2026-11-28T10:00:00Z"), a_body(f"Something of {LICENSE} and {ACCOUNT}"),
        *(a_body(ENDED, license=f"{LICENSE}{n}") for n in range(30)),
    )  # fmt: skip
    events.world.secrets |= {f"{LICENSE}{n}" for n in range(30)}
    outcome = events.run()  # which has looked through all of it for the whole names
    assert outcome.success
    assert outcome.shown["left"] == 32
    assert len(outcome.shown["left_messages"].splitlines()) == 21
    assert outcome.shown["left_messages"].endswith("- and 12 more")
    assert "license ****cdef0 (" not in outcome.said
    assert "of agreement ****cdef" in outcome.shown["left_messages"]
    assert len(outcome.warnings) == 20


def test_dry_run_works_as_live(events):
    events.world.configure(mode=Mode.DRY_RUN)
    events.send(a_body())
    assert events.run().shown["applied"] == 1
    assert events.left() == 0


def test_shadow_receives_nothing_and_says_why(events):
    events.world.configure(mode=Mode.SHADOW)
    fails_untouched(events, "METERING_MODE=shadow", "Nothing was received", "live or dry-run")


def test_a_queue_that_is_not_named_is_said(events):
    events.world.configure(events_queue_url=None)
    fails_untouched(events, "MARKETPLACE_EVENTS_QUEUE_URL is not set", "Nothing was received")


def test_all_missing_settings_are_named_at_once(events):
    events.world.configure(usage_table=None, aggregated_usage_table=None, subscribers_table=None, mode=None)
    fails_untouched(events, "Not set: USAGE_TABLE, AGGREGATED_USAGE_TABLE, SUBSCRIBERS_TABLE, METERING_MODE")


def test_a_queue_that_is_not_there_is_named(events):
    events.world.configure(events_queue_url="https://sqs.us-east-1.amazonaws.com/123456789012/nowhere")
    said = fails_untouched(
        events, "There is no queue https://sqs.us-east-1.amazonaws.com/****9012/nowhere", "us-east-1",
        "MARKETPLACE_EVENTS_QUEUE_URL", "Nothing was changed", "Create the queue, or set the URL right",
    )  # fmt: skip
    assert "123456789012" not in said


def test_a_table_that_is_not_there_is_named_before_anything_is_received(events):
    events.world.configure(subscribers_table="nowhere")
    fails_untouched(events, "the subscribers table nowhere", "there is no such table", "The events are still in the")


def test_a_queue_that_cannot_be_reached_is_named(events, one_attempt, closed_port, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", closed_port)
    fails_untouched(
        events, "cannot be reached", closed_port, "What is in the queue stays there", "AWS_ENDPOINT_URL_SQS"
    )


@pytest.mark.parametrize(("code", "words"), [
    ("AccessDeniedException", ["SQS refuses GetQueueAttributes", "allow sqs:GetQueueAttributes"]),
    ("AccessDenied", ["SQS refuses GetQueueAttributes", "allow sqs:GetQueueAttributes"]),
    ("InvalidClientTokenId", ["Renew the credentials"]),
    ("ExpiredToken", ["Renew the credentials"]),
    ("InvalidAddress", ["SQS does not take the queue", "Set the URL right"]),
    ("ThrottlingException", ["SQS failed GetQueueAttributes", "The next run tries again"]),
])  # fmt: skip
def test_what_sqs_refuses_is_said_in_words(events, one_attempt, monkeypatch, code, words):
    with Replier(code, f"{LICENSE} of {ACCOUNT} is not authorized") as replier:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", replier.url)
        fails_untouched(events, code, *words)


@pytest.mark.parametrize(("code", "words"), [
    ("AccessDeniedException", ["DynamoDB refuses UpdateItem", "allow dynamodb:UpdateItem"]),
    ("ExpiredTokenException", ["Renew the credentials"]),
    ("ProvisionedThroughputExceededException", ["The next run tries again"]),
])  # fmt: skip
def test_a_table_that_refuses_costs_no_receive(events, one_attempt, monkeypatch, code, words):
    with Replier(code, f"{LICENSE} of {ACCOUNT} is not authorized") as replier:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", replier.url)
        fails_untouched(events, code, *words, "The events are still in the queue")


def test_no_credentials_at_all(events, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    fails_untouched(events, "No usable AWS credentials", "MARKETPLACE_EVENTS_QUEUE_URL", "Set or renew")


def test_an_answer_that_is_not_of_sqs_is_said(events, monkeypatch, emulator):
    def answer_nothing(http_response, parsed, **_):
        parsed.pop("Attributes", None)

    events.queue().client.meta.events.register("after-call.sqs.GetQueueAttributes", answer_nothing)
    fails_untouched(events, "is not SQS", "Check AWS_ENDPOINT_URL_SQS")


def test_a_frozen_clock_never_meets_the_real_queue(events, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "https://sqs.example")
    fails_untouched(events, "METERING_NOW is refused: sqs would be called at https://sqs.example")


def test_a_run_that_applies_and_may_not_delete_fails_and_says_how_far_it_came(events):
    def refuse(params, **_):
        return {**params, "QueueUrl": params["QueueUrl"] + "-gone"}

    events.queue().client.meta.events.register("provide-client-params.sqs.DeleteMessageBatch", refuse)
    events.send(a_body())
    outcome = events.run()
    assert not outcome.success
    assert "There is no queue" in outcome.message
    assert "1 events were applied and 0 had been before" in outcome.message
    assert (outcome.shown["applied"], outcome.shown["deleted"]) == (1, 0)
    events.queue().client.meta.events.unregister("provide-client-params.sqs.DeleteMessageBatch", refuse)
    before = events.rows()
    events.come_back()
    assert events.run().shown["unchanged"] == 1
    assert (events.rows(), events.left()) == (before, 0)


def test_an_event_that_the_table_refuses_fails_the_run_after_the_others_were_applied(events):
    def refuse(params, **_):
        if params["Key"]["licenseArn"]["S"] == LICENSE:
            params["UpdateExpression"] = "this is none"
        return params

    client = events.world.deployment.tables.subscribers.client
    client.meta.events.register("provide-client-params.dynamodb.UpdateItem", refuse)
    events.send(a_body(), a_body(license=f"{LICENSE}0"))
    outcome = events.run()
    assert not outcome.success
    assert "DynamoDB refuses UpdateItem" in outcome.message
    assert "1 events were left in the queue for this; 1 events were applied" in outcome.message
    assert "License Updated of license ****cdef" in outcome.shown["refused_messages"]


@pytest.mark.parametrize(("url", "region"), [
    ("https://sqs.eu-west-1.amazonaws.com/123456789012/q", "eu-west-1"),
    ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/q", "cn-north-1"),
    ("https://sqs-fips.us-west-2.amazonaws.com/123456789012/q", "us-west-2"),
    ("https://sqs.eu-west-1.amazonaws.com.example/123456789012/q", "us-east-1"),
    ("http://127.0.0.1:4566/000000000000/q", "us-east-1"),
])  # fmt: skip
def test_the_region_is_that_of_the_queue(events, url, region):
    events.world.configure(events_queue_url=url)
    assert events.world.deployment.clients.sqs().meta.region_name == region
