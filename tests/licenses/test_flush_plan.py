"""The rules of a flush window, and of its end."""

from datetime import UTC, datetime, timedelta

import pytest

from metering_dagster.core import hours
from metering_dagster.core.instants import instant_of
from metering_dagster.licenses.rules.flush_plan import hours_to_flush
from metering_dagster.licenses.rules.window_end import OpenWindow, end_of, is_over
from metering_dagster.metering.rules.flush_window import buyers_of

NOW = datetime(2026, 11, 28, 12, 20, tzinfo=UTC)
ONE, OTHER = ("arn:aws:l:1", "1"), ("arn:aws:l:2", "2")


def offsets(now: datetime, end: datetime | None) -> list[int]:
    return [hours.offset_of(each.hour, now) for each in hours_to_flush(now, {ONE: end})]


def test_a_flush_looks_at_every_hour_that_is_over_and_can_be_billed_oldest_first():
    assert offsets(NOW, NOW + timedelta(hours=1)) == list(range(23, 0, -1))


@pytest.mark.parametrize(("left", "current"), [
    (timedelta(minutes=10, seconds=1), False), (timedelta(minutes=10), True), (timedelta(0), True),
    (timedelta(days=-1), True),
])  # fmt: skip
def test_the_current_hour_is_looked_at_in_the_last_ten_minutes(left, current):
    assert (0 in offsets(NOW, NOW + left)) is current


def test_an_end_that_is_no_instant_never_opens_the_current_hour():
    assert offsets(NOW, None) == list(range(23, 0, -1))


@pytest.mark.parametrize(("now", "expected"), [
    (datetime(2026, 12, 1, 5, 59, tzinfo=UTC), range(29, 0, -1)),
    (datetime(2026, 12, 1, 6, 0, tzinfo=UTC), range(6, 0, -1)),
])  # fmt: skip
def test_the_months_grace_holds_for_a_flush_too(now, expected):
    assert offsets(now, None) == list(expected)


def test_each_hour_is_about_the_buyers_that_it_lets_through():
    windows = {ONE: NOW + timedelta(minutes=5), OTHER: NOW + timedelta(minutes=50)}
    current = hours.floor_hour(NOW)
    assert buyers_of(current, NOW, windows) == {ONE}
    assert buyers_of(current - hours.HOUR, NOW, windows) == {ONE, OTHER}
    assert buyers_of(current + hours.HOUR, NOW, windows) == frozenset()
    assert buyers_of(current - 24 * hours.HOUR, NOW, windows) == frozenset()
    assert hours_to_flush(NOW, {}) == []


@pytest.mark.parametrize("text", [
    None, "", "soon", 5, "2026-11-28T12:20:00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00",
    "0001-06-01T00:00:00Z", "9999-06-01T00:00:00Z",
    "2026-13-01T00:00:00Z",
])  # fmt: skip
def test_what_is_no_instant_is_none(text):
    assert instant_of(text) is None


@pytest.mark.parametrize("text", ["2026-11-28T12:20:00Z", "2026-11-28T13:20:00+01:00", "2026-11-28T12:20:00.000Z"])
def test_an_instant_may_be_written_in_the_ways_of_iso_8601(text):
    instant = instant_of(text)
    assert instant == NOW
    assert instant is not None
    assert instant.tzinfo is UTC


@pytest.mark.parametrize(("expiry", "updated", "end"), [
    ("2026-11-28T12:20:00Z", "2026-11-20T00:00:00Z", NOW), ("soon", "2026-11-28T11:20:00Z", NOW), (None, "never", None),
])  # fmt: skip
def test_a_window_ends_at_its_expiry_else_an_hour_after_the_last_write(expiry, updated, end):
    window = OpenWindow(ONE, expiry, updated)
    assert end_of(window) == end
    assert is_over(window, NOW)
    assert is_over(window, NOW - timedelta(seconds=1)) is (end is None)
