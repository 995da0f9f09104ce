"""When a tick asks for a run of its hour, and what it says when it does not."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from metering_dagster.core import hours
from metering_dagster.metering.rules.run_decision import LastRun, PendingFound, decide, hours_of_tick

NOW = datetime(2026, 11, 20, 12, 0, 5, tzinfo=UTC)
NOTHING = PendingFound(0, 0)


@dataclass
class Seen:
    """What a tick would find, and what it looked at."""

    found: PendingFound = NOTHING
    last: LastRun | None = None
    running: bool = False
    looked_at: list[str] = field(default_factory=list)
    committed: bool = False

    def has_commits(self) -> bool:
        self.looked_at.append("commits")
        return self.committed

    def is_running(self) -> bool:
        self.looked_at.append("runs")
        return self.running

    def last_run(self) -> LastRun | None:
        self.looked_at.append("last run")
        return self.last

    def pending(self, expected: LastRun | None) -> PendingFound:
        self.looked_at.append("tables")
        return self.found


def at(offset: int, seen: Seen, now: datetime = NOW, lock: int = 1) -> tuple[bool, str]:
    decision = decide(hours.hour_at_offset(now, offset), now, lock, seen)
    return decision.run, decision.reason


def a_run(rows: int = 0, aggregates: int = 0, ended: datetime = NOW - timedelta(minutes=50)) -> LastRun:
    return LastRun(ended, rows, aggregates)


def test_a_locked_hour_is_skipped_with_the_time_at_which_it_opens_and_nothing_is_looked_up() -> None:
    seen = Seen(PendingFound(5, 0))
    run, reason = at(2, seen, lock=6)
    assert not run
    assert "still open for late usage until 2026-11-20T16:00Z" in reason
    assert seen.looked_at == []


def test_an_hour_whose_run_is_under_way_is_skipped_before_any_table_is_asked() -> None:
    seen = Seen(PendingFound(5, 0), running=True)
    assert at(2, seen) == (False, "A run of 2026-11-20T10 is queued or under way.")
    assert "tables" not in seen.looked_at


@pytest.mark.parametrize("lock", [1, 3, 20])
def test_the_offset_that_equals_the_lock_asks_even_where_nothing_is_pending(lock: int) -> None:
    assert at(lock, Seen(), lock=lock)[0]
    later = at(lock + 1, Seen(), lock=lock)
    assert later[0] is (lock + 1 >= 20)


def test_a_later_offset_asks_only_where_there_is_work() -> None:
    assert at(5, Seen()) == (False, "Nothing is pending in 2026-11-20T07.")
    assert at(5, Seen(PendingFound(1, 0)))[0]
    assert at(5, Seen(PendingFound(0, 1)))[0]


def test_a_closed_hour_is_skipped_at_every_offset() -> None:
    for offset in range(1, 24):
        run, reason = at(offset, Seen(last=a_run()))
        if offset > 1:
            assert not run
            assert "is closed" in reason


def test_a_run_before_the_lock_was_over_has_closed_nothing() -> None:
    early = a_run(ended=NOW - timedelta(hours=3))
    assert at(3, Seen(last=early), lock=3)[0]


def test_held_rows_that_nothing_has_changed_are_no_work_until_late() -> None:
    seen = Seen(PendingFound(59, 0), a_run(rows=59))
    run, reason = at(5, seen)
    assert not run
    assert "held by a rejected row or sum to zero" in reason
    assert [at(offset, seen)[0] for offset in (19, 20, 21, 22, 23)] == [False, True, True, True, True]


def test_held_rows_are_asked_for_once_an_hour_from_offset_20_on_however_often_the_schedule_ticks() -> None:
    seen = Seen(PendingFound(59, 0), a_run(rows=59, ended=NOW))
    later = NOW + timedelta(minutes=1)
    assert [at(offset, seen, now=later)[0] for offset in (20, 21, 22)] == [False, False, True]
    assert at(21, seen, now=NOW + timedelta(hours=1))[0]


@pytest.mark.parametrize("found", [PendingFound(60, 0), PendingFound(58, 0), PendingFound(59, 1)])
def test_held_rows_beside_which_something_has_changed_are_work(found: PendingFound) -> None:
    assert at(5, Seen(found, a_run(rows=59)))[0]


def test_records_that_were_left_are_work_each_time() -> None:
    assert at(5, Seen(PendingFound(0, 25), a_run(aggregates=25)))[0]


@pytest.mark.parametrize("offset", [20, 21, 22, 23])
def test_late_in_its_window_an_hour_that_no_run_has_closed_is_asked_for(offset: int) -> None:
    run, reason = at(offset, Seen())
    assert run
    assert "no run has closed it yet" in reason


def test_a_probe_that_fails_asks_for_the_run() -> None:
    run, reason = at(5, Seen(PendingFound(0, 0, "the usage table cannot be reached")))
    assert run
    assert "cannot be reached" in reason


@pytest.mark.parametrize(
    ("clock", "run", "words"),
    [
        ("2026-12-01T02:59:59", False, "still open for late usage until 2026-12-01T03:00Z"),
        ("2026-12-01T03:00:00", True, "no run has closed it yet"),
        ("2026-12-01T05:59:59", True, "no run has closed it yet"),
        ("2026-12-01T06:00:00", False, "can no longer be billed"),
    ],
)
def test_the_months_grace_opens_every_offset_until_it_closes(clock: str, run: bool, words: str) -> None:
    now = datetime.fromisoformat(clock).replace(tzinfo=UTC)
    decision = decide(hours.parse_bucket("2026-11-30T22"), now, 8, Seen())
    assert decision.run is run
    assert words in decision.reason


def test_the_last_offset_looks_after_the_hours_of_the_grace() -> None:
    now = datetime(2026, 12, 1, 4, 0, tzinfo=UTC)
    offsets = [hours.offset_of(hour, now) for hour in hours_of_tick(23, now)]
    assert offsets == [23, 24, 25, 26, 27, 28, 29]
    assert len(hours_of_tick(22, now)) == 1


@pytest.mark.parametrize("clock", ["2026-12-01T06:00:00", "2026-11-20T04:00:00"])
def test_outside_the_grace_the_last_offset_has_one_hour_as_any_other(clock: str) -> None:
    now = datetime.fromisoformat(clock).replace(tzinfo=UTC)
    assert len(hours_of_tick(23, now)) == 1


def test_every_billable_hour_but_the_current_one_is_looked_after_at_any_instant() -> None:
    now = datetime(2026, 11, 29, 0, 30, tzinfo=UTC)
    while now < datetime(2026, 12, 2, 0, 30, tzinfo=UTC):
        looked_after = [hour for offset in range(1, 24) for hour in hours_of_tick(offset, now)]
        assert len(set(looked_after)) == len(looked_after)
        billable = {h for n in range(1, 40) if hours.is_billable(h := hours.hour_at_offset(now, n), now)}
        assert billable <= set(looked_after)
        now += timedelta(hours=1)


# The hour's last visit.


def test_an_hour_with_commits_gets_a_last_visit_at_offset_22():
    hour = hours.hour_at_offset(NOW, 22)
    metered = a_run(ended=hour + 2 * hours.HOUR)
    assert at(22, Seen(last=metered, committed=True)) == (
        True, f"The last visit of {hours.bucket(hour)}: it looks whether each commit still has its aggregate.",
    )  # fmt: skip
    assert not at(22, Seen(last=metered))[0]
    assert not at(22, Seen(last=a_run(ended=NOW), committed=True))[0]
    assert not at(21, Seen(last=metered, committed=True))[0]


@pytest.mark.parametrize(("hour", "visits"), [
    ("2026-12-30T19", [0]), ("2026-12-30T23", [4]), ("2026-12-31T05", [5]), ("2026-12-31T22", [5]),
])  # fmt: skip
def test_in_the_months_grace_the_last_hour_of_an_hours_window_gets_one_more(hour, visits):
    start = hours.parse_bucket(hour)
    asked = []
    for hour_of_day in range(6):
        now = datetime(2027, 1, 1, hour_of_day, tzinfo=UTC)
        last = a_run(ended=now - hours.HOUR)
        if decide(start, now, 1, Seen(last=last, committed=True)).run:
            asked.append(hour_of_day)
    assert visits[0] in asked
