"""The ticks of a shard through days in which the daemon is away now and then, and runs take long or fail."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.core import hours
from metering_dagster.core.hours import HOUR
from metering_dagster.expiry.rules.sweep_decision import (
    NEWEST,
    ProbedHour,
    SweepDecision,
    decide,
    earlier_days,
    whole_sweep_due,
)

TURN = datetime(2026, 12, 1, tzinfo=UTC)
instants = st.timedeltas(timedelta(days=-3), timedelta(days=3)).map(lambda passed: TURN + passed)
shards = st.integers(0, 6)


@dataclass
class Shard:
    """What a tick can look up: the sweeps that there were, whether one is under way, and the pending hours."""

    swept: set[str] = field(default_factory=set)
    busy_until: datetime = datetime(1, 1, 1, tzinfo=UTC)
    now: datetime = datetime(1, 1, 1, tzinfo=UTC)
    pending: set[str] = field(default_factory=set)

    def is_running(self) -> bool:
        return self.now < self.busy_until

    def has_swept(self, day: str) -> bool:
        return day in self.swept

    def has_swept_before(self, day: str) -> bool:
        return any(swept < day for swept in self.swept)

    def first_pending(self, these: Sequence[str]) -> ProbedHour:
        return ProbedHour(next((bucket for bucket in these if bucket in self.pending), None))


@given(shards, instants)
def test_a_whole_sweep_was_last_due_at_its_hour_of_today_or_yesterday(shard, now):
    dues = [TURN + timedelta(days=day, hours=6 + 2 * shard) for day in range(-5, 5)]
    assert whole_sweep_due(shard, now) == max(due for due in dues if due <= now)


@settings(max_examples=50)
@given(shards, st.lists(st.booleans(), min_size=72, max_size=72), st.integers(0, 90))
def test_each_days_whole_sweep_comes_once_however_often_the_daemon_is_away(shard, awake, minutes):
    """At its hour, or at the first tick after it that finds the shard at rest; and as of its own hour then."""
    seen = Shard(swept={"2026-11-27"})
    asked: list[tuple[datetime, SweepDecision]] = []
    start = datetime(2026, 11, 28, tzinfo=UTC)
    for seen.now in (start + n * HOUR for n, up in enumerate(awake) if up):
        decision = decide(shard, seen.now, seen)
        if decision.run:
            assert decision.whole, "nothing is pending, so no other sweep is asked for"
            asked.append((seen.now, decision))
            seen.swept.add(decision.day)
            seen.busy_until = seen.now + timedelta(minutes=minutes)
    assert len({decision.day for _, decision in asked}) == len(asked)
    for at, decision in asked:
        assert decision.as_of == whole_sweep_due(shard, at)
        assert f"{decision.as_of:%Y-%m-%d}" == decision.day
    first = start + (6 + 2 * shard) * HOUR
    for due in (first + timedelta(days=day) for day in range(2)):
        awake_then = [
            start + n * HOUR for n, up in enumerate(awake) if up and due <= start + n * HOUR < due + 24 * HOUR
        ]
        got = [at for at, decision in asked if decision.as_of == due]
        late = [at for at in awake_then if at - due >= timedelta(hours=2)]
        if minutes <= 60:
            assert got == awake_then[:1]
        else:
            assert got or not late, "a sweep that takes longer than an hour is in the way of a tick or two"


@given(shards, instants, st.integers(0, 60), st.booleans())
def test_an_hourly_sweep_is_asked_for_what_is_pending_in_the_six_newest_hours(shard, now, back, by_others):
    """Where no whole sweep is due, and the month's grace is not open."""
    seen = Shard(swept={f"{whole_sweep_due(shard, now):%Y-%m-%d}"}, now=now)
    hour = hours.hour_at_offset(now, back)
    seen.pending = {hours.bucket(hour)}
    if by_others:
        seen.busy_until = now + HOUR
    decision = decide(shard, now, seen)
    in_grace = now.day == 1 and now.hour < 6
    newest = [h for h in hours.shard_hours(shard, now) if not in_grace][:NEWEST]
    assert decision.run == (hour in newest and not by_others)
    assert not decision.whole
    assert decision.as_of == now.replace(minute=0, second=0, microsecond=0)
    if decision.run:
        assert back % 7 == shard
        assert hours.bucket(hour) in decision.reason


@given(st.dates(date(2021, 1, 1)), st.integers(0, 40))
def test_the_days_before_a_day_are_its_yesterdays(day, most):
    assert earlier_days(day.isoformat(), most) == [(day - timedelta(days=n)).isoformat() for n in range(1, most + 1)]
