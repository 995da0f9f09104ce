"""Requests that fail as a whole, and the code they fail with. Nothing of them is billed, their good records neither."""

from decimal import Decimal
from typing import Any

import pytest

from metering_dagster.devstack.sandbox import Sandbox
from tests.devstack.sandbox.sandbox_calls import (
    LICENSE,
    OTHER_LICENSE,
    PRODUCT,
    a_legacy_record,
    a_record,
    refusal,
    send,
    some_records,
    statuses,
)

INTEGER = {"QuantityAsDecimal": None}

BAD_RECORDS = {
    "no dimension": ({"Dimension": None}, "ValidationException"),
    "an empty dimension": ({"Dimension": ""}, "InvalidUsageDimensionException"),
    "a dimension of 256 characters": ({"Dimension": "d" * 256}, "InvalidUsageDimensionException"),
    "both quantities": ({"Quantity": 17}, "ValidationException"),
    "no quantity": ({"QuantityAsDecimal": None}, "ValidationException"),
    "a boolean quantity": ({**INTEGER, "Quantity": True}, "ValidationException"),
    "a negative quantity": ({**INTEGER, "Quantity": -1}, "ValidationException"),
    "a quantity of 2^31": ({**INTEGER, "Quantity": 2**31}, "ValidationException"),
    "a negative decimal": ({"QuantityAsDecimal": "-1"}, "ValidationException"),
    "a signed decimal": ({"QuantityAsDecimal": "+1"}, "ValidationException"),
    "seven decimals": ({"QuantityAsDecimal": "1.1234567"}, "ValidationException"),
    "eleven digits": ({"QuantityAsDecimal": "12345678901"}, "ValidationException"),
    "a leading zero": ({"QuantityAsDecimal": "01"}, "ValidationException"),
    "an exponent": ({"QuantityAsDecimal": "1E2"}, "ValidationException"),
    "a point without decimals": ({"QuantityAsDecimal": "1."}, "ValidationException"),
    "a decimal with a line end": ({"QuantityAsDecimal": "17\n"}, "ValidationException"),
    "other digits": ({"QuantityAsDecimal": "\u0661\u0667"}, "ValidationException"),
    "an empty decimal": ({"QuantityAsDecimal": ""}, "ValidationException"),
    "a decimal that is no string": ({"QuantityAsDecimal": 17}, "ValidationException"),
    "letters in the account": ({"CustomerAWSAccountId": "11112222333a"}, "InvalidCustomerIdentifierException"),
    "an account with a line end": ({"CustomerAWSAccountId": "111122223333\n"}, "InvalidCustomerIdentifierException"),
    "no customer": ({"CustomerAWSAccountId": None}, "InvalidCustomerIdentifierException"),
    "an empty account": ({"CustomerAWSAccountId": ""}, "InvalidCustomerIdentifierException"),
    "two customers": ({"CustomerIdentifier": "buyer-one"}, "InvalidCustomerIdentifierException"),
    "a license with an identifier": (
        {"CustomerAWSAccountId": None, "CustomerIdentifier": "buyer-one"},
        "InvalidCustomerIdentifierException",
    ),
    "an empty license": ({"LicenseArn": ""}, "InvalidLicenseException"),
    "a license that is no ARN": ({"LicenseArn": "l-one"}, "InvalidLicenseException"),
    "an ARN without a resource": ({"LicenseArn": "arn:aws:license-manager:::"}, "InvalidLicenseException"),
    "an ARN without a service": ({"LicenseArn": "arn:aws:::1:license:l-one"}, "InvalidLicenseException"),
    "an ARN with a space": ({"LicenseArn": f"{LICENSE} "}, "InvalidLicenseException"),
    "an ARN with a line end": ({"LicenseArn": f"{LICENSE}\n"}, "InvalidLicenseException"),
    "an ARN that is too long": ({"LicenseArn": "arn:aws:s:::" + "l" * 1025}, "InvalidLicenseException"),
    "a record without its license": ({"LicenseArn": None}, "InvalidLicenseException"),
}


@pytest.mark.parametrize(("changes", "code"), BAD_RECORDS.values(), ids=BAD_RECORDS)
@pytest.mark.parametrize("place", [0, 3])
def test_one_bad_record_fails_the_whole_call(
    sandbox: Sandbox, client: Any, changes: dict[str, Any], code: str, place: int
) -> None:
    records = some_records(3)
    records.insert(place, a_record(**changes))
    assert refusal(client, *records) == code
    assert sandbox.bill() == []


@pytest.mark.parametrize(
    ("quantity", "billed"),
    [
        ({"QuantityAsDecimal": "0"}, "0"),
        ({"QuantityAsDecimal": "9999999999.999999"}, "9999999999.999999"),
        ({**INTEGER, "Quantity": 0}, "0"),
        ({**INTEGER, "Quantity": 2**31 - 1}, "2147483647"),
    ],
)
def test_the_extreme_quantities_are_taken(sandbox: Sandbox, client: Any, quantity: dict[str, Any], billed: str) -> None:
    send(client, a_record(**quantity))
    assert [Decimal(record.quantity) for record in sandbox.bill()] == [Decimal(billed)]


def test_a_dimension_outside_the_catalog_fails_the_call_by_its_case_alone(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(dimensions=["api_calls"])
    assert statuses(send(client, a_record())) == ["Success"]
    assert refusal(client, a_record(Dimension="Api_calls")) == "InvalidUsageDimensionException"


def test_a_license_that_nobody_knows_fails_the_call(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(licenses={LICENSE: None})
    assert statuses(send(client, a_record())) == ["Success"]
    assert refusal(client, a_record(LicenseArn=OTHER_LICENSE)) == "InvalidLicenseException"


def test_licenses_of_two_products_never_go_in_one_call(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(licenses={LICENSE: PRODUCT, OTHER_LICENSE: "product-two"})
    assert refusal(client, a_record(), a_record(LicenseArn=OTHER_LICENSE)) == "InvalidLicenseException"
    assert sandbox.bill() == []


def test_licenses_of_one_product_go_in_one_call(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(licenses={LICENSE: PRODUCT, OTHER_LICENSE: PRODUCT})
    assert statuses(send(client, a_record(), a_record(LicenseArn=OTHER_LICENSE))) == ["Success", "Success"]


def test_a_product_that_fails_fails_its_own_calls_only(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(licenses={LICENSE: PRODUCT, OTHER_LICENSE: "product-two"}, failing_products=[PRODUCT])
    assert refusal(client, a_record()) == "InvalidProductCodeException"
    assert statuses(send(client, a_record(LicenseArn=OTHER_LICENSE))) == ["Success"]
    assert refusal(client, a_legacy_record(), ProductCode=PRODUCT) == "InvalidProductCodeException"
    assert len(sandbox.bill()) == 1


def test_a_product_code_that_nobody_knows_fails_the_call(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(products=[PRODUCT])
    assert statuses(send(client, a_legacy_record(), ProductCode=PRODUCT)) == ["Success"]
    assert refusal(client, a_legacy_record(), ProductCode="product-two") == "InvalidProductCodeException"


@pytest.mark.parametrize("request_members", [{}, {"ProductCode": ""}, {"ProductCode": "with space"}])
def test_a_legacy_call_needs_its_product_code(sandbox: Sandbox, client: Any, request_members: dict[str, str]) -> None:
    assert refusal(client, a_legacy_record(), **request_members) == "InvalidProductCodeException"
    assert sandbox.bill() == []


def test_legacy_records_are_never_mixed_with_licenses(sandbox: Sandbox, client: Any) -> None:
    assert refusal(client, a_record(), a_legacy_record(), ProductCode=PRODUCT) == "InvalidLicenseException"
    assert sandbox.bill() == []


def test_a_legacy_customer_that_nobody_knows_fails_the_call(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(customers=["buyer-one"])
    assert statuses(send(client, a_legacy_record(), ProductCode=PRODUCT)) == ["Success"]
    stranger = a_legacy_record(CustomerIdentifier="buyer-two")
    assert refusal(client, stranger, ProductCode=PRODUCT) == "InvalidCustomerIdentifierException"


def test_a_legacy_record_names_one_customer_and_not_two(sandbox: Sandbox, client: Any) -> None:
    both = a_legacy_record(CustomerAWSAccountId="111122223333")
    assert refusal(client, both, ProductCode=PRODUCT) == "InvalidCustomerIdentifierException"
    assert sandbox.bill() == []


def test_a_region_without_the_api_refuses_every_call(sandbox: Sandbox, client: Any) -> None:
    sandbox.configure(disabled_regions=["us-east-1"])
    assert refusal(client, a_record()) == "DisabledApiException"
    sandbox.configure(disabled_regions=["eu-central-1"])
    assert statuses(send(client, a_record())) == ["Success"]
