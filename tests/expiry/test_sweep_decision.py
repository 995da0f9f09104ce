"""When a tick asks for a sweep of its shard, and what it says when it does not."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from metering_dagster.core import hours
from metering_dagster.expiry.rules.sweep_decision import (
    ProbedHour,
    SweepDecision,
    decide,
    earlier_days,
    whole_sweep_due,
)

NOTHING = ProbedHour(None)
NOW = datetime(2026, 11, 20, 12, 0, 5, tzinfo=UTC)
"""The hour of shard 3's whole sweep."""


@dataclass
class Seen:
    """What a tick would find, and what it looked at."""

    pending: ProbedHour = NOTHING
    swept: set[str] = field(default_factory=set)
    running: bool = False
    looked_at: list[str] = field(default_factory=list)
    probed: Sequence[str] = ()

    def is_running(self) -> bool:
        self.looked_at.append("runs")
        return self.running

    def has_swept(self, day: str) -> bool:
        self.looked_at.append("sweeps")
        return day in self.swept

    def has_swept_before(self, day: str) -> bool:
        return any(swept < day for swept in self.swept)

    def first_pending(self, these: Sequence[str]) -> ProbedHour:
        self.looked_at.append("tables")
        self.probed = these
        return self.pending


def at(clock: str, shard: int, seen: Seen) -> SweepDecision:
    return decide(shard, datetime.fromisoformat(clock).replace(tzinfo=UTC), seen)


def test_nothing_pending_is_skipped_with_its_reason() -> None:
    seen = Seen()
    decision = at("2026-11-20T12:00:05", 2, seen)
    assert not decision.run
    assert decision.reason == (
        "Nothing is pending in 2026-11-19T06 and the next 5 hours of shard 2. Older ones are looked at by its whole "
        "sweep, at 2026-11-21T10:00Z."
    )
    assert seen.probed == [hours.bucket(hour) for hour in hours.shard_hours(2, NOW)[:6]]


def test_something_pending_asks_for_an_hourly_sweep_as_of_the_tick() -> None:
    decision = at("2026-11-20T12:00:05", 2, Seen(ProbedHour("2026-11-19T04")))
    assert (decision.run, decision.whole, hours.bucket(decision.as_of)) == (True, False, "2026-11-20T12")
    assert "pending in 2026-11-19T04" in decision.reason


@pytest.mark.parametrize("shard", range(7))
def test_the_whole_sweep_comes_at_its_hour_without_a_probe(shard: int) -> None:
    for hour in range(24):
        seen = Seen()
        decision = decide(shard, NOW.replace(hour=hour, minute=0), seen)
        assert decision.whole is decision.run is (hour == 6 + 2 * shard)
        assert ("tables" in seen.looked_at) is not decision.whole
        assert not decision.whole or decision.reason == f"The day's whole sweep of shard {shard}."


def test_however_often_the_tick_comes_the_whole_sweep_comes_once_a_day() -> None:
    for minutes in (5, 60):
        seen, asked = Seen(), []
        now = datetime(2026, 11, 20, 0, 0, tzinfo=UTC)
        while now < datetime(2026, 11, 23, 0, 0, tzinfo=UTC):
            decision = decide(3, now, seen)
            if decision.whole:
                seen.swept.add(decision.day)
                asked.append(now)
            now += timedelta(minutes=minutes)
        assert asked == [datetime(2026, 11, day, 12, 0, tzinfo=UTC) for day in (20, 21, 22)]


def test_a_missed_whole_sweep_is_made_up_for_with_the_hours_of_its_own_tick() -> None:
    seen = Seen(swept={"2026-11-19"})
    decision = at("2026-11-20T15:00:00", 3, seen)
    assert (decision.whole, decision.day, hours.bucket(decision.as_of)) == (True, "2026-11-20", "2026-11-20T12")
    assert "due at 2026-11-20T12:00Z is made up for" in decision.reason
    after_midnight = at("2026-11-21T03:00:00", 3, seen)
    assert (after_midnight.whole, hours.bucket(after_midnight.as_of)) == (True, "2026-11-20T12")


def test_where_no_earlier_whole_sweep_is_known_none_is_made_up_for() -> None:
    assert not at("2026-11-20T15:00:00", 3, Seen()).run


def test_a_run_of_the_shard_that_is_under_way_is_enough() -> None:
    seen = Seen(ProbedHour("2026-11-19T04"), running=True)
    decision = at("2026-11-20T12:00:05", 3, seen)
    assert (decision.run, decision.reason) == (False, "A run of shard 3 is queued or under way.")
    assert seen.looked_at == ["runs"]


def test_a_probe_that_cannot_tell_asks_for_the_run() -> None:
    decision = at("2026-11-20T13:00:00", 3, Seen(ProbedHour(None, "the usage table cannot be reached")))
    assert decision == SweepDecision(
        True,
        "Whether anything is pending could not be looked up: the usage table cannot be reached",
        NOW.replace(hour=13, second=0),
    )


@pytest.mark.parametrize("shard", range(7))
def test_on_the_1st_before_six_no_tick_asks_or_looks(shard: int) -> None:
    seen = Seen(ProbedHour("2026-11-29T04"), swept={"2026-11-29"})
    decision = at("2026-12-01T05:59:59", shard, seen)
    assert not decision.run
    assert decision.reason == "On the 1st before 06:00 UTC nothing is expired: the old month is still billable."
    assert seen.looked_at == []


def test_at_six_on_the_1st_the_first_shard_sweeps_and_the_others_look_at_what_the_grace_left() -> None:
    assert at("2026-12-01T06:00:00", 0, Seen()).whole
    seen = Seen(swept={"2026-11-30"})
    assert not at("2026-12-01T06:00:00", 1, seen).run
    assert seen.probed[0] == "2026-11-30T22"  # 8 back


def test_the_whole_sweeps_of_a_day_are_seven_different_sevenths() -> None:
    met: list[datetime] = []
    for shard in range(7):
        due = whole_sweep_due(shard, NOW.replace(hour=23))
        assert due.hour == 6 + 2 * shard
        met += hours.shard_hours(shard, due)
    assert len(set(met)) == len(met)


def test_a_month_of_earlier_days_is_looked_at() -> None:
    days = earlier_days("2026-03-01")
    assert (len(days), days[0], days[-1]) == (30, "2026-02-28", "2026-01-30")
