"""Cases: odd answers of the service, and one record's trouble, which must cost no other its bill."""

from collections import Counter
from decimal import Decimal

import pytest
from botocore.exceptions import ClientError

from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.devstack.sandbox import faults
from metering_dagster.metering.rules.isolation import GIVE_UP
from metering_dagster.metering.services import ledger_entries, sendable
from metering_dagster.metering.stores import aggregated_table, record_ends
from metering_dagster.metering.stores.metering_api import Marketplace
from metering_dagster.settings import Mode
from tests.conftest import MINISTACK
from tests.contracts.engines import deviates
from tests.devstack.sandbox.sandbox_calls import client_of
from tests.items import (
    ACCOUNT,
    DIMENSION,
    HOUR,
    LICENSE,
    OTHER_ACCOUNT,
    a_deprovisioning,
    a_subscriber,
    a_usage,
    an_aggregate,
    an_allocation,
    filled_up,
)

PRODUCT = "product-one"
NOT_TO_BE_READ = ["empty", "null", "list", "no_json", "null_results", "fewer"]
"""Ways in which a call of one record says nothing about it."""

_SAID = {
    "null_results": ("a result is null",),
    "fewer": ("1 of 1 records are in no list",),
    "null": ("null", "NoneType"),  # over HTTP it is the SDK's parser that fails
    "list": ("list",),
}
"""What the failure says of it; of the others that neither list is there."""


def license_of(number):
    return f"arn:aws:license-manager::111122223333:license:l-{number:016}"


def an_hour_of(count, **changes):
    """That many records, each of a license of its own."""
    return [an_aggregate("1", license=license_of(number), **changes) for number in range(count)]


def of_products_of_their_own(count):
    return [a_subscriber(license_of(number), productCode=f"product-{number}") for number in range(count)]


# An answer that no model foresees.


@pytest.mark.case("unreadable_answer")
@pytest.mark.parametrize("way", NOT_TO_BE_READ)
def test_of_sixty_products_the_one_that_is_answered_oddly_waits_and_is_named(world, way):
    world.put(*an_hour_of(60), *of_products_of_their_own(60))
    world.sandbox.inject(faults.odd_answer(way, license_arn=license_of(7)))
    outcome = world.meter()
    assert not outcome.success
    assert f"1 records of {HOUR} are left" in outcome.message
    assert "59 records were billed" in outcome.message
    said = _SAID.get(way, ("neither Results nor UnprocessedRecords",))
    assert any(words in outcome.message for words in said)
    assert world.record_statuses() == {"Success": 59, "pending": 1}
    assert "meteringPending" in world.aggregate(license=license_of(7))
    assert any("****0007" in note for note in str(outcome.failed_with["notes"]).splitlines())
    world.sandbox.inject()
    assert world.meter().success
    assert len(world.bill()) == 60
    world.judge()


@pytest.mark.case("unreadable_answer")
@pytest.mark.parametrize("way", ["no_zone", "no_license", "no_echo"])
def test_what_of_an_identity_is_echoed_tells_the_record_or_else_its_position(world, way):
    world.put(*an_hour_of(60), *of_products_of_their_own(60))
    world.sandbox.inject(faults.odd_answer(way, license_arn=license_of(7)))
    assert world.meter().success
    world.judge()


@pytest.mark.case("unreadable_answer")
def test_records_that_nothing_tells_apart_but_their_statuses_wait(world):
    world.sandbox.configure(unsubscribed=[OTHER_ACCOUNT])
    world.put(an_aggregate("1"), an_aggregate("1", account=OTHER_ACCOUNT))
    world.sandbox.inject(faults.odd_answer("no_echo"))
    outcome = world.meter()
    assert "does not say which record it is about" in outcome.message
    assert world.record_statuses() == {"pending": 2}
    world.sandbox.inject()
    assert world.meter().success
    assert world.record_statuses() == {"Success": 1, "CustomerNotSubscribed": 1}


@pytest.mark.case("unreadable_answer")
def test_of_a_call_that_is_answered_in_part_the_rest_is_sent_again(world):
    world.put(*[an_aggregate("1", dimension=f"d{place:02}") for place in range(25)])
    world.sandbox.inject(faults.odd_answer("fewer", calls=1))
    assert world.meter().success
    assert [call.records for call in world.calls()] == [25, 1]
    world.judge()


# One trouble is one's own.


class UnforeseenError(Exception):
    """What nobody thought of."""


def raises_for(monkeypatch, module, name, unwanted):
    """Let a function raise wherever its first argument is about the unwanted license."""
    right = getattr(module, name)

    def wrapped(first, *rest, **more):
        if unwanted in repr(first):
            raise UnforeseenError(f"of {LICENSE}")
        return right(first, *rest, **more)

    monkeypatch.setattr(module, name, wrapped)


def ends_raise_for(monkeypatch, unwanted):
    """Let the writing of a record's end raise wherever it is about the unwanted license."""
    right = record_ends._end_unit

    def wrapped(table, shape, end, *rest):
        if unwanted in repr(end):
            raise UnforeseenError(f"of {LICENSE}")
        return right(table, shape, end, *rest)

    monkeypatch.setattr(record_ends, "_end_unit", wrapped)


def breaks_at(step, world, monkeypatch):
    if step == "read":
        raises_for(monkeypatch, aggregated_table, "_stored", LICENSE)
    elif step == "judged":
        raises_for(monkeypatch, sendable, "judge_aggregate", LICENSE)
    elif step == "sent":
        raises_for(monkeypatch, world.deployment.marketplace, "send", LICENSE)
    elif step == "recorded":
        ends_raise_for(monkeypatch, LICENSE)
    else:
        raises_for(monkeypatch, ledger_entries, "of_record", LICENSE)


def breaks():
    raise UnforeseenError(f"of {LICENSE}")


@pytest.mark.case("one_group_raises")
@pytest.mark.parametrize("step", ["read", "judged", "sent", "recorded"])
@pytest.mark.parametrize("beside", ["in one call", "in calls of their own"])
def test_what_is_raised_for_one_record_costs_no_other_its_bill(world, monkeypatch, step, beside):
    world.put(*an_hour_of(30), an_aggregate("5"))
    if beside == "in one call":
        world.configure(product_code=PRODUCT)
    with monkeypatch.context() as broken:
        breaks_at(step, world, broken)
        outcome = world.meter()
    assert not outcome.success
    lost = 25 if step == "sent" and beside == "in one call" else 1
    assert f"could not be {step}: UnforeseenError: of ****cdef" in outcome.message
    assert f"{lost if lost == 1 else ''}" in outcome.message
    assert "license ****cdef" in outcome.message or "****cdef" in str(outcome.failed_with["notes"])
    left = Counter(item.get("meteringStatus", "pending") for item in world.aggregates())
    assert left["pending"] <= lost
    assert left["Success"] >= 31 - lost
    assert "meteringPending" in world.aggregate()
    assert world.meter().success
    assert len(world.bill()) == 31
    world.judge()


@pytest.mark.case("one_group_raises")
def test_what_is_raised_when_a_record_is_told_is_told_instead(world, monkeypatch):
    world.put(*an_hour_of(3), an_aggregate("5"))
    with monkeypatch.context() as broken:
        breaks_at("told", world, broken)
        outcome = world.meter()
    assert "could not be told to the ledger: UnforeseenError" in outcome.message
    assert world.record_statuses() == {"Success": 4}


@pytest.mark.case("one_group_raises")
def test_a_product_code_that_cannot_be_looked_up_costs_calls_and_nothing_else(world, monkeypatch):
    world.put(*an_hour_of(3))
    raises_for(monkeypatch, world.deployment.tables.subscribers, "product_codes", "")
    outcome = world.meter()
    assert outcome.success
    assert "one license a call. UnforeseenError" in str(outcome.metadata["metered_usage"]["notes"])
    world.judge()


@pytest.mark.case("one_group_raises")
def test_twenty_alike_in_a_row_are_enough(world, monkeypatch):
    world.put(*an_hour_of(200))
    tries = []

    def send(batch):
        tries.append(batch)
        raise UnforeseenError("always")

    with monkeypatch.context() as broken:
        broken.setattr(world.deployment.marketplace, "send", send)
        outcome = world.meter()
    assert GIVE_UP <= len(tries) < GIVE_UP + 8, "those that were under way go on"
    assert "not sent, after 20 alike failures in a row: UnforeseenError: always" in outcome.message
    assert world.record_statuses() == {"pending": 200}


@pytest.mark.case("one_group_raises")
def test_what_cannot_be_written_down_is_not_sent_on_and_on(world, monkeypatch):
    world.put(*an_hour_of(200))
    with monkeypatch.context() as broken:
        broken.setattr(world.deployment.tables.aggregated, "write_ends", lambda ends, now: breaks())
        outcome = world.meter()
    assert "not recorded, after 20 alike failures in a row" in outcome.message
    assert GIVE_UP <= len(world.calls()) < GIVE_UP + 8
    assert world.meter().success
    assert len(world.bill()) == 200
    world.judge()


# The product was a guess.


@pytest.mark.case("one_license_of_another_product")
def test_the_license_of_another_product_is_found_and_the_others_are_billed(world):
    world.configure(product_code=PRODUCT)
    world.put(*an_hour_of(10))
    world.sandbox.inject(faults.error("InvalidProductCodeException", license_arn=license_of(2)))
    outcome = world.meter()
    assert not outcome.success
    assert f"1 records of {HOUR} are left" in outcome.message
    assert "license ****0002 is not of the default product product-one: InvalidProductCodeException" in outcome.message
    assert "subscribers table" in outcome.message
    assert world.record_statuses() == {"Success": 9, "pending": 1}
    assert "meteringPending" in world.aggregate(license=license_of(2))
    assert len(world.calls()) <= 9
    world.put(a_subscriber(license_of(2), productCode="its own"))
    world.sandbox.inject()
    assert world.meter().success
    world.judge()


@pytest.mark.case("one_license_of_another_product")
def test_a_license_at_fault_is_remembered_for_the_run(world, monkeypatch):
    monkeypatch.setattr("metering_dagster.metering.services.submission.CALLERS", 1)
    world.configure(product_code=PRODUCT)
    world.put(*(an_aggregate("1", license=license_of(2), dimension=f"d{place:03}") for place in range(100)))
    world.sandbox.inject(faults.error("InvalidProductCodeException", license_arn=license_of(2)))
    assert "100 records" in world.meter().message
    assert len(world.calls()) == 1


@pytest.mark.case("one_license_of_another_product")
def test_where_the_default_product_is_wrong_for_all_it_rests(world, monkeypatch):
    monkeypatch.setattr("metering_dagster.metering.services.submission.CALLERS", 1)
    world.configure(product_code=PRODUCT)
    world.put(*an_hour_of(200))
    world.sandbox.inject(faults.error("InvalidProductCodeException"))
    outcome = world.meter()
    assert "not tried after 20 licenses in a row were refused under the default product" in outcome.message
    assert len(world.calls()) < 60
    assert world.record_statuses() == {"pending": 200}


# The first hour of a subscription.


@pytest.mark.case("first_partial_hour")
def test_usage_of_the_hour_of_the_subscription_is_sent_at_its_end(world):
    world.sandbox.configure(subscribed_from={ACCOUNT: f"{HOUR}:40:00Z"})
    world.put(a_usage(2_700, "5"), an_aggregate("2", account=OTHER_ACCOUNT))
    world.configure(product_code=PRODUCT)
    assert world.meter().success
    assert world.record_statuses() == {"Success": 2}
    assert {record.hour for record in world.bill()} == {HOUR}
    world.judge()


@pytest.mark.case("first_partial_hour")
def test_usage_of_the_current_hour_is_sent_as_of_now(world):
    """A deprovisioning license of a buyer who subscribed in this very hour."""
    world.at("2026-11-28T12:52:00Z")
    world.sandbox.configure(subscribed_from={ACCOUNT: "2026-11-28T12:40:00Z"})
    world.put(a_deprovisioning("2026-11-28T13:00:00Z"), a_usage(2_700, "5", hour="2026-11-28T12"))
    assert world.flush().success
    assert world.billed() == {DIMENSION: "5"}


@pytest.mark.case("first_partial_hour")
def test_an_hour_before_the_subscription_is_refused_for_good_after_two_calls(world):
    world.sandbox.configure(subscribed_from={ACCOUNT: "2026-11-28T11:00:00Z"})
    world.put(a_usage(0, "5"))
    world.meter()
    assert world.aggregate()["meteringStatusReason"] == "TimestampOutOfBoundsException"
    assert len(world.calls()) == 2


# The Region.


def moves_to(world, region):
    """A process that begins in another Region, on the same tables."""
    world.configure()
    world.deployment.__dict__["marketplace"] = Marketplace(
        client_of(world.sandbox, region), world.settings.quantities, world.deployment._await_slot
    )


@pytest.mark.case("region_changed")
def test_an_hour_that_was_called_in_another_region_is_not_sent_again_here(world):
    world.put(an_aggregate("5"))
    world.sandbox.inject(faults.lost_answer())
    assert not world.meter().success
    world.sandbox.inject()
    home = world.deployment.marketplace.region
    moves_to(world, "eu-west-1")
    world.put(an_aggregate("2", dimension="late"), an_aggregate("3", hour="2026-11-28T11"))
    before = len(world.calls())
    outcome = world.meter()
    assert not outcome.success
    for words in ("2 records", home, "eu-west-1", "until 2026-11-29T10:00Z"):
        assert words in outcome.message
    assert len(world.calls()) == before
    assert world.meter("2026-11-28T11").success, "an hour that was never called belongs to the new Region"
    assert [record.region for record in world.bill()] == [home, "eu-west-1"]
    moves_to(world, home)
    assert world.meter().success
    assert sorted((r.region, r.quantity) for r in world.bill()) == [("eu-west-1", "3"), (home, "2"), (home, "5")]


@pytest.mark.case("region_changed")
def test_a_process_notes_the_region_of_an_hour_once_and_only_where_it_sends(world):
    world.meter()
    assert not world.client.scan(TableName=world.names["aggregated"])["Items"], "nothing to send, nothing to note"
    world.put(an_aggregate("5"))
    noted = []
    client = world.deployment.tables.aggregated.client
    client.meta.events.register("before-call.dynamodb.PutItem", lambda **_: noted.append(1))
    assert world.meter().success
    world.put(an_aggregate("5", dimension="second"))
    assert world.meter().success
    assert len(noted) == 1


@pytest.mark.case("region_changed")
def test_a_dry_run_calls_no_region_and_notes_none(world):
    world.configure(mode=Mode.DRY_RUN)
    world.put(an_aggregate("5"))
    assert world.meter().success
    assert [item for item in world.dump()["aggregated"] if "meteringRegion" in item] == []


# Two groups, one legacy customer.


def a_legacy(account, quantity="5", **changes):
    return an_aggregate(quantity, license=PRODUCT, account=account, customerIdentifier="cust-1", **changes)


@pytest.mark.case("legacy_twins")
@pytest.mark.parametrize("together", [True, False])
def test_of_two_direct_aggregates_of_one_legacy_customer_one_is_sent(world, together):
    world.put(a_legacy(ACCOUNT))
    if together:
        world.put(a_legacy(""))
    assert world.meter().success or together
    world.put(*([] if together else [a_legacy("")]))
    world.meter()
    world.meter()
    assert world.record_statuses() == {"Success": 1, "RejectedClientSide": 1}
    (twin,) = [item for item in world.aggregates() if item["meteringStatus"] != "Success"]
    assert twin["meteringStatusReason"] == "MissingLegacyIdentifier"
    assert [(record.customer_identifier, record.quantity) for record in world.bill()] == [("cust-1", "5")]


@pytest.mark.case("legacy_twins")
def test_the_holder_passes_again_and_yields_once_it_has_ended_unbilled(world):
    world.put(a_legacy(ACCOUNT))
    world.sandbox.inject(faults.lost_answer())
    assert not world.meter().success
    world.sandbox.inject()
    assert world.meter().success
    assert world.record_statuses() == {"Success": 1}
    world.put(a_legacy(ACCOUNT, hour="2026-11-28T09"))
    world.sandbox.configure(unsubscribed=["cust-1"])
    world.meter("2026-11-28T09")
    world.sandbox.configure(unsubscribed=[])
    world.put(a_legacy("", hour="2026-11-28T09"))
    assert world.meter("2026-11-28T09").success
    assert world.aggregate(license=PRODUCT, account="", hour="2026-11-28T09")["meteringStatus"] == "Success"


# An item that is full.


def put_full(world, quantity="5"):
    """A direct aggregate that fills its item to the last byte, as this engine counts."""
    for room in range(200):
        try:
            world.put(filled_up(an_aggregate(quantity), room))
        except ClientError:
            continue
        return
    pytest.fail("this engine knows no limit")


@pytest.mark.case("full_item_billed")
def test_the_end_of_a_full_item_is_its_status_alone(world, request):
    deviates(request, MINISTACK, "lets an update in a transaction grow an item past 400 KB")
    put_full(world)
    outcome = world.meter()
    assert outcome.success
    assert "the status alone was written" in str(outcome.metadata["metered_usage"]["notes"])
    found = world.aggregate()
    assert "meteringPending" not in found
    assert found["meteringStatus"] == "Success"
    assert not {"meteringRecordId", "updatedAt", "meteringStatusReason"} & found.keys()
    assert world.meter().success
    assert len(world.calls()) == 1


@pytest.mark.case("full_item_billed")
@pytest.mark.parametrize("why", ["answered", "refused", "unsendable"])
def test_where_not_even_the_status_fits_the_ledger_tells(world, request, why):
    deviates(request, MINISTACK, "lets an update in a transaction grow an item past 400 KB")
    if why == "answered":
        world.sandbox.configure(unsubscribed=[ACCOUNT])
    elif why == "refused":
        world.sandbox.inject(faults.error("InvalidUsageDimensionException"))
    else:
        world.configure(quantities=Quantities.INTEGER)
    put_full(world, "0.5" if why == "unsendable" else "5")
    outcome = world.meter()
    assert outcome.success
    status = "CustomerNotSubscribed" if why == "answered" else "RejectedClientSide"
    assert "told by the ledger alone" in str(outcome.metadata["metered_usage"]["notes"])
    assert outcome.metadata["metered_usage"]["statuses"] == {status: 1}
    assert not {"meteringPending", "meteringStatus"} & world.aggregate().keys()
    calls = len(world.calls())
    assert world.meter().success
    assert len(world.calls()) == calls


@pytest.mark.case("empty_allocations")
def test_a_direct_aggregate_with_an_empty_list_of_allocations_is_billed(world):
    world.put(an_aggregate("5", allocations=[]))
    assert world.meter().success
    assert [(record.quantity, record.allocations) for record in world.bill()] == [("5", None)]


@pytest.mark.case("table_keeps_the_old_format")
def test_what_is_stored_as_numbers_is_sent_as_the_api_wants_it(world):
    tagged = {"AllocatedUsageQuantity": Decimal("4.5"), "Tags": [{"Key": "team", "Value": "a"}]}
    world.put(an_aggregate("5", allocations=[tagged, {"AllocatedUsageQuantity": Decimal("0.5")}]))
    assert world.meter().success
    (record,) = world.bill()
    assert record.allocations == [an_allocation("0.5"), an_allocation("4.5", team="a")]


# A clock that is off.


@pytest.mark.case("clock_skew")
@pytest.mark.parametrize("code", [
    "InvalidSignatureException", "RequestExpired", "SignatureDoesNotMatch", "RequestTimeTooSkewed",
])  # fmt: skip
def test_a_refused_signature_names_the_clock(world, code):
    world.put(*an_hour_of(30))
    world.sandbox.inject(faults.error(code))
    outcome = world.meter()
    assert not outcome.success
    assert "30 records" in outcome.message
    assert code in outcome.message
    assert "This machine's clock says" in outcome.message
    assert "Date header" in outcome.message
    assert world.record_statuses() == {"pending": 30}
