"""What is pending means, hour by hour: rules alone, at every turn of a month."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.admin.rules.outlook import (
    Outlook,
    PendingCounts,
    State,
    hours_to_look_at,
    judging_order,
    outlook,
    standing,
)
from metering_dagster.core import hours

INSTANTS = st.integers(0, 2 * 366 * 86_400).map(lambda s: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=s))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def some(hour: str, rows: int = 1, aggregates: int = 0) -> PendingCounts:
    return PendingCounts(at(hour), rows, aggregates)


def seen(now: str, *counted: PendingCounts, lock: int = 1) -> Outlook:
    return outlook(at(now), lock, counted)


def test_only_hours_with_something_pending_stand():
    found = seen("2026-11-28T12:20", some("2026-11-28T10"), some("2026-11-28T09", 0, 0), some("2026-11-28T08", 0, 1))
    assert [each.bucket for each in found.standings] == ["2026-11-28T08", "2026-11-28T10"]
    assert len(found.looked_at) == 3


def test_nothing_pending_is_good_and_has_no_cutoff():
    found = seen("2026-11-28T12:20", some("2026-11-28T10", 0, 0))
    assert found.is_good
    assert found.oldest is None
    assert found.next_cutoff is None


@pytest.mark.parametrize(
    ("now", "hour", "state", "opens", "closes"),
    [
        ("2026-11-28T12:20", "2026-11-28T12", State.OPEN, "2026-11-28T13:00", "2026-11-29T12:00"),
        ("2026-11-28T12:20", "2026-11-28T11", State.BILLABLE, None, "2026-11-29T11:00"),
        ("2026-11-28T12:20", "2026-11-27T13", State.BILLABLE, None, "2026-11-28T13:00"),
        ("2026-11-28T12:20", "2026-11-27T12", State.PAST, None, None),
        # A month's last day closes with the grace, early on the 1st.
        ("2026-11-30T12:20", "2026-11-30T10", State.BILLABLE, None, "2026-12-01T06:00"),
        ("2026-12-01T05:59", "2026-11-30T00", State.BILLABLE, None, "2026-12-01T06:00"),
        ("2026-12-01T06:00", "2026-11-30T23", State.PAST, None, None),
        # The evening before it is out of the window, and comes back for the grace.
        ("2026-11-30T21:00", "2026-11-29T20", State.WAITING, "2026-12-01T00:00", "2026-12-01T02:00"),
        ("2026-11-30T21:00", "2026-11-29T18", State.PAST, None, None),
        ("2026-12-01T01:30", "2026-11-29T20", State.BILLABLE, None, "2026-12-01T02:00"),
        ("2026-12-01T02:00", "2026-11-29T20", State.PAST, None, None),
        # Over the year's end the same.
        ("2027-01-01T04:00", "2026-12-31T20", State.BILLABLE, None, "2027-01-01T06:00"),
    ],
)
def test_an_hour_is_open_billable_or_past(now, hour, state, opens, closes):
    found = standing(some(hour), at(now), 1)
    assert found.state is state
    assert found.opens_at == (at(opens) if opens else None)
    assert found.closes_at == (at(closes) if closes else None)


def test_the_lock_is_the_configured_one():
    found = standing(some("2026-11-28T10"), at("2026-11-28T12:20"), 4)
    assert (found.state, found.opens_at) == (State.OPEN, at("2026-11-28T14:00"))


def test_what_is_past_never_opens_again_however_long_the_lock():
    assert standing(some("2026-11-30T22"), at("2026-12-01T07:00"), 20).state is State.PAST


def test_what_waits_for_the_months_grace_is_neither_past_nor_about_to_close():
    found = seen("2026-11-30T23:59", some("2026-11-29T19"), some("2026-11-29T23"))
    assert found.is_good
    assert found.next_cutoff == at("2026-12-01T01:00")
    assert not seen("2026-12-01T00:00", some("2026-11-29T19")).is_good, "an hour is left"


def test_last_call_shows():
    assert standing(some("2026-11-27T14"), at("2026-11-28T12:20"), 1).is_last_call
    assert not standing(some("2026-11-27T15"), at("2026-11-28T12:20"), 1).is_last_call


def test_before_six_on_the_1st_the_age_out_still_waits():
    assert not standing(some("2026-11-29T12"), at("2026-12-01T05:00"), 1).is_expirable
    assert standing(some("2026-11-29T12"), at("2026-12-01T06:00"), 1).is_expirable


def test_the_next_cutoff_is_the_earliest_of_what_can_be_billed():
    found = seen("2026-11-28T12:20", some("2026-11-28T10"), some("2026-11-27T20", 0, 1), some("2026-11-26T20", 0, 0))
    assert found.next_cutoff == at("2026-11-28T20:00")
    assert found.oldest is not None
    assert found.oldest.bucket == "2026-11-27T20"
    assert found.is_good


def test_what_is_past_is_not_good_and_has_no_cutoff():
    found = seen("2026-11-28T12:20", some("2026-11-27T12"))
    assert not found.is_good
    assert [each.bucket for each in found.past] == ["2026-11-27T12"]
    assert found.next_cutoff is None


@pytest.mark.parametrize(("now", "good"), [("2026-11-28T11:59", True), ("2026-11-28T12:00", False)])
def test_what_closes_within_an_hour_is_not_good(now, good):
    assert seen(now, some("2026-11-27T13")).is_good is good


def test_at_five_on_the_1st_the_whole_last_day_is_closing():
    found = seen("2026-12-01T05:00", some("2026-11-30T10"), some("2026-12-01T02"))
    assert [each.bucket for each in found.closing] == ["2026-11-30T10"]


@pytest.mark.parametrize(
    ("now", "days", "first", "count"),
    [
        ("2026-11-28T12:20", 2, "2026-11-26T12", 49),
        ("2026-11-28T12:20", 0, "2026-11-27T13", 24),
        ("2026-11-28T12:20", 1, "2026-11-27T12", 25),
        ("2026-12-01T05:20", 1, "2026-11-30T00", 30),
        ("2026-12-01T05:20", 0, "2026-11-30T00", 30),
        ("2026-12-01T06:20", 0, "2026-11-30T07", 24),
        ("2026-11-30T23:20", 0, "2026-11-29T19", 29),  # what the grace opens again is looked at while it waits
    ],
)
def test_it_looks_at_what_can_be_billed_and_so_many_days(now, days, first, count):
    looked = hours_to_look_at(at(now), days)
    assert (looked[0], len(looked)) == (at(first), count)
    assert looked[-1] == hours.floor_hour(at(now))


@given(INSTANTS, st.integers(0, 3), st.integers(1, 20))
def test_every_billable_hour_is_looked_at_and_closes_when_it_stops_being_billable(now, days, lock):
    looked = hours_to_look_at(now, days)
    assert looked == sorted(set(looked))
    for offset in range(60):
        hour = hours.hour_at_offset(now, offset)
        if hours.is_billable(hour, now):
            assert hour in looked
            closes = standing(PendingCounts(hour, 1), now, lock).closes_at
            assert closes is not None
            assert closes > now
            assert hours.is_billable(hour, closes - timedelta(microseconds=1))
            assert not hours.is_billable(hour, closes)
        elif hours.reopens_at(hour, now):
            found = standing(PendingCounts(hour, 1), now, lock)
            assert hour in looked
            assert found.state is State.WAITING
            assert found.opens_at is not None
            assert hours.is_billable(hour, found.opens_at)
            assert found.closes_at is not None
            assert not hours.is_billable(hour, found.closes_at)
            assert hours.is_billable(hour, found.closes_at - timedelta(microseconds=1))
        else:
            assert standing(PendingCounts(hour, 1), now, lock).state is State.PAST


@given(INSTANTS, st.integers(1, 20))
def test_an_open_hour_opens_when_its_lock_is_over(now, lock):
    for offset in range(24):
        found = standing(PendingCounts(hours.hour_at_offset(now, offset), 1), now, lock)
        if found.state is State.OPEN:
            assert found.opens_at is not None
            assert found.opens_at > now
            assert not hours.is_locked(found.pending.hour, found.opens_at, lock)


def test_billable_hours_are_judged_before_open_and_past_ones_and_empty_ones_never():
    counted = [some("2026-11-28T12"), some("2026-11-26T12"), some("2026-11-28T10"), some("2026-11-28T09"),
               some("2026-11-28T08", 0, 3)]  # fmt: skip
    ordered = judging_order(counted, at("2026-11-28T12:20"), 1)
    assert [hours.bucket(each.hour)[-5:] for each in ordered] == ["28T09", "28T10", "28T12", "26T12"]
