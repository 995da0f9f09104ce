"""Cases: rows that are bad, zero, fractional, misfiled or contradict themselves."""

import pytest

from metering_dagster.core.quantity_kind import Quantities
from tests.items import (
    ACCOUNT,
    DIMENSION,
    HOUR,
    LICENSE,
    OTHER_ACCOUNT,
    OTHER_LICENSE,
    a_subscriber,
    a_usage,
    some_usage,
)
from tests.world import LAST_CALL

NEXT_HOUR = "2026-11-28T11"
ABC = {"S": "abc"}


def an_hour_with_a_bad_row():
    """59 good rows of 1, and one that is no number."""
    return [*some_usage(*["1"] * 59), a_usage(59, ABC)]


@pytest.mark.case("one_bad_row_holds_the_hour")
def test_a_bad_row_is_rejected_at_once_and_its_mending_bills_the_whole_hour(world):
    world.at("2026-11-28T11:20:00Z")
    world.put(*an_hour_with_a_bad_row())
    outcome = world.meter()
    assert outcome.success
    assert world.row(59)["meteringStatus"] == "RejectedClientSide"
    assert world.row(59)["meteringStatusReason"] == "NonNumericQuantity"
    assert "meteringPending" not in world.row(59)
    assert world.row_statuses() == {"RejectedClientSide": 1, "pending": 59}
    shown = outcome.metadata["aggregated_usage"]
    assert (shown["held_groups"], shown["held_rows"], shown["held_quantity"]) == (1, 59, 59)
    assert shown["rejected"] == {"NonNumericQuantity": 1}
    assert "held by a rejected one" in shown["notes"]
    assert world.bill() == []
    world.put(a_usage(59, "1"))
    world.at("2026-11-28T12:20:00Z")
    assert world.meter().metadata["aggregated_usage"]["committed_rows"] == 60
    assert world.billed() == {DIMENSION: "60"}
    world.judge()


@pytest.mark.case("one_bad_row_holds_the_hour")
def test_deleting_the_bad_row_ends_the_hold_too(world):
    rows = an_hour_with_a_bad_row()
    world.put(*rows)
    world.visit()
    world.visit()
    assert world.bill() == []
    world.delete(rows[-1])
    world.visit()
    assert world.billed() == {DIMENSION: "59"}
    world.judge()


@pytest.mark.case("one_bad_row_holds_the_hour")
def test_a_bad_row_holds_its_own_group_alone(world):
    world.put(
        *an_hour_with_a_bad_row(),
        a_usage(0, "2", dimension="other"),
        a_usage(0, "3", account=OTHER_ACCOUNT),
        a_usage(0, "4", license=OTHER_LICENSE),
        a_usage(0, "5", hour="2026-11-28T09"),
    )
    world.visit()
    world.visit("2026-11-28T09")
    assert sorted(int(record.quantity) for record in world.bill()) == [2, 3, 4, 5]


@pytest.mark.case("one_bad_row_never_mended")
@pytest.mark.parametrize("instant", [LAST_CALL, "2026-11-29T09:20:00Z"])
def test_at_the_last_call_the_good_rows_are_billed_without_the_bad_one(world, instant):
    world.put(*an_hour_with_a_bad_row())
    world.visit()
    world.at("2026-11-29T07:20:00Z")
    world.visit()
    assert world.bill() == []
    world.at(instant)
    assert world.meter().success
    assert world.billed() == {DIMENSION: "59"}
    assert world.row_statuses() == {"Aggregated": 59, "RejectedClientSide": 1}
    world.judge()


@pytest.mark.case("one_bad_row_never_mended")
def test_a_bad_row_that_is_first_seen_at_the_last_call_holds_nothing(world):
    world.put(*an_hour_with_a_bad_row())
    world.at(LAST_CALL)
    world.visit()
    assert world.billed() == {DIMENSION: "59"}
    world.judge()


@pytest.mark.case("one_bad_row_never_mended")
def test_the_last_call_of_a_deprovisioning_license_comes_ten_minutes_before_its_end(world):
    world.put(
        *an_hour_with_a_bad_row(),
        a_subscriber(deprovisioningPendingFlag="1", deprovisioningExpiry="2026-11-28T12:35:00Z"),
    )
    world.at("2026-11-28T12:24:59Z")
    world.visit()
    assert world.bill() == []
    world.at("2026-11-28T12:25:00Z")
    world.visit()
    assert world.billed() == {DIMENSION: "59"}


@pytest.mark.case("zero_waits")
def test_a_zero_waits_for_usage(world):
    world.put(*some_usage("0", "0"))
    outcome = world.meter()
    assert outcome.success
    assert outcome.metadata["aggregated_usage"]["zero_groups"] == 1
    assert world.row_statuses() == {"pending": 2}
    assert world.calls() == []
    world.put(a_usage(2, "2"))
    world.visit()
    assert world.billed() == {DIMENSION: "2"}
    assert world.row_statuses() == {"Aggregated": 3}
    world.judge()


@pytest.mark.case("zero_waits")
@pytest.mark.parametrize("instant", [LAST_CALL, "2026-11-29T09:20:00Z"])
def test_a_zero_is_sent_at_the_last_call(world, instant):
    world.put(*some_usage("0", "0.0"))
    world.at(instant)
    assert world.meter().success
    assert world.billed() == {DIMENSION: "0"}
    world.judge()


@pytest.mark.case("fractions_are_exact")
def test_fractions_add_up_exactly(world):
    world.put(*some_usage(*["0.1"] * 10, "0.000001"))
    outcome = world.meter()
    assert world.billed() == {DIMENSION: "1.000001"}
    assert outcome.metadata["metered_usage"]["dimensions"] == {DIMENSION: "1.000001"}
    world.judge()


@pytest.mark.case("fractions_are_exact")
def test_a_seventh_decimal_is_rejected_and_not_rounded(world):
    world.put(a_usage(0, "0.0000001"), a_usage(0, "0.0000010", dimension="six"))
    world.visit()
    assert world.row(0)["meteringStatusReason"] == "TooManyDecimals"
    assert world.billed() == {"six": "0.000001"}


@pytest.mark.case("fractions_are_exact")
def test_the_largest_sum_loses_no_digit(world):
    world.put(*some_usage("9999999999", "0.999999"))
    world.visit()
    assert world.billed() == {DIMENSION: "9999999999.999999"}


@pytest.mark.case("number_forms")
def test_every_form_of_five_is_five(world):
    world.put(*some_usage("5", "5.0", "5E0", "500E-2"))
    world.visit()
    assert world.billed() == {DIMENSION: "20"}
    world.judge()


@pytest.mark.case("number_forms")
@pytest.mark.parametrize(("quantity", "reason"), [
    ({"S": "5"}, "NonNumericQuantity"), ({"S": "5.0"}, "NonNumericQuantity"), ({"BOOL": True}, "NonNumericQuantity"),
    (None, "MissingQuantity"), ({"NULL": True}, "MissingQuantity"), ("-1", "NegativeQuantity"),
    ({"L": [{"N": "5"}]}, "NonNumericQuantity"), ({"M": {}}, "NonNumericQuantity"), ({"B": b"5"}, "NonNumericQuantity"),
    ({"NS": ["5"]}, "NonNumericQuantity"), ("10000000000", "QuantityTooLarge"),
    ("1E+100", "QuantityTooLarge"), ("1E-100", "TooManyDecimals"),
], ids=str)  # fmt: skip
def test_what_is_no_number_is_rejected(world, quantity, reason):
    world.put(a_usage(0, quantity), a_usage(1, "1"))
    world.visit()
    assert world.row(0)["meteringStatusReason"] == reason
    assert world.row_statuses() == {"RejectedClientSide": 1, "pending": 1}


@pytest.mark.case("number_forms")
def test_whole_numbers_alone_where_the_seller_chose_them(world):
    world.configure(quantities=Quantities.INTEGER)
    world.put(*some_usage("5.0", "5E0"), a_usage(0, "0.5", dimension="half"))
    world.visit()
    assert world.row(0, dimension="half")["meteringStatusReason"] == "NonIntegerQuantity"
    assert world.billed() == {DIMENSION: "10"}


@pytest.mark.case("sum_too_large")
def test_a_sum_that_is_too_large_is_rejected_as_a_whole(world):
    world.put(*some_usage("5000000000", "5000000000"))
    outcome = world.meter()
    assert outcome.success
    assert {row["meteringStatusReason"] for row in world.rows()} == {"QuantityTooLarge"}
    assert world.row_statuses() == {"RejectedClientSide": 2}
    assert outcome.metadata["aggregated_usage"]["rejected"] == {"QuantityTooLarge": 2}
    assert world.calls() == []
    assert world.aggregates() == []


@pytest.mark.case("sum_too_large")
def test_a_group_fault_is_judged_again_with_all_rows_once_one_is_mended(world):
    world.put(*some_usage("5000000000", "5000000000"))
    world.visit()
    world.put(a_usage(1, "4"))
    world.visit()
    assert world.billed() == {DIMENSION: "5000000004"}
    world.judge()


@pytest.mark.case("hash_in_dimension")
def test_a_hash_in_a_dimension_makes_another_group(world):
    world.put(a_usage(0, "1", dimension="a"), a_usage(0, "2", dimension="a#b"), a_usage(1, "4", dimension="a#"))
    world.visit()
    assert world.billed() == {"a": "1", "a#b": "2", "a#": "4"}
    world.judge()


@pytest.mark.case("hash_in_dimension")
def test_a_dimension_that_looks_like_anothers_hour_is_not_read_by_it(world):
    world.put(a_usage(0, "1", dimension="a"), a_usage(0, "2", dimension=f"a#{HOUR}:00:00"))
    world.visit()
    assert world.billed() == {"a": "1", f"a#{HOUR}:00:00": "2"}
    world.judge()


@pytest.mark.case("misfiled_row")
def test_misfiled_rows_are_counted_in_the_hour_that_their_key_says(world):
    world.at("2026-11-28T13:20:00Z")
    world.put(
        a_usage(3599, "1", filed=NEXT_HOUR),
        a_usage(0, "2"),
        a_usage(0, "4", hour=NEXT_HOUR, filed=HOUR),
        a_usage(1, "8", hour=NEXT_HOUR),
    )
    outcome = world.meter(HOUR)
    assert outcome.metadata["pending_usage"]["refiled"] == {NEXT_HOUR: 1}
    world.meter(NEXT_HOUR)
    assert {record.hour: record.quantity for record in world.bill()} == {HOUR: "3", NEXT_HOUR: "12"}
    world.judge()


@pytest.mark.case("misfiled_row")
def test_a_group_of_nothing_but_misfiled_rows_is_billed_in_its_hour(world):
    world.at("2026-11-28T13:20:00Z")
    world.put(a_usage(3599, "1", filed=NEXT_HOUR))
    world.visit(HOUR)
    assert world.bill() == []
    world.visit(NEXT_HOUR)
    assert world.row(3599)["meteringPending"] == HOUR
    world.visit(HOUR)
    assert [(record.hour, record.quantity) for record in world.bill()] == [(HOUR, "1")]
    world.judge()


@pytest.mark.case("misfiled_row")
def test_a_misfiled_row_of_a_committed_hour_is_late(world):
    world.at("2026-11-28T13:20:00Z")
    world.put(a_usage(0, "2"))
    world.visit(HOUR)
    world.put(a_usage(3599, "1", filed=NEXT_HOUR), a_usage(0, "2", filed=NEXT_HOUR))
    outcome = world.meter(NEXT_HOUR)
    assert world.row(3599)["meteringStatus"] == "LateUsage"
    assert world.row(0)["meteringStatus"] == "Aggregated"  # the seller's repeated put, in the wrong drawer
    assert outcome.metadata["pending_usage"]["late_rows"] == 1
    assert outcome.metadata["pending_usage"]["late_quantity"] == 1
    assert outcome.metadata["pending_usage"]["cleaned_rows"] == 1
    world.judge()


@pytest.mark.case("misfiled_row")
def test_a_misfiled_row_that_is_bad_is_rejected_in_its_hour(world):
    world.at("2026-11-28T13:20:00Z")
    world.put(a_usage(0, ABC, filed=NEXT_HOUR))
    world.visit(NEXT_HOUR)
    world.visit(HOUR)
    assert world.row(0)["meteringStatusReason"] == "NonNumericQuantity"


@pytest.mark.case("misfiled_row")
@pytest.mark.parametrize(("hour", "status", "reason"), [
    ("2026-11-28T13", "RejectedClientSide", "TimestampInFuture"),
    ("2026-11-27T12", "AggregationExpired", "could not be billed"),
])  # fmt: skip
def test_a_misfiled_row_of_an_hour_that_cannot_be_billed_ends_at_once(world, hour, status, reason):
    world.put(a_usage(0, "1", hour=hour, filed=HOUR))
    assert world.meter(HOUR).success
    assert world.row(0, hour=hour)["meteringStatus"] == status
    assert reason in world.row(0, hour=hour)["meteringStatusReason"]
    assert world.bill() == []


@pytest.mark.case("misfiled_row")
def test_a_misfiled_row_of_the_current_hour_waits_there(world):
    world.put(a_usage(0, "1", hour="2026-11-28T12", filed=HOUR))
    world.visit(HOUR)
    assert world.row(0, hour="2026-11-28T12")["meteringPending"] == "2026-11-28T12"


@pytest.mark.case("key_and_attributes_disagree")
@pytest.mark.parametrize(("attributes", "reason"), [
    ({"customerAWSAccountId": OTHER_ACCOUNT}, "SortKeyMismatch"),
    ({"dimension": "api_calls"} | {"sort_key": f"{ACCOUNT}#other#2026-11-28T10:00:00"}, "SortKeyMismatch"),
    ({"sort_key": f"{ACCOUNT}#2026-11-28T10:00:00"}, "MalformedSortKey"),
    ({"sort_key": "nothing"}, "MalformedSortKey"),
    ({"sort_key": f"{ACCOUNT}#{DIMENSION}#2026-11-28 10:00"}, "MalformedTimestamp"),
    ({"sort_key": f"{ACCOUNT}#{DIMENSION}#2026-11-28T10:00:60"}, "MalformedTimestamp"),
], ids=str)  # fmt: skip
def test_a_row_that_contradicts_its_key_is_found_and_rejected(world, attributes, reason):
    row = a_usage(0, "1", **attributes)
    world.put(row)
    outcome = world.meter()
    assert outcome.success
    assert world.item(row)["meteringStatus"] == "RejectedClientSide"
    assert world.item(row)["meteringStatusReason"] == reason
    assert outcome.metadata["pending_usage"]["rejected"] == {reason: 1}
    assert world.bill() == []


@pytest.mark.case("key_and_attributes_disagree")
def test_a_row_whose_timestamp_contradicts_its_key_is_rejected(world):
    world.put(a_usage(0, "1", timestamp="2026-11-28T10:00:01"))
    world.visit()
    assert world.row(0)["meteringStatusReason"] == "SortKeyMismatch"


@pytest.mark.case("key_and_attributes_disagree")
def test_a_row_without_the_attributes_goes_by_its_key(world):
    row = a_usage(0, "7")
    for name in ("customerAWSAccountId", "dimension", "timestamp"):
        del row.values[name]
    world.put(row)
    world.visit()
    assert world.billed() == {DIMENSION: "7"}
    world.judge()


@pytest.mark.case("key_and_attributes_disagree")
@pytest.mark.parametrize(("change", "reason"), [
    ({"dimension": ""}, "MissingDimension"), ({"dimension": "d" * 256}, "DimensionTooLong"),
    ({"license": "arn:aws:license manager::1:l"}, "InvalidLicenseArn"),
    ({"account": ""}, "MissingCustomerAWSAccountId"), ({"account": "12345678901x"}, "InvalidCustomerAWSAccountId"),
    ({"license": "legacy", "account": ""}, "MissingLegacyIdentifier"),
], ids=lambda value: next(iter(value)) if isinstance(value, dict) else value)  # fmt: skip
def test_a_fault_of_the_whole_group_rejects_all_its_rows(world, change, reason):
    rows = [a_usage(second, "1", **change) for second in range(2)]
    for row in rows:
        row.values.pop("customerAWSAccountId")  # an index key must not be empty
        row.values.pop("dimension")
    world.put(*rows)
    world.visit()
    assert {row["meteringStatusReason"] for row in world.rows()} == {reason}
    assert world.calls() == []
    assert LICENSE not in {reason}
