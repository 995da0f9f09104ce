"""The hour policy at any instant, seen from outside: what an hour goes through, and that no zone changes it."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.core import hours
from metering_dagster.core.hours import HOUR

GRACE_ENDS = timedelta(hours=6)
months = st.tuples(st.integers(2026, 2032), st.integers(1, 12))
first_days = months.map(lambda month: datetime(*month, 1, tzinfo=UTC))
instants = st.one_of(
    st.datetimes(datetime(2026, 1, 1), datetime(2032, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001
    st.builds(lambda first, passed: first + passed, first_days, st.timedeltas(-30 * HOUR, 30 * HOUR)),
    st.builds(lambda first, passed: first + passed * HOUR, first_days, st.integers(-30, 30)),
)
"""Any, near a month's start, and to the second there."""
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
locks = st.integers(-3, 30)


def is_grace(now: datetime) -> bool:
    return (now.day, now.hour // 6) == (1, 0)


@given(instants)
def test_the_billable_hours_are_one_stretch_that_ends_with_the_current_hour(now):
    found = hours.billable_hours(now)
    current = datetime(now.year, now.month, now.day, now.hour, tzinfo=UTC)
    assert found == [current - back * HOUR for back in range(len(found) - 1, -1, -1)]
    into_the_month = (now.day - 1) * 24 + now.hour
    assert len(found) == (30 if into_the_month < 6 else min(24, into_the_month + 1))


def waits_for_the_turn(hour: datetime, now: datetime) -> bool:
    """Past its window on the month's last day, and at the turn of the month at most 29 hours back."""
    first = (now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=32)).replace(day=1)
    past = hour + 24 * HOUR <= now
    return past and hour + 29 * HOUR >= first


@given(instants)
@settings(max_examples=10, deadline=None)
def test_the_shards_meet_exactly_what_can_be_expired_each_hour_once(now):
    owned = [hour for shard in range(7) for hour in hours.shard_hours(shard, now)]
    assert len(set(owned)) == len(owned)
    back = (hours.hour_at_offset(now, n) for n in range(-3, hours.OLDEST_OFFSET + 1))
    assert set(owned) == {hour for hour in back if hours.is_expirable(hour, now)}


@given(first_days, st.integers(-3, 3), st.integers(0, 59))
@settings(max_examples=10, deadline=None)
def test_a_day_of_ticks_meets_all_that_can_be_expired_and_nothing_that_must_wait(first, day, minutes):
    """24 hourly ticks, the whole sweep of shard M at hour 6 + 2M, the others as little as an hourly one looks at."""
    ticks = [first + (24 * day + n) * HOUR + timedelta(minutes=minutes) for n in range(24)]
    met: set[datetime] = set()
    for tick in ticks:
        for shard in range(7):
            found = hours.shard_hours(shard, tick)[: None if tick.hour == 6 + 2 * shard else 6]
            assert not [hour for hour in found if hours.is_billable(hour, tick) or waits_for_the_turn(hour, tick)]
            met |= set(found)
    back = [first + (24 * day - n) * HOUR for n in range(60)]
    assert met >= {hour for hour in back if all(hours.is_expirable(hour, tick) for tick in ticks[6:])}


@given(instants, st.integers(-3, 9_700))
def test_an_hour_is_ahead_or_billable_or_expirable_or_waits_for_the_grace(now, back):
    hour = hours.hour_at_offset(now, back)
    before = (hour.year, hour.month) < (now.year, now.month)
    states = [
        back < 0,
        hours.is_billable(hour, now),
        hours.is_expirable(hour, now),
        before and is_grace(now) and back > 29,
        waits_for_the_turn(hour, now),
    ]
    assert states.count(True) == 1


@given(instants, st.integers(0, 60), st.timedeltas(timedelta(0), timedelta(days=40)))
def test_what_could_be_expired_never_comes_back(now, back, later):
    hour = hours.hour_at_offset(now, back)
    if hours.is_expirable(hour, now):
        assert not hours.is_billable(hour, now + later)
        assert hours.is_expirable(hour, now + later) or is_grace(now + later)


@given(instants, st.integers(0, 60), st.timedeltas(timedelta(0), timedelta(days=40)))
def test_what_is_past_comes_back_in_the_months_grace_alone_and_says_so_before(now, back, later):
    hour = hours.hour_at_offset(now, back)
    if not hours.is_billable(hour, now) and hours.is_billable(hour, now + later):
        assert is_grace(now + later)
        again = hours.reopens_at(hour, now)
        assert again is not None
        assert now < again <= now + later < hours.closes_for_good(hour)


@given(instants)
def test_the_hours_that_wait_are_those_that_open_again(now):
    back = [hours.hour_at_offset(now, offset) for offset in range(60, -1, -1)]
    assert hours.reopened_hours(now) == [hour for hour in back if hours.reopens_at(hour, now) is not None]
    assert not set(hours.reopened_hours(now)) & set(hours.billable_hours(now))


@given(instants, st.integers(-2, 60), locks, zones, zones)
def test_no_answer_depends_on_the_zone_in_which_instants_are_written(now, back, lock, zone, other):
    def answers(hour: datetime, now: datetime) -> list[object]:
        asked = (hours.is_billable, hours.is_expirable, hours.is_last_call, hours.is_previous_month, hours.offset_of,
                 hours.closes_at)  # fmt: skip
        locked = [hours.is_locked(hour, now, lock), hours.lock_of(hour, now, lock), hours.opens_at(hour, lock)]
        return [*(ask(hour, now) for ask in asked), *locked, hours.bucket(hour), hours.billable_hours(now)]

    hour = hours.hour_at_offset(now, back)
    assert answers(hour.astimezone(zone), now.astimezone(other)) == answers(hour, now)


@given(instants, st.integers(0, 60), locks)
def test_an_hour_opens_when_its_lock_ends_and_stays_open_unless_the_grace_ends_first(now, back, lock):
    """Only a lock that the grace lifted can come back, at 06:00 on the 1st, for an hour that cannot be billed then."""
    hour = hours.hour_at_offset(now, back)
    opens = hours.opens_at(hour, lock)
    if now < opens:
        assert hours.is_locked(hour, now, lock)
    elif hours.is_locked(hour, now, lock):
        assert not hours.is_billable(hour, now)
    assert not hours.is_locked(hour, opens, lock)
    assert hours.is_locked(hour, opens - timedelta(microseconds=1), lock)


@given(instants, st.integers(0, 60))
def test_an_hour_is_billable_up_to_the_microsecond_before_it_closes(now, back):
    hour = hours.hour_at_offset(now, back)
    closes = hours.closes_at(hour, now)
    assert hours.is_billable(hour, now) == (now < closes)
    if now < closes:
        assert hours.is_billable(hour, closes - timedelta(microseconds=1))
    assert not hours.is_billable(hour, closes) or is_grace(closes)


@given(instants, locks)
def test_every_hour_is_billed_by_a_tick_after_its_lock_and_has_a_last_call(start, lock):
    """A tick each hour, as the 23 offsets and the grace's part of the last one meet it."""
    hour = hours.floor_hour(start)
    minute = timedelta(minutes=start.minute)
    ticks = [hour + minute + back * HOUR for back in range(1, 30)]
    met = [now for now in ticks if hours.is_billable(hour, now) and not hours.is_locked(hour, now, lock)]
    assert met
    assert any(hours.is_last_call(hour, now) for now in met)


@given(instants, st.integers(0, 40), st.timedeltas(timedelta(minutes=-30), timedelta(hours=3)))
def test_a_deprovisioning_license_is_at_its_last_call_in_its_last_ten_minutes_or_with_all_others(now, back, left):
    hour = hours.hour_at_offset(now, back)
    expected = left <= timedelta(minutes=10) or hours.is_last_call(hour, now)
    assert hours.is_last_call(hour, now, now + left) == expected
