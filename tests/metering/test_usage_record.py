"""A stored aggregate as a record: its contract, whoever wrote it, and its shape in the API."""

import json
from datetime import timedelta
from decimal import Decimal
from itertools import combinations

import botocore.session
import pytest
from botocore.serialize import create_serializer

from metering_dagster.core.hours import HOUR
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.quantities import Allocation
from metering_dagster.metering.rules.statuses import Reason
from metering_dagster.metering.rules.usage_record import api_record, identity, judge_aggregate, record_bytes
from tests.metering.builders import (
    ACCOUNT,
    DECIMAL,
    DIMENSION,
    INTEGER,
    LICENSE,
    NOW,
    TWO_BACK,
    a_key,
    a_stored_aggregate,
    an_aggregate,
    an_allocation,
    api_shape,
    longest_allocations,
    the_next_hour,
)

TAGGED = (Allocation((), Decimal("0.5")), Allocation((("app", "x"), ("team", "a")), Decimal("1.50")))


def judged(quantities=DECIMAL, **differences):
    return judge_aggregate(a_stored_aggregate(**differences), NOW, quantities)


def no_hour(text):
    return {"sort_key": f"{ACCOUNT}#{DIMENSION}#{text}", "hour_bucket": None, "pending": text}


def with_allocations(*entries):
    return {"allocations": list(entries)}


def of_key(**differences):
    return {"key": a_key(**differences)}


FAULTS = [
    (Reason.MALFORMED_SORT_KEY, {"sort_key": "two#segments"}),
    (Reason.SORT_KEY_MISMATCH, {"account": "1"}),
    (Reason.SORT_KEY_MISMATCH, {"dimension": Decimal(1)}),
    (Reason.SORT_KEY_MISMATCH, {"hour_bucket": the_next_hour(a_key())}),
    (Reason.SORT_KEY_MISMATCH, {"pending": the_next_hour(a_key())}),
    (Reason.MALFORMED_TIMESTAMP, no_hour("2026-11-28T24")),
    (Reason.MALFORMED_TIMESTAMP, no_hour("2026-11-28T10:00:00")),
    (Reason.MISSING_QUANTITY, {"quantity": None}),
    (Reason.NON_NUMERIC_QUANTITY, {"quantity": "5"}),
    (Reason.NEGATIVE_QUANTITY, {"quantity": Decimal(-1)}),
    (Reason.TOO_MANY_DECIMALS, {"quantity": Decimal("1E-7")}),
    (Reason.QUANTITY_TOO_LARGE, {"quantity": Decimal(10**10)}),
    (Reason.MALFORMED_ALLOCATIONS, with_allocations(an_allocation("0.5", a="x"), an_allocation("0.5", a="x"))),
    (Reason.MALFORMED_ALLOCATIONS, with_allocations(an_allocation("2", a="x"), an_allocation("2", a="x"))),
    (Reason.INVALID_ALLOCATION, with_allocations(an_allocation("-1"))),
    (Reason.TOO_MANY_TAGS, with_allocations(an_allocation("1", **{f"k{n}": "v" for n in range(6)}))),
    (Reason.MISSING_TAG_KEY_OR_VALUE, with_allocations(an_allocation("1", team=""))),
    (Reason.INVALID_TAG, with_allocations(an_allocation("1", team="{"))),
    (Reason.ALLOCATION_SUM_MISMATCH, with_allocations(an_allocation("2"))),
    (Reason.MISSING_DIMENSION, of_key(dimension="")),
    (Reason.DIMENSION_TOO_LONG, of_key(dimension="x" * 256)),
    (Reason.TIMESTAMP_IN_FUTURE, of_key(hour=TWO_BACK + 3 * HOUR)),
    (Reason.INVALID_LICENSE_ARN, of_key(license_arn="arn:none")),
    (Reason.MISSING_CUSTOMER_AWS_ACCOUNT_ID, of_key(account="")),
    (Reason.INVALID_CUSTOMER_AWS_ACCOUNT_ID, of_key(account="x1")),
    (Reason.MISSING_LEGACY_IDENTIFIER, of_key(license_arn="prod-1", account="")),
    (Reason.TOO_MANY_ALLOCATIONS,
     {"quantity": Decimal(0), "allocations": [an_allocation("0", t=str(n)) for n in range(2501)]}),
    (Reason.AGGREGATE_TOO_LARGE, {"quantity": Decimal(500), "allocations": api_shape(longest_allocations(500))}),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "differences"), FAULTS)
def test_each_fault_of_a_direct_submit_has_its_reason(reason, differences):
    assert judged(**differences) is reason


def can_meet(first, second):
    """Whether one aggregate can have both, of a different reason each."""
    of_other_fields = not set(first[1]) & set(second[1])
    # What names no hour has no group whose dimension or buyer could be at fault too.
    return (
        of_other_fields
        and first[0] is not second[0]
        and (first[0] is not Reason.MALFORMED_TIMESTAMP or "key" not in second[1])
    )


@pytest.mark.parametrize(("first", "second"), [pair for pair in combinations(FAULTS, 2) if can_meet(*pair)])
def test_an_aggregate_with_two_faults_gets_the_first(first, second):
    assert judged(**{**second[1], **first[1]}) is first[0]


def test_every_reason_but_of_integers_is_tried_here():
    assert {reason for reason, _ in FAULTS} == set(Reason) - {Reason.NON_INTEGER_QUANTITY}
    assert judged(INTEGER, quantity=Decimal("0.5")) is Reason.NON_INTEGER_QUANTITY
    assert judged(INTEGER, quantity=Decimal(2**31)) is Reason.QUANTITY_TOO_LARGE


@pytest.mark.parametrize("quantity", ["0", "5", "5.0", "0.000001", "9999999999.999999"])
def test_what_a_seller_wrote_himself_is_a_record_zeros_included(quantity):
    bare = {"account": None, "dimension": None, "hour_bucket": None}
    assert judged(quantity=Decimal(quantity), **bare) == an_aggregate(quantity)


def test_a_direct_submit_keeps_its_allocations_whatever_their_form():
    raw = [
        {
            "AllocatedUsageQuantity": Decimal("1.5"),
            "Tags": [{"Key": "team", "Value": "a"}, {"Key": "app", "Value": "x"}],
        },
        an_allocation("0.5"),
    ]
    assert judged(quantity=Decimal(2), allocations=raw) == an_aggregate(2, allocations=TAGGED)


def test_only_a_legacy_record_has_a_customers_identifier():
    legacy = a_key(license_arn="prod-1")
    assert judged(customer_identifier="buyer").customer_identifier is None
    assert judged(key=legacy, customer_identifier="buyer").customer_identifier == "buyer"


# Its shape in the API.


def test_a_record_carries_license_and_account_and_a_decimal_text():
    assert api_record(an_aggregate("17.0"), DECIMAL) == {
        "Timestamp": TWO_BACK, "Dimension": DIMENSION, "CustomerAWSAccountId": ACCOUNT, "LicenseArn": LICENSE,
        "QuantityAsDecimal": "17",
    }  # fmt: skip


@pytest.mark.parametrize(("quantities", "suffix", "one", "two"), [
    (DECIMAL, "AsDecimal", "1", "2"), (INTEGER, "", 1, 2),
])  # fmt: skip
def test_a_record_and_its_allocations_have_one_kind_of_quantity(quantities, suffix, one, two):
    allocations = (Allocation((), Decimal("1.0")), Allocation((("team", "a"),), Decimal("1E0")))
    record = api_record(an_aggregate("2.0", allocations=allocations), quantities)
    assert {name: value for name, value in record.items() if name.startswith("Quantity")} == {f"Quantity{suffix}": two}
    assert record["UsageAllocations"] == [
        {f"AllocatedUsageQuantity{suffix}": one},
        {f"AllocatedUsageQuantity{suffix}": one, "Tags": [{"Key": "team", "Value": "a"}]},
    ]


@pytest.mark.parametrize(("account", "identifier", "carried"), [
    (ACCOUNT, "buyer", {"CustomerIdentifier": "buyer"}), ("", "buyer", {"CustomerIdentifier": "buyer"}),
    (ACCOUNT, None, {"CustomerAWSAccountId": ACCOUNT}), (ACCOUNT, "", {"CustomerAWSAccountId": ACCOUNT}),
])  # fmt: skip
def test_a_legacy_record_carries_the_identifier_else_the_account_and_no_license(account, identifier, carried):
    record = api_record(an_aggregate(license_arn="prod-1", account=account, customer_identifier=identifier), DECIMAL)
    buyers = ("CustomerIdentifier", "CustomerAWSAccountId", "LicenseArn", "ProductCode")
    assert {name: value for name, value in record.items() if name in buyers} == carried


def test_an_identity_is_buyer_license_dimension_and_hour():
    record = api_record(an_aggregate(), DECIMAL)
    echoed = {**record, "Timestamp": record["Timestamp"] + timedelta(minutes=59), "QuantityAsDecimal": "9"}
    assert identity(echoed) == identity(record) == (LICENSE, ACCOUNT, DIMENSION, TWO_BACK)
    others = [
        an_aggregate(account="1"), an_aggregate(dimension="API_calls"), an_aggregate(hour=TWO_BACK - HOUR),
        an_aggregate(license_arn="prod-1"), an_aggregate(license_arn=f"{LICENSE}x"),
    ]  # fmt: skip
    assert len({identity(record), *(identity(api_record(other, DECIMAL)) for other in others)}) == 6


def test_a_legacy_identity_is_the_customers_identifier_else_the_account():
    named, unnamed = (
        identity(api_record(an_aggregate(license_arn="prod-1", customer_identifier=name), DECIMAL))
        for name in ("buyer-1", None)
    )
    assert named == ("", "buyer-1", DIMENSION, TWO_BACK)
    assert unnamed == ("", ACCOUNT, DIMENSION, TWO_BACK)
    assert identity({"Dimension": DIMENSION, "Timestamp": TWO_BACK}) == ("", "", DIMENSION, TWO_BACK)


@pytest.mark.parametrize("quantities", [DECIMAL, INTEGER])
def test_the_bytes_of_a_record_are_those_that_the_sdk_sends(quantities):
    model = botocore.session.get_session().get_service_model("meteringmarketplace")
    serializer = create_serializer(model.resolved_protocol, include_validation=False)
    allocations = (Allocation((), Decimal(1)), Allocation((('"a"', "=/"), ("b", "x" * 256)), Decimal(2)))
    aggregate = Aggregate(a_key(dimension='ä☃ "#'), Decimal(3), allocations)
    record = api_record(aggregate, quantities)
    sent = serializer.serialize_to_request({"UsageRecords": [record]}, model.operation_model("BatchMeterUsage"))["body"]
    assert json.loads(sent)["UsageRecords"][0]["Timestamp"] == int(TWO_BACK.timestamp())
    assert len(sent) - len('{"UsageRecords": []}') == record_bytes(record)


def test_an_empty_list_of_allocations_is_none():
    sent = judged(**with_allocations())
    assert isinstance(sent, Aggregate)
    assert sent.allocations is None
    assert "UsageAllocations" not in api_record(sent, DECIMAL)


@pytest.mark.parametrize("stored", [
    {"AllocatedUsageQuantity": Decimal("0.25")}, {"AllocatedUsageQuantityAsDecimal": "0.25"},
    {"AllocatedUsageQuantityAsDecimal": Decimal("0.25")},
])  # fmt: skip
def test_allocations_are_read_in_each_form_that_is_stored_and_sent_in_the_apis(stored):
    sent = judged(quantity=Decimal("0.25"), allocations=[stored | {"Tags": [{"Key": "team", "Value": "a"}]}])
    assert api_record(sent, DECIMAL)["UsageAllocations"] == [
        {"AllocatedUsageQuantityAsDecimal": "0.25", "Tags": [{"Key": "team", "Value": "a"}]}
    ]
