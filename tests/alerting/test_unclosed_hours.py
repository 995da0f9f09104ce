"""Which hours are reported as not closed, when, and what is said of them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from metering_dagster.alerting.rules.unclosed_hours import Unclosed, alert_of, due, look
from metering_dagster.core import hours
from metering_dagster.core.dagster_partitions import FIRST_HOUR
from metering_dagster.metering.rules.run_decision import LastRun, PendingFound

HOUR = datetime(2026, 11, 20, 10, tzinfo=UTC)
FOUR_HOURS_LEFT = datetime(2026, 11, 21, 6, tzinfo=UTC)
ENDED = HOUR + timedelta(hours=2)
NOTHING = PendingFound(0, 0)


@dataclass
class Seen:
    """What can be looked up."""

    found: PendingFound = NOTHING
    last: LastRun | None = None
    running: bool = False

    def is_running(self) -> bool:
        return self.running

    def last_run(self) -> LastRun | None:
        return self.last

    def has_commits(self) -> bool:
        return False

    def pending(self, expected: LastRun | None) -> PendingFound:
        raise AssertionError("it is counted further than a tick does")

    def count(self, most_rows: int, most_aggregates: int) -> PendingFound:
        return self.found


def due_buckets(now: str, lock: int = 1, first: datetime = FIRST_HOUR) -> list[str]:
    return [hours.bucket(hour) for hour in due(datetime.fromisoformat(now), lock, first)]


def at_four_hours(seen: Seen, now: datetime = FOUR_HOURS_LEFT, lock: int = 1) -> Unclosed | str | None:
    return look(HOUR, now, lock, seen)


@pytest.mark.parametrize("lock", [1, 6, 19])
def test_four_hours_before_its_end_an_hour_is_due(lock):
    assert due_buckets("2026-11-21T05:59:59Z", lock)[-1] == "2026-11-20T09"
    assert due_buckets("2026-11-21T06:00:00Z", lock)[-1] == "2026-11-20T10"


def test_together_the_due_hours_are_those_that_close_next():
    assert due_buckets("2026-11-21T06:10:00Z") == [f"2026-11-20T{hour:02d}" for hour in (7, 8, 9, 10)]


def test_an_hour_that_opens_four_hours_before_its_end_gets_half_an_hour():
    assert due_buckets("2026-11-21T06:20:00Z", lock=20)[-1] == "2026-11-20T09"
    assert due_buckets("2026-11-21T06:30:00Z", lock=20)[-1] == "2026-11-20T10"


def test_the_last_day_of_a_month_has_to_be_closed_by_two():
    assert "2026-11-30T23" not in due_buckets("2026-12-01T01:59:00Z")
    found = due_buckets("2026-12-01T02:00:00Z")
    assert (found[0], found[-1], len(found)) == ("2026-11-29T21", "2026-11-30T23", 27)


def test_what_the_months_grace_opens_again_gets_half_an_hour():
    assert "2026-11-29T19" not in due_buckets("2026-12-01T00:29:00Z")
    assert due_buckets("2026-12-01T00:30:00Z")[:2] == ["2026-11-29T19", "2026-11-29T20"]


def test_what_the_months_grace_opens_gets_half_an_hour():
    assert "2026-11-30T22" not in due_buckets("2026-12-01T03:29:00Z", lock=20)
    assert "2026-11-30T22" in due_buckets("2026-12-01T03:30:00Z", lock=20)
    assert due_buckets("2026-12-01T06:00:00Z", lock=20) == []


def test_no_hour_lies_before_the_first_partition():
    assert due_buckets("2026-01-01T20:10:00Z") == ["2026-01-01T00"]


def test_an_hour_that_was_metered_and_has_nothing_pending_is_closed():
    assert at_four_hours(Seen(last=LastRun(ENDED, 0, 0))) is None


@pytest.mark.parametrize(("seen", "was_metered"), [
    (Seen(), False),
    (Seen(PendingFound(1, 0), LastRun(ENDED, 0, 0)), True),
    (Seen(PendingFound(0, 1), LastRun(ENDED, 0, 1)), True),
    (Seen(last=LastRun(HOUR, 0, 0)), False),  # by hand, before the hour was over
    (Seen(PendingFound(2, 0), LastRun(ENDED, 2, 0)), True),  # held by a rejected row
    (Seen(PendingFound(3, 0), LastRun(ENDED, 3, 0, zero_rows=1)), True),
])  # fmt: skip
def test_an_hour_is_not_closed(seen, was_metered):
    found = at_four_hours(seen)
    assert isinstance(found, Unclosed)
    assert found.was_metered is was_metered
    assert found.closes == datetime(2026, 11, 21, 10, tzinfo=UTC)


def test_rows_that_sum_to_zero_wait_for_the_last_call_and_lose_nothing():
    assert at_four_hours(Seen(PendingFound(2, 0), LastRun(ENDED, 2, 0, zero_rows=2))) is None


def test_a_run_under_way_is_given_an_hour():
    seen = Seen(PendingFound(2, 0), running=True)
    assert at_four_hours(seen) is None
    assert at_four_hours(seen, FOUR_HOURS_LEFT + timedelta(hours=1)) is not None


def test_a_look_that_fails_says_why():
    assert at_four_hours(Seen(PendingFound(0, 0, "no such table"))) == "no such table"


def test_an_alert_of_one_hour_says_what_is_pending_until_when_and_what_to_do():
    found = Unclosed(HOUR, datetime(2026, 11, 21, 10, tzinfo=UTC), PendingFound(1_000, 7), was_metered=True)
    alert = alert_of([found], "/there", FOUR_HOURS_LEFT)
    assert alert.subject == "Metering: 2026-11-20T10 is not closed, billable until 2026-11-21T10:00Z"
    assert (alert.hour, alert.link, alert.run_id) == ("2026-11-20T10", "/there", None)
    assert "at least 1000 raw rows and 7 aggregates are pending" in alert.cause
    assert "metering-dagster status" in alert.cause
