"""Which records share a call: its limits, one product, legacy and grace apart, the urgent first."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.core.hours import HOUR, LAST_OFFSET, offset_of
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.batching import Batch, Lane, Products, cut_batches
from metering_dagster.metering.rules.usage_record import api_record, identity, record_bytes
from tests.metering.builders import (
    ACCOUNT,
    DECIMAL,
    INTEGER,
    LICENSE,
    NOW,
    a_key,
    an_aggregate,
    longest_allocations,
)

NOBODY = frozenset()
ONE_PRODUCT = Products({}, "prod-main")
IN_THE_GRACE = datetime(2026, 12, 1, 5, 30, tzinfo=UTC)


def cut(*aggregates, products=ONE_PRODUCT, urgent=NOBODY, now=NOW, quantities=DECIMAL):
    return cut_batches(aggregates, products, urgent, now, quantities)


def dimensions(count, **differences):
    return [an_aggregate(dimension=f"d{number:03}", **differences) for number in range(count)]


def sizes(batches):
    return [len(batch.records) for batch in batches]


def request_bytes(batch, quantities=DECIMAL):
    """The whole request's JSON, as large as the SDK writes it or larger."""
    records = [api_record(aggregate, quantities) for aggregate in batch.records]
    request = {"UsageRecords": records, "ProductCode": batch.product_code}
    return len(json.dumps(request, default=lambda instant: instant.timestamp()))


@pytest.mark.parametrize(("count", "calls"), [(0, []), (1, [1]), (25, [25]), (26, [25, 1]), (60, [25, 25, 10])])
def test_a_call_holds_25_records(count, calls):
    assert sizes(cut(*dimensions(count))) == calls


@pytest.mark.case("request_over_1_mb")
def test_25_records_with_many_allocations_become_several_calls_each_under_1_mb():
    parts = longest_allocations(100)
    batches = cut(*dimensions(25, quantity=100, allocations=parts))
    assert sum(sizes(batches)) == 25
    assert 5 <= len(batches) <= 7
    assert all(request_bytes(batch) < 1_000_000 for batch in batches)


def test_two_records_share_a_call_up_to_1_mb_and_no_further():
    calls = []
    for buckets in range(245, 265):  # from below to above half of it
        batches = cut(*dimensions(2, quantity=buckets, allocations=longest_allocations(buckets)))
        assert all(request_bytes(batch) < 1_000_000 for batch in batches)
        calls.append(len(batches))
    assert calls == sorted(calls)
    assert set(calls) == {1, 2}


@pytest.mark.parametrize("quantities", [DECIMAL, INTEGER])
def test_a_call_is_full_at_the_byte(quantities):
    small = an_aggregate(dimension="a")

    def large(length):
        return an_aggregate(dimension="z" * length)

    def counted(record):
        return record_bytes(api_record(record, quantities)) + len(", ")

    full = 1_000_000 - 512 - counted(small) - counted(large(0))
    assert len(cut(small, large(full - 1), quantities=quantities)) == 1
    assert len(cut(small, large(full), quantities=quantities)) == 2


def test_a_record_that_fills_a_call_by_itself_still_goes():
    aggregate = an_aggregate(600, allocations=longest_allocations(600))  # more than any item of a table holds
    assert sizes(cut(an_aggregate(dimension="a"), aggregate, an_aggregate(dimension="z"))) == [1, 1, 1]


@pytest.mark.case("two_products")
def test_no_call_carries_two_products():
    other = f"{LICENSE}-other"
    products = Products({(LICENSE, ACCOUNT): "prod-1", (other, ACCOUNT): "prod-2"}, "prod-main")
    batches = cut(*dimensions(3), *dimensions(3, license_arn=other), products=products)
    assert [(batch.owner, len(batch.records)) for batch in batches] == [("prod-1", 3), ("prod-2", 3)]
    assert {batch.product_code for batch in batches} == {None}  # with a LicenseArn it would bill twice


def test_the_subscribers_row_names_the_product_before_the_settings_do():
    products = Products({(LICENSE, ACCOUNT): "prod-1"}, "prod-main")
    assert products.lane_of(an_aggregate()) == (Lane.PRODUCT, "prod-1")
    assert products.lane_of(an_aggregate(account="1")) == (Lane.DEFAULT, "prod-main")
    assert Products({(LICENSE, ACCOUNT): ""}, None).lane_of(an_aggregate()) == (Lane.LICENSE, LICENSE)


def test_where_no_product_is_known_each_license_has_its_own_call():
    batches = cut(*dimensions(2), *dimensions(2, account="1"), an_aggregate(license_arn=f"{LICENSE}x"),
                  products=Products({}))  # fmt: skip
    assert [(batch.lane, batch.owner, len(batch.records)) for batch in batches] == [
        (Lane.LICENSE, LICENSE, 4), (Lane.LICENSE, f"{LICENSE}x", 1),
    ]  # fmt: skip


def test_legacy_records_are_never_mixed_with_others_and_name_their_product():
    batches = cut(an_aggregate(), an_aggregate(license_arn="prod-main"), an_aggregate(license_arn="prod-old"))
    assert Counter((batch.lane, batch.owner, batch.product_code) for batch in batches) == Counter([
        (Lane.DEFAULT, "prod-main", None),
        (Lane.LEGACY, "prod-main", "prod-main"),
        (Lane.LEGACY, "prod-old", "prod-old"),
    ])  # fmt: skip


def test_records_that_the_service_takes_for_one_never_share_a_call():
    legacy = [an_aggregate(license_arn="prod-1", account=str(n), customer_identifier="buyer") for n in range(3)]
    assert sizes(cut(*legacy)) == [1, 1, 1]
    assert sizes(cut(an_aggregate(), an_aggregate())) == [1, 1]


def test_hours_from_24_on_go_in_calls_of_their_own():
    hours_back = [an_aggregate(hour=IN_THE_GRACE.replace(minute=0) - n * HOUR) for n in range(1, 30)]
    batches = cut(*hours_back, now=IN_THE_GRACE)
    old = [{offset_of(a.key.hour, IN_THE_GRACE) > LAST_OFFSET for a in batch.records} for batch in batches]
    assert all(len(kinds) == 1 for kinds in old)
    assert sorted(sizes(batches)) == [6, 23]


def test_deprovisioning_licenses_go_first_and_in_calls_of_their_own():
    urgent = {("arn:aws:license-manager::1:license:l-zzz", ACCOUNT)}
    late = dimensions(26, license_arn="arn:aws:license-manager::1:license:l-zzz")
    batches = cut(*dimensions(26), *late, an_aggregate(license_arn="prod-1"), urgent=urgent)
    assert sizes(batches)[:2] == [25, 1]
    assert {a.key.license_arn for batch in batches[:2] for a in batch.records} == {late[0].key.license_arn}
    assert all(a.key.license_arn != late[0].key.license_arn for batch in batches[2:] for a in batch.records)


def test_a_buyer_is_urgent_and_not_his_whole_license():
    batches = cut(an_aggregate(account="1"), an_aggregate(account="2"), urgent={(LICENSE, "2")})
    assert [[a.key.account for a in batch.records] for batch in batches] == [["2"], ["1"]]


@pytest.mark.parametrize(("count", "halves"), [(2, (1, 1)), (3, (1, 2)), (25, (12, 13))])
def test_a_batch_is_cut_in_two_without_loss(count, halves):
    batch = Batch(Lane.LEGACY, "prod-1", tuple(dimensions(count)))
    left, right = batch.halves()
    assert (len(left.records), len(right.records)) == halves
    assert left.records + right.records == batch.records
    assert left.product_code == right.product_code == "prod-1"


@pytest.mark.case("good_beside_bad_dimension")
def test_a_bad_record_stands_alone_after_at_most_five_halvings():
    def calls_until_alone(batch, bad):
        if bad not in batch.records or len(batch.records) == 1:
            return 1
        return 1 + sum(calls_until_alone(half, bad) for half in batch.halves())

    batch = Batch(Lane.PRODUCT, "prod-1", tuple(dimensions(25)))
    assert max(calls_until_alone(batch, bad) for bad in batch.records) <= 11


LICENSE_NAMES = [LICENSE, f"{LICENSE}x", "prod-1", "prod-2"]
aggregates = st.builds(
    lambda license, account, dimension, back, buckets, identifier: Aggregate(
        a_key(license_arn=license, account=account, dimension=dimension,
              hour=IN_THE_GRACE.replace(minute=0) - timedelta(hours=back)),
        Decimal(buckets), longest_allocations(buckets) if buckets else None,
        identifier if license.startswith("prod") else None,
    ),
    st.sampled_from(LICENSE_NAMES), st.sampled_from(["1", "2"]), st.sampled_from("abc"), st.integers(20, 29),
    st.sampled_from([0, 0, 0, 1, 120, 200]), st.sampled_from([None, "buyer"]),
)  # fmt: skip
buyers = st.tuples(st.sampled_from(LICENSE_NAMES), st.sampled_from(["1", "2"]))


@given(
    st.lists(aggregates, max_size=40),
    st.dictionaries(buyers, st.sampled_from(["prod-1", "prod-3"])),
    st.sampled_from([None, "prod-3"]),
    st.sets(buyers),
    st.sampled_from([DECIMAL, INTEGER]),
)
def test_every_record_goes_once_and_every_limit_holds(records, codes, default, urgent, quantities):
    products = Products(codes, default)
    batches = cut(*records, products=products, urgent=urgent, now=IN_THE_GRACE, quantities=quantities)
    assert Counter(a for batch in batches for a in batch.records) == Counter(records)
    for batch in batches:
        assert 1 <= len(batch.records) <= 25
        assert request_bytes(batch, quantities) < 1_000_000
        assert {products.lane_of(a) for a in batch.records} == {(batch.lane, batch.owner)}
        assert len({offset_of(a.key.hour, IN_THE_GRACE) > LAST_OFFSET for a in batch.records}) == 1
        assert len({identity(api_record(a, quantities)) for a in batch.records}) == len(batch.records)
        assert batch.product_code == (batch.owner if batch.records[0].key.is_legacy else None)
    haste = [{(a.key.license_arn, a.key.account) in urgent for a in batch.records} for batch in batches]
    assert haste == sorted(haste, key=lambda kinds: kinds != {True})
    assert all(len(kinds) == 1 for kinds in haste)
