"""Case: what is filed where no Query ever looks is found by a whole sweep, in both tables, and goes its usual way."""

import pytest

from metering_dagster.core import hours
from metering_dagster.expiry.services.sweep import sweep, sweep_unreachable
from metering_dagster.ledger.stores.files import Ledger
from metering_dagster.settings import Mode
from tests.expiry.sweeping import OLD, age_out
from tests.items import (
    ACCOUNT,
    DIMENSION,
    HOUR,
    LICENSE,
    OTHER_ACCOUNT,
    OTHER_LICENSE,
    a_usage,
    an_aggregate,
    some_usage,
)

NO_HOUR = ["true", "2026-11-30 22", "2026-11-30T22:00"]
AHEAD, NEXT, CURRENT = "2026-11-28T15", "2026-11-28T13", "2026-11-28T12"
LONG_AGO = "2025-10-24T11"
"""Over 400 days back: the oldest hour that a sweep meets is 9,600 back."""


@pytest.fixture(autouse=True)
def _no_hour_is_looked_at_in_vain(monkeypatch: pytest.MonkeyPatch):
    """A whole sweep looks at 1,371 hours, nearly all of them empty here."""
    monkeypatch.setattr(hours, "shard_hours", lambda shard, now: [hours.parse_bucket(OLD)])


@pytest.mark.case("pending_is_no_hour")
@pytest.mark.parametrize("value", [*NO_HOUR, AHEAD, LONG_AGO, "2026-02-30T10", "2026-11-28t10", "0", "9999-12-31T23"])
def test_what_is_filed_under_no_hour_is_billed_from_the_hour_of_its_key(world, value):
    world.put(*(a_usage(second, "5", filed=value) for second in range(3)))
    world.put(an_aggregate("7", dimension="direct", meteringPending=value))
    swept = age_out(world, whole=True)
    assert swept.success
    assert {row["meteringPending"] for row in world.rows()} == {HOUR}
    assert world.aggregate(dimension="direct")["meteringPending"] == HOUR
    assert swept.metadata["filed_where_no_run_looks"] == 4
    assert swept.metadata["filed_where_no_run_looks_by_value"] == [{"meteringPending": repr(value), "count": 4}]
    assert (swept.metadata["refiled_rows"], swept.metadata["refiled_records"]) == (3, 1)
    assert [words for words in swept.warnings if f"4 rows or records had meteringPending {value!r}" in words]
    assert world.meter().success
    assert world.billed() == {DIMENSION: "15", "direct": "7"}


@pytest.mark.case("pending_is_no_hour")
def test_it_expires_where_the_hour_of_its_key_can_no_longer_be_billed(world):
    world.put(a_usage(0, "5", hour=OLD, filed="true"), a_usage(1, "6", hour=LONG_AGO))
    world.put(an_aggregate("7", hour=OLD, dimension="direct", meteringPending="2026-11-30 22"))
    world.put(an_aggregate("8", hour=LONG_AGO, dimension="direct"))
    swept = age_out(world, whole=True)
    assert swept.success
    assert world.row_statuses() == {"AggregationExpired": 2}
    assert world.record_statuses() == {"SubmissionExpired": 2}
    assert world.row(0, hour=OLD)["meteringStatusReason"] == (
        f"Filed where no run looks until its own hour, {OLD}, could not be billed any more"
    )
    assert "could no longer be billed, at 2025-10-25T11:00Z" in world.row(1, hour=LONG_AGO)["meteringStatusReason"]
    assert (swept.metadata["expired_rows"], swept.metadata["expired_records"]) == (2, 2)
    ledger = Ledger(world.settings.ledger_uri)
    for hour in (OLD, LONG_AGO):
        told = [(entry.kind, entry.outcome) for entry in ledger.read_hour(hour)]
        assert sorted(told) == [("record", "SubmissionExpired"), ("row", "AggregationExpired")]


@pytest.mark.case("pending_is_no_hour")
def test_a_committed_group_is_settled(world):
    world.put(*some_usage("1", "2"))
    world.visit(HOUR)
    world.put(a_usage(1, "2", filed="true"), a_usage(2, "4", filed=LONG_AGO))
    done = sweep_unreachable(world.deployment.tables)
    assert (done.settled, done.late, done.unreachable.total()) == (1, 4, 2)
    assert world.row_statuses() == {"Aggregated": 2, "LateUsage": 1}


def test_its_end_and_what_the_sweep_finds_in_the_same_hour_are_told_in_files_of_their_own(world):
    world.put(a_usage(0, "5", hour=OLD, filed="true"), a_usage(1, "6", hour=OLD))
    world.put(a_usage(2, "7", hour=OLD, sort_key="one#two", filed="true"))
    assert age_out(world, whole=True).success
    ledger = Ledger(world.settings.ledger_uri)
    assert sorted(int(entry.quantity) for entry in ledger.read_hour(OLD)) == [5, 6]
    assert len(ledger.files_of(OLD)) == 2
    assert [entry.reason for entry in ledger.read_hour(CURRENT)] == ["MalformedSortKey"]


def test_keys_that_are_none_end_with_their_codes(world):
    world.put(a_usage(0, sort_key="one#two", filed="true"), a_usage(1, customerAWSAccountId=OTHER_ACCOUNT, filed="x"))
    world.put(an_aggregate("7", hour="not-an-hour", meteringPending="true"))
    broken = an_aggregate("7", license=OTHER_LICENSE, meteringPending="true")
    broken.values["account_dimension_hour"] = {"S": "nothing"}
    world.put(broken)
    done = sweep_unreachable(world.deployment.tables)
    assert done.rejected == {"MalformedSortKey": 2, "SortKeyMismatch": 1, "MalformedTimestamp": 1}
    assert world.row_statuses() + world.record_statuses() == {"RejectedClientSide": 4}


def test_an_hour_that_is_still_to_come_is_rejected_but_the_next_one_is_left_alone(world):
    """A seller's clock may be some seconds ahead at the turn of the hour; its rows are metered once it has begun."""
    for hour in (CURRENT, NEXT, "2026-11-28T14", AHEAD):
        world.put(a_usage(0, "5", hour=hour), an_aggregate("7", hour=hour, dimension="direct"))
    world.put(a_usage(1, "5", hour=NEXT, filed="true"))
    world.put(an_aggregate("7", hour=NEXT, dimension="early", meteringPending="x"))
    done = sweep_unreachable(world.deployment.tables)
    assert done.rejected == {"TimestampInFuture": 4}
    assert done.unreachable == {"'2026-11-28T14'": 2, f"'{AHEAD}'": 2}
    assert {row["timestamp"][:13] for row in world.rows() if "meteringPending" in row} == {CURRENT, NEXT}
    assert {item["hourBucket"] for item in world.aggregates() if "meteringPending" in item} == {CURRENT, NEXT}
    world.at("2026-11-28T13:00:00Z")
    done = sweep_unreachable(world.deployment.tables)
    assert done.refiled == done.refiled_records == {NEXT: 1}


def test_what_a_query_names_is_not_touched(world):
    oldest = hours.bucket(hours.hour_at_offset(world.clock.now, hours.OLDEST_OFFSET))
    for hour in (CURRENT, HOUR, OLD, oldest):
        world.put(a_usage(0, "5", hour=hour), an_aggregate("7", hour=hour, dimension="direct"))
    before = world.dump()
    assert sweep_unreachable(world.deployment.tables).unreachable.total() == 0
    assert world.dump() == before


def test_every_page_is_read(world):
    rows = [a_usage(second, "1", filed=f"no hour {second}") for second in range(25)]
    world.put(*rows, *(a_usage(second, "1", dimension="fine") for second in range(25)))
    events = world.deployment.tables.usage.client.meta.events
    events.register("provide-client-params.dynamodb.Scan", lambda params, **_: {**params, "Limit": 7})
    assert sweep_unreachable(world.deployment.tables).refiled == {HOUR: 25}


def test_only_a_whole_sweep_scans(world):
    world.put(a_usage(0, "5", filed="true"))
    assert age_out(world, whole=False).metadata["filed_where_no_run_looks"] == 0
    assert world.row(0)["meteringPending"] == "true"


def test_shadow_mode_writes_nothing_and_says_what_it_would(world):
    world.put(a_usage(0, "5", filed="true"), an_aggregate("7", dimension="direct", meteringPending="true"))
    world.put(a_usage(1, "5", hour=OLD, filed="true"))
    world.configure(mode=Mode.SHADOW)
    before = world.dump()
    swept = age_out(world, whole=True)
    assert world.dump() == before
    assert (swept.metadata["refiled_rows"], swept.metadata["refiled_records"]) == (1, 1)
    assert swept.metadata["expired_rows"] == 1
    assert "(shadow mode: nothing was written)" in swept.warnings[-1]


def test_what_is_mended_by_the_time_of_the_write_is_left_alone(world):
    world.put(a_usage(0, "5", filed="true"), an_aggregate("7", dimension="direct", meteringPending="true"))
    world.meanwhile(lambda: world.put(a_usage(0, "9", filed=CURRENT)))
    world.meanwhile(lambda: world.put(an_aggregate("7", dimension="direct", status="Success")), at=2)
    done = sweep_unreachable(world.deployment.tables)
    assert done.changed == 2
    assert world.row(0)["meteringPending"] == CURRENT
    assert world.record_statuses() == {"Success": 1}


def test_values_are_shown_masked_and_not_without_end(world):
    world.put(*(a_usage(n, "1", filed=f"value {n}") for n in range(60)), a_usage(61, filed=f"{LICENSE} {ACCOUNT}"))
    swept = age_out(world, whole=True)
    assert swept.success
    shown = swept.metadata["filed_where_no_run_looks_by_value"]
    assert sum(line["count"] for line in shown) == 61
    assert len(shown) == 51


def test_a_whole_sweep_of_nothing_still_believes_the_right_tables_alone(world):
    done = sweep(world.deployment.tables, [hours.parse_bucket(OLD)], whole=True)
    assert (done.buckets, done.occupied, done.unreachable.total()) == (1, 0, 0)
