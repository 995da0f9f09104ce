"""Who may be billed at all."""

from datetime import timedelta
from typing import Any

import pytest

from metering_dagster.devstack.sandbox import Sandbox
from tests.devstack.sandbox.sandbox_calls import (
    ACCOUNT,
    HOUR,
    LICENSE,
    NOW,
    OTHER_LICENSE,
    PRODUCT,
    a_legacy_record,
    a_record,
    refusal,
    send,
    statuses,
)


@pytest.mark.parametrize("name", [ACCOUNT, LICENSE])
def test_who_is_not_subscribed_is_not_billed_and_the_others_are(sandbox: Sandbox, client: Any, name: str) -> None:
    sandbox.configure(unsubscribed=[name])
    other = a_record(CustomerAWSAccountId="444455556666", LicenseArn=OTHER_LICENSE)
    answer = send(client, a_record(), other)
    assert statuses(answer) == ["CustomerNotSubscribed", "Success"]
    assert "MeteringRecordId" not in answer["Results"][0]
    assert [billed.license_arn for billed in sandbox.bill()] == [OTHER_LICENSE]


def test_a_legacy_customer_may_be_without_a_subscription(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(unsubscribed=["buyer-one"])
    assert statuses(send(client, a_legacy_record(), ProductCode=PRODUCT)) == ["CustomerNotSubscribed"]
    assert sandbox.bill() == []


def test_who_subscribes_again_is_billed_from_then_on(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(unsubscribed={ACCOUNT})
    send(client, a_record(QuantityAsDecimal="5"))
    sandbox.configure(unsubscribed=[])
    assert statuses(send(client, a_record())) == ["Success"]
    assert [billed.quantity for billed in sandbox.bill()] == ["17"]


@pytest.mark.parametrize(
    ("ago", "status"),
    [
        (timedelta(0), "Success"),
        (timedelta(minutes=59, seconds=59), "Success"),
        (timedelta(hours=1), "CustomerNotSubscribed"),
        (timedelta(days=3), "CustomerNotSubscribed"),
    ],
)
def test_a_deprovisioned_license_is_taken_for_one_hour(
    sandbox: Sandbox, client: Any, ago: timedelta, status: str
) -> None:
    sandbox.configure(deprovisioned={LICENSE: NOW - ago})
    assert statuses(send(client, a_record(), a_record(LicenseArn=OTHER_LICENSE))) == [status, "Success"]
    assert len(sandbox.bill()) == 1 + (status == "Success")


def test_what_was_billed_before_stays_a_success_after_the_end(sandbox: Sandbox, client: Any) -> None:
    first = send(client, a_record())
    sandbox.configure(deprovisioned={LICENSE: NOW - timedelta(hours=2)})
    again = send(client, a_record())
    assert again["Results"][0]["MeteringRecordId"] == first["Results"][0]["MeteringRecordId"]
    assert statuses(send(client, a_record(QuantityAsDecimal="18"))) == ["DuplicateRecord"]


@pytest.mark.parametrize("name", [ACCOUNT, LICENSE])
def test_nothing_is_taken_from_before_the_subscription(sandbox: Sandbox, client: Any, name: str) -> None:
    sandbox.configure(subscribed_from={name: HOUR + timedelta(minutes=40)})
    other = a_record(CustomerAWSAccountId="444455556666", LicenseArn=OTHER_LICENSE)
    assert refusal(client, other, a_record()) == "TimestampOutOfBoundsException"
    assert (
        refusal(client, a_record(Timestamp=HOUR + timedelta(minutes=39, seconds=59))) == "TimestampOutOfBoundsException"
    )
    assert statuses(send(client, other, a_record(Timestamp=HOUR + timedelta(minutes=40)))) == ["Success", "Success"]
    assert statuses(send(client, a_record(Timestamp=HOUR + timedelta(minutes=59)))) == ["Success"]
    assert len(sandbox.bill()) == 2, "the hour is the identity"


def test_nor_of_a_legacy_customer(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(subscribed_from={"buyer-one": HOUR + timedelta(seconds=1)})
    assert refusal(client, a_legacy_record(), ProductCode=PRODUCT) == "TimestampOutOfBoundsException"
