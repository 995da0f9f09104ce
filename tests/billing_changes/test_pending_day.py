"""When a day that has moved is asked for, asked for again, and done with."""

from dataclasses import replace
from datetime import date, timedelta

from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.pending_day import DueReason, PendingDay
from metering_dagster.billing_changes.rules.watermark import PollRules
from tests.billing_changes.imaginary import START, TODAY, Imaginary, Watcher, a_tenant, daily

RULES = PollRules()
MICROSECOND = timedelta(microseconds=1)
MOVED = PendingDay(first=None, since=START, changed_at=START, newest=START, why=DueReason.INGESTED)


def test_a_day_is_due_once_it_is_quiet():
    assert not MOVED.is_due(START + RULES.quiet - MICROSECOND, RULES)
    assert MOVED.is_due(START + RULES.quiet, RULES)


def test_a_day_that_never_rests_is_due_after_fifteen_minutes():
    restless = replace(MOVED, changed_at=START + RULES.at_most)
    assert not restless.is_due(START + RULES.at_most - MICROSECOND, RULES)
    assert restless.is_due(START + timedelta(minutes=15), RULES)


def test_a_day_whose_run_comes_to_nothing_is_asked_for_again_with_growing_pauses_and_other_keys():
    one, now, pauses, keys = MOVED, START + RULES.quiet, [], []
    for _ in range(6):
        keys.append(one.run_key(TODAY))
        one = one.after_request(now, reports_gap=False)
        asked = now
        while not one.is_due(now, RULES):
            now += timedelta(minutes=1)
        pauses.append((now - asked) // timedelta(minutes=1))
    assert pauses == [5, 10, 20, 40, 60, 60]
    assert len(set(keys)) == 6


def test_a_movement_after_it_was_asked_for_has_another_key():
    again = replace(MOVED, changed_at=START + timedelta(minutes=1))
    asked = MOVED.after_request(START, reports_gap=False)
    assert asked.changed_again(again, None, RULES).run_key(TODAY) != MOVED.run_key(TODAY)


@given(st.timedeltas(timedelta(0), timedelta(hours=3)))
def test_a_day_is_read_only_by_what_read_after_it_moved(after):
    at = START + after
    assert not MOVED.is_read(START - MICROSECOND, at, RULES)
    assert not MOVED.is_read(at + MICROSECOND, at, RULES), "a reading of a clock that was set back since"
    assert MOVED.is_read(at, at, RULES)
    assert not MOVED.is_read(None, at, RULES)


@given(st.timedeltas(timedelta(0), timedelta(hours=3)))
def test_a_stamp_ahead_is_done_with_only_by_a_reading_after_its_time(read_after):
    ahead = replace(MOVED, newest=START + timedelta(hours=2))
    passed = START + timedelta(hours=2) + RULES.settle
    read_at = START + read_after
    assert ahead.is_done(read_at, max(read_at, passed), RULES) == (read_at >= passed)
    assert not ahead.is_done(read_at, min(passed - MICROSECOND, START), RULES)


def test_at_most_a_hundred_days_are_asked_for_in_a_look_and_the_rest_in_the_next():
    rules = replace(RULES, horizon=timedelta(days=120))
    database = Imaginary(subscriptions=[a_tenant("t1")])
    days = [TODAY - timedelta(days=number) for number in range(110)]
    database.ingest(*(daily(day) for day in days))
    watcher = Watcher(database, rules)
    assert watcher.asks() == []
    database.passes(minutes=3)
    first = watcher.look()
    assert len(first.due_days) == 100
    assert any("10 more days" in note for note in first.notes)
    watcher.under_way = [ask.day for ask in first.due_days]
    second: list[date] = watcher.asks()
    assert sorted([*watcher.under_way, *second]) == sorted(days)


def test_what_was_seen_counts_as_settled_at_the_instant_when_it_is():
    ahead = replace(MOVED, newest=START + timedelta(hours=2))
    assert ahead.wanted(START + RULES.settle - MICROSECOND, RULES) == START
    assert ahead.wanted(START + RULES.settle, RULES) == START + RULES.settle


def test_a_day_is_done_at_the_instant_when_its_newest_stamp_has_settled():
    settled = START + RULES.settle
    assert MOVED.is_done(settled, settled, RULES)
    assert not MOVED.is_done(settled - MICROSECOND, settled - MICROSECOND, RULES)


def test_a_day_is_complete_until_it_was_read_but_for_a_stamp_that_has_not_settled():
    newest = START + timedelta(hours=2)
    ahead, read_at = replace(MOVED, newest=newest), START + RULES.settle
    assert ahead.complete_until(read_at, read_at, RULES) == read_at
    assert ahead.complete_until(newest + MICROSECOND, newest + MICROSECOND, RULES) == newest
    assert replace(ahead, first=START).complete_until(read_at - MICROSECOND, read_at, RULES) == START
