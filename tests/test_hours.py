"""The hour policy, sentence by sentence (domain: the hour policy), at month ends, year's end and leap days."""

import os
import re
import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.core import hours
from metering_dagster.core.errors import UnknownShardError
from metering_dagster.core.hours import HOUR

NOW = datetime(2026, 11, 28, 12, 20, 30, tzinfo=UTC)
MONTH_STARTS = [
    datetime(2026, 12, 1, tzinfo=UTC),
    datetime(2027, 1, 1, tzinfo=UTC),
    datetime(2027, 3, 1, tzinfo=UTC),
    datetime(2028, 2, 1, tzinfo=UTC),
    datetime(2028, 3, 1, tzinfo=UTC),
    datetime(2027, 5, 1, tzinfo=UTC),
]
INSTANT = timedelta(microseconds=1)

near_month_starts = st.builds(
    lambda start, minutes: start + timedelta(minutes=minutes),
    st.sampled_from(MONTH_STARTS),
    st.integers(-50 * 60, 50 * 60),
)


def at(text):
    return datetime.fromisoformat(f"{text}+00:00")


def back(hour, now):
    """Whole hours, counted without the code under test."""
    return int((now.replace(minute=0, second=0, microsecond=0) - hour).total_seconds()) // 3600


def billable_by_the_text(hour, now):
    month = (now.year, now.month)
    if (hour.year, hour.month) == month:
        return 0 <= back(hour, now) < 24
    return (hour.year, hour.month) < month and now.day == 1 and now.hour < 6 and back(hour, now) <= 29


def locked_by_the_text(hour, now, lock):
    previous = (hour.year, hour.month) < (now.year, now.month)
    lock = min(max(lock, 1), 20)
    if previous and now.day == 1 and 3 <= now.hour < 6:
        lock = 0
    return back(hour, now) < 1 or back(hour, now) < lock


def instants_from(hour):
    """Both sides of every whole hour for two days: the policy changes nowhere else."""
    return [instant for n in range(49) for instant in (hour + n * HOUR, hour + (n + 1) * HOUR - INSTANT)]


@pytest.fixture
def host_zone():
    """Sets the zone of the host; puts the old one back."""
    before = os.environ.get("TZ")

    def become(zone):
        os.environ["TZ"] = zone
        time.tzset()

    yield become
    if before is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = before
    time.tzset()


def test_an_hour_and_its_bucket_are_one():
    assert hours.bucket(NOW) == "2026-11-28T12"
    assert hours.parse_bucket("2026-11-28T12") == at("2026-11-28T12:00:00")
    assert hours.bucket(datetime(2026, 11, 28, 5, 29, tzinfo=timezone(timedelta(hours=5, minutes=30)))) == (
        "2026-11-27T23"
    )


@given(st.datetimes(timezones=st.just(UTC)))
def test_every_instant_has_a_bucket_that_reads_back(instant):
    assert hours.parse_bucket(hours.bucket(instant)) == hours.floor_hour(instant)


@pytest.mark.parametrize("text", [
    "", "2026-11-28", "2026-11-28T1", "2026-11-28T24", "2026-11-28T010", "2026-11-28 10", "2026-02-29T10",
    "2026-13-01T00", "2026-11-28T10:00", "2026-11-28T10\n", "20261128T10", "٢٠٢٦-11-28T10", "0000-01-01T00",
])  # fmt: skip
def test_what_is_no_bucket_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        hours.parse_bucket(text)


def test_a_refused_bucket_is_named():
    with pytest.raises(ValueError, match=r"not an hour bucket \(YYYY-MM-DDTHH\): 'noon'"):
        hours.parse_bucket("noon")


def test_a_naive_instant_is_refused():
    with pytest.raises(ValueError, match="without a time zone"):
        hours.floor_hour(datetime(2026, 11, 28, 10))  # noqa: DTZ001


@pytest.mark.parametrize(("offset", "bucket"), [(1, "2028-03-01T00"), (2, "2028-02-29T23"), (23, "2028-02-29T02")])
def test_offset_n_names_the_bucket_n_hours_before_the_current_one(offset, bucket):
    now = at("2028-03-01T01:59:59")
    hour = hours.hour_at_offset(now, offset)
    assert hours.bucket(hour) == bucket
    assert repr(hours.offset_of(hour, now)) == str(offset), "a whole number: it names ticks and tags"


def test_the_future_has_negative_offsets_and_the_current_hour_has_none():
    assert hours.offset_of(at("2026-11-28T13:00:00"), NOW) == -1
    assert hours.offset_of(NOW, NOW) == 0


@pytest.mark.case("host_time_zone")
@pytest.mark.parametrize(("zone", "now"), [
    ("Asia/Kolkata", at("2026-11-28T12:20:30")),
    ("America/New_York", at("2026-11-01T06:30:00")),  # the second 01:30 of that night
    ("America/New_York", at("2027-03-14T07:05:00")),
    ("Europe/Berlin", at("2028-03-01T00:00:00")),
])  # fmt: skip
def test_23_offsets_are_disjoint_and_without_gap_in_every_zone(host_zone, zone, now):
    host_zone(zone)
    buckets = [hours.bucket(hours.hour_at_offset(now.astimezone(ZoneInfo(zone)), offset)) for offset in range(24)]
    steps = [(now.replace(minute=0, second=0) - n * HOUR).strftime("%Y-%m-%dT%H") for n in range(24)]
    assert buckets == steps
    assert len(set(buckets)) == 24


@pytest.mark.case("host_time_zone")
def test_the_month_ends_in_utc_whatever_the_zone_of_now(host_zone):
    host_zone("Asia/Kolkata")
    now = at("2026-12-01T03:00:00").astimezone(ZoneInfo("America/New_York"))  # still November there
    hour = at("2026-11-30T23:00:00").astimezone(ZoneInfo("Asia/Kolkata"))  # already December there
    assert hours.is_previous_month(hour, now)
    assert hours.lock_of(hour, now, 6) == 0
    assert hours.closes_at(hour, now) == at("2026-12-01T06:00:00")


@pytest.mark.parametrize(("configured", "applied"), [(-5, 1), (0, 1), (1, 1), (6, 6), (20, 20), (21, 20), (1000, 20)])
def test_the_lock_is_clamped_to_1_to_20_hours(configured, applied):
    assert hours.clamp_lock(configured) == applied
    assert hours.lock_of(hours.hour_at_offset(NOW, 3), NOW, configured) == applied


@pytest.mark.parametrize(("offset", "lock", "locked"), [
    (0, 1, True), (1, 1, False), (5, 6, True), (6, 6, False), (19, 20, True), (20, 50, False), (-1, 1, True),
])  # fmt: skip
def test_an_hour_is_open_until_its_lock_is_over(offset, lock, locked):
    assert hours.is_locked(hours.hour_at_offset(NOW, offset), NOW, lock) is locked


@pytest.mark.case("previous_month")
@pytest.mark.parametrize(("now", "locked", "billable", "last_call", "expirable"), [
    ("2027-01-01T02:59:59.999999", True, True, False, False),
    ("2027-01-01T03:00:00", False, True, False, False),
    ("2027-01-01T04:59:59.999999", False, True, False, False),
    ("2027-01-01T05:00:00", False, True, True, False),
    ("2027-01-01T05:59:59.999999", False, True, True, False),
    ("2027-01-01T06:00:00", False, False, True, True),
])  # fmt: skip
def test_an_hour_of_the_old_year_on_the_1st(now, locked, billable, last_call, expirable):
    hour, now = at("2026-12-31T22:00:00"), at(now)
    assert hours.is_locked(hour, now, 6) is locked
    assert hours.is_billable(hour, now) is billable
    assert hours.is_last_call(hour, now) is last_call
    assert hours.is_expirable(hour, now) is expirable


def test_the_grace_is_of_the_1st_and_of_the_previous_month_alone():
    assert hours.lock_of(at("2026-12-01T01:00:00"), at("2026-12-01T03:00:00"), 6) == 6
    assert hours.lock_of(at("2026-12-01T01:00:00"), at("2026-12-02T03:00:00"), 6) == 6
    assert hours.lock_of(at("2026-11-30T23:00:00"), at("2026-12-01T06:00:00"), 6) == 6
    assert not hours.is_last_call(at("2026-12-01T04:00:00"), at("2026-12-01T05:30:00"))


@pytest.mark.parametrize(("now", "offset", "billable"), [
    ("2026-11-28T12:20:00", -1, False), ("2026-11-28T12:20:00", 0, True), ("2026-11-28T12:59:59", 23, True),
    ("2026-11-28T12:00:00", 24, False),
    ("2026-12-01T00:00:00", 24, True), ("2026-12-01T05:59:59", 29, True), ("2026-12-01T05:59:59", 30, False),
    ("2026-12-01T00:30:00", 29, True), ("2026-12-01T00:30:00", 30, False),
    ("2026-12-01T06:00:00", 7, False), ("2026-12-01T06:00:00", 6, True), ("2026-12-02T00:00:00", 24, False),
    ("2028-03-01T05:59:59", 29, True), ("2028-03-01T06:00:00", 23, False),
])  # fmt: skip
def test_billable_is_less_than_24_h_old_and_of_this_month_or_in_the_grace(now, offset, billable):
    assert hours.is_billable(hours.hour_at_offset(at(now), offset), at(now)) is billable


@given(near_month_starts, st.integers(-3, 60))
def test_billable_is_as_the_text_has_it(now, offset):
    hour = hours.hour_at_offset(now, offset)
    assert hours.is_billable(hour, now) == billable_by_the_text(hour, now)


@given(near_month_starts, st.integers(-3, 60), st.integers(-2, 30))
def test_locked_is_as_the_text_has_it(now, offset, lock):
    hour = hours.hour_at_offset(now, offset)
    assert hours.is_locked(hour, now, lock) == locked_by_the_text(hour, now, lock)


@given(near_month_starts, st.integers(-3, 60))
def test_last_call_is_as_the_text_has_it(now, offset):
    hour = hours.hour_at_offset(now, offset)
    previous = (hour.year, hour.month) < (now.year, now.month)
    in_the_month = now - now.replace(day=1, hour=0, minute=0)
    expected = offset >= 22 or (previous and in_the_month >= timedelta(hours=5))
    assert hours.is_last_call(hour, now) == expected


@given(near_month_starts, st.integers(-3, 60))
def test_nothing_is_expired_that_can_still_be_billed_or_in_the_grace(now, offset):
    hour = hours.hour_at_offset(now, offset)
    previous = (hour.year, hour.month) < (now.year, now.month)
    in_the_grace = previous and now.day == 1 and now.hour < 6
    waits = in_the_evening_before_the_last_day(hour) and not previous
    expected = offset > 0 and not billable_by_the_text(hour, now) and not in_the_grace and not waits
    assert hours.is_expirable(hour, now) == expected


def in_the_evening_before_the_last_day(hour):
    """The hours from 19:00 of the day before a month's last, and those of the last day."""
    return (hour + timedelta(hours=29)).month != hour.month


@given(near_month_starts, st.integers(-3, 60))
def test_an_hour_past_its_window_opens_again_at_the_turn_of_the_month_or_never(now, offset):
    hour = hours.hour_at_offset(now, offset)
    again = hours.reopens_at(hour, now)
    later = [t for t in instants_from(hour) if t > now]
    expected = [] if billable_by_the_text(hour, now) else [t for t in later if billable_by_the_text(hour, t)]
    if offset < 0:
        assert again is None, "what is still to come was never open"
    else:
        assert again == (expected[0] if expected else None)


@pytest.mark.parametrize("start", MONTH_STARTS)
def test_an_hour_closes_for_good_after_the_last_instant_at_which_a_walk_finds_it_open(start):
    for hour in (start - n * HOUR for n in range(-3, 60)):
        walk = instants_from(hour)
        last = max(position for position, now in enumerate(walk) if billable_by_the_text(hour, now))
        assert hours.closes_for_good(hour) == walk[last + 1]


@pytest.mark.parametrize(("hour", "good"), [
    ("2026-12-30T18", "2026-12-31T18:00"), ("2026-12-30T19", "2027-01-01T01:00"), ("2026-12-30T23", "2027-01-01T05:00"),
    ("2026-12-31T00", "2027-01-01T06:00"), ("2026-12-31T23", "2027-01-01T06:00"), ("2027-01-01T00", "2027-01-02T00:00"),
])  # fmt: skip
def test_what_the_grace_opens_again_closes_for_good_30_hours_after_its_beginning(hour, good):
    assert hours.closes_for_good(hours.parse_bucket(hour)) == at(f"{good}:00")


@pytest.mark.parametrize("start", MONTH_STARTS)
@pytest.mark.parametrize("lock", [1, 2, 4, 6, 20])
def test_an_hour_opens_at_the_first_instant_that_a_walk_finds_it_open(start, lock):
    for hour in (start - n * HOUR for n in range(-3, 30)):
        first = next(now for now in instants_from(hour) if not locked_by_the_text(hour, now, lock))
        assert hours.opens_at(hour, lock) == first


@pytest.mark.parametrize("start", MONTH_STARTS)
def test_an_hour_closes_at_the_first_instant_that_a_walk_finds_it_closed(start):
    for hour in (start - n * HOUR for n in range(-3, 60)):
        walk = instants_from(hour)
        for position, now in enumerate(walk):
            if billable_by_the_text(hour, now):
                assert hours.closes_at(hour, now) == next(
                    t for t in walk[position:] if not billable_by_the_text(hour, t)
                )
            else:
                assert hours.closes_at(hour, now) <= now


@pytest.mark.parametrize("start", MONTH_STARTS)
def test_every_hour_has_a_last_call_while_it_is_billable(start):
    for hour in (start - n * HOUR for n in range(-3, 40)):
        open_now = [now for now in instants_from(hour) if hours.is_billable(hour, now)]
        assert any(hours.is_last_call(hour, now) for now in open_now)


def test_a_deprovisioning_license_is_at_its_last_call_10_minutes_before_its_expiry():
    expiry, hour = at("2026-11-28T15:20:00"), at("2026-11-28T15:00:00")
    assert not hours.is_last_call(hour, at("2026-11-28T15:09:59.999999"), expiry)
    assert hours.is_last_call(hour, at("2026-11-28T15:10:00"), expiry)
    assert hours.is_last_call(hour, at("2026-11-28T16:00:00"), expiry)
    assert not hours.is_last_call(hour, at("2026-11-28T15:10:00"))


def test_an_hour_at_the_end_of_all_calendars_is_judged_and_not_billable():
    hour = at("9999-12-31T23:00:00")
    assert not hours.is_billable(hour, NOW)
    assert not hours.is_expirable(hour, NOW)
    assert hours.is_expirable(at("0999-01-01T00:00:00"), NOW)
    assert hours.bucket(at("0999-01-01T00:00:00")) == "0999-01-01T00"


def owned(now):
    """Each shard's hours by how many hours back they lie."""
    return [[back(hour, now) for hour in hours.shard_hours(shard, now)] for shard in range(7)]


def in_grace(now):
    return now.day == 1 and now.hour < 6


any_instant = st.one_of(
    near_month_starts,
    st.integers(0, 4 * 366 * 24 * 60).map(lambda n: at("2024-02-01T00:00") + n * timedelta(minutes=1)),
)


@given(any_instant)
@settings(max_examples=40, deadline=None)
def test_the_shards_are_disjoint_and_cover_24_to_9600_hours_back_together(now):
    found = owned(now)
    together = sorted(n for shard in found for n in shard)
    assert len(set(together)) == len(together)
    if in_grace(now):
        assert together == []
        return
    waiting = [n for n in range(24, 30) if hours.reopens_at(hours.hour_at_offset(now, n), now)]
    assert [n for n in together if n >= 24] == [n for n in range(24, 9601) if n not in waiting]
    this_month = (now.year, now.month)
    hour_of = {n: hours.hour_at_offset(now, n) for n in range(1, 24)}
    assert [n for n in together if n < 24] == [n for n, h in hour_of.items() if (h.year, h.month) != this_month]
    for shard, offsets in enumerate(found):
        assert offsets == sorted(offsets), "newest first"
        assert {n % 7 for n in offsets} == {shard}


@given(any_instant)
@settings(max_examples=15, deadline=None)
def test_a_day_of_ticks_meets_every_hour_of_the_400_days(now):
    """24 hourly ticks: the whole sweep of shard M at hour 6 + 2M, else as little as an hourly sweep looks at."""
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    met = set()
    for tick in (day + n * HOUR for n in range(24)):
        for shard in range(7):
            whole = tick.hour == 6 + 2 * shard
            met |= set(hours.shard_hours(shard, tick)[: None if whole else 6])
    evening = day + 23 * HOUR
    past = {evening - n * HOUR for n in range(24, 9601)}
    assert met >= {hour for hour in past if hours.is_expirable(hour, evening)}
    assert {hour for hour in past if not hours.is_expirable(hour, evening)}.isdisjoint(met)


def test_no_sweep_meets_what_can_still_be_billed():
    for now in (at("2026-12-01T05:59:59"), at("2026-12-01T06:00:00"), at("2026-11-20T12:00:00")):
        met = {hour for shard in range(7) for hour in hours.shard_hours(shard, now)}
        assert not [hour for hour in met if billable_by_the_text(hour, now)]


def test_once_the_grace_has_closed_its_hours_are_owned_though_less_than_a_day_back():
    assert hours.parse_bucket("2026-11-30T22") not in hours.shard_hours(0, at("2026-12-01T05:59:59"))
    assert hours.parse_bucket("2026-11-30T23") in hours.shard_hours(0, at("2026-12-01T06:00:00"))
    assert hours.parse_bucket("2026-11-30T22") in hours.shard_hours(1, at("2026-12-01T06:00:00"))


def test_the_shards_are_named_0_to_6():
    assert [hours.parse_shard(key) for key in "0123456"] == list(range(7))


@pytest.mark.parametrize("key", ["7", "-1", "x", "", "٣", " 2", "+2", "02", "2.0"])
def test_what_names_no_shard_is_refused(key):
    with pytest.raises(UnknownShardError, match=re.escape(f"no shard {key!r} of the age-out: they are 0 to 6")):
        hours.parse_shard(key)


def test_what_names_no_shard_is_masked():
    with pytest.raises(UnknownShardError, match=r"no shard '\*\*\*\*2222'"):
        hours.parse_shard("111122222222")


@pytest.mark.parametrize("shard", [-1, 7, 9600])
def test_an_unknown_shard_is_refused(shard):
    with pytest.raises(UnknownShardError, match=f"no shard {shard} of the age-out: they are 0 to 6"):
        hours.shard_hours(shard, NOW)
