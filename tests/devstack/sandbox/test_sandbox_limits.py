"""How many records, how many bytes, how many calls."""

from collections.abc import Iterator
from typing import Any

import pytest

from metering_dagster.devstack.sandbox import Sandbox
from tests.devstack.sandbox.conftest import HTTP, MEMORY
from tests.devstack.sandbox.sandbox_calls import NOW, a_record, client_of, refusal, send, some_records, statuses
from tests.simulation.memory import MemoryMarketplace

LIMIT = 1_000_000


def test_twenty_five_records_are_taken(sandbox: Sandbox, client: Any) -> None:
    assert statuses(send(client, *some_records(25))) == ["Success"] * 25
    assert len(sandbox.bill()) == 25


@pytest.mark.parametrize("number", [0, 26])
def test_no_records_and_twenty_six_are_refused(sandbox: Sandbox, client: Any, number: int) -> None:
    assert refusal(client, *some_records(number)) == "ValidationException"
    assert sandbox.bill() == []


def padded(client: Any, size: int) -> None:
    """From now on the client's bodies are so many bytes long: JSON may end in spaces."""
    client.meta.events.register(
        "before-call.meteringmarketplace.BatchMeterUsage",
        lambda params, **_: params.update(body=params["body"].ljust(size)),
    )


@pytest.mark.usefixtures("over_http")
def test_a_request_just_under_a_megabyte_is_taken(sandbox: Sandbox, client: Any) -> None:
    padded(client, LIMIT - 1)
    assert statuses(send(client, a_record())) == ["Success"]
    assert [call.bytes for call in sandbox.calls()] == [LIMIT - 1]


@pytest.mark.usefixtures("over_http")
@pytest.mark.parametrize("size", [LIMIT, 3 * LIMIT])
def test_a_request_of_a_megabyte_is_refused(sandbox: Sandbox, client: Any, size: int) -> None:
    padded(client, size)
    assert refusal(client, a_record()) == "ValidationException"
    assert sandbox.bill() == []
    assert [call.bytes for call in sandbox.calls()] == [size]


def test_twenty_five_records_with_many_allocations_pass_the_megabyte(sandbox: Sandbox, client: Any) -> None:
    allocations = [
        {"AllocatedUsageQuantityAsDecimal": "1", "Tags": [{"Key": "team", "Value": str(place)}]}
        for place in range(1000)
    ]
    large = {"QuantityAsDecimal": "1000", "UsageAllocations": allocations}
    assert refusal(client, *some_records(25, **large)) == "ValidationException"
    assert statuses(send(client, *some_records(5, **large))) == ["Success"] * 5


class Ticks:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture(params=[HTTP, MEMORY])
def limited(request: pytest.FixtureRequest, ticks: Ticks) -> Iterator[Sandbox | MemoryMarketplace]:
    if request.param == MEMORY:
        yield MemoryMarketplace(ticks, NOW)
        return
    with Sandbox(now=NOW, monotonic=ticks) as running:
        yield running


def spend(client: Any, calls: int) -> list[str]:
    return [statuses(send(client, a_record()))[0] for _ in range(calls)]


def test_the_eleventh_call_in_a_second_is_throttled(limited: Sandbox) -> None:
    client = client_of(limited)
    assert spend(client, 10) == ["Success"] * 10
    assert refusal(client, a_record(Dimension="eleventh")) == "ThrottlingException"
    assert len(limited.bill()) == 1
    assert [call.outcome for call in limited.calls()] == ["ok"] * 10 + ["ThrottlingException"]
    client.close()


def test_the_second_slides_and_throttled_calls_do_not_count(limited: Sandbox, ticks: Ticks) -> None:
    client = client_of(limited)
    spend(client, 4)
    ticks.now += 0.5
    spend(client, 6)
    ticks.now += 0.49
    for _ in range(3):
        assert refusal(client, a_record()) == "ThrottlingException"
    ticks.now += 0.01
    spend(client, 4)
    assert refusal(client, a_record()) == "ThrottlingException"
    client.close()


def test_each_region_has_its_own_quota(limited: Sandbox) -> None:
    client, elsewhere = client_of(limited), client_of(limited, "eu-central-1")
    spend(client, 10)
    assert spend(elsewhere, 10) == ["Success"] * 10
    assert refusal(elsewhere, a_record()) == "ThrottlingException"
    client.close()
    elsewhere.close()


def test_a_call_that_is_refused_counts_as_well(limited: Sandbox) -> None:
    client = client_of(limited)
    for _ in range(10):
        assert refusal(client, a_record(Dimension="")) == "InvalidUsageDimensionException"
    assert refusal(client, a_record()) == "ThrottlingException"
    client.close()


def test_the_quota_can_be_changed_and_turned_off(limited: Sandbox) -> None:
    client = client_of(limited)
    limited.configure(calls_per_second=2)
    spend(client, 2)
    assert refusal(client, a_record()) == "ThrottlingException"
    limited.configure(calls_per_second=None)
    assert spend(client, 20) == ["Success"] * 20
    client.close()
