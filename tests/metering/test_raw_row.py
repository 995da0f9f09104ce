"""The contract of one raw row: its key, its group, its faults in the order of the domain's text."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.metering.rules.raw_row import (
    BillableRow,
    GroupKey,
    SortKey,
    account_of,
    group_of,
    judge,
    key_fault,
    parse_sort_key,
    parse_timestamp,
)
from metering_dagster.metering.rules.statuses import RawStatus, Reason
from tests.metering.builders import (
    ACCOUNT,
    DECIMAL,
    DIMENSION,
    INTEGER,
    LICENSE,
    TWO_BACK,
    a_key,
    a_rejected_row,
    a_row,
    an_allocation,
)

KEY = f"{ACCOUNT}#{DIMENSION}#2026-11-28T10:00:07"


@pytest.mark.parametrize(("sort_key", "account"), [
    ("1#a#b#2026-11-28T10", "1"), ("1#rest", "1"), ("#d#t", ""), ("no key", ""), ("", ""),
])  # fmt: skip
def test_a_key_begins_with_its_account(sort_key, account):
    assert account_of(sort_key) == account


@pytest.mark.parametrize(("sort_key", "parts"), [
    ("1#d#t", SortKey("1", "d", "t")), ("1#a#b#t", SortKey("1", "a#b", "t")), ("1#a##b#t", SortKey("1", "a##b", "t")),
    ("##t", SortKey("", "", "t")), ("1##t", SortKey("1", "", "t")), ("##", SortKey("", "", "")),
    ("1###t", SortKey("1", "#", "t")),
    ("1#t", None), ("t", None), ("", None), ("#", None),
])  # fmt: skip
def test_a_sort_key_is_account_dimension_and_timestamp(sort_key, parts):
    assert parse_sort_key(sort_key) == parts


@given(st.text("0123456789"), st.text(), st.text(st.characters(exclude_characters="#")))
def test_a_sort_key_comes_apart_as_it_was_put_together(account, dimension, timestamp):
    assert parse_sort_key(f"{account}#{dimension}#{timestamp}") == (account, dimension, timestamp)


@given(st.datetimes(timezones=st.just(UTC)).map(lambda t: t.replace(microsecond=0)))
def test_a_timestamp_reads_back(instant):
    assert parse_timestamp(instant.isoformat()[:19]) == instant


@pytest.mark.parametrize("text", [
    "", "2026-11-28T10", "2026-11-28T10:00", "2026-11-28 10:00:00", "2026-11-28T10:00:00Z", "2026-11-28T10:00:00.0",
    "2026-11-28T24:00:00", "2026-11-28T10:60:00", "2026-11-28T10:00:60", "2027-02-29T10:00:00", "2026-11-31T10:00:00",
    "2026-11-28T10:00:00+00:00", "2026-11-28T10:00:0٣", "2026-11-28T10:00:00\n", "0000-01-01T00:00:00",
])  # fmt: skip
def test_what_is_no_timestamp(text):
    assert parse_timestamp(text) is None


def test_a_row_belongs_to_the_hour_of_its_key_whatever_it_is_filed_under():
    assert group_of(LICENSE, KEY) == a_key()
    assert group_of(LICENSE, f"{ACCOUNT}#{DIMENSION}#2026-11-28T10:59:59") == a_key()
    assert group_of(LICENSE, f"{ACCOUNT}#{DIMENSION}#2026-11-28T11:00:00") != a_key()
    assert group_of(LICENSE, "two#segments") is None
    assert group_of(LICENSE, f"{ACCOUNT}#{DIMENSION}#now") is None


def test_a_group_says_its_prefix_and_whether_it_is_legacy():
    key = GroupKey("prod-1", "1", "a#b", TWO_BACK)
    assert (key.bucket, key.prefix, key.is_legacy) == ("2026-11-28T10", "1#a#b#2026-11-28T10", True)
    assert not a_key().is_legacy


@pytest.mark.case("key_and_attributes_disagree")
@pytest.mark.parametrize(("differences", "reason"), [
    ({}, None), ({"account": None, "dimension": None, "timestamp": None}, None),
    ({"account": "1"}, Reason.SORT_KEY_MISMATCH), ({"account": ""}, Reason.SORT_KEY_MISMATCH),
    ({"account": Decimal(ACCOUNT)}, Reason.SORT_KEY_MISMATCH), ({"dimension": "API_calls"}, Reason.SORT_KEY_MISMATCH),
    ({"timestamp": "2026-11-28T10:00:08"}, Reason.SORT_KEY_MISMATCH),
    ({"sort_key": f"{ACCOUNT}#2026-11-28T10:00:07"}, Reason.MALFORMED_SORT_KEY),
    ({"sort_key": f"{ACCOUNT}#{DIMENSION}#", "timestamp": None}, Reason.MALFORMED_TIMESTAMP),
    ({"sort_key": f"{ACCOUNT}#{DIMENSION}#2026-11-28T10", "timestamp": "2026-11-28T10"}, Reason.MALFORMED_TIMESTAMP),
    ({"sort_key": f"{ACCOUNT}#{DIMENSION}#2026-11-28T10"}, Reason.MALFORMED_TIMESTAMP),
])  # fmt: skip
def test_the_faults_of_a_key(differences, reason):
    row = a_row(7, **differences)
    assert key_fault(row.sort_key, row.account, row.dimension, row.timestamp) is reason
    assert judge(row, DECIMAL) is reason or (reason is None and isinstance(judge(row, DECIMAL), BillableRow))


SEVEN = 1795860007
"""2026-11-28T10:00:07 in epoch seconds."""


@pytest.mark.case("timestamp_spelt_otherwise")
@pytest.mark.parametrize("timestamp", [
    "2026-11-28T10:00:07Z", "2026-11-28T10:00:07+00:00", "2026-11-28T10:00:07.000Z", "2026-11-28T10:00:07.9",
    "2026-11-28 10:00:07", "20261128T100007Z", "2026-11-28T15:30:07+05:30", Decimal(SEVEN), Decimal(SEVEN * 1000),
    Decimal(f"{SEVEN}.25"), str(SEVEN), f"{SEVEN}999",
])  # fmt: skip
def test_a_timestamp_may_be_spelt_in_any_way(timestamp):
    assert datetime.fromtimestamp(SEVEN, UTC) == parse_timestamp("2026-11-28T10:00:07")
    assert isinstance(judge(a_row(7, timestamp=timestamp), DECIMAL), BillableRow)


@pytest.mark.case("timestamp_spelt_otherwise")
@pytest.mark.parametrize("timestamp", [
    "soon", "", "2026-11-28", "2026-11-28T10:00", "2026-13-28T10:00:07", True, [], {}, b"7", Decimal("-1"),
    Decimal("1E+14"), Decimal("NaN"), "9" * 4000,
])  # fmt: skip
def test_a_timestamp_that_is_no_instant_contradicts_nothing(timestamp):
    assert isinstance(judge(a_row(7, timestamp=timestamp), DECIMAL), BillableRow)


@pytest.mark.case("timestamp_spelt_otherwise")
@pytest.mark.parametrize("timestamp", [
    "2026-11-28T11:00:07Z", "2026-11-28T10:00:08.000Z", "2026-11-28T10:00:07+01:00", Decimal(SEVEN + 3600),
    Decimal(SEVEN * 1000 - 1), str(SEVEN + 1),
])  # fmt: skip
def test_a_timestamp_that_is_another_instant_contradicts_the_key(timestamp):
    assert judge(a_row(7, timestamp=timestamp), DECIMAL) is Reason.SORT_KEY_MISMATCH


@pytest.mark.case("empty_allocations")
def test_an_empty_list_of_allocations_is_none():
    usage = judge(a_row(7, Decimal(5), allocations=[]), DECIMAL)
    assert isinstance(usage, BillableRow)
    assert (usage.quantity, usage.allocations) == (5, None)


def test_a_good_row_states_its_usage():
    row = a_row(3599, Decimal("2.50"), allocations=[an_allocation("2.5", team="a")])
    usage = judge(row, DECIMAL)
    assert isinstance(usage, BillableRow)
    assert (usage.row, usage.second, usage.quantity) == (row, 3599, Decimal("2.5"))
    assert [a.tags for a in usage.allocations or ()] == [(("team", "a"),)]
    assert judge(a_row(0), DECIMAL).allocations is None


MALFORMED = {"sort_key": "two#segments"}
MISMATCH = {"account": "999"}
TIMESTAMP = {"timestamp": None, "sort_key": f"{ACCOUNT}#{DIMENSION}#2026-11-28T10:61:00"}
KEY_FAULTS = [
    (Reason.MALFORMED_SORT_KEY, MALFORMED),
    (Reason.SORT_KEY_MISMATCH, MISMATCH),
    (Reason.MALFORMED_TIMESTAMP, TIMESTAMP),
]
QUANTITY_FAULTS = [
    (Reason.MISSING_QUANTITY, {"quantity": None}),
    (Reason.NON_NUMERIC_QUANTITY, {"quantity": "abc"}),
    (Reason.NEGATIVE_QUANTITY, {"quantity": Decimal("-0.5")}),
    (Reason.TOO_MANY_DECIMALS, {"quantity": Decimal("0.0000001")}),
    (Reason.QUANTITY_TOO_LARGE, {"quantity": Decimal(10**10)}),
]
ALLOCATION_FAULTS = [
    (Reason.MALFORMED_ALLOCATIONS, {"allocations": [[]]}),
    (Reason.INVALID_ALLOCATION, {"allocations": [an_allocation("-1")]}),
    (Reason.TOO_MANY_TAGS, {"allocations": [an_allocation("1", **{f"k{n}": "v" for n in range(6)})]}),
    (Reason.MISSING_TAG_KEY_OR_VALUE, {"allocations": [an_allocation("1", team="")]}),
    (Reason.INVALID_TAG, {"allocations": [an_allocation("1", team="{")]}),
    (Reason.ALLOCATION_SUM_MISMATCH, {"allocations": [an_allocation("2", team="a")]}),
]
FAULTS = KEY_FAULTS + QUANTITY_FAULTS + ALLOCATION_FAULTS


@pytest.mark.parametrize(("reason", "differences"), FAULTS)
def test_each_fault_has_its_reason(reason, differences):
    assert judge(a_row(**{"quantity": Decimal(1), **differences}), DECIMAL) is reason


@pytest.mark.parametrize(("first", "second"), [
    pair for pair in combinations(FAULTS, 2) if not set(pair[0][1]) & set(pair[1][1])
])  # fmt: skip
def test_a_row_with_two_faults_gets_the_first(first, second):
    row = a_row(**{"quantity": Decimal(1), **second[1], **first[1]})
    assert judge(row, DECIMAL) is first[0]


def test_the_reasons_are_in_the_order_in_which_they_are_looked_for():
    order = [reason for reason, _ in FAULTS]
    assert order == [reason for reason in Reason if reason in order]


def test_whole_quantities_are_asked_for_where_the_setting_says_so():
    assert judge(a_row(0, Decimal("1.5")), INTEGER) is Reason.NON_INTEGER_QUANTITY
    assert judge(a_row(0, Decimal(2**31)), INTEGER) is Reason.QUANTITY_TOO_LARGE
    assert isinstance(judge(a_row(0, Decimal("2147483647.0")), INTEGER), BillableRow)
    assert isinstance(judge(a_row(0, Decimal("1.5")), DECIMAL), BillableRow)


def test_a_pending_row_is_not_rejected_whatever_its_status_says():
    assert a_rejected_row(Reason.INVALID_TAG).is_rejected
    assert not a_row(status=RawStatus.REJECTED.value).is_rejected
    assert not a_row(pending=None, status=RawStatus.AGGREGATED.value).is_rejected


def test_an_empty_part_of_the_key_is_no_fault_of_the_row_but_of_its_group():
    stamp = datetime(2026, 11, 28, 10, tzinfo=UTC).isoformat()[:19]
    assert isinstance(judge(a_row(sort_key=f"##{stamp}", account=None, dimension=None), DECIMAL), BillableRow)
