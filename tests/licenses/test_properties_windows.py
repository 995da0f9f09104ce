"""Flush windows at any instant: whom a flush takes which hours of, hour by hour as the domain's text has it."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.core.hours import HOUR, floor_hour
from metering_dagster.core.instants import instant_of
from metering_dagster.licenses.rules.flush_plan import FlushHour, hours_to_flush
from metering_dagster.licenses.rules.window_end import OpenWindow, end_of, is_over
from metering_dagster.metering.rules.flush_window import buyers_of, is_flushed

TURN = datetime(2026, 12, 1, tzinfo=UTC)
instants = st.timedeltas(timedelta(hours=-30), timedelta(hours=40)).map(lambda passed: TURN + passed)
buyers = st.tuples(st.sampled_from(["arn:aws:l:1", "arn:aws:l:2"]), st.sampled_from(["1", "2"]))
ends = st.none() | instants
windows = st.dictionaries(buyers, ends)


def taken_by_the_text(hour: datetime, now: datetime, end: datetime | None) -> bool:
    """Billable hours that are over, lock or no lock; the current one in the last ten minutes."""
    current = now.replace(minute=0, second=0, microsecond=0)
    if hour == current:
        return end is not None and now + timedelta(minutes=10) >= end
    if (hour.year, hour.month) == (now.year, now.month):
        return current - 23 * HOUR <= hour < current
    in_grace = now.day == 1 and now.hour < 6
    return in_grace and current - 29 * HOUR <= hour < current


@given(instants, windows)
def test_a_flush_takes_exactly_the_hours_of_the_text_oldest_first(now, windows):
    around = [floor_hour(now) + back * HOUR for back in range(-33, 4)]
    expected = [
        FlushHour(hour, frozenset(b for b, end in windows.items() if taken_by_the_text(hour, now, end)))
        for hour in around
    ]
    assert hours_to_flush(now, windows) == [each for each in expected if each.buyers]
    assert [buyers_of(hour, now, windows) for hour in around] == [each.buyers for each in expected]


@given(instants, st.timedeltas(timedelta(0), timedelta(hours=1)))
def test_every_hour_of_use_is_flushed_once_it_is_over_or_about_to_close(used, left):
    """A flush every five minutes up to the end takes whatever was used ten minutes before it or earlier."""
    end = used + left + timedelta(minutes=10)
    flushes = [used + n * timedelta(minutes=5) for n in range(20)]
    taken = [now for now in flushes if now <= end and is_flushed(floor_hour(used), now, end)]
    assert taken


@given(instants, st.none() | st.text(max_size=3) | st.integers(), ends, instants)
def test_a_window_is_closed_at_its_end_and_where_none_is_known_an_hour_after_it_was_written(end, odd, written, now):
    known = OpenWindow(("l", "1"), end.isoformat(), None if written is None else written.isoformat())
    assert (end_of(known), is_over(known, now)) == (end, now >= end)
    assert known.has_readable_expiry
    unknown = OpenWindow(("l", "1"), odd, None if written is None else written.isoformat())
    assert not unknown.has_readable_expiry
    assert end_of(unknown) == (None if written is None else written + HOUR)
    assert is_over(unknown, now) == (written is None or now >= written + HOUR)


@given(
    st.datetimes(),
    st.integers(-14 * 60, 14 * 60),
    st.text("0123456789-:TZ+.", max_size=30),
)
def test_an_instant_reads_back_in_whatever_zone_and_any_text_is_one_or_none(local, minutes, text):
    sign = "-" if minutes < 0 else "+"
    written = f"{local.isoformat()}{sign}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    shifted = datetime.fromisoformat(written)
    found = instant_of(written)
    if 2 < local.year < 9998:
        assert found == shifted
        assert found is not None
        assert found.utcoffset() == timedelta(0)
    assert instant_of(local.isoformat()) is None, "its zone would be a guess"
    assert (read := instant_of(text)) is None or read.tzinfo is UTC
