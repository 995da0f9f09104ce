"""The cases about values from outside: stamps of any year, columns of any precision, writers and replicas that lag."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.billing_changes import feed
from metering_dagster.billing_changes.defs import checks
from metering_dagster.billing_changes.rules import cursor
from metering_dagster.billing_changes.rules.cells import Signal, StampFault, cells_of
from metering_dagster.billing_changes.rules.pending_day import DueReason
from metering_dagster.billing_changes.rules.reconcile import Days
from metering_dagster.billing_changes.rules.watermark import PollRules, PollTooSlowError
from metering_dagster.billing_changes.stores.database import Database
from metering_dagster.settings import Settings
from tests.billing_changes.filling import BillingTables, tenant
from tests.billing_changes.imaginary import START, Imaginary, Row, Watcher, daily, fact
from tests.billing_changes.materializing import materialize
from tests.billing_changes.test_billing_sensor import Watch
from tests.billing_changes.watching import DAY, NOON, OTHER_DAY, STAMPS_ALONE, Watching

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
ZERO = "0000-00-00 00:00:00"
SENTINELS = {
    "9999-12-31 23:59:59": StampFault.AHEAD,
    "9000-01-01 00:00:00": StampFault.AHEAD,
    "1969-12-31 23:00:00": StampFault.EARLY,
    "1000-01-01 00:00:00": StampFault.EARLY,
    "1970-01-01 00:00:01": StampFault.EARLY,
    ZERO: StampFault.MISSING,
}
TABLES = {"cmdb_cloud_billing_daily": "fetched_at", "cmdb_cost_facts": "updated_at"}


def stamp_oddly(tables: BillingTables, scope: str, stamp: str) -> None:
    """Give the rows of a tenant this stamp, as a server without NO_ZERO_DATE lets a writer do."""
    with tables.engine.begin() as connection:
        if not tables.is_sqlite:
            connection.exec_driver_sql("SET SESSION sql_mode = ''")
        for table, column in TABLES.items():
            connection.exec_driver_sql(f"UPDATE {table} SET {column} = '{stamp}' WHERE scope_id = '{scope}'")


# --- stamps of any year ---


@pytest.mark.case("sentinel_stamps")
@pytest.mark.parametrize("beside", [True, False], ids=["on_a_healthy_day", "on_days_of_their_own"])
def test_odd_stamps_delay_no_healthy_day_and_cost_no_cursor(billing, beside):
    healthy = [DAY, OTHER_DAY]
    billing.subscribe(tenant("t1"), *(tenant(f"odd{number}") for number in range(len(SENTINELS))))
    for day in healthy:
        billing.daily("t1", day, NOON - timedelta(days=2))
    for number, stamp in enumerate(SENTINELS):
        day = DAY if beside else DAY - timedelta(days=1 + number)
        billing.daily(f"odd{number}", day, NOON)
        billing.fact(f"odd{number}", day, NOON)
        stamp_oddly(billing, f"odd{number}", stamp)
    watching = Watching(billing, NOON)
    assert set(healthy) <= set(watching.settle())
    for _ in range(3):
        watching.passes(minutes=30)
        for day in healthy:
            billing.daily("t1", day, watching.now)
        begun = watching.now
        asked: dict[date, datetime] = {}
        while set(healthy) - set(asked):
            assert watching.now - begun <= watching.rules.quiet + MINUTE, "asked for within its quiet time"
            days = watching.asks()
            asked |= dict.fromkeys(days, watching.now)
            watching.run(*days)
            assert cursor.read(watching.cursor)[1] == "", "no cursor is lost"
            watching.passes(minutes=1)
    assert watching.watch(days=1, hours=2) == {}, "it comes to rest, comparisons included"


@pytest.mark.case("sentinel_stamps")
def test_odd_stamps_are_named_by_the_check_and_for_a_pull_by_hand(billing, tmp_path):
    billing.subscribe(tenant("healthy"))
    now = billing.now()
    day, settings = now.date() - timedelta(days=5), Settings(
        billing_database_url=billing.url, billing_changes_uri=str(tmp_path / "changes")
    )  # fmt: skip
    billing.daily("healthy", day, now - 2 * HOUR)
    for number, stamp in enumerate(SENTINELS):
        billing.subscribe(tenant(f"odd{number}"))
        billing.daily(f"odd{number}", day, now)
        stamp_oddly(billing, f"odd{number}", stamp)
    with billing.database().reading() as reading:
        odd = reading.invalid_stamps(day)
        told = checks.stamps_are_sound(odd)
    assert (odd.unstamped, odd.early, odd.future) == (1, 3, 2)
    assert not told.passed
    assert "Rows without a stamp: 1. Rows stamped before the year 2000: 3." in str(told.description)
    assert "stamped ahead of the database's clock: 2" in str(told.description)
    answer = feed.changes(now - HOUR, settings=settings)
    whys = [(each.first_day, each.why) for each in answer.meta.repull_by_hand]
    assert [first for first, _ in whys] == [day, day, day]
    assert "1 row has no stamp" in whys[0][1]
    assert "3 rows have a stamp before 2000" in whys[1][1]
    assert "2 rows have a stamp far ahead" in whys[2][1]
    assert {row.subscription_id for row in answer.rows} == {"odd0", "odd1"}
    assert {row.subscription_id for row in feed.changes("1970-01-01T00:00:00Z", settings=settings).rows} == {
        "healthy", "odd0", "odd1", "odd4",
    }  # fmt: skip
    materialize(settings, day)
    taken = feed.new_for("warehouse", settings=settings)
    assert {row.subscription_id: row.last_ingested_at for row in taken.rows}["odd3"] == datetime(1000, 1, 1, tzinfo=UTC)
    frames = (feed.frame(answer), feed.frame(taken))
    assert [len(frame) for frame in frames] == [2, 7]


@pytest.mark.case("sentinel_stamps")
def test_a_zero_stamp_is_no_stamp_in_every_place_that_looks(billing):
    """The same is found of rows with a zero stamp as of rows without one."""
    billing.subscribe(tenant("t1"), tenant("t2"))
    found = []
    for stamp in (ZERO, None):
        for scope in ("t1", "t2"):
            billing.daily(scope, DAY, None if scope == "t1" else NOON)
            billing.fact(scope, DAY, None)
            billing.fact(scope, DAY, NOON, service="disk")
        if stamp is not None:
            with billing.engine.begin() as connection:
                if not billing.is_sqlite:
                    connection.exec_driver_sql("SET SESSION sql_mode = ''")
                for table, column in TABLES.items():
                    connection.exec_driver_sql(f"UPDATE {table} SET {column} = '{stamp}' WHERE {column} IS NULL")
        with billing.database().reading() as reading:
            claims = reading.claims()
            cells = cells_of(reading.pieces_of([DAY], claims, amounts=True), claims)
            found.append((
                cells, reading.checksums(DAY), reading.invalid_stamps(DAY), reading.days_with_invalid_stamps(DAY, NOON),
                reading.pieces_since(dict.fromkeys(Signal, datetime(1, 1, 1, tzinfo=UTC)), DAY),
            ))  # fmt: skip
        watching = Watching(billing, NOON + HOUR)
        watching.settle()
        found[-1] += (watching.reported[DAY].state, watching.memory.marks, watching.memory.sums)
    assert found[0] == found[1]
    cell = found[0][0][DAY, "t1"]
    assert (cell.daily.rows, cell.daily.unstamped, cell.daily.newest) == (1, 1, None)
    assert (cell.facts.rows, cell.facts.unstamped, cell.facts.newest) == (2, 1, NOON)
    assert found[0][2].unstamped == 3


# --- the cursor ---


odd_years = st.sampled_from([
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC),
])  # fmt: skip
clocks = st.sampled_from([
    datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 30, tzinfo=UTC), NOON, datetime(2038, 1, 19, 3, 14, 7,
    tzinfo=UTC), datetime(2106, 2, 7, tzinfo=UTC),
])  # fmt: skip
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ingest"), st.integers(0, 7), st.none() | odd_years | st.timedeltas(-HOUR * 3, HOUR * 3)),
        st.tuples(st.just("passes"), st.just(0), st.timedeltas(timedelta(0), timedelta(days=40))),
        st.tuples(st.just("passes"), st.just(0), st.timedeltas(timedelta(0), 5 * MINUTE)),
        st.tuples(st.just("clock is set"), st.just(0), clocks),
        st.tuples(st.just("too slow"), st.sampled_from([0, 1, 2, 99]), st.none()),
        st.tuples(st.just("subscriptions"), st.integers(0, 3), st.none()),
        st.tuples(st.just("look"), st.integers(0, 3), st.none()),
    ),
    min_size=1,
    max_size=25,
)


@pytest.mark.case("cursor_reads_what_it_wrote")
@settings(max_examples=250, deadline=None)
@given(clocks, steps)
def test_every_state_that_looks_come_to_is_written_to_a_cursor_that_is_read(clock, history):
    database = Imaginary(now=clock)
    every = database.subscriptions
    days = Days(date(1970, 1, 1), date(9999, 12, 31))
    watcher = Watcher(database, replace(PollRules(), quiet=timedelta(0)), partitions=days)
    for what, number, value in [*history, ("look", 0, None)]:
        if what == "ingest":
            row: Row = (daily if number % 2 else fact)(database.now.date() - timedelta(days=number // 2))
            stamp = database.now + value if isinstance(value, timedelta) else value
            database.rows[row] = stamp
        elif what == "passes":
            database.now = min(database.now + value, datetime(2106, 2, 7, tzinfo=UTC))
        elif what == "clock is set":
            database.now = value
        elif what == "too slow":
            database.most = number
        elif what == "subscriptions":
            database.subscriptions = every[:number]
        else:
            try:
                looked = watcher.look()  # asserts that the cursor brings back what was remembered
            except PollTooSlowError:
                continue  # it cannot be narrower: the tick fails, the cursor stays
            watcher.run(*[ask.day for ask in looked.due_days][: number + 1])


@pytest.mark.case("cursor_reads_what_it_wrote")
def test_a_cursor_of_an_earlier_version_of_the_code_is_read():
    """It wrote 0 where a day was never compared, and nothing of tables that are read in pieces."""
    watcher = Watcher(Imaginary())
    watcher.look()
    assert watcher.cursor is not None
    found, said = cursor.read(watcher.cursor.replace('",null,', '",0,'))
    assert said == ""
    assert found is not None
    assert replace(found, compared={}) == watcher.memory


# --- columns ---


KINDS = [f"{kind}({decimals})" for kind in ("DATETIME", "TIMESTAMP") for decimals in range(7)]


@pytest.mark.services
@pytest.mark.case("column_precision")
def test_a_stamp_that_a_column_has_cut_is_reported_from_its_whole_stamp_on(billing_mariadb):
    settings = Settings(billing_database_url=billing_mariadb.url)
    billing_mariadb.subscribe(tenant("t1"))
    at = (billing_mariadb.now() - HOUR).replace(microsecond=123_100)
    day = at.date() - timedelta(days=3)
    for kind in KINDS:
        decimals = int(kind[-2])
        for table, column in TABLES.items():
            billing_mariadb.run(f"ALTER TABLE {table} MODIFY {column} {kind} NULL")
        with billing_mariadb.database().reading() as reading:
            assert {reading.precision(signal) for signal in Signal} == {decimals}, kind
        billing_mariadb.daily("t1", day, at)
        billing_mariadb.fact("t1", day, at)
        (row,) = feed.changes(at - timedelta(microseconds=50), settings=settings).rows
        assert row.signals == tuple(Signal), kind
        tick = 10 ** (6 - decimals)
        assert row.last_ingested_at == at.replace(microsecond=123_100 // tick * tick), kind
        assert not feed.changes(at + SECOND, settings=settings).rows, kind


@pytest.mark.case("column_precision")
def test_the_case_itself_in_a_column_of_milliseconds(billing):
    """SQLite keeps what is written."""
    settings = Settings(billing_database_url=billing.url)
    if not billing.is_sqlite:
        billing.run("ALTER TABLE cmdb_cost_facts MODIFY updated_at DATETIME(3)")
    billing.subscribe(tenant("t1"))
    at = (billing.now() - HOUR).replace(microsecond=123_100)
    billing.fact("t1", at.date() - timedelta(days=3), at)
    assert len(feed.changes(at.replace(microsecond=123_050), settings=settings).rows) == 1


# --- polls that take too long ---


SLOW_ROW = 0.02
"""Seconds that a fact takes to be read, where reading them is slow."""
TIME_OUT = 1.0
MOST_LOOKS = 150


def slow_down(tables: BillingTables) -> None:
    """Put a view in the place of the facts, in which each row takes its time."""
    tables.run(
        "RENAME TABLE cmdb_cost_facts TO facts_at_full_speed",
        f"CREATE VIEW cmdb_cost_facts AS SELECT * FROM facts_at_full_speed WHERE SLEEP({SLOW_ROW}) = 0",
    )


def ingest_backlog(tables: BillingTables, days: list[date], first: datetime, apart: timedelta, rows: int) -> None:
    for number in range(rows):
        tables.fact("t1", days[number % len(days)], first + number * apart, service=f"s{number}")


@pytest.mark.services
@pytest.mark.case("wide_poll_times_out")
@pytest.mark.parametrize("apart", [2 * MINUTE, 20 * SECOND], ids=["over_hours", "within_an_overlap"])
def test_a_poll_that_times_out_becomes_narrower_until_all_is_read(billing_mariadb, apart):
    days = [DAY - timedelta(days=number) for number in range(8)]
    billing_mariadb.subscribe(tenant("t1"))
    watching = Watching(billing_mariadb, NOON, STAMPS_ALONE)
    watching.settle()
    watching.settle()  # each day of the horizon has been compared
    rows = 120
    ingest_backlog(billing_mariadb, days, NOON, apart, rows)
    slow_down(billing_mariadb)
    watching.database = Database(billing_mariadb.url, read_timeout=TIME_OUT)
    billing_mariadb.databases.append(watching.database)
    watching.now = NOON + rows * apart
    looked = watching.look()
    assert "took longer than the time-out of a statement" in " ".join(looked.notes)
    assert looked.due_days == []
    assert looked.complete_until == NOON - watching.rules.overlap + (looked.cursor.polled_at - NOON)
    spans = [watching.memory.narrowed[Signal.FACTS].span]
    ran: dict[date, datetime] = {}
    while Signal.FACTS in watching.memory.narrowed:
        assert len(spans) < MOST_LOOKS
        watching.passes(minutes=5)
        looked = watching.look()
        spans += [one.span for one in looked.cursor.narrowed.values()]
        for day in (ask.day for ask in looked.due_days):
            ran[day] = watching.now
    assert spans[1] != spans[0]
    watching.passes(minutes=3)
    ran |= dict.fromkeys((ask.day for ask in watching.look().due_days), watching.now)
    assert set(ran) == set(days), "nothing is skipped"
    assert watching.memory.marks[Signal.FACTS] >= NOON + (rows - 1) * apart, "the mark has moved on"


@pytest.mark.services
@pytest.mark.case("wide_poll_times_out")
def test_the_tick_whose_poll_timed_out_leaves_a_cursor_that_reads_less(billing_mariadb, instance, tmp_path):
    now = billing_mariadb.now()
    days = [now.date() - timedelta(days=number) for number in range(4, 8)]
    billing_mariadb.subscribe(tenant("t1"))
    watch = Watch(instance, billing_mariadb, tmp_path)
    assert watch.look() == []
    ingest_backlog(billing_mariadb, days, now - 58 * MINUTE, 20 * SECOND, 80)
    slow_down(billing_mariadb)
    watch.billing.database = billing_mariadb.database(read_timeout=TIME_OUT)
    watch.billing.database.missing()  # connected: no answer is late for that
    answer = watch.answer()
    assert isinstance(answer, dg.SensorResult)
    assert not answer.run_requests
    assert "cost_facts.updated_at took longer than the time-out of a statement" in str(answer.skip_reason.skip_message)
    asked: set[str] = set()
    for _ in range(8):
        asked |= {str(one.partition_key) for one in watch.look()}
    assert asked == {str(day) for day in days}


@pytest.mark.case("wide_poll_times_out")
@pytest.mark.parametrize("apart", [9 * MINUTE, SECOND, SECOND / 2])
def test_pieces_skip_nothing_and_the_table_is_whole_again_afterwards(apart):
    database = Imaginary()
    watcher = Watcher(database, STAMPS_ALONE)
    watcher.settle()
    days = [database.now.date() - timedelta(days=number) for number in range(30)]
    for number, day in enumerate(days):
        database.ingest(daily(day), fact(day), stamp=database.now + number * apart)
    database.now += len(days) * apart + SECOND
    database.most = 12
    before = watcher.memory
    looked = watcher.look()
    assert (looked.due_days, looked.cursor.marks, looked.cursor.polled_at) == ([], before.marks, before.polled_at)
    assert set(looked.cursor.narrowed) <= set(Signal)
    assert looked.cursor.narrowed
    assert set(watcher.settle()) == set(days)
    assert all(mark >= START + 29 * apart for mark in watcher.memory.marks.values())
    assert watcher.memory.narrowed == {}


@pytest.mark.case("wide_poll_times_out")
def test_a_table_that_is_too_slow_however_narrow_the_piece_fails_the_look():
    database = Imaginary()
    watcher = Watcher(database, STAMPS_ALONE)
    watcher.settle()
    database.ingest(daily())
    database.most = 0
    with pytest.raises(PollTooSlowError):
        look_on(watcher)
    narrowest = watcher.memory.narrowed[Signal.DAILY].span
    assert watcher.rules.narrowest <= narrowest < 2 * watcher.rules.narrowest
    database.most = None
    assert watcher.settle() == [daily().day], "and afterwards nothing is lost"


def look_on(watcher: Watcher) -> None:
    for _ in range(MOST_LOOKS):
        watcher.look()
        watcher.database.passes(minutes=1)


# --- writers and replicas that lag ---


@pytest.mark.case("local_time_writer")
def test_a_writer_eight_hours_ahead_is_named_and_one_five_hours_behind_is_told_of(billing):
    now = billing.now()
    day = now.date() - timedelta(days=4)
    billing.subscribe(tenant("ahead"), tenant("behind"), tenant("utc"))
    billing.daily("ahead", day, now + 8 * HOUR)
    billing.daily("behind", day, now - 5 * HOUR)
    billing.daily("utc", day, now)
    with billing.database().reading() as reading:
        told = checks.stamps_are_sound(reading.invalid_stamps(day))
    assert not told.passed
    assert "tenant ahead" in str(told.description)
    assert "behind" not in str(told.description)
    assert "in UTC" in str(told.description)
    answer = feed.changes(now - 2 * HOUR, settings=Settings(billing_database_url=billing.url))
    assert {row.subscription_id for row in answer.rows} == {"ahead", "utc"}
    assert any("behind UTC" in sentence for sentence in answer.meta.does_not_detect)


@pytest.mark.case("local_time_writer")
def test_what_a_writer_behind_hides_from_stamps_is_found_by_comparing(billing):
    billing.subscribe(tenant("behind"), tenant("utc"))
    billing.daily("behind", DAY, NOON - timedelta(days=2))
    watching = Watching(billing, NOON)
    watching.settle()
    watching.passes(hours=3)
    billing.daily("behind", DAY, watching.now - 5 * HOUR, 7)
    assert watching.watch(hours=1, minutes=30) == {DAY: DueReason.DIFFERS}
    assert watching.amounts(DAY)["behind"] == 7


@pytest.mark.case("lagging_replica")
def test_rows_that_reach_the_replica_70_minutes_late_are_found_by_comparing_and_never_promised(billing):
    """Some tables, or some servers of a cluster, lag: others' rows move the mark meanwhile."""
    billing.subscribe(tenant("late"), tenant("t1"))
    billing.daily("late", DAY, NOON - timedelta(days=2))
    billing.daily("t1", OTHER_DAY, NOON - timedelta(days=2))
    watching = Watching(billing, NOON)
    watching.settle()
    stamped = watching.now - 8 * MINUTE
    while watching.now < stamped + timedelta(minutes=70):
        watching.passes(minutes=5)
        billing.daily("t1", OTHER_DAY, watching.now)
        looked = watching.look()
        watching.run(*(ask.day for ask in looked.due_days))
        assert looked.complete_until is not None
        assert looked.complete_until <= watching.now - watching.rules.overlap
    assert watching.memory.starts[Signal.DAILY] > stamped, "stamps alone would not tell"
    billing.daily("late", DAY, stamped, 7)
    found = watching.watch(hours=1, minutes=30)
    assert found[DAY] == DueReason.DIFFERS
    assert watching.amounts(DAY)["late"] == 7
