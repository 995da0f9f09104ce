"""The sample billing data adds up, has all that real data has, and is the same whenever it is asked for."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.devstack.billing_reingest import UNCLAIMED, ExpectedChange, reingest
from metering_dagster.devstack.billing_sample import DAYS, EVERYWHERE, BillingSample, cast_of, generate

NOW = datetime(2026, 11, 28, 10, 20, 30, 5, tzinfo=UTC)
EDGES = [
    NOW,
    datetime(2026, 12, 1, tzinfo=UTC),
    datetime(2027, 1, 5, 1, 19, 59, 999999, tzinfo=UTC),
    datetime(2028, 2, 29, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2028, 3, 1, 3, 5, tzinfo=UTC),
    datetime(2026, 11, 28, 2, 20, tzinfo=timezone(timedelta(hours=5, minutes=30))),
]


@pytest.fixture(scope="module")
def sample():
    return generate(NOW)


def keys_of(facts):
    return [(row.scope_id, row.day, row.integration_id, (row.resource_group or "").lower(), row.service)
            for row in facts]  # fmt: skip


def check_shape(sample: BillingSample) -> None:
    """What holds at any time."""
    today = sample.now.astimezone(UTC).date()
    assert 8_000 <= len(sample.facts) <= 40_000
    assert len(set(keys_of(sample.facts))) == len(sample.facts), "unique even where case does not count"
    assert len({(row.scope_id, row.day) for row in sample.daily}) == len(sample.daily)
    days = {row.day for row in sample.facts}
    assert len(days) >= DAYS - 2
    assert {today - timedelta(days=back) for back in range(2, DAYS)} <= days
    assert max(days) < today, "a day is ingested the night after"
    for row in (*sample.facts, *sample.daily):
        assert row.fetched_at <= sample.now
        assert row.updated_at <= sample.now
        assert row.amount == row.amount.quantize(Decimal("0.000001"))
        assert abs(row.amount) < 10**14, "it fits DECIMAL(20,6)"
    assert all(row.fetched_at <= row.updated_at for row in sample.facts)
    assert all(row.updated_at <= row.fetched_at for row in sample.daily)


@pytest.mark.parametrize("now", EDGES, ids=str)
def test_the_shape_holds_at_the_edges_of_the_calendar(now):
    check_shape(generate(now))


@settings(max_examples=8, deadline=None)
@given(st.timedeltas(timedelta(days=-2_000), timedelta(days=20_000)))
def test_the_shape_holds_at_any_time(shift):
    check_shape(generate(NOW + shift))


def test_the_same_instant_makes_the_same_sample_and_another_seed_another_one(sample):
    assert generate(NOW) == sample
    assert generate(NOW, seed=1).facts != sample.facts


def test_a_day_costs_the_same_whenever_it_is_asked_for(sample):
    later = {(row.scope_id, row.day, row.resource_group, row.service): row.amount
             for row in generate(NOW + timedelta(days=9)).facts}  # fmt: skip
    before = {(row.scope_id, row.day, row.resource_group, row.service): row.amount for row in sample.facts}
    both = before.keys() & later.keys()
    assert len({key[1] for key in both}) >= DAYS - 11
    assert all(before[key] == later[key] for key in both)


def test_each_daily_row_is_the_sum_of_its_tenants_facts_in_the_currency_it_is_billed_in(sample):
    sums: dict = defaultdict(Decimal)
    for row in sample.facts:
        sums[row.scope_id, row.day, row.currency] += row.amount
    told = {(row.scope_id, row.day): row for row in sample.daily}
    assert {key[:2] for key in sums} >= told.keys()
    for row in sample.daily:
        assert row.amount == sums[row.scope_id, row.day, row.currency]


def test_it_has_what_real_data_has(sample):
    assert len({row.integration_id for row in sample.facts}) == 3
    assert len(sample.daily) > 11 * (DAYS - 3)
    assert any(row.amount < 0 and "Credit" not in row.service for row in sample.facts), "refunds"
    firsts = [row for row in sample.facts if row.service == "Tax"]
    assert firsts
    assert all(row.day.day == 1 and row.resource_group is None for row in firsts)
    spelled = defaultdict(set)
    for row in sample.facts:
        spelled[(row.resource_group or "").lower()].add(row.resource_group)
    assert sum(len(each) > 1 for each in spelled.values()) >= 10, "resource groups in several spellings"
    currencies = defaultdict(set)
    for row in sample.facts:
        currencies[row.scope_id].add(row.currency)
    assert currencies[cast_of().two_currencies.scope_id] == {"EUR", "USD"}
    assert {len(each) for each in currencies.values()} == {1, 2}
    weekend = [row.amount for row in sample.facts if "Compute" in row.service and row.day.weekday() >= 5]
    working = [row.amount for row in sample.facts if "Compute" in row.service and row.day.weekday() < 5]
    assert sum(weekend) / len(weekend) < sum(working) / len(working) * Decimal("0.8")


def test_days_are_ingested_several_times_and_the_two_tables_not_together(sample):
    again = [row for row in sample.facts if row.fetched_at < row.updated_at]
    assert len(again) > len(sample.facts) / 2
    nights = {row.updated_at.date() for row in sample.facts} ^ {row.fetched_at.date() for row in sample.daily}
    assert nights
    assert len({row.updated_at for row in sample.facts}) > 3_000, "stamps of one night differ"


def test_there_is_a_subscription_of_each_kind(sample):
    ids = [each.id for each in sample.subscriptions]
    assert len(set(ids)) == len(ids)
    groups = [each.external_id.lower() for each in sample.subscriptions if each.is_resource_group]
    (shared,) = {each for each in groups if groups.count(each) == 2}
    assert shared == cast_of().shared_group
    assert sum(not each.enabled for each in sample.subscriptions) == 1
    scopes = {row.scope_id for row in sample.facts}
    assert sum(not each.is_resource_group and each.id not in scopes for each in sample.subscriptions) == 1
    assert len({row.scope_id for row in sample.facts if row.resource_group in {EVERYWHERE, EVERYWHERE.upper()}}) > 1
    unclaimed = [row for row in sample.facts if not any(each.claims(row) for each in sample.subscriptions)]
    assert unclaimed == []


def test_each_way_of_ingesting_again_is_there_and_leads_to_its_cells(sample):
    later = reingest(sample, NOW)
    names = {each.id: each.name for each in sample.subscriptions}
    told = sorted((day.isoformat(), names[one], move.value) for (day, one), move in later.due.items())
    assert told == [
        ("2026-11-16", "Shop Production", "changed"),
        ("2026-11-20", "Analytics Production", "vanished"),
        ("2026-11-20", "Maps", "touched"),
        ("2026-11-23", "Monitoring, as the operations team asks for it", "changed"),
        ("2026-11-23", "Shared Services", "changed"),
        ("2026-11-23", "Shared Services: monitoring", "changed"),
        ("2026-11-25", "Retail Production", "touched"),
        ("2026-11-26", "ML Lab", "touched"),
        ("2026-11-26", "Retail Development", "touched"),
        ("2026-11-26", "Retail Production", "touched"),
    ]
    assert {row.updated_at for row in later.facts} == {NOW}
    assert {row.fetched_at for row in later.daily} == {NOW, NOW + timedelta(hours=2)}
    assert [row.resource_group for row in later.facts].count(UNCLAIMED) == 1
    assert all(row in sample.facts for row in later.gone_facts)


def test_daily_rows_still_add_up_after_a_correction(sample):
    later = reingest(sample, NOW)
    facts = dict(zip(keys_of(sample.facts), sample.facts, strict=True))
    facts |= dict(zip(keys_of(later.facts), later.facts, strict=True))
    for row in later.daily:
        of_the_day = [each for each in facts.values() if (each.scope_id, each.day) == (row.scope_id, row.day)]
        assert row.amount == sum(each.amount for each in of_the_day if each.currency == row.currency)
    changed = {key for key, move in later.due.items() if move is ExpectedChange.CHANGED}
    before = {(row.day, row.scope_id): row.amount for row in sample.daily}
    moved = {(row.day, row.scope_id) for row in later.daily if before[row.day, row.scope_id] != row.amount}
    assert moved <= changed


@pytest.mark.parametrize("now", EDGES, ids=str)
def test_on_any_date_there_is_something_to_ingest_again_in_each_way(now):
    later = reingest(generate(now), now)
    assert set(later.due.values()) == set(ExpectedChange)
    assert {(now.astimezone(UTC).date() - day).days for day, _ in later.due} == {2, 3, 5, 8, 12}
