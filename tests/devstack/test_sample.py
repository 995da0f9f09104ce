"""The sample usage has the size, the shape and all the faults that it promises, whatever the time."""

import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.core.errors import UnreachableError
from metering_dagster.core.hours import LAST_CALL_OFFSET, bucket, hour_at_offset, offset_of, parse_bucket
from metering_dagster.devstack import loading
from metering_dagster.devstack.loading import load
from metering_dagster.devstack.sample import SORT_KEY, SampleKind, generate

NOW = datetime(2026, 11, 28, 10, 20, 30, tzinfo=UTC)
EDGES = [
    NOW,
    datetime(2026, 12, 1, 4, 59, tzinfo=UTC),
    datetime(2027, 1, 1, tzinfo=UTC),
    datetime(2028, 2, 29, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2028, 3, 1, 0, 0, 1, tzinfo=UTC),
    datetime(2026, 11, 28, 10, 20, tzinfo=timezone(timedelta(hours=5, minutes=30))),
]
LICENSE = re.compile(r"arn:aws:license-manager::\d{12}:license[:/]l-[0-9a-f]{32}")
DECIMAL = re.compile(r"(0|[1-9][0-9]{0,9})(\.[0-9]{1,6})?")


@pytest.fixture(scope="module")
def sample():
    return generate(NOW)


def groups_of(rows):
    groups = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    return groups


def key_of(row):
    return row.item["licenseArn"], row.item[SORT_KEY]


def allocated_sum(item):
    shares = (each.get("AllocatedUsageQuantityAsDecimal", each.get("AllocatedUsageQuantity")) for each in item)
    return sum(map(Decimal, shares), Decimal(0))


def check_shape(sample):
    """What holds at any time."""
    groups = groups_of(sample.rows)
    assert len(sample.rows) >= 6_000
    assert 900 <= len(groups) <= 1_200
    assert len({account for _, account, _, _ in groups}) == 40
    assert {dimension for _, _, dimension, _ in groups} == set(sample.dimensions)
    assert {hour for *_, hour in groups} == {bucket(hour_at_offset(sample.now, offset)) for offset in range(1, 24)}
    assert Counter(row.code for row in sample.rows if row.kind is SampleKind.BAD) == {
        "NonNumericQuantity": 3,
        "NegativeQuantity": 2,
        "TooManyDecimals": 1,
        "AllocationSumMismatch": 1,
        "MalformedSortKey": 2,
        "SortKeyMismatch": 1,
    }
    assert sum(row.kind is SampleKind.MISFILED for row in sample.rows) == 5
    assert Counter(row.kind for row in sample.later) == {
        SampleKind.LATE: 8,
        SampleKind.OVERWRITTEN: 3,
        SampleKind.REPEATED: 4,
    }
    for rows in (sample.rows, sample.later):
        assert len({key_of(row) for row in rows}) == len(rows)


@pytest.mark.parametrize("now", EDGES, ids=str)
def test_shape_holds_at_the_edges_of_the_calendar(now):
    check_shape(generate(now))


@settings(max_examples=10, deadline=None)
@given(st.timedeltas(timedelta(days=-2_000), timedelta(days=20_000)))
def test_shape_holds_at_any_time(since):
    check_shape(generate(NOW + since))


def test_instant_without_a_zone_is_refused():
    with pytest.raises(ValueError, match="without a time zone"):
        generate(NOW.replace(tzinfo=None))


def test_same_seed_and_time_make_the_same_sample(sample):
    assert generate(NOW) == sample


def test_zone_that_now_is_given_in_makes_no_difference(sample):
    assert generate(NOW.astimezone(timezone(timedelta(hours=5, minutes=30)))) == sample


def test_buyers_stay_the_same_an_hour_later(sample):
    later = generate(NOW + timedelta(hours=1))
    assert later.licenses == sample.licenses
    assert later.products == sample.products


def test_another_seed_makes_other_buyers(sample):
    assert not generate(NOW, seed=7).licenses.keys() & sample.licenses.keys()


def test_catalog_has_three_products_and_five_dimensions_one_with_a_hash_sign(sample):
    assert len(set(sample.products)) == 3
    assert set(sample.licenses.values()) == set(sample.products)
    assert len(set(sample.dimensions)) == 5
    assert sum("#" in dimension for dimension in sample.dimensions) == 1


def test_licenses_come_in_both_spellings_and_some_buyers_have_two(sample):
    assert all(LICENSE.fullmatch(arn) for arn in sample.licenses)
    assert {arn[-35:-34] for arn in sample.licenses} == {":", "/"}
    held = Counter(row["customerAWSAccountId"] for row in sample.subscribers)
    assert Counter(held.values()) == {1: 27, 2: 12}


def test_subscriber_rows_are_active(sample):
    for row in sample.subscribers:
        assert (row["agreementStatus"], row["subscriptionStatus"]) == ("active", "active")
        assert row["agreementId"]
    assert len({row["agreementId"] for row in sample.subscribers}) == len(sample.subscribers)


def test_one_buyer_is_a_legacy_one(sample):
    legacy = [row.item for row in sample.rows if not row.item["licenseArn"].startswith("arn:")]
    assert {item["licenseArn"] for item in legacy} == {sample.products[-1]}
    assert {item["customerIdentifier"] for item in legacy} == set(sample.legacy_customers)
    assert len(sample.legacy_customers) == 1
    others = [row.item for row in sample.rows if row.item["licenseArn"].startswith("arn:")]
    assert not any("customerIdentifier" in item for item in others)


def test_usage_follows_the_day(sample):
    groups = Counter(hour[-2:] for *_, hour in groups_of(sample.rows))
    assert sum(groups[f"{hour:02}"] for hour in range(13, 19)) > 1.3 * sum(groups[f"{hour:02}"] for hour in range(6))


def test_ordinary_rows_say_the_same_in_key_and_attributes(sample):
    for row in sample.rows:
        if row.kind in (SampleKind.GOOD, SampleKind.ZERO, SampleKind.MISFILED):
            item = row.item
            key = f"{item['customerAWSAccountId']}#{item['dimension']}#{item['timestamp']}"
            assert item[SORT_KEY] == key
            assert row.used == item["quantity"]
            assert DECIMAL.fullmatch(f"{item['quantity']:f}")
            assert (item["meteringPending"] == item["timestamp"][:13]) is (row.kind is not SampleKind.MISFILED)
            assert item["createdAt"] <= item["updatedAt"] <= f"{NOW:%Y-%m-%dT%H:%M:%SZ}"


def test_no_row_is_written_before_its_second(sample):
    assert all(row.item["createdAt"][:19] >= row.item["timestamp"] for row in sample.rows)


def test_quantities_have_up_to_six_decimals(sample):
    decimals = {-row.item["quantity"].as_tuple().exponent for row in sample.rows if row.kind is SampleKind.GOOD}
    assert decimals == {0, 3, 4, 6}


def test_allocations_sum_to_the_quantity_but_in_the_bad_row(sample):
    allocated = [row for row in sample.rows if "usageAllocations" in row.item]
    assert len(allocated) > 500
    for row in allocated:
        assert allocated_sum(row.item["usageAllocations"]) == row.used
    assert [row.code for row in allocated if row.kind is not SampleKind.BAD and row.item["quantity"] != row.used] == []


def test_rows_without_allocations_lie_beside_rows_with_them(sample):
    groups = groups_of(row for row in sample.rows if row.kind is SampleKind.GOOD)
    assert any(len({"usageAllocations" in row.item for row in rows}) == 2 for rows in groups.values())


def test_allocations_come_in_both_kinds_of_number_and_one_bucket_has_no_tags(sample):
    shares = [share for row in sample.rows for share in row.item.get("usageAllocations", [])]
    assert {name for share in shares for name in share} == {
        "AllocatedUsageQuantityAsDecimal",
        "AllocatedUsageQuantity",
        "Tags",
    }
    assert any("Tags" not in share for share in shares)
    for share in shares:
        if "AllocatedUsageQuantityAsDecimal" in share:
            assert DECIMAL.fullmatch(share["AllocatedUsageQuantityAsDecimal"])


def test_zero_groups_are_zero_throughout_and_one_is_at_its_last_call(sample):
    zero = [rows for rows in groups_of(sample.rows).values() if rows[0].kind is SampleKind.ZERO]
    assert len(zero) == 4
    for rows in zero:
        assert all(row.kind is SampleKind.ZERO and row.item["quantity"] == 0 for row in rows)
    assert offsets_at_last_call(sample, [rows[0] for rows in zero]) == [LAST_CALL_OFFSET]


def test_one_held_group_is_at_its_last_call_and_has_good_rows_to_bill(sample):
    bad = [row for row in sample.rows if row.kind is SampleKind.BAD]
    assert offsets_at_last_call(sample, bad) == [LAST_CALL_OFFSET]
    groups = groups_of(sample.rows)
    for row in bad:
        assert Counter(each.kind for each in groups[row.group])[SampleKind.GOOD] >= 3


def offsets_at_last_call(sample, rows):
    offsets = (offset_of(parse_bucket(row.group[-1]), sample.now) for row in rows)
    return [offset for offset in offsets if offset >= LAST_CALL_OFFSET]


def bad_rows(sample, code):
    return [row for row in sample.rows if row.code == code]


def test_bad_rows_are_bad_in_the_way_they_say_and_remember_what_was_used(sample):
    assert all(row.used > 0 for row in sample.rows if row.kind is SampleKind.BAD)
    assert all(row.item["quantity"] == "abc" for row in bad_rows(sample, "NonNumericQuantity"))
    assert all(row.item["quantity"] == -row.used for row in bad_rows(sample, "NegativeQuantity"))
    assert all(row.item["quantity"].as_tuple().exponent == -7 for row in bad_rows(sample, "TooManyDecimals"))
    assert all(row.item["quantity"] == row.used + 1 for row in bad_rows(sample, "AllocationSumMismatch"))
    for row in bad_rows(sample, "MalformedSortKey"):
        assert row.item[SORT_KEY] == f"{row.item['customerAWSAccountId']}#{row.item['timestamp']}"
    accounts = {account for _, account, _, _ in groups_of(sample.rows)}
    for row in bad_rows(sample, "SortKeyMismatch"):
        assert row.item["customerAWSAccountId"] in accounts - {row.group[1]}


def test_misfiled_rows_pend_in_a_neighboring_hour_that_is_metered(sample):
    for row in sample.rows:
        if row.kind is SampleKind.MISFILED:
            filed, meant = (parse_bucket(text) for text in (row.item["meteringPending"], row.item["timestamp"][:13]))
            assert abs(filed - meant) == timedelta(hours=1)
            assert 1 <= offset_of(filed, sample.now) <= 23


def test_what_arrives_later_belongs_to_groups_that_were_good(sample):
    groups = groups_of(sample.rows)
    for row in sample.later:
        assert {each.kind for each in groups[row.group]} == {SampleKind.GOOD}
        assert offset_of(parse_bucket(row.group[-1]), sample.now) in range(2, 19)


def test_late_rows_are_new_seconds_overwritten_and_repeated_ones_are_not(sample):
    first = {key_of(row): row for row in sample.rows}
    for row in sample.later:
        if row.kind is SampleKind.LATE:
            assert key_of(row) not in first
            assert row.used == row.item["quantity"]
        elif row.kind is SampleKind.OVERWRITTEN:
            assert row.used == row.item["quantity"] - first[key_of(row)].used != 0
        else:
            assert (row.item, row.used) == (first[key_of(row)].item, 0)


def test_overwritten_rows_go_up_and_down(sample):
    signs = {row.used > 0 for row in sample.later if row.kind is SampleKind.OVERWRITTEN}
    assert signs == {True, False}


class StubbornTable:
    """Leaves the last item of a batch over, `refusals` times, and keeps the others."""

    def __init__(self, refusals):
        self.refusals = refusals
        self.kept = []

    def batch_write_item(self, RequestItems):  # noqa: N803
        ((table, puts),) = RequestItems.items()
        assert 1 <= len(puts) <= 25
        left = puts[-1:] if self.refusals else []
        self.refusals -= bool(left)
        self.kept += puts[: len(puts) - len(left)]
        return {"UnprocessedItems": {table: left} if left else {}}


@pytest.fixture
def _no_pauses(monkeypatch):
    monkeypatch.setattr(loading, "WRITERS", 1)
    monkeypatch.setattr(loading.time, "sleep", lambda seconds: None)


@pytest.mark.usefixtures("_no_pauses")
def test_items_left_over_are_sent_again(sample):
    table = StubbornTable(refusals=5)
    assert load(table, "usage", sample.rows[:60]) == 60
    keys = [put["PutRequest"]["Item"][SORT_KEY]["S"] for put in table.kept]
    assert sorted(keys) == sorted(row.item[SORT_KEY] for row in sample.rows[:60])


@pytest.mark.usefixtures("_no_pauses")
def test_items_left_over_again_and_again_are_an_error(sample):
    with pytest.raises(UnreachableError, match="left 1 sample items unwritten"):
        load(StubbornTable(refusals=1_000), "usage", sample.rows[:5])
