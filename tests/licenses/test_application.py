"""At least once, in any order, several at once: the queue ends empty and the rows end right; what cannot be is left."""

import itertools
import random
import threading

import pytest

from metering_dagster.core.errors import TableError
from metering_dagster.devstack.queues import MAX_RECEIVE_COUNT
from metering_dagster.licenses.services.connections import events_queue_of, subscribers_of
from metering_dagster.licenses.services.event_application import apply_events
from metering_dagster.metering.services.deployment import Deployment
from tests.items import LICENSE, a_subscriber
from tests.licenses.bodies import AMENDED, CREATED, DEPROVISIONED, ENDED, UPDATED, a_body, of_agreement

LICENSES = [f"{LICENSE}{number:02}" for number in range(12)]


def story(license: str, agreement: str) -> list[str]:
    """A license's life, each event of it twice."""
    once = [
        a_body(UPDATED, "2026-11-28T08:00:00Z", license=license, agreement=agreement),
        of_agreement(AMENDED, "2026-11-28T09:00:00Z", agreement=agreement, end_time="2027-06-01T00:00:00Z"),
        of_agreement(ENDED, "2026-11-28T10:00:00Z", agreement=agreement),
        a_body(DEPROVISIONED, "2026-11-28T10:00:00Z", license=license, agreement=None),
    ]
    return once * 2


def is_told_right(row: dict) -> bool:
    return (
        row["subscriptionStatus"], row["agreementStatus"], row["endTime"], row["deprovisioningExpiry"],
        row["productCode"], row["deprovisioningPendingFlag"],
    ) == ("deprovisioning", "inactive", "2027-06-01T00:00:00Z", "2026-11-28T11:00:00Z", "product-one", "1")  # fmt: skip


def test_an_empty_queue_is_soon_done(events):
    report = events.work()
    assert (report.received, report.fault, report.notes) == (0, None, [])


def test_what_is_applied_is_deleted_and_counted(events):
    events.send(a_body(), a_body(), a_body(CREATED), a_body(DEPROVISIONED))
    report = events.work()
    assert (report.received, report.applied, report.unchanged, report.ignored, report.deleted) == (4, 2, 1, 1, 4)
    assert report.by_kind == {UPDATED: 2, CREATED: 1, DEPROVISIONED: 1}
    assert (report.left, report.refused, events.left()) == ([], [], 0)


def test_created_is_ignored_and_deleted_though_nobody_is_known(events):
    events.send(of_agreement(CREATED, "2026-11-28T10:00:00Z"))
    assert events.work().deleted == 1
    assert events.rows() == []


def test_more_than_one_batch_is_gone_through(events):
    events.send(*(a_body(license=f"{LICENSE}{number:02}") for number in range(34)))
    assert events.work().applied == 34
    assert events.left() == 0


def test_doubled_and_disordered_events_end_in_the_same_rows(events):
    seed = random.randrange(10**9)
    bodies = [body for n, license in enumerate(LICENSES) for body in story(license, f"agmt-{n}")]
    random.Random(seed).shuffle(bodies)
    events.send(*bodies)
    for _ in range(2):  # in the first an event of an agreement may come before anything of its license
        assert events.work().fault is None
        events.come_back()
    assert (events.left(), events.buried()) == (0, 0)
    assert [is_told_right(row) for row in events.rows()] == [True] * len(LICENSES), f"seed {seed}"


@pytest.mark.parametrize("order", itertools.permutations(range(4)))
def test_in_each_order_the_row_is_the_same(events, order):
    bodies = story(LICENSE, "agmt-0")
    for number in order:
        events.send(bodies[number])
        events.work()
        events.come_back()
    events.work()
    assert (events.left(), events.buried()) == (0, 0)
    assert is_told_right(events.row())


def test_several_consumers_at_once_are_as_good_as_one(events):
    bodies = [body for n, license in enumerate(LICENSES) for body in story(license, f"agmt-{n}")[:1]]
    bodies += [a_body(DEPROVISIONED, f"2026-11-28T10:{minute:02}:00Z", license=license, agreement=None)
               for license in LICENSES for minute in (30, 0, 45)]  # fmt: skip
    random.shuffle(bodies)
    events.send(*bodies, *bodies)
    reports, deployments = [], [Deployment(events.world.settings) for _ in range(4)]

    def consume(deployment: Deployment) -> None:
        reports.append(apply_events(events_queue_of(deployment), subscribers_of(deployment)))

    threads = [threading.Thread(target=consume, args=(deployment,)) for deployment in deployments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for deployment in deployments:
        deployment.clients.sqs().close()
        deployment.tables.usage.client.close()
        deployment.tables.subscribers.client.close()
    assert [report.fault for report in reports] == [None] * 4
    assert sum(report.deleted for report in reports) == 2 * len(bodies)
    assert events.left() == 0
    assert {row["deprovisioningExpiry"] for row in events.rows()} == {"2026-11-28T11:00:00Z"}
    assert len(events.rows()) == len(LICENSES)


def test_an_event_whose_license_is_not_known_yet_is_left_until_it_is(events):
    events.send(of_agreement(ENDED, "2026-11-28T10:00:00Z"))
    report = events.work()
    events.come_back()
    assert (report.deleted, len(report.left)) == (0, 1)
    assert "Purchase Agreement Ended of agreement ****cdef" in report.left[0]
    assert "no row is known" in report.left[0]
    events.send(a_body(UPDATED, "2026-11-28T09:00:00Z"))
    events.work()
    events.come_back()
    events.work()
    assert events.row()["agreementStatus"] == "inactive"
    assert (events.left(), events.buried()) == (0, 0)


def test_what_cannot_be_read_ends_in_the_dead_letter_queue_and_is_never_deleted(events):
    events.send("no JSON")
    for _ in range(MAX_RECEIVE_COUNT):
        assert events.buried() == 0
        assert events.work().left
        events.come_back()
    assert events.work().received == 0
    assert (events.left(), events.buried()) == (0, 1)


def test_a_queue_without_a_dead_letter_queue_is_said(events):
    url = events.sqs.create_queue(QueueName=f"{events.name}-alone")["QueueUrl"]
    events.sqs.send_message(QueueUrl=url, MessageBody="no JSON")
    events.world.configure(events_queue_url=url)
    assert any("the queue has no dead-letter queue" in note for note in events.work().notes)


def test_it_stops_within_the_visibility_time_out(events):
    events.send(*(a_body(license=f"{LICENSE}{number:02}") for number in range(30)))
    readings = itertools.count(0.0, 2.0)  # each look at the clock takes 2 s: 80 % of 30 s are over after twelve
    report = events.work(clock=lambda: next(readings))
    assert 10 < report.received <= 20
    assert report.not_reached == report.received - report.applied > 0
    assert any("24 s of the queue's visibility time-out of 30 s are used" in note for note in report.notes)
    assert events.left() == 30 - report.deleted == 30 - report.applied


def test_without_any_visibility_time_out_one_message_is_applied_at_least(events):
    events.configure(VisibilityTimeout="0")
    events.send(a_body(), a_body(DEPROVISIONED))
    assert events.work().applied == 1


def test_an_event_that_the_table_refuses_is_left_and_the_others_are_applied(events):
    key = LICENSES[3]

    def refuse(params, **_):
        if params["Key"]["licenseArn"]["S"] == key:
            params["UpdateExpression"] = "this is none"
        return params

    client = events.world.deployment.tables.subscribers.client
    client.meta.events.register("provide-client-params.dynamodb.UpdateItem", refuse)
    events.send(*(a_body(license=license) for license in LICENSES))
    report = events.work()
    assert (report.applied, report.deleted, len(report.refused)) == (11, 11, 1)
    assert isinstance(report.fault, TableError)
    assert events.left() == 1
    assert [row["licenseArn"] for row in events.rows()] == [license for license in LICENSES if license != key]


def test_where_everything_is_refused_no_second_batch_is_received(events):
    def refuse(params, **_):
        if params["Key"]["licenseArn"]["S"] != "-":
            params["UpdateExpression"] = "this is none"
        return params

    client = events.world.deployment.tables.subscribers.client
    client.meta.events.register("provide-client-params.dynamodb.UpdateItem", refuse)
    events.send(*(a_body(license=license) for license in LICENSES))
    report = events.work()
    assert (report.received, len(report.refused), report.deleted) == (10, 10, 0)
    assert events.waiting() == 2


def test_a_table_that_cannot_be_written_costs_no_receive(events):
    events.world.configure(subscribers_table="nowhere")
    events.send(a_body())
    report = events.work()
    assert isinstance(report.fault, TableError)
    assert "nowhere" in str(report.fault)
    assert "The events are still in the queue" in str(report.fault)
    assert (report.received, events.waiting()) == (0, 1)


def test_what_was_applied_and_could_not_be_deleted_is_told_and_harmless(events):
    events.send(a_body())

    def receive_it_too(**_):
        events.come_back()
        events.receive()  # the receipt of the first is void then

    events.queue().client.meta.events.register_first("before-call.sqs.DeleteMessageBatch", receive_it_too)
    report = events.work()
    assert (report.applied, report.deleted, report.fault) == (1, 0, None)
    assert any("was applied and not deleted (ReceiptHandleIsInvalid)" in note for note in report.notes)
    before = events.rows()
    events.come_back()
    assert events.work().unchanged == 1
    assert events.rows() == before


def test_rows_of_others_are_left_alone(events):
    events.world.put(*(a_subscriber(license) for license in LICENSES))
    before = events.rows()
    events.send(a_body(DEPROVISIONED, agreement=None))
    events.work()
    assert [row for row in events.rows() if row["licenseArn"] != LICENSE] == before
