"""Cases: what the service answers, and what becomes of the records."""

from datetime import datetime

import pytest

from metering_dagster.devstack.sandbox import faults
from tests.items import ACCOUNT, DIMENSION, HOUR, LICENSE, OTHER_ACCOUNT, OTHER_LICENSE, a_subscriber, an_aggregate
from tests.world import World

TRANSIENT = [
    faults.error("ThrottlingException"),
    faults.error("InternalServiceErrorException"),
    faults.error("SomethingNew", status=500),
    faults.http_503(),
    faults.drop(),
]


def some_records(count: int, **changes):
    """That many pending records of one license and hour, each of its own dimension."""
    return [an_aggregate("1", dimension=f"d{place:03}", **changes) for place in range(count)]


def billed_before(world: World, quantity: str, dimension: str = DIMENSION) -> None:
    """Somebody has billed this group and hour already."""
    world.deployment.marketplace.client.batch_meter_usage(UsageRecords=[{
        "Timestamp": datetime.fromisoformat(f"{HOUR}:00:00+00:00"), "Dimension": dimension, "LicenseArn": LICENSE,
        "CustomerAWSAccountId": ACCOUNT, "QuantityAsDecimal": quantity,
    }])  # fmt: skip


def the_order_of_calls_is_fixed(monkeypatch) -> None:
    """One call after the other, so that a fault falls on the call it is meant for."""
    monkeypatch.setattr("metering_dagster.metering.services.submission.CALLERS", 1)
    monkeypatch.setattr("metering_dagster.metering.services.submission.random.shuffle", lambda batches: None)


@pytest.mark.case("non_success_is_never_success")
def test_each_record_carries_the_status_that_the_service_gave_it(world):
    billed_before(world, "4", dimension="twice")
    world.sandbox.configure(unsubscribed=[OTHER_ACCOUNT])
    world.put(
        an_aggregate("1", dimension="good"),
        an_aggregate("2", dimension="gone", account=OTHER_ACCOUNT),
        an_aggregate("5", dimension="twice"),
    )
    outcome = world.meter()
    assert outcome.success
    assert outcome.metadata["metered_usage"]["statuses"] == {
        "Success": 1, "CustomerNotSubscribed": 1, "DuplicateRecord": 1,
    }  # fmt: skip
    assert outcome.metadata["metered_usage"]["billed_quantity"] == 1
    assert world.aggregate(dimension="good")["meteringStatus"] == "Success"
    assert world.aggregate(dimension="gone", account=OTHER_ACCOUNT)["meteringStatus"] == "CustomerNotSubscribed"
    assert world.aggregate(dimension="twice")["meteringStatus"] == "DuplicateRecord"
    assert world.billed() == {"good": "1", "twice": "4"}
    assert world.aggregate(dimension="good")["meteringRecordId"]
    assert "meteringRecordId" not in world.aggregate(dimension="twice")


@pytest.mark.case("non_success_is_never_success")
def test_same_quantity_again_is_success_whatever_its_form(world):
    billed_before(world, "17.0")
    world.put(an_aggregate("17"))
    world.visit()
    assert world.record_statuses() == {"Success": 1}
    assert world.billed() == {DIMENSION: "17"}


@pytest.mark.case("good_beside_bad_dimension")
def test_one_unknown_dimension_costs_no_neighbor_its_bill(world):
    good = [f"d{place:03}" for place in range(25) if place != 13]
    world.sandbox.configure(dimensions=good)
    world.put(*some_records(25))
    outcome = world.meter()
    assert outcome.success
    assert world.record_statuses() == {"Success": 24, "RejectedClientSide": 1}
    assert world.aggregate(dimension="d013")["meteringStatusReason"] == "InvalidUsageDimensionException"
    assert outcome.metadata["metered_usage"]["rejected"] == {"InvalidUsageDimensionException": 1}
    assert len(world.calls()) <= 11
    world.judge()


@pytest.mark.case("good_beside_bad_dimension")
@pytest.mark.parametrize(("place", "code"), [
    (0, "InvalidUsageDimensionException"), (6, "InvalidLicenseException"), (11, "InvalidTagException"),
    (12, "InvalidUsageAllocationsException"), (18, "InvalidCustomerIdentifierException"),
    (24, "TimestampOutOfBoundsException"),
])  # fmt: skip
def test_any_record_refused_at_request_level_is_found_in_eleven_calls(world, place, code):
    world.sandbox.inject(faults.error(code, dimension=f"d{place:03}"))
    world.put(*some_records(25))
    world.visit()
    assert world.record_statuses() == {"Success": 24, "RejectedClientSide": 1}
    assert world.aggregate(dimension=f"d{place:03}")["meteringStatusReason"] == code
    again = code == "TimestampOutOfBoundsException"  # alone, once more with the hour's last second
    assert len(world.calls()) <= 11 + again


@pytest.mark.case("two_bad_in_one_batch")
def test_two_bad_records_are_rejected_each_for_its_own_reason(world):
    world.sandbox.inject(
        faults.error("InvalidUsageDimensionException", dimension="d003"),
        faults.error("InvalidTagException", dimension="d022"),
    )
    world.put(*some_records(25))
    world.visit()
    assert world.record_statuses() == {"Success": 23, "RejectedClientSide": 2}
    assert world.aggregate(dimension="d003")["meteringStatusReason"] == "InvalidUsageDimensionException"
    assert world.aggregate(dimension="d022")["meteringStatusReason"] == "InvalidTagException"
    world.judge()


@pytest.mark.case("throttled_is_pending")
def test_a_call_throttled_for_good_leaves_its_records_and_no_others(world):
    world.put(*some_records(100))
    world.sandbox.inject(faults.error("ThrottlingException", dimension="d030"))
    outcome = world.meter()
    assert not outcome.success
    assert f"25 records of {HOUR} are left" in outcome.message
    assert "ThrottlingException" in outcome.message
    assert "75 records were billed" in outcome.message
    assert outcome.failed_with["left_pending"] == 25
    assert "metered_usage" not in outcome.metadata
    assert world.record_statuses() == {"Success": 75, "pending": 25}
    world.sandbox.inject()
    assert world.meter().success
    world.judge()
    assert len(world.bill()) == 100


@pytest.mark.case("throttled_is_pending")
@pytest.mark.parametrize("trouble", TRANSIENT, ids=lambda fault: fault.code or fault.kind)
def test_a_service_that_is_down_costs_a_few_calls_and_no_record(world, trouble):
    world.put(*some_records(150))
    world.sandbox.inject(trouble)
    assert world.visit().submission.left.total() == 150
    assert world.record_statuses() == {"pending": 150}
    assert len(world.calls()) <= 6 * 5
    world.sandbox.inject()
    world.visit()
    world.judge()


@pytest.mark.case("internal_error_is_transient")
def test_internal_error_is_sent_again_until_it_is_answered(world):
    world.put(*some_records(3))
    world.sandbox.inject(faults.error("InternalServiceErrorException", calls=(1, 2)))
    paused = []
    submitter = world.deployment.submitter()
    submitter.pause = lambda attempt: float(paused.append(attempt) or 0)
    part, _ = world.deployment.slice_of(datetime.fromisoformat(f"{HOUR}:00:00+00:00"))
    report = submitter.submit(part)
    assert report.calls == 3
    assert len(world.calls()) == 3
    assert paused == [1, 2]
    world.judge()


@pytest.mark.case("internal_error_is_transient")
@pytest.mark.parametrize("trouble", TRANSIENT, ids=lambda fault: fault.code or fault.kind)
def test_passing_trouble_rejects_nothing(world, trouble):
    world.put(*some_records(3))
    document = trouble.document() | {"calls": [1, 2, 3, 4]}
    world.sandbox.inject(faults.read_fault(document))
    assert not world.visit().submission.left
    assert len(world.calls()) == 5
    world.judge()


@pytest.mark.case("unprocessed_are_sent_again")
def test_unprocessed_records_are_sent_again_by_themselves(world):
    world.put(*some_records(10))
    world.sandbox.inject(faults.unprocessed(3, calls=1))
    assert world.meter().success
    assert [call.records for call in world.calls()] == [10, 3]
    world.judge()


@pytest.mark.case("unprocessed_are_sent_again")
def test_records_never_processed_stay_pending_and_fail_the_run(world):
    world.put(*some_records(10))
    world.sandbox.inject(faults.unprocessed(dimensions=["d001", "d004", "d009"]))
    outcome = world.meter()
    assert not outcome.success
    assert f"3 records of {HOUR} are left" in outcome.message
    assert "unprocessed" in outcome.message
    assert world.record_statuses() == {"Success": 7, "pending": 3}


@pytest.mark.case("answer_lost_after_billing")
def test_records_whose_answer_was_lost_are_billed_once(world):
    world.put(*some_records(5))
    world.sandbox.inject(faults.lost_answer(calls=1))
    assert world.meter().success
    assert len(world.calls()) == 2
    assert len(world.bill()) == 5
    world.judge()


@pytest.mark.case("answer_lost_after_billing")
def test_records_whose_answers_are_all_lost_are_found_billed_by_the_next_tick(world):
    world.put(*some_records(5))
    world.sandbox.inject(faults.lost_answer())
    assert not world.meter().success
    assert world.record_statuses() == {"pending": 5}
    world.sandbox.inject()
    assert world.meter().success
    assert len(world.bill()) == 5
    world.judge()


@pytest.mark.case("answer_lost_after_billing")
@pytest.mark.parametrize("now", ["2026-11-29T09:56:00Z", "2026-11-29T09:59:59Z"])
def test_a_record_that_is_refused_because_its_window_closes_is_left_to_the_age_out(world, now):
    """Another call may have billed it, whose answer is not there yet: `RejectedClientSide` would be final."""
    world.at(now)
    world.put(an_aggregate("3", hour="2026-11-28T10"))
    world.sandbox.inject(faults.error("TimestampOutOfBoundsException"))
    outcome = world.meter("2026-11-28T10")
    assert not outcome.success
    assert "window closed at 2026-11-29T10:00Z" in outcome.message
    assert world.record_statuses() == {"pending": 1}
    world.sandbox.inject(faults.error("InvalidTagException"))
    world.meter("2026-11-28T10")
    assert world.record_statuses() == {"RejectedClientSide": 1}


@pytest.mark.case("no_permission")
@pytest.mark.parametrize("code", [
    "AccessDeniedException", "ExpiredTokenException", "UnrecognizedClientException", "InvalidSignatureException",
    "DisabledApiException",
])  # fmt: skip
def test_a_refused_caller_stops_at_once_and_rejects_nothing(world, code, monkeypatch):
    the_order_of_calls_is_fixed(monkeypatch)
    world.put(*some_records(100))
    world.sandbox.inject(faults.error(code))
    outcome = world.meter()
    assert not outcome.success
    assert not outcome.allows_retries
    for word in (code, "aws-marketplace:BatchMeterUsage", "us-east-1", "100 records"):
        assert word in outcome.message
    assert world.record_statuses() == {"pending": 100}
    assert len(world.calls()) == 1
    world.sandbox.inject()
    world.visit()
    world.judge()


@pytest.mark.case("no_permission")
def test_a_region_without_the_api_leaves_everything_pending(world):
    world.sandbox.configure(disabled_regions=["us-east-1"])
    world.put(*some_records(3))
    outcome = world.meter()
    assert "DisabledApiException" in outcome.message
    assert "run in a Region that offers the API" in outcome.message
    assert world.record_statuses() == {"pending": 3}


@pytest.mark.case("no_permission")
def test_what_was_answered_before_the_caller_was_refused_is_kept(world, monkeypatch):
    the_order_of_calls_is_fixed(monkeypatch)
    world.put(*some_records(100))
    world.sandbox.inject(faults.error("ExpiredTokenException", calls="from 3"))
    outcome = world.meter()
    assert "50 records were billed" in outcome.message
    assert world.record_statuses() == {"Success": 50, "pending": 50}


def test_a_code_that_nobody_knows_leaves_the_record_it_falls_on_pending(world):
    world.sandbox.inject(faults.error("QuiteNewException", status=400, dimension="d007"))
    world.put(*some_records(25))
    outcome = world.meter()
    assert not outcome.success
    assert "QuiteNewException" in outcome.message
    assert world.record_statuses() == {"Success": 24, "pending": 1}
    assert "meteringPending" in world.aggregate(dimension="d007")


def test_a_status_that_nobody_knows_leaves_its_record_pending_and_no_other(world):
    def say_something_new(parsed, **_):
        for result in parsed["Results"]:
            if result["UsageRecord"]["Dimension"] == "d001":
                result["Status"] = "SomethingNew"

    events = world.deployment.marketplace.client.meta.events
    events.register("after-call.meteringmarketplace.BatchMeterUsage", say_something_new)
    world.put(*some_records(3))
    outcome = world.meter()
    assert "1 records" in outcome.message
    assert world.record_statuses() == {"Success": 2, "pending": 1}


@pytest.mark.case("two_products")
def test_no_call_carries_two_products(world):
    licenses = {LICENSE: "product-one", OTHER_LICENSE: "product-two"}
    world.sandbox.configure(licenses=licenses)
    for license, product in licenses.items():
        world.put(a_subscriber(license, productCode=product), *some_records(30, license=license))
    assert world.meter().success
    assert sorted((call.records, call.outcome) for call in world.calls()) == [(5, "ok")] * 2 + [(25, "ok")] * 2
    assert all(call.product_code is None for call in world.calls())  # with a LicenseArn it would bill twice
    world.judge()


@pytest.mark.case("two_products")
def test_licenses_of_one_product_share_their_calls(world):
    for license in (LICENSE, OTHER_LICENSE):
        world.put(a_subscriber(license, productCode="product-one"), *some_records(10, license=license))
    world.visit()
    assert [call.records for call in world.calls()] == [20]


@pytest.mark.case("two_products")
def test_without_a_known_product_each_license_goes_by_itself(world):
    world.sandbox.configure(licenses={LICENSE: "product-one", OTHER_LICENSE: "product-two"})
    world.put(*some_records(10), *some_records(10, license=OTHER_LICENSE))
    world.visit()
    assert [(call.records, call.outcome) for call in world.calls()] == [(10, "ok")] * 2


@pytest.mark.case("two_products")
def test_the_default_product_is_for_subscribers_without_one(world):
    world.configure(product_code="product-one")
    world.put(a_subscriber(OTHER_LICENSE, productCode="product-two"))
    world.sandbox.configure(licenses={LICENSE: "product-one", OTHER_LICENSE: "product-two"})
    world.put(*some_records(10), *some_records(10, license=OTHER_LICENSE))
    world.visit()
    assert [(call.records, call.outcome) for call in world.calls()] == [(10, "ok")] * 2


@pytest.mark.case("two_products")
def test_a_legacy_product_is_never_mixed_with_licenses(world):
    world.put(
        *some_records(3),
        an_aggregate("2", license="legacy-product", dimension="old", customerIdentifier="customer-one"),
        an_aggregate("3", license="legacy-product", dimension="older"),
    )
    world.visit()
    assert sorted((call.records, call.product_code or "") for call in world.calls()) == [(2, "legacy-product"), (3, "")]
    billed = {record.dimension: record for record in world.bill()}
    assert billed["old"].customer_identifier == "customer-one"
    assert billed["old"].customer_aws_account_id is None
    assert billed["older"].customer_aws_account_id == ACCOUNT
    assert world.record_statuses() == {"Success": 5}


@pytest.mark.case("wrong_product_code")
def test_a_failing_product_costs_no_other_product_its_bill(world):
    licenses = {LICENSE: "product-good", OTHER_LICENSE: "product-wrong"}
    world.sandbox.configure(licenses=licenses, failing_products=["product-wrong"])
    for license, product in licenses.items():
        world.put(a_subscriber(license, productCode=product), *some_records(60, license=license))
    outcome = world.meter()
    assert not outcome.success
    assert "InvalidProductCodeException" in outcome.message
    assert "product-wrong" in outcome.message
    assert "product-good" not in outcome.message
    assert world.record_statuses() == {"Success": 60, "pending": 60}
    assert {record.license_arn for record in world.bill()} == {LICENSE}


@pytest.mark.case("wrong_product_code")
def test_a_failing_product_is_tried_once_and_not_with_every_call(world, monkeypatch):
    the_order_of_calls_is_fixed(monkeypatch)
    world.sandbox.configure(licenses={LICENSE: "product-wrong"}, failing_products=["product-wrong"])
    world.put(a_subscriber(productCode="product-wrong"), *some_records(100))
    world.visit()
    assert [call.outcome for call in world.calls()] == ["InvalidProductCodeException"]
    assert world.record_statuses() == {"pending": 100}


@pytest.mark.case("wrong_product_code")
def test_a_failing_legacy_product_is_named_and_stays_pending(world):
    world.sandbox.configure(products=["known"])
    world.put(an_aggregate("2", license="unknown"), an_aggregate("3", license="known", dimension="other"))
    outcome = world.meter()
    assert "product unknown: InvalidProductCodeException" in outcome.message
    assert world.billed() == {"other": "3"}
