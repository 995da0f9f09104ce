"""How a quantity may be split into tagged allocations."""

from typing import Any

import pytest

from metering_dagster.devstack.sandbox import Sandbox
from tests.devstack.sandbox.sandbox_calls import a_record, an_allocation, refusal, send, some_records, statuses

SIX = dict.fromkeys("abcdef", "1")
FIVE = dict.fromkeys("abcde", "1")
TWICE = [{"Key": "team", "Value": "a"}, {"Key": "team", "Value": "b"}]


def tagged(*tags: dict[str, Any]) -> dict[str, Any]:
    return {"AllocatedUsageQuantityAsDecimal": "17", "Tags": list(tags)}


def test_allocations_that_add_up_are_billed_as_sent(sandbox: Sandbox, client: Any) -> None:
    allocations = [an_allocation("0.1", team="a"), an_allocation("0.2", team="b"), an_allocation("16.7")]
    assert statuses(send(client, a_record(UsageAllocations=allocations))) == ["Success"]
    assert [billed.allocations for billed in sandbox.bill()] == [allocations]


def test_integers_are_split_into_integers(client: Any) -> None:
    allocations = [{"AllocatedUsageQuantity": 17}]
    record = a_record(QuantityAsDecimal=None, Quantity=17, UsageAllocations=allocations)
    assert statuses(send(client, record)) == ["Success"]


@pytest.mark.parametrize(
    "allocations",
    [
        [an_allocation("1", **FIVE), an_allocation("16", **{**FIVE, "e": "2"})],
        [an_allocation("1", team="a"), an_allocation("16", team="b")],
        [an_allocation("0"), an_allocation("17", team="a")],
        [an_allocation("17", **{"k" * 100: "v" * 256})],
        [tagged({"Key": "aZ9+ !\"#$%&'()*,-./:;<=._@", "Value": " "})],
        [an_allocation("1") if not place else an_allocation("0.000001", n=str(place)) for place in range(2_500)],
    ],
)
def test_the_widest_forms_are_taken(client: Any, allocations: list[dict[str, Any]]) -> None:
    quantity = "1.002499" if len(allocations) == 2_500 else "17"
    record = a_record(QuantityAsDecimal=quantity, UsageAllocations=allocations)
    assert statuses(send(client, record)) == ["Success"]


BAD_ALLOCATIONS = {
    "a sum that is short": [an_allocation("16.999999")],
    "a sum that is over": [an_allocation("17"), an_allocation("0.000001", team="a")],
    "no allocations": [],
    "2,501 of them": [an_allocation("17")] + [an_allocation("0", n=str(place)) for place in range(2_500)],
    "two untagged": [an_allocation("10"), an_allocation("7")],
    "the same tags twice": [an_allocation("10", team="a"), an_allocation("7", team="a")],
    "the same tags in another order": [an_allocation("10", a="1", b="2"), an_allocation("7", b="2", a="1")],
    "integers under a decimal": [{"AllocatedUsageQuantity": 17}],
    "both kinds in one": [{"AllocatedUsageQuantity": 17, "AllocatedUsageQuantityAsDecimal": "17"}],
    "neither kind": [an_allocation("17"), {"Tags": [{"Key": "team", "Value": "a"}]}],
}


@pytest.mark.parametrize("allocations", BAD_ALLOCATIONS.values(), ids=BAD_ALLOCATIONS)
def test_bad_allocations_fail_the_whole_call(sandbox: Sandbox, client: Any, allocations: list[dict[str, Any]]) -> None:
    assert (
        refusal(client, *some_records(2), a_record(UsageAllocations=allocations)) == "InvalidUsageAllocationsException"
    )
    assert sandbox.bill() == []


def test_decimals_under_an_integer_fail_the_whole_call(sandbox: Sandbox, client: Any) -> None:
    record = a_record(QuantityAsDecimal=None, Quantity=17, UsageAllocations=[an_allocation("17")])
    assert refusal(client, record) == "InvalidUsageAllocationsException"
    assert sandbox.bill() == []


BAD_TAGS = {
    "six tags": an_allocation("17", **SIX),
    "an empty list of tags": tagged(),
    "a key twice": tagged(*TWICE),
    "an empty key": tagged({"Key": "", "Value": "a"}),
    "an empty value": tagged({"Key": "team", "Value": ""}),
    "no key": tagged({"Value": "a"}),
    "no value": tagged({"Key": "team"}),
    "a key of 101 characters": tagged({"Key": "k" * 101, "Value": "a"}),
    "a value of 257 characters": tagged({"Key": "team", "Value": "v" * 257}),
    "a key off the pattern": tagged({"Key": "te[am", "Value": "a"}),
    "a value off the pattern": tagged({"Key": "team", "Value": "größe"}),
    "a value with a line end": tagged({"Key": "team", "Value": "a\n"}),
}


@pytest.mark.parametrize("allocation", BAD_TAGS.values(), ids=BAD_TAGS)
def test_bad_tags_fail_the_whole_call(sandbox: Sandbox, client: Any, allocation: dict[str, Any]) -> None:
    assert refusal(client, *some_records(2), a_record(UsageAllocations=[allocation])) == "InvalidTagException"
    assert sandbox.bill() == []


@pytest.mark.parametrize("quantity", ["1.0000001", "-1", "017", "1E1"])
def test_a_malformed_allocated_quantity_fails_the_whole_call(sandbox: Sandbox, client: Any, quantity: str) -> None:
    assert refusal(client, a_record(UsageAllocations=[an_allocation(quantity)])) == "ValidationException"
    assert sandbox.bill() == []
