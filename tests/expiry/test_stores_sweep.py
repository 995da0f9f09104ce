"""The sweep of an hour on real tables: what each row and record becomes, and rivals that come between."""

from datetime import timedelta
from decimal import Decimal

import pytest

from metering_dagster.core import hours
from metering_dagster.core.errors import TableError
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.expiry.services.sweep import WINDOW, hours_of_sweep, sweep
from metering_dagster.metering.rules.aggregate_group import judge_group
from metering_dagster.metering.rules.group_steps import Commit
from metering_dagster.metering.rules.raw_row import GroupKey
from metering_dagster.metering.services.aggregation import aggregate
from metering_dagster.metering.services.tables import Slice
from metering_dagster.settings import Mode
from tests.expiry.sweeping import OLD, OLDER, SHARD, sweep_of
from tests.items import (
    ACCOUNT,
    DIMENSION,
    HOUR,
    LICENSE,
    OTHER_ACCOUNT,
    a_usage,
    an_aggregate,
    longest_allocations,
    some_usage,
)

KEY = GroupKey(LICENSE, ACCOUNT, DIMENSION, hours.parse_bucket(OLD))
IN_TIME = "2026-11-27T08:20:00Z"
"""When OLD could still be billed."""


def commit(world, key=KEY):
    """Commit the group as a live visit does that was under way when its window closed."""
    tables = world.deployment.tables
    verdict = judge_group(key, tables.usage.group_rows(key), world.clock.now, Quantities.DECIMAL, last_call=True)
    (done,) = tables.aggregated.commit([Commit(verdict.aggregate, verdict.usages)], world.clock.now)
    assert done.written
    return verdict.usages


def test_an_uncommitted_groups_rows_expire(world):
    world.put(*some_usage("3", "0.5", hour=OLD))
    done = sweep_of(world)
    assert world.row_statuses() == {"AggregationExpired": 2}
    row = world.row(0, hour=OLD)
    words = "Still pending when its hour could no longer be billed, at 2026-11-28T06:00Z"
    assert (row["meteringStatusReason"], row["updatedAt"]) == (words, "2026-11-28T12:20:00Z")
    assert (done.total.rows, done.total.records, done.total.quantity) == (2, 0, Decimal("3.5"))
    assert list(done.lost) == [(OLD, DIMENSION)]


@pytest.mark.lengthy
@pytest.mark.parametrize("rows", [97, 98, 99, 250])
def test_a_group_of_any_size_expires_whole(world, rows):
    world.put(*some_usage(*["1"] * rows, hour=OLD), *some_usage(*["1"] * 150, hour=OLD, dimension="beside"))
    done = sweep_of(world)
    assert world.row_statuses() == {"AggregationExpired": rows + 150}
    assert done.by_dimension[DIMENSION].quantity == rows


@pytest.mark.lengthy
def test_an_hour_of_more_than_a_window_is_swept_whole(world):
    world.put(*some_usage(*["1"] * (WINDOW + 1), hour=OLD))
    world.with_pages_of(400)
    assert sweep_of(world).total.rows == WINDOW + 1
    assert world.row_statuses() == {"AggregationExpired": WINDOW + 1}


@pytest.mark.lengthy
def test_rows_too_large_for_one_transaction_expire_in_several(world):
    for second in range(10):
        world.put(a_usage(second, "200", hour=OLD, allocations=longest_allocations(200, second * 200)))
    assert sweep_of(world).total.quantity == 2_000
    assert world.row_statuses() == {"AggregationExpired": 10}


def test_pending_aggregates_expire(world):
    world.put(an_aggregate("4", hour=OLD), an_aggregate("-1", hour=OLD, dimension="wrong"))
    done = sweep_of(world)
    assert world.record_statuses() == {"SubmissionExpired": 2}
    assert "meteringPending" not in world.aggregate(hour=OLD)
    assert "could no longer be billed, at 2026-11-28T06:00Z" in world.aggregate(hour=OLD)["meteringStatusReason"]
    assert (done.total.records, done.total.quantity) == (2, 4)


def test_rows_of_a_committed_group_are_settled_and_not_expired(world):
    world.put(*some_usage("1", "2", hour=OLD))
    world.at(IN_TIME)
    world.visit(OLD)
    world.at("2026-11-28T12:20:00Z")
    world.put(a_usage(0, "1", hour=OLD), a_usage(5, "7", hour=OLD))  # a repeated put, and one that is late
    done = sweep_of(world)
    assert world.row_statuses() == {"Aggregated": 2, "LateUsage": 1}
    assert (done.settled, done.late_rows, done.late, done.total.rows) == (1, 1, 7, 0)


def test_a_crash_between_commit_and_finalizing_is_aggregated_however_late_it_is_found(world):
    world.put(*some_usage(*["1"] * 150, hour=OLD))
    world.at(IN_TIME)
    counted = commit(world)
    world.put(*some_usage(*["1"] * 150, hour=OLD))  # as if none of them had been finalized
    world.at("2026-11-28T12:20:00Z")
    sweep_of(world)
    assert len(counted) == 150
    assert world.row_statuses() == {"Aggregated": 150}
    assert world.record_statuses() == {"SubmissionExpired": 1}


def test_a_commit_at_the_very_moment_leaves_no_row_called_expired(world):
    world.put(*some_usage(*["1"] * 150, hour=OLD))
    world.meanwhile(lambda: commit(world))  # finalizes all 150 of them, in a hundred and then the rest
    sweep_of(world)
    assert world.row_statuses() == {"Aggregated": 150}


def test_a_commit_that_dies_half_way_at_the_very_moment_leaves_no_row_called_expired(world):
    usage = some_usage(*["1"] * 150, hour=OLD)
    world.put(*usage)
    rest = [item for item in usage if item.values["timestamp"]["S"][-5:] > "01:37"]

    def commit_and_die():
        commit(world)
        world.put(*rest)  # the rows beyond the first transaction, as they were

    world.meanwhile(commit_and_die)
    done = sweep_of(world)
    assert world.row_statuses() == {"Aggregated": 150}
    assert (done.settled, done.total.rows) == (len(rest), 0)


def test_a_commit_between_two_transactions_of_a_group_bills_what_was_not_expired(world):
    world.put(*some_usage(*["1"] * 150, hour=OLD))
    world.meanwhile(lambda: commit(world), at=2)
    done = sweep_of(world)
    assert world.row_statuses() == {"AggregationExpired": 98, "Aggregated": 52}
    assert done.total.quantity == 98
    assert world.aggregate(hour=OLD)["quantity"] == 52


def test_impossible_keys_are_rejected_with_their_codes(world):
    world.put(
        a_usage(0, hour=OLD, sort_key="one#two", filed=OLD),
        a_usage(1, hour=OLD, customerAWSAccountId=OTHER_ACCOUNT),
        a_usage(2, hour=OLD, timestamp="2026-11-27T06:59:59"),  # which the index does not show
    )
    done = sweep_of(world)
    assert done.rejected == {"MalformedSortKey": 1, "SortKeyMismatch": 2}
    assert world.row_statuses() == {"RejectedClientSide": 3}
    assert done.total.rows == 0


def test_a_misfiled_row_goes_to_its_hour_while_that_can_be_billed(world):
    world.put(a_usage(0, "5", filed=OLD))
    assert sweep_of(world).refiled == {HOUR: 1}
    world.visit(HOUR)
    assert world.billed() == {DIMENSION: "5"}


def test_a_misfiled_row_of_a_future_hour_is_rejected(world):
    world.put(a_usage(0, "5", hour="2026-11-29T10", filed=OLD))
    assert sweep_of(world).rejected == {"TimestampInFuture": 1}


def test_a_misfiled_row_of_a_committed_group_is_settled(world):
    world.put(*some_usage("1", "2"))
    world.visit(HOUR)
    world.put(a_usage(1, "2", filed=OLD), a_usage(2, "4", filed=OLD))
    done = sweep_of(world)
    assert (done.settled, done.late) == (1, 4)


def test_a_misfiled_row_whose_own_hour_is_past_expires_in_its_own_hour(world):
    world.put(a_usage(0, "5", hour=OLDER, filed=OLD))
    done = sweep_of(world)
    assert list(done.lost) == [(OLDER, DIMENSION)]
    row = world.row(0, hour=OLDER)
    assert (
        row["meteringStatusReason"] == f"Filed under another hour until its own, {OLDER}, could not be billed any more"
    )


def test_a_record_whose_key_names_an_hour_that_is_still_open_is_filed_wrongly(world):
    world.put(
        an_aggregate("4", meteringPending=OLD, hourBucket=OLD),
        an_aggregate("5", hour=OLDER, dimension="past", meteringPending=OLD),
        an_aggregate("6", hour="not-an-hour", dimension="none", meteringPending=OLD),
    )
    done = sweep_of(world)
    rejected = world.aggregate()
    assert (rejected["meteringStatus"], rejected["meteringStatusReason"]) == ("RejectedClientSide", "SortKeyMismatch")
    assert world.record_statuses() == {"RejectedClientSide": 1, "SubmissionExpired": 2}
    assert done.rejected == {"SortKeyMismatch": 1}
    assert f"{HOUR}: a record of license ****cdef" in done.notes[0]


def test_a_row_that_is_rewritten_meanwhile_is_judged_as_it_is_now(world):
    world.put(*some_usage("1", "1", hour=OLD))
    world.meanwhile(lambda: world.put(a_usage(0, "9", hour=OLD)))
    done = sweep_of(world)
    assert world.row_statuses() == {"AggregationExpired": 2}
    assert done.total.quantity == 10


def test_a_row_that_changes_at_every_attempt_is_left_to_the_next_sweep(world):
    world.put(a_usage(0, "1", hour=OLD), a_usage(0, "1", hour=OLD, dimension="calm"))
    numbers = iter(range(2, 100))
    events = world.deployment.tables.usage.client.meta.events
    events.register(
        "before-call.dynamodb.TransactWriteItems", lambda **_: world.put(a_usage(0, str(next(numbers)), hour=OLD))
    )
    done = sweep_of(world)
    assert (done.changed, done.total.rows) == (1, 1)
    assert world.row_statuses() == {"pending": 1, "AggregationExpired": 1}


def test_a_row_that_is_deleted_meanwhile_is_not_brought_back(world):
    world.put(a_usage(0, "1", hour=OLD))
    world.meanwhile(lambda: world.delete(a_usage(0, hour=OLD)))
    done = sweep_of(world)
    assert world.rows() == []
    assert (done.total.rows, done.changed) == (0, 0)


@pytest.mark.lengthy
def test_shadow_mode_writes_nothing_and_says_what_it_would(world):
    world.put(
        *some_usage(*["1"] * (WINDOW + 20), hour=OLD), an_aggregate("4", hour=OLD, dimension="direct"),
        a_usage(0, "5", filed=OLD), a_usage(1, hour=OLD, sort_key="one#two", filed=OLD),
        an_aggregate("1", hour=OLD, dimension="done", status="Success"),
        *some_usage(*["1"] * (WINDOW + 20), hour=OLD, dimension="done"),
    )  # fmt: skip
    world.configure(mode=Mode.SHADOW)
    before = world.dump()
    done = sweep_of(world)
    assert world.dump() == before
    assert (done.total.rows, done.total.records, done.late_rows) == (WINDOW + 20, 1, WINDOW + 20)
    assert done.refiled == {HOUR: 1}
    assert done.rejected == {"MalformedSortKey": 1}


def test_the_same_sweep_again_finds_nothing(world):
    world.put(*some_usage("1", "2", hour=OLD), an_aggregate("4", hour=OLD, dimension="direct"))
    sweep_of(world)
    before = world.dump()
    world.at("2026-11-28T12:40:00Z")
    again = sweep_of(world)
    assert world.dump() == before
    assert (again.buckets, again.occupied) == (1, 0)


def test_a_sweep_that_dies_half_way_is_finished_by_the_next(world):
    world.put(*some_usage(*["1"] * 250, hour=OLD), an_aggregate("4", hour=OLD, dimension="direct"))

    def die():
        raise KeyboardInterrupt

    world.meanwhile(die, at=2)
    with pytest.raises(KeyboardInterrupt):
        sweep_of(world)
    assert world.row_statuses() == {"AggregationExpired": 98, "pending": 152}
    first = {row["timestamp"]: row for row in world.rows() if "meteringStatus" in row}
    world.at("2026-11-28T12:40:00Z")
    assert sweep_of(world).total.rows == 152
    assert world.row_statuses() == {"AggregationExpired": 250}
    assert world.record_statuses() == {"SubmissionExpired": 1}
    rows = {row["timestamp"]: row for row in world.rows()}
    assert {key: rows[key] for key in first} == first, "what was final was written again"


def test_an_hourly_sweep_ends_after_six_hours_with_nothing_and_a_whole_one_does_not(world):
    now = world.clock.now
    mine = hours_of_sweep(SHARD, now)[:20]
    near, far = mine[7], mine[14]
    world.put(*(a_usage(0, "1", hour=hours.bucket(hour)) for hour in (mine[0], near, far)))
    tables = world.deployment.tables
    hourly = sweep(tables, mine, whole=False)
    assert (hourly.buckets, hourly.total.rows) == (7, 1)
    assert sweep(tables, mine, whole=True).total.rows == 2
    assert world.row_statuses() == {"AggregationExpired": 3}


def test_an_hour_found_in_between_lets_the_hourly_sweep_go_on(world):
    mine = hours_of_sweep(SHARD, world.clock.now)[:20]
    world.put(*(a_usage(0, "1", hour=hours.bucket(mine[position])) for position in (5, 10)))
    done = sweep(world.deployment.tables, mine, whole=False)
    assert (done.total.rows, done.buckets) == (2, 17)


def test_what_ended_is_told_by_the_hour_in_which_it_was_found(world):
    world.put(
        a_usage(0, "5", hour=OLD), a_usage(0, "6", hour=OLDER), an_aggregate("7", hour=OLDER, dimension="direct"),
        a_usage(0, "8", hour=OLD, sort_key="one#two", filed=OLD),
    )  # fmt: skip
    told = []
    sweep_of(world, OLD, OLDER, tell=lambda bucket, entry: told.append((bucket, entry)))
    assert sorted((bucket, entry.kind, entry.outcome, entry.quantity) for bucket, entry in told) == [
        (OLDER, "record", "SubmissionExpired", 7), (OLDER, "row", "AggregationExpired", 6),
        (OLD, "row", "AggregationExpired", 5), (OLD, "row", "RejectedClientSide", 8),
    ]  # fmt: skip


def test_the_wrong_table_is_not_taken_for_an_empty_one(world):
    world.configure(usage_table=world.names["aggregated"], aggregated_usage_table=world.names["usage"])
    with pytest.raises(TableError, match="its key is"):
        sweep_of(world)


def test_at_the_turn_of_a_month_a_sweep_under_way_leaves_the_old_month_alone(world):
    world.at("2026-11-30T23:59:59Z")
    old = "2026-11-29T18"
    world.put(a_usage(0, "1", hour=old), an_aggregate("4", hour=old, dimension="direct"))
    client = world.deployment.tables.usage.client
    client.meta.events.register("before-call.dynamodb.BatchGetItem", lambda **_: world.at("2026-12-01T00:00:00Z"))
    done = sweep_of(world, old)
    assert world.row_statuses() + world.record_statuses() == {"AggregationExpired": 1, "pending": 1}
    assert done.changed == 0
    assert not hours_of_sweep(0, world.clock.now, hours.parse_bucket("2026-11-30T23"))


def test_what_the_months_grace_opens_again_is_left_alone_whoever_asks_for_its_sweep(world):
    world.at("2026-11-30T23:59:59Z")
    waiting = "2026-11-29T20"
    world.put(a_usage(0, "1", hour=waiting), an_aggregate("4", hour=waiting, dimension="direct"))
    before = world.dump()
    sweep_of(world, waiting)
    assert world.dump() == before


def test_a_rival_visit_at_the_same_time_and_the_sweep_agree(world):
    world.put(*(row for n in range(6) for row in some_usage(*["1"] * 30, hour=OLD, dimension=f"d{n}")))
    tables, now = world.deployment.tables, world.clock.now

    def a_visit_whose_clock_is_behind() -> None:
        world.clock.now = hours.parse_bucket(OLD) + timedelta(hours=20)
        aggregate(tables, Slice(hours.parse_bucket(OLD)))
        world.clock.now = now

    world.meanwhile(a_visit_whose_clock_is_behind)
    done = sweep_of(world)
    assert world.row_statuses() == {"Aggregated": 180}
    assert done.total.rows == 0
