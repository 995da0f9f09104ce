"""The cases about looking: what happens in the database between two looks, and what is asked for then."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import create_engine

from metering_dagster.billing_changes.rules.cells import Signal
from metering_dagster.billing_changes.rules.pending_day import DueReason
from metering_dagster.billing_changes.rules.watermark import PollRules
from metering_dagster.core.errors import DatabaseAwayError
from tests.billing_changes.filling import BillingTables, resource_group, tenant
from tests.billing_changes.watching import DAY, NOON, OTHER_DAY, STAMPS_ALONE, Watching
from tests.mariadb import Server

AT_ONCE = replace(PollRules(), quiet=timedelta(0))
"""So that a run comes between two writes that follow each other closely."""
HOURLY_SUMS = replace(STAMPS_ALONE, sums_every=timedelta(hours=1))
DAILY_COMPARISON = replace(STAMPS_ALONE, others_every=timedelta(hours=24))
SECOND = timedelta(seconds=1)


@pytest.fixture
def watching(billing: BillingTables) -> Watching:
    return settled(billing)


def settled(tables: BillingTables) -> Watching:
    """Two tenants and a resource group, whose rows of both days were ingested two days ago and are materialized."""
    tables.subscribe(tenant("t1"), tenant("t2"), resource_group("rg"))
    for day in (DAY, OTHER_DAY):
        tables.daily("t1", day, NOON - timedelta(days=2))
        tables.daily("t2", day, NOON - timedelta(days=2))
        tables.fact("t1", day, NOON - timedelta(days=2))
    watching = Watching(tables, NOON - timedelta(minutes=50), STAMPS_ALONE)
    assert set(watching.settle()) == {DAY, OTHER_DAY}
    watching.now = NOON
    watching.rules = PollRules()
    assert watching.settle() == {}
    return watching


def to_whole_seconds(tables: BillingTables) -> None:
    """SQLite has no such columns: there it is the stamps that carry no fraction."""
    if not tables.is_sqlite:
        tables.run("ALTER TABLE cmdb_cloud_billing_daily MODIFY fetched_at DATETIME(0)",
                   "ALTER TABLE cmdb_cost_facts MODIFY updated_at DATETIME(0)")  # fmt: skip


# --- transactions that stay open ---


@pytest.mark.services
@pytest.mark.case("late_commit")
@pytest.mark.parametrize("day_of_other", [OTHER_DAY, DAY], ids=["another_day", "same_day"])
@pytest.mark.parametrize("open_for", [timedelta(0), timedelta(minutes=50)], ids=["briefly", "almost_an_overlap"])
def test_what_is_committed_after_a_look_is_asked_for_by_a_later_one(billing_mariadb, day_of_other, open_for):
    watching = settled(billing_mariadb)
    watching.rules = STAMPS_ALONE
    with billing_mariadb.session() as open_one:
        billing_mariadb.daily("t1", DAY, NOON + SECOND, 7, on=open_one)
        billing_mariadb.daily("t2", day_of_other, NOON + 2 * SECOND)
        watching.now = NOON + 3 * SECOND
        assert list(watching.settle()) == [day_of_other]
        watching.now += open_for
        assert watching.asks() == []
        assert watching.memory.marks[Signal.DAILY] == NOON + 2 * SECOND, "past the stamp that is still to come"
        open_one.commit()
    assert watching.settle() == {DAY: DueReason.INGESTED}
    assert watching.amounts(DAY)["t1"] == 7


@pytest.mark.services
@pytest.mark.case("late_commit")
def test_what_is_committed_in_the_midst_of_a_look_is_asked_for_by_the_next(billing_mariadb):
    watching = settled(billing_mariadb)
    watching.rules = STAMPS_ALONE
    with billing_mariadb.session() as open_one:
        billing_mariadb.daily("t1", DAY, NOON + SECOND, on=open_one)
        watching.now = NOON + 2 * SECOND
        watching.midway = open_one.commit
        assert watching.look().waiting == []
    watching.midway = lambda: None
    assert watching.settle() == {DAY: DueReason.INGESTED}


@pytest.mark.services
@pytest.mark.case("late_commit")
def test_what_is_committed_later_than_the_overlap_is_found_by_comparing(billing_mariadb):
    for day, scope, group in ((DAY, "t1", "rg"), (OTHER_DAY, "t2", "zz")):
        billing_mariadb.fact(scope, day, NOON - timedelta(days=1), group=group, service="disk")
    watching = settled(billing_mariadb)
    watching.rules = HOURLY_SUMS
    with billing_mariadb.session() as open_one:
        # Not the newest stamp of its cells: the sums do not tell of it either.
        billing_mariadb.fact("t1", DAY, NOON - timedelta(days=1, seconds=1), 9, on=open_one)
        assert watching.watch(hours=1) == {}
        open_one.commit()
    assert watching.watch(hours=2) == {}
    watching.rules = DAILY_COMPARISON
    assert watching.watch(days=1) == {DAY: DueReason.DIFFERS}
    assert watching.amounts(DAY)["rg:rg"] == 10


@pytest.mark.services
@pytest.mark.case("late_commit")
def test_what_is_committed_later_than_the_overlap_and_is_the_newest_is_found_within_an_hour(billing_mariadb):
    watching = settled(billing_mariadb)
    watching.rules = STAMPS_ALONE
    with billing_mariadb.session() as open_one:
        billing_mariadb.daily("t1", DAY, NOON + SECOND, 7, on=open_one)
        assert watching.watch(hours=2) == {}
        assert watching.now is not None
        billing_mariadb.daily("t2", OTHER_DAY, watching.now)
        assert watching.watch(hours=1) == {OTHER_DAY: DueReason.INGESTED}
        assert watching.memory.starts[Signal.DAILY] > NOON + SECOND
        open_one.commit()
    assert watching.watch(hours=2) == {}
    watching.rules = HOURLY_SUMS
    assert watching.watch(hours=1) == {DAY: DueReason.DIFFERS}


# --- stamps ---


def read_within_a_second(watching: Watching) -> None:
    """A row of t1 is stamped with a whole second, and the day is read before that second is over."""
    to_whole_seconds(watching.tables)
    watching.rules = replace(STAMPS_ALONE, quiet=timedelta(0))
    watching.tables.daily("t1", DAY, NOON, 2)
    watching.now = NOON + 0.3 * SECOND
    assert watching.asks() == [DAY]
    watching.run(DAY)


@pytest.mark.case("same_second")
def test_a_row_written_in_the_second_of_a_look_and_a_run_is_reported_as_well(watching):
    read_within_a_second(watching)
    watching.tables.daily("t2", DAY, NOON, 3)
    watching.now = NOON + 0.6 * SECOND
    assert DAY in watching.watch(minutes=5)
    assert watching.amounts(DAY) == {"t1": 2, "t2": 3, "rg:rg": 1}


@pytest.mark.case("same_second")
def test_a_row_rewritten_in_its_own_second_after_it_was_read_is_reported_as_well(watching):
    read_within_a_second(watching)
    watching.tables.daily("t1", DAY, NOON, 3)
    watching.now = NOON + 0.6 * SECOND
    assert DAY in watching.watch(minutes=5)
    assert watching.amounts(DAY)["t1"] == 3


@pytest.mark.case("stamp_precision")
def test_the_marks_are_the_newest_stamps_to_the_microsecond(watching):
    watching.tables.fact("t1", DAY, NOON + timedelta(microseconds=148_758))
    watching.tables.fact("t1", DAY, NOON + timedelta(microseconds=726_846), service="disk")
    watching.tables.daily("t1", DAY, NOON + timedelta(microseconds=148_758))
    watching.now = NOON + SECOND
    watching.settle()
    assert watching.memory.marks == {
        Signal.FACTS: NOON + timedelta(microseconds=726_846), Signal.DAILY: NOON + timedelta(microseconds=148_758),
    }  # fmt: skip


@pytest.mark.case("stamp_precision")
def test_the_second_stamp_of_one_second_is_found_after_the_mark_is_at_the_first(watching):
    watching.rules = STAMPS_ALONE
    watching.tables.fact("t1", DAY, NOON + timedelta(microseconds=148_758))
    watching.now = NOON + SECOND
    watching.settle()
    watching.tables.fact("t1", DAY, NOON + timedelta(microseconds=726_846), service="disk")
    assert watching.settle() == {DAY: DueReason.INGESTED}
    assert watching.memory.marks[Signal.FACTS] == NOON + timedelta(microseconds=726_846)


@pytest.mark.services
@pytest.mark.case("stamp_precision")
def test_the_mark_of_a_column_of_whole_seconds_is_not_past_what_was_written(billing_mariadb):
    to_whole_seconds(billing_mariadb)
    watching = settled(billing_mariadb)
    billing_mariadb.fact("t1", DAY, NOON)
    watching.now = NOON + 0.9 * SECOND
    watching.settle()
    assert watching.memory.marks[Signal.FACTS] == NOON


@pytest.mark.case("stamp_precision")
def test_a_reading_that_finds_nothing_leaves_the_marks(watching):
    watching.tables.fact("t1", DAY, NOON + timedelta(microseconds=726_846))
    watching.now = NOON + SECOND
    watching.settle()
    marks = watching.memory.marks
    watching.tables.run("DELETE FROM cmdb_cost_facts", "DELETE FROM cmdb_cloud_billing_daily")
    watching.watch(hours=3)
    assert watching.memory.marks == marks
    assert watching.memory.states == {}, "nothing was read"


@pytest.mark.case("future_stamp")
def test_a_row_stamped_ahead_of_the_clock_is_reported_and_once_more_when_its_time_has_come(watching):
    watching.rules = replace(STAMPS_ALONE, quiet=timedelta(0))
    watching.tables.daily("t1", DAY, NOON + timedelta(hours=2), 5)
    assert watching.asks() == [DAY]
    watching.run(DAY)
    assert watching.amounts(DAY)["t1"] == 5
    assert watching.memory.marks[Signal.DAILY] <= NOON - watching.rules.settle
    watching.watch(minutes=5)  # what was stamped within the settle time before is read once more
    while watching.now < NOON + timedelta(hours=1, minutes=50):
        watching.passes(minutes=5)
        assert watching.asks() == []
        assert watching.memory.marks[Signal.DAILY] <= watching.now - watching.rules.settle
    watching.now = NOON + timedelta(hours=2) + watching.rules.settle
    assert set(watching.settle()) == {DAY}
    watching.passes(minutes=30)
    assert watching.settle() == {}


@pytest.mark.case("null_stamp")
def test_a_row_without_a_stamp_is_found_by_comparing(watching):
    watching.rules = HOURLY_SUMS
    watching.tables.fact("t1", DAY, None, 5, service="disk")
    assert watching.watch(hours=1) == {}, "neither stamps nor the newest of them tell"
    watching.rules = DAILY_COMPARISON
    assert watching.watch(days=1) == {DAY: DueReason.DIFFERS}
    assert watching.amounts(DAY)["rg:rg"] == 6


# --- days ---


@pytest.mark.case("reingested_twice")
def test_a_day_ingested_again_after_an_hour_is_asked_for_twice(watching):
    keys = []
    for hour in (NOON + timedelta(hours=1), NOON + timedelta(hours=2)):
        watching.watch(hours=(hour - watching.now) / timedelta(hours=1))
        watching.tables.daily("t1", DAY, watching.now)
        watching.look()
        watching.passes(minutes=3)
        (ask,) = watching.look().due_days
        assert (ask.day, ask.why) == (DAY, DueReason.INGESTED)
        keys.append(ask.run_key)
        watching.run(DAY)
        assert watching.settle() == {}
    assert len(set(keys)) == 2


@pytest.mark.case("horizon")
def test_a_change_to_a_day_older_than_the_horizon_is_not_asked_for(watching):
    first = (NOON - watching.rules.horizon).date()
    watching.tables.daily("t1", first, NOON)
    watching.tables.daily("t1", first - timedelta(days=1), NOON)
    assert watching.look().first_day == first
    assert list(watching.settle()) == [first]
    assert watching.watch(days=1) == {}


@pytest.mark.case("horizon")
def test_a_change_just_before_a_day_leaves_the_horizon_is_asked_for_afterwards(watching):
    midnight = datetime(2026, 9, 21, tzinfo=UTC)
    leaving = (midnight - SECOND - watching.rules.horizon).date()
    watching.watch(hours=11, minutes=58)
    watching.tables.daily("t1", leaving, midnight - timedelta(minutes=1))
    watching.now = midnight + timedelta(minutes=1)
    assert watching.look().first_day == leaving + timedelta(days=1)
    assert list(watching.settle()) == [leaving]


@pytest.mark.case("deleted_cell")
def test_a_cell_whose_newest_stamp_is_gone_is_found_within_an_hour(watching):
    watching.rules = HOURLY_SUMS
    watching.tables.run(f"DELETE FROM cmdb_cloud_billing_daily WHERE scope_id = 't2' AND date = '{DAY}'")
    assert watching.settle() == {}, "no stamp tells of it"
    assert watching.watch(hours=1) == {DAY: DueReason.DIFFERS}
    assert set(watching.amounts(DAY)) == {"t1", "rg:rg"}


@pytest.mark.case("deleted_cell")
def test_the_last_rows_of_a_day_that_are_gone_are_found_within_an_hour(watching):
    watching.rules = HOURLY_SUMS
    watching.tables.run(*(f"DELETE FROM {table} WHERE date = '{DAY}'"
                          for table in ("cmdb_cloud_billing_daily", "cmdb_cost_facts")))  # fmt: skip
    assert watching.watch(hours=1) == {DAY: DueReason.DIFFERS}
    assert watching.cells[DAY] == []


@pytest.mark.case("deleted_cell")
def test_a_fact_that_is_gone_and_was_not_the_newest_is_found_within_a_day(billing):
    billing.fact("t1", DAY, NOON - timedelta(days=3), service="disk")
    watching = settled(billing)
    watching.rules = HOURLY_SUMS
    billing.run("DELETE FROM cmdb_cost_facts WHERE service = 'disk'")
    assert watching.watch(hours=1) == {}, "neither stamps nor the newest of them tell"
    watching.rules = DAILY_COMPARISON
    assert watching.watch(days=1) == {DAY: DueReason.DIFFERS}


# --- the server ---


@pytest.mark.services
@pytest.mark.case("server_gone")
def test_a_connection_that_is_killed_between_two_looks_is_replaced(billing_mariadb):
    watching = settled(billing_mariadb)
    billing_mariadb.daily("t1", DAY, NOON)
    billing_mariadb.engine.dispose()
    assert billing_mariadb.kill_sessions() == 1
    assert watching.settle() == {DAY: DueReason.INGESTED}


@pytest.mark.services
@pytest.mark.case("server_gone")
def test_a_connection_that_is_killed_in_the_midst_of_a_look_leaves_the_cursor(billing_mariadb):
    watching = settled(billing_mariadb)
    billing_mariadb.daily("t1", DAY, NOON)
    billing_mariadb.engine.dispose()
    before = watching.cursor
    watching.midway = billing_mariadb.kill_sessions
    with pytest.raises(DatabaseAwayError):
        watching.look()
    assert watching.cursor == before
    watching.midway = lambda: None
    assert watching.settle() == {DAY: DueReason.INGESTED}


@pytest.mark.services
@pytest.mark.case("client_zone")
@pytest.mark.parametrize("column", ["DATETIME(6)", "TIMESTAMP(6)"])
def test_a_change_is_found_whatever_zone_server_and_writer_are_in(own_mariadb: tuple[Server, BillingTables], column):
    server, tables = own_mariadb
    tables.run(f"ALTER TABLE cmdb_cost_facts MODIFY updated_at {column} NULL")
    server.run("SET GLOBAL time_zone = '+02:00'")
    today = tables.now().date()
    day = today - timedelta(days=6)
    tables.subscribe(tenant("t1"))
    tables.fact("t1", day, tables.now() - timedelta(days=2))
    watching = Watching(tables, None, AT_ONCE)
    assert watching.asks() == [day]
    watching.run(day)
    assert watching.look().waiting == []
    here = create_engine(tables.url)  # its sessions have the server's zone
    try:
        with here.begin() as writer:
            stamp = "NOW(6)" if column == "TIMESTAMP(6)" else "UTC_TIMESTAMP(6)"
            writer.exec_driver_sql(f"UPDATE cmdb_cost_facts SET updated_at = {stamp}")
    finally:
        here.dispose()
    assert watching.asks() == [day]
    (pending,) = watching.memory.pending.values()
    assert pending.newest is not None
    assert abs(pending.newest - datetime.now(UTC)) < timedelta(minutes=30)


# --- subscriptions ---


@pytest.mark.case("no_subscriptions")
def test_without_subscriptions_nothing_is_asked_for_until_there_is_one(billing):
    billing.daily("t1", DAY, NOON)
    watching = Watching(billing)
    looked = watching.look()
    assert (looked.due_days, looked.waiting) == ([], [])
    assert any("No subscription is enabled" in note for note in looked.notes)
    watching.passes(minutes=5)
    assert watching.settle() == {}
    billing.subscribe(tenant("t1"))
    assert list(watching.settle()) == [DAY]


@pytest.mark.case("no_subscriptions")
@pytest.mark.parametrize(
    ("one", "expected"), [(tenant("t1"), DAY), (resource_group("rg"), OTHER_DAY)], ids=["tenants", "groups"]
)
def test_with_one_kind_of_subscription_the_days_of_that_kind_are_asked_for(billing, one, expected: date):
    billing.subscribe(one)
    watching = Watching(billing, rules=STAMPS_ALONE)
    watching.settle()
    watching.passes(minutes=5)
    assert watching.now is not None
    billing.daily("t1", DAY, watching.now)
    billing.fact("t9", OTHER_DAY, watching.now)
    assert watching.settle() == {expected: DueReason.INGESTED}
    assert [cell.subscription for cell in watching.cells[expected]] == [one]
