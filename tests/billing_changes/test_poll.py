"""What a look asks for, when, and what it says, on a database that is imagined."""

from dataclasses import replace
from datetime import date, timedelta

import pytest

from metering_dagster.billing_changes.rules import cursor as remembered
from metering_dagster.billing_changes.rules.pending_day import DueReason
from metering_dagster.billing_changes.rules.reconcile import Days
from metering_dagster.billing_changes.rules.watermark import PollRules
from metering_dagster.billing_changes.services.poll import LONG_PAUSE
from tests.billing_changes.imaginary import START, TODAY, Imaginary, Watcher, a_tenant, daily, fact, words

RULES = PollRules()
EARLIER = TODAY - timedelta(days=20)
TWO_DAYS_AGO = START - timedelta(days=2)


def day(number: int) -> date:
    """So many days ago."""
    return TODAY - timedelta(days=number)


@pytest.fixture
def database() -> Imaginary:
    """Two days with rows, ingested two days ago."""
    ours = Imaginary()
    ours.ingest(daily(), fact(EARLIER), stamp=TWO_DAYS_AGO)
    return ours


@pytest.fixture
def watcher(database: Imaginary) -> Watcher:
    """All of it is materialized."""
    ours = Watcher(database)
    ours.settle()
    return ours


def test_the_first_look_asks_for_every_day_with_rows(database):
    watcher = Watcher(database)
    assert watcher.asks() == [], "they are not quiet yet"
    database.passes(minutes=2)
    assert words(watcher.look().due_days) == {TODAY: DueReason.FIRST_POLL, EARLIER: DueReason.FIRST_POLL}


def test_a_quiet_day_is_never_asked_for_again(watcher, database):
    for _ in range(3 * 24 * 6):
        database.passes(minutes=10)
        assert watcher.look().due_days == []


def test_a_table_that_goes_on_does_not_make_a_quiet_day_move(watcher, database):
    # The starts move on with it, past what was read of the quiet day.
    database.ingest(fact(EARLIER))
    watcher.settle()
    for _ in range(30):
        database.ingest(fact())
        assert EARLIER not in watcher.settle()


def test_a_day_is_asked_for_two_minutes_after_it_has_moved_for_the_last_time(watcher, database):
    database.ingest(fact())
    assert watcher.asks() == []
    database.passes(seconds=100)
    database.ingest(daily())
    assert watcher.asks() == []
    database.passes(seconds=119)
    assert watcher.asks() == []
    database.passes(seconds=1)
    assert watcher.asks() == [TODAY]


def test_a_day_that_goes_on_moving_is_asked_for_every_fifteen_minutes(watcher, database):
    asked = []
    for minute in range(1, 47):
        database.ingest(fact())
        if watcher.asks():
            asked.append(minute)
            watcher.run(TODAY)
        database.passes(minutes=1)
    assert asked == [16, 32]


def test_a_day_whose_run_reads_before_a_movement_is_asked_for_again(watcher, database):
    database.ingest(fact())
    watcher.look()
    watcher.run(TODAY)
    database.passes(seconds=30)
    database.ingest(fact(group="RG"))
    assert watcher.settle() == [TODAY]


def test_what_was_read_by_hand_after_it_moved_is_not_asked_for(watcher, database):
    database.ingest(fact())
    watcher.look()
    database.passes(seconds=61)
    watcher.run(TODAY)
    database.passes(minutes=5)
    looked = watcher.look()
    assert (looked.due_days, looked.waiting) == ([], [])


def test_a_failed_run_is_asked_for_again_after_growing_pauses_and_with_other_keys(watcher, database):
    database.ingest(fact())
    watcher.look()
    asked, keys = [], set()
    for minute in range(150):
        database.passes(minutes=1)
        for ask in watcher.look().due_days:
            asked.append(minute + 1)
            keys.add(ask.run_key)
    assert asked == [2, 7, 17, 37, 77, 137]
    assert len(keys) == len(asked)


def test_no_run_is_asked_for_beside_one_that_is_under_way(watcher, database):
    database.ingest(fact())
    watcher.look()
    watcher.under_way = [TODAY]
    database.passes(hours=3)
    assert watcher.asks() == []
    watcher.under_way = []
    assert watcher.asks() == [TODAY]


def test_the_same_tick_from_the_same_cursor_asks_under_the_same_key(watcher, database):
    database.ingest(fact())
    watcher.look()
    database.passes(minutes=3)
    cursor = watcher.cursor
    first = watcher.look().due_days
    watcher.cursor = cursor
    database.passes(seconds=10)
    assert [ask.run_key for ask in watcher.look().due_days] == [ask.run_key for ask in first]


def test_no_more_than_a_hundred_days_are_asked_for_at_once_and_the_rest_at_the_next_look():
    database = Imaginary()
    watcher = Watcher(database, replace(RULES, horizon=timedelta(days=92), most_requested=50))
    for number in range(93):
        database.ingest(daily(day(number)), stamp=TWO_DAYS_AGO)
    watcher.look()
    database.passes(minutes=2)
    first = watcher.look()
    assert len(first.due_days) == 50
    assert "43 more days are due" in " ".join(first.notes)
    assert [ask.day for ask in first.due_days] == sorted(ask.day for ask in first.due_days)
    database.passes(minutes=1)
    second = watcher.asks()
    assert len(second) == 43
    assert not {*second} & {ask.day for ask in first.due_days}


def test_the_cursor_of_a_whole_horizon_is_short():
    database = Imaginary()
    watcher = Watcher(database)
    for number in range(33):
        database.ingest(daily(day(number)), fact(day(number)))
    watcher.settle()
    assert len(watcher.cursor or "") < 4_096


@pytest.mark.parametrize("cursor", ["", "{}", "null", "[1]", '{"version": 2}', '{"version": 1, "looked": "x"}'])
def test_a_cursor_that_cannot_be_read_makes_a_first_look(watcher, database, cursor):
    assert remembered.read(cursor)[0] is None
    watcher.cursor = cursor
    assert watcher.settle() == [EARLIER, TODAY]


def test_a_subscription_that_comes_makes_every_day_with_rows_move(watcher, database):
    database.subscriptions.append(a_tenant("t9"))
    watcher.look()
    database.passes(minutes=2)
    assert words(watcher.look().due_days) == {TODAY: DueReason.SUBSCRIPTIONS, EARLIER: DueReason.SUBSCRIPTIONS}


def test_what_nobody_claims_makes_nothing_move(watcher, database):
    database.ingest(daily(scope="nobody"), fact(scope="nobody", group="nothing"))
    assert watcher.settle() == []


def test_a_day_that_begins_is_looked_at_whenever_its_rows_were_stamped(watcher, database):
    tomorrow = TODAY + timedelta(days=1)
    database.ingest(fact(tomorrow))
    looked = watcher.look()
    assert tomorrow not in looked.waiting
    assert str(tomorrow) in " ".join(looked.notes)
    for _ in range(14):
        database.passes(hours=1)
        watcher.look()
    assert watcher.settle() == [tomorrow]


def test_a_day_before_the_first_partition_is_not_looked_at(database):
    watcher = Watcher(database, partitions=Days(day(3), date(2026, 12, 31)))
    assert watcher.settle() == [TODAY]


def test_a_day_is_not_asked_for_before_its_partition_exists(database):
    watcher = Watcher(database, partitions=Days(date(2026, 1, 1), day(1)))
    assert watcher.settle() == [EARLIER]
    database.passes(minutes=5)
    watcher.partitions = Days(date(2026, 1, 1), TODAY)
    assert watcher.settle() == [TODAY]


def test_a_far_stamp_does_not_keep_a_day_from_being_compared(watcher, database):
    database.ingest(fact(EARLIER, group="RG"), stamp=START + timedelta(days=3650))
    assert watcher.settle() == [EARLIER]
    del database.rows[fact(EARLIER)]
    database.passes(hours=25)
    assert watcher.settle() == [EARLIER]


class TestGap:
    """Nobody has looked for longer than the overlap."""

    def test_the_days_that_moved_meanwhile_tell_of_it(self, watcher, database):
        away = database.now
        database.ingest(fact())
        database.passes(days=2)
        looked = watcher.look()
        assert f"until {database.now:%Y-%m-%dT%H:%M:%SZ}" in looked.notes[0]
        database.passes(minutes=2)
        (ask,) = watcher.look().due_days
        assert ask.day == TODAY
        assert f"from {away:%Y-%m-%dT%H:%M}" in ask.gap
        assert f"{day(32)} to {day(31)} have left the horizon" in ask.gap

    def test_where_nothing_moved_today_is_asked_for(self, watcher, database):
        database.passes(hours=3)
        watcher.look()
        database.passes(minutes=2)
        (ask,) = watcher.look().due_days
        assert (ask.day, ask.why) == (TODAY, DueReason.GAP)
        assert "did not poll" in ask.gap

    def test_it_is_told_until_a_run_that_tells_of_it_is_through(self, watcher, database):
        database.passes(hours=3)
        watcher.look()
        gaps = []
        for _ in range(10):
            database.passes(minutes=1)
            gaps += [ask.gap for ask in watcher.look().due_days]
        assert len(gaps) == 2
        assert all(gaps)
        watcher.run(TODAY)
        database.ingest(fact(EARLIER))
        watcher.look()
        database.passes(minutes=2)
        assert [ask.gap for ask in watcher.look().due_days] == [""]

    def test_a_run_that_was_asked_for_before_does_not_count_as_telling_of_it(self, watcher, database):
        database.ingest(fact())
        watcher.look()
        database.passes(minutes=2)
        assert watcher.asks() == [TODAY]
        database.passes(hours=3)
        watcher.run(TODAY)
        database.passes(seconds=1)
        watcher.look()
        database.passes(minutes=2)
        assert ["did not poll" in ask.gap for ask in watcher.look().due_days] == [True]

    def test_after_a_month_everything_is_looked_at_anew(self, watcher, database):
        database.passes(days=LONG_PAUSE.days + 1)
        database.ingest(daily(database.now.date()))
        assert "Polling starts anew." in watcher.look().notes
        database.passes(minutes=2)
        assert {ask.why for ask in watcher.look().due_days} == {DueReason.FIRST_POLL}


class TestClockSetBack:
    """The database's clock was set back."""

    def test_what_is_ingested_then_is_found(self, watcher, database):
        database.ingest(fact())
        watcher.settle()
        database.passes(hours=-3)
        database.ingest(fact(EARLIER))
        assert EARLIER in watcher.settle()
        database.ingest(fact(EARLIER))
        assert EARLIER in watcher.settle()

    def test_nothing_is_waited_for_until_the_old_time_has_come(self, watcher, database):
        database.passes(days=300)
        database.ingest(fact(TODAY))
        watcher.look()
        database.passes(days=-300)
        watcher.look()
        database.passes(minutes=2)
        assert TODAY in watcher.asks()


class TestCompleteUntil:
    """Up to which stamps everything is materialized."""

    def test_it_is_an_overlap_ago_where_nothing_is_pending(self, watcher, database):
        assert watcher.look().complete_until == database.now - RULES.overlap

    def test_it_is_not_known_until_the_first_days_are_materialized(self, database):
        watcher = Watcher(database)
        assert watcher.look().complete_until is None
        watcher.settle()
        assert watcher.look().complete_until is not None

    def test_it_stands_still_while_a_day_that_moved_is_not_materialized(self, watcher, database):
        before = watcher.look().complete_until
        database.passes(seconds=30)
        database.ingest(fact())
        for _ in range(5):
            assert watcher.look().complete_until == before
            database.passes(minutes=10)
        watcher.run(TODAY)
        assert watcher.look().complete_until == database.now - RULES.overlap

    def test_a_stamp_years_ahead_does_not_hold_it_up(self, watcher, database):
        database.ingest(fact(), stamp=START + timedelta(days=3650))
        watcher.settle()
        database.passes(minutes=5)
        assert watcher.look().complete_until == database.now - RULES.overlap
