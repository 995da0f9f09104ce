"""What is one record and what is two, and that the first quantity is the one billed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metering_dagster.devstack.sandbox import Sandbox
from tests.devstack.sandbox.sandbox_calls import (
    HOUR,
    OTHER_LICENSE,
    PRODUCT,
    a_legacy_record,
    a_record,
    client_of,
    send,
    statuses,
)


def quantities(sandbox: Sandbox) -> list[str]:
    return [record.quantity for record in sandbox.bill()]


def test_a_record_is_billed_as_it_was_sent(sandbox: Sandbox, client: Any) -> None:
    answer = send(client, a_record(Timestamp=HOUR + timedelta(minutes=59), QuantityAsDecimal="17.420"))
    (result,) = answer["Results"]
    (billed,) = sandbox.bill()
    assert result["Status"] == "Success"
    assert result["UsageRecord"] == a_record(Timestamp=HOUR + timedelta(minutes=59), QuantityAsDecimal="17.420")
    assert answer["UnprocessedRecords"] == []
    assert (billed.region, billed.product_code, billed.hour) == ("us-east-1", None, "2026-11-20T08")
    assert (billed.quantity, billed.allocations) == ("17.42", None)
    assert billed.metering_record_id == result["MeteringRecordId"]


@pytest.mark.parametrize(
    "again",
    [
        {"QuantityAsDecimal": "17"},
        {"QuantityAsDecimal": "17.0"},
        {"QuantityAsDecimal": "17.000000"},
        {"QuantityAsDecimal": None, "Quantity": 17},
        {"Timestamp": HOUR + timedelta(minutes=59, seconds=59)},
        {"UsageAllocations": [{"AllocatedUsageQuantityAsDecimal": "17"}]},
    ],
)
def test_the_same_quantity_again_is_a_success_and_bills_nothing(
    sandbox: Sandbox, client: Any, again: dict[str, Any]
) -> None:
    first = send(client, a_record())
    second = send(client, a_record(**again))
    assert statuses(second) == ["Success"]
    assert second["Results"][0]["MeteringRecordId"] == first["Results"][0]["MeteringRecordId"]
    assert quantities(sandbox) == ["17"]


@pytest.mark.parametrize("other", ["18", "17.000001", "0", "170"])
def test_another_quantity_is_a_duplicate_and_the_first_stays_billed(sandbox: Sandbox, client: Any, other: str) -> None:
    send(client, a_record())
    answer = send(client, a_record(QuantityAsDecimal=other))
    assert statuses(answer) == ["DuplicateRecord"]
    assert "MeteringRecordId" not in answer["Results"][0]
    assert quantities(sandbox) == ["17"]


def test_of_two_records_of_one_identity_in_one_call_the_first_is_billed(sandbox: Sandbox, client: Any) -> None:
    answer = send(client, a_record(), a_record(QuantityAsDecimal="18"), a_record(QuantityAsDecimal="17.0"))
    assert statuses(answer) == ["Success", "DuplicateRecord", "Success"]
    assert quantities(sandbox) == ["17"]


@pytest.mark.parametrize(
    "other",
    [
        {"Dimension": "API_CALLS"},
        {"Dimension": "api_calls "},
        {"CustomerAWSAccountId": "0111122223333"},
        {"LicenseArn": OTHER_LICENSE},
        {"Timestamp": HOUR + timedelta(hours=1)},
    ],
)
def test_whatever_differs_in_its_identity_is_billed_by_itself(
    sandbox: Sandbox, client: Any, other: dict[str, Any]
) -> None:
    assert statuses(send(client, a_record(), a_record(**other, QuantityAsDecimal="5"))) == ["Success", "Success"]
    assert quantities(sandbox) == ["17", "5"]


def test_each_region_has_its_own_bill(sandbox: Sandbox, client: Any) -> None:
    elsewhere = client_of(sandbox, "eu-central-1")
    send(client, a_record())
    assert statuses(send(elsewhere, a_record(QuantityAsDecimal="18"))) == ["Success"]
    assert [(billed.region, billed.quantity) for billed in sandbox.bill()] == [
        ("us-east-1", "17"),
        ("eu-central-1", "18"),
    ]
    elsewhere.close()


def test_a_product_code_beside_a_license_bills_a_second_time(sandbox: Sandbox, client: Any) -> None:
    send(client, a_record())
    assert statuses(send(client, a_record(), ProductCode=PRODUCT)) == ["Success"]
    assert [(billed.product_code, billed.quantity) for billed in sandbox.bill()] == [(None, "17"), (PRODUCT, "17")]


def test_a_legacy_record_bills_its_identifier_under_its_product(sandbox: Sandbox, client: Any) -> None:
    send(client, a_legacy_record(), ProductCode=PRODUCT)
    assert statuses(send(client, a_legacy_record(QuantityAsDecimal="18"), ProductCode=PRODUCT)) == ["DuplicateRecord"]
    assert statuses(send(client, a_legacy_record(QuantityAsDecimal="18"), ProductCode="product-two")) == ["Success"]
    first, second = sandbox.bill()
    assert (first.product_code, first.license_arn, first.customer_aws_account_id) == (PRODUCT, None, None)
    assert (first.customer_identifier, first.quantity) == ("buyer-one", "17")
    assert (second.product_code, second.quantity) == ("product-two", "18")


@pytest.mark.parametrize("dimension", ["#", "a" * 255, "é" * 255, "with space\nand line", "nul\0inside", "\U0001f600"])
def test_a_dimension_takes_any_character(sandbox: Sandbox, client: Any, dimension: str) -> None:
    send(client, a_record(Dimension=dimension))
    assert statuses(send(client, a_record(Dimension=dimension, QuantityAsDecimal="18"))) == ["DuplicateRecord"]
    assert [billed.dimension for billed in sandbox.bill()] == [dimension]


def test_of_many_callers_racing_for_one_record_exactly_one_is_billed(sandbox: Sandbox) -> None:
    racers = 8
    clients = [client_of(sandbox) for _ in range(racers)]
    for round_number in range(5):
        start = threading.Barrier(racers)
        record = {"Dimension": f"round-{round_number}"}

        def race(place: int, start: threading.Barrier = start, record: dict[str, Any] = record) -> str:
            start.wait()
            return statuses(send(clients[place], a_record(**record, QuantityAsDecimal=str(place))))[0]

        with ThreadPoolExecutor(racers) as pool:
            outcomes = list(pool.map(race, range(racers)))
        assert sorted(outcomes) == ["DuplicateRecord"] * (racers - 1) + ["Success"]
        assert sandbox.bill()[round_number].quantity == str(outcomes.index("Success"))
    for each in clients:
        each.close()


SPELLINGS = st.decimals(min_value=0, max_value=3, places=1).flatmap(
    lambda value: st.integers(1, 6).map(lambda places: format(value, f".{places}f"))
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SPELLINGS, min_size=1, max_size=25))
def test_any_spelling_of_the_first_quantity_is_success_and_any_other_a_duplicate(
    sandbox: Sandbox, client: Any, spellings: list[str]
) -> None:
    sandbox.reset()
    sandbox.configure(calls_per_second=None)
    answer = send(client, *(a_record(QuantityAsDecimal=spelling) for spelling in spellings))
    same = [Decimal(spelling) == Decimal(spellings[0]) for spelling in spellings]
    assert statuses(answer) == ["Success" if each else "DuplicateRecord" for each in same]
    (billed,) = sandbox.bill()
    assert Decimal(billed.quantity) == Decimal(spellings[0])
