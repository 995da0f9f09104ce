"""BatchMeterUsage as the pipeline calls it: in memory, and the sandbox over HTTP.

tests/devstack/sandbox shows what the service does with a record; here, what the store makes of its answers.
"""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.devstack.sandbox import Sandbox, faults
from metering_dagster.metering.rules.batching import MAX_RECORDS, Batch, Lane
from metering_dagster.metering.rules.metering_response import MeteringResponse
from metering_dagster.metering.rules.statuses import RecordStatus
from metering_dagster.metering.stores.metering_api import CallFailure, Marketplace, Trouble
from tests.conftest import MEMORY
from tests.devstack.sandbox.sandbox_calls import client_of
from tests.metering.builders import ACCOUNT, LICENSE, an_aggregate
from tests.simulation.memory import MemoryMarketplace

NOW = datetime(2026, 11, 28, 12, 20, tzinfo=UTC)
SUCCESS, DUPLICATE, NOT_SUBSCRIBED = RecordStatus.SUCCESS, RecordStatus.DUPLICATE, RecordStatus.NOT_SUBSCRIBED


class Place:
    """A service with nothing billed, and the store that calls it."""

    def __init__(self, sandbox):
        self.sandbox, self.waits = sandbox, []
        self.client = client_of(sandbox)
        self.marketplace = Marketplace(self.client, Quantities.DECIMAL, lambda: self.waits.append(1))

    def send(self, *records, lane=Lane.PRODUCT, owner="product-one"):
        return self.marketplace.send(Batch(lane, owner, records))

    def statuses(self, *records):
        """Of records that were all judged, in their order."""
        answer = self.send(*records)
        assert isinstance(answer, MeteringResponse), answer
        assert not answer.unprocessed
        found = {result.aggregate: result.status for result in answer.results}
        return [found[record] for record in records]


@pytest.fixture(params=[MEMORY, "sandbox"])
def place(request):
    if request.param == MEMORY:
        held = MemoryMarketplace(now=NOW)
        held.configure(calls_per_second=None)
        yield Place(held)
        return
    with Sandbox(now=NOW) as sandbox:
        sandbox.configure(calls_per_second=None)
        ours = Place(sandbox)
        yield ours
        ours.client.close()


def some(count, **changes):
    return [an_aggregate(Decimal(17), dimension=f"d{number}", **changes) for number in range(count)]


def test_the_first_quantity_of_a_group_is_billed_and_no_other(place):
    record = an_aggregate(Decimal(17))
    assert place.statuses(record) == [SUCCESS]
    assert place.statuses(replace(record, quantity=Decimal("17.000000"))) == [SUCCESS]
    assert place.statuses(replace(record, quantity=Decimal(18))) == [DUPLICATE]
    assert [Decimal(billed.quantity) for billed in place.sandbox.bill()] == [17]


def test_each_record_of_a_call_has_its_own_answer(place):
    record = an_aggregate(Decimal(17))
    place.statuses(record)
    stranger = an_aggregate(Decimal(1), account="999988887777")
    place.sandbox.configure(unsubscribed=[stranger.key.account])
    wanted = [DUPLICATE, NOT_SUBSCRIBED, SUCCESS]
    assert place.statuses(replace(record, quantity=Decimal(1)), stranger, an_aggregate(dimension="new")) == wanted


def test_twenty_five_records_go_in_a_call_and_the_quota_is_asked_once(place):
    assert place.statuses(*some(MAX_RECORDS)) == [SUCCESS] * MAX_RECORDS
    assert place.waits == [1]
    assert len(place.sandbox.calls()) == 1


def test_what_comes_back_unprocessed_is_to_be_sent_again(place):
    place.sandbox.inject(faults.unprocessed(3, calls=1))
    records = some(10)
    answer = place.send(*records)
    assert list(answer.unprocessed) == records[:3]
    assert len(answer.results) == len(place.sandbox.bill()) == 7
    assert place.statuses(*answer.unprocessed) == [SUCCESS] * 3


def test_an_answer_that_is_lost_is_transient_and_the_next_one_a_success(place):
    place.sandbox.inject(faults.lost_answer(calls=1))
    lost = place.send(an_aggregate(Decimal(17)))
    assert isinstance(lost, CallFailure)
    assert lost.trouble is Trouble.TRANSIENT
    assert place.statuses(an_aggregate(Decimal(17))) == [SUCCESS]
    assert len(place.sandbox.bill()) == 1


@pytest.mark.parametrize(("fault", "trouble"), [
    (faults.error("ThrottlingException"), Trouble.TRANSIENT),
    (faults.error("InternalServiceErrorException"), Trouble.TRANSIENT),
    (faults.http_503(), Trouble.TRANSIENT),
    (faults.drop(), Trouble.TRANSIENT),
    (faults.error("InvalidUsageDimensionException"), Trouble.REFUSED),
    (faults.error("InvalidLicenseException"), Trouble.REFUSED),
    (faults.error("InvalidTagException"), Trouble.REFUSED),
    (faults.error("InvalidUsageAllocationsException"), Trouble.REFUSED),
    (faults.error("InvalidCustomerIdentifierException"), Trouble.REFUSED),
    (faults.error("TimestampOutOfBoundsException"), Trouble.REFUSED),
    (faults.error("InvalidProductCodeException"), Trouble.PRODUCT),
    (faults.error("DisabledApiException"), Trouble.CALLER),
    (faults.error("AccessDeniedException", status=403), Trouble.CALLER),
    (faults.error("ExpiredTokenException"), Trouble.CALLER),
    (faults.error("Strange"), Trouble.UNKNOWN),
    (faults.error("Strange", status=500), Trouble.TRANSIENT),
], ids=str)  # fmt: skip
def test_a_call_that_fails_is_told_by_what_is_to_be_done_and_bills_nothing(place, fault, trouble):
    place.sandbox.inject(fault)
    failure = place.send(*some(2))
    assert isinstance(failure, CallFailure)
    assert failure.trouble is trouble
    assert place.sandbox.bill() == []


@pytest.mark.parametrize(("hour", "billed"), [
    ("2026-11-27T13", True), ("2026-11-27T12", False), ("2026-11-28T13", False),
])  # fmt: skip
def test_hours_that_are_too_old_or_to_come_fail_the_whole_call(place, hour, billed):
    far = an_aggregate(hour=datetime.fromisoformat(f"{hour}:00:00+00:00"))
    answer = place.send(an_aggregate(dimension="good"), far)
    assert isinstance(answer, MeteringResponse) is billed
    assert len(place.sandbox.bill()) == (2 if billed else 0)
    if not billed:
        assert (answer.trouble, answer.code) == (Trouble.REFUSED, "TimestampOutOfBoundsException")


def test_the_eleventh_call_of_a_second_is_transient(place):
    place.sandbox.configure(calls_per_second=1)
    first, second = place.send(*some(1)), place.send(*some(1))
    assert isinstance(first, MeteringResponse)
    assert (second.trouble, second.code) == (Trouble.TRANSIENT, "ThrottlingException")


def test_a_legacy_call_carries_its_product_and_a_licensed_one_none(place):
    legacy = an_aggregate(license_arn="product-one", customer_identifier="buyer-one")
    answer = place.send(legacy, lane=Lane.LEGACY)
    assert [result.status for result in answer.results] == [SUCCESS]
    assert place.statuses(an_aggregate()) == [SUCCESS]
    assert [call.product_code for call in place.sandbox.calls()] == ["product-one", None]


def test_what_the_service_says_is_masked(place):
    place.sandbox.configure(licenses={"arn:aws:license-manager::1:license:l-other": None})
    failure = place.send(*some(2))
    assert (failure.trouble, failure.code) == (Trouble.REFUSED, "InvalidLicenseException")
    assert LICENSE not in failure.message
    assert ACCOUNT not in failure.message
