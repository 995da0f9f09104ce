"""Whose turn it is to be compared, whatever was compared before; and that every day's turn comes."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.pending_day import DueReason
from metering_dagster.billing_changes.rules.reconcile import (
    Days,
    MaterializedReading,
    changed_days,
    differences,
    to_compare,
)
from metering_dagster.billing_changes.rules.watermark import PollRules

RULES = PollRules()
NOON = datetime(2026, 9, 20, 12, tzinfo=UTC)
TODAY = NOON.date()
FIRST = TODAY - timedelta(days=9)
HORIZON = Days(FIRST, TODAY)
days = st.integers(-2, 11).map(lambda n: FIRST + timedelta(days=n))
texts = st.sampled_from(["", "a", "b"])
states = st.dictionaries(days, texts)
some_days = st.frozensets(days)
ages = st.sampled_from([0, 59, 60, 61, 23 * 60 + 59, 24 * 60, 3000]).map(lambda n: timedelta(minutes=n))


@given(states, states)
def test_a_day_has_changed_if_it_holds_something_else_or_something_at_all(before, now):
    everything = [FIRST + timedelta(days=n) for n in range(-3, 14)]
    assert changed_days(before, now) == {day for day in everything if before.get(day, "") != now.get(day, "")}


@given(some_days, st.dictionaries(days, ages), some_days)
def test_those_are_compared_whose_turn_it_is_and_no_more_than_a_look_may(suspects, age, busy):
    compared = {day: NOON - passed for day, passed in age.items()}
    found = to_compare(suspects, compared, HORIZON, busy, at=NOON, rules=RULES)
    due = set()
    for number in range(10):
        day = TODAY - timedelta(days=number)
        most = timedelta(hours=1) if number < 3 else timedelta(hours=24)
        if day in busy:
            continue
        if day in suspects or day not in age or age[day] >= most:
            due.add(day)
    assert len(found) == len(set(found)) == min(len(due), 4)
    assert set(found) <= due
    left = due - set(found)
    rank = {day: (day not in suspects, -age.get(day, timedelta(days=999)), TODAY - day) for day in due}
    assert all(rank[one] < rank[other] for one in found for other in left)
    assert found == sorted(found, key=rank.__getitem__)


def test_a_days_turn_comes_at_the_instant_and_no_earlier():
    for day, every in ((TODAY, timedelta(hours=1)), (FIRST, timedelta(hours=24))):
        compared = dict.fromkeys(HORIZON, NOON) | {day: NOON - every}
        assert to_compare((), compared, HORIZON, (), at=NOON, rules=RULES) == [day]
        compared[day] += timedelta(microseconds=1)
        assert to_compare((), compared, HORIZON, (), at=NOON, rules=RULES) == []


@settings(max_examples=10)
@given(st.integers(0, 92), st.integers(1, 5), st.lists(days, max_size=3))
def test_every_day_is_compared_within_a_day_however_many_there_are(older, minutes, suspects):
    """With a look each minute, or every five: the recent ones each hour, which costs the older ones little."""
    horizon = Days(TODAY - timedelta(days=older), TODAY)
    compared: dict[date, datetime] = {}
    counts: dict[date, list[datetime]] = {day: [] for day in horizon}
    for look in range(0, 26 * 60, minutes):
        at = NOON + timedelta(minutes=look)
        these = to_compare([day for day in suspects if day not in compared], compared, horizon, (), at=at, rules=RULES)
        for day in these:
            compared[day] = at
            counts[day].append(at)
    latest = timedelta(minutes=25 * minutes)
    for day, times in counts.items():
        every = RULES.recent_every if TODAY - day < timedelta(days=3) else RULES.others_every
        assert times[0] <= NOON + latest
        assert all(after - before <= every + latest for before, after in pairwise(times))
        assert all(after - before >= every for before, after in pairwise(times))


@given(st.lists(days, unique=True), states, st.dictionaries(days, texts))
def test_a_day_differs_if_something_else_was_reported_or_nothing_of_what_there_is(asked, there, reported):
    known = {day: MaterializedReading(NOON, text) for day, text in reported.items()}
    expected = {}
    for day in asked:
        if day not in reported and there.get(day):
            expected[day] = DueReason.NEVER_REPORTED
        if day in reported and reported[day] != there.get(day, ""):
            expected[day] = DueReason.DIFFERS
    assert differences(asked, there, known.get) == expected


@given(days, st.integers(0, 40), days)
def test_consecutive_days_hold_both_their_ends(first, number, day):
    stretch = Days(first, first + timedelta(days=number))
    assert list(stretch) == [first + timedelta(days=n) for n in range(number + 1)]
    assert (day in stretch) == (day in list(stretch))
