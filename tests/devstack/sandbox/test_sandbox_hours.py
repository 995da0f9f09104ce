"""How late, and how early, a record may come."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from metering_dagster.devstack.sandbox import Sandbox
from tests.devstack.sandbox.sandbox_calls import NOW, a_record, hours_before, refusal, send, some_records, statuses

LATE_IN_GRACE = datetime(2026, 12, 1, 5, 59, 59, tzinfo=UTC)
AFTER_GRACE = datetime(2026, 12, 1, 6, tzinfo=UTC)
OUT_OF_BOUNDS = "TimestampOutOfBoundsException"


@pytest.mark.parametrize("back", [0, 1, 22, 23])
def test_an_hour_up_to_23_back_is_taken(sandbox: Sandbox, client: Any, back: int) -> None:
    assert statuses(send(client, a_record(Timestamp=hours_before(NOW, back)))) == ["Success"]
    assert [billed.hour for billed in sandbox.bill()] == [f"{hours_before(NOW, back):%Y-%m-%dT%H}"]


@pytest.mark.parametrize("back", [24, 25, 300])
def test_an_hour_24_back_is_too_old_and_fails_the_whole_call(sandbox: Sandbox, client: Any, back: int) -> None:
    assert refusal(client, *some_records(2), a_record(Timestamp=hours_before(NOW, back))) == OUT_OF_BOUNDS
    assert sandbox.bill() == []


def test_age_is_counted_from_the_start_of_the_hour(sandbox: Sandbox, client: Any) -> None:
    younger_than_a_day = hours_before(NOW, 24) + timedelta(minutes=59)
    assert NOW - younger_than_a_day < timedelta(hours=24)
    assert refusal(client, a_record(Timestamp=younger_than_a_day)) == OUT_OF_BOUNDS


@pytest.mark.parametrize("ahead", [timedelta(seconds=1), timedelta(minutes=30), timedelta(days=400)])
def test_the_future_is_refused(sandbox: Sandbox, client: Any, ahead: timedelta) -> None:
    assert refusal(client, a_record(Timestamp=NOW + ahead)) == OUT_OF_BOUNDS
    assert sandbox.bill() == []


@pytest.mark.usefixtures("over_http")
@pytest.mark.parametrize("timestamp", [10**17, -(10**17), 10**400])
def test_a_number_that_is_no_date_is_out_of_bounds(sandbox: Sandbox, client: Any, timestamp: int) -> None:
    client.meta.events.register(
        "before-call.meteringmarketplace.BatchMeterUsage",
        lambda params, **_: params.update(body=params["body"].replace(b"1795161600", str(timestamp).encode())),
    )
    assert datetime.fromtimestamp(1795161600, UTC) == hours_before(NOW, 2)
    assert refusal(client, a_record(Timestamp=hours_before(NOW, 2))) == OUT_OF_BOUNDS


def test_the_clock_decides_and_it_can_be_moved(sandbox: Sandbox, client: Any) -> None:
    record = a_record(Timestamp=hours_before(NOW, 23))
    sandbox.set_now(NOW + timedelta(minutes=30))
    assert refusal(client, record) == OUT_OF_BOUNDS
    sandbox.set_now(NOW)
    assert statuses(send(client, record)) == ["Success"]


def test_a_clock_set_free_is_the_real_one(sandbox: Sandbox, client: Any) -> None:
    sandbox.set_now(None)
    assert refusal(client, a_record(Timestamp=datetime.now(UTC) - timedelta(hours=31))) == OUT_OF_BOUNDS
    assert statuses(send(client, a_record(Timestamp=datetime.now(UTC) - timedelta(seconds=1)))) == ["Success"]


@pytest.mark.parametrize("back", [6, 23, 24, 29])
def test_until_six_on_the_first_the_previous_month_is_taken(sandbox: Sandbox, client: Any, back: int) -> None:
    sandbox.set_now(LATE_IN_GRACE)
    assert statuses(send(client, a_record(Timestamp=hours_before(LATE_IN_GRACE, back)))) == ["Success"]


def test_even_in_the_grace_30_hours_back_is_too_old(sandbox: Sandbox, client: Any) -> None:
    sandbox.set_now(LATE_IN_GRACE)
    assert refusal(client, a_record(Timestamp=hours_before(LATE_IN_GRACE, 30))) == OUT_OF_BOUNDS


def test_a_stricter_service_refuses_old_hours_in_the_grace(sandbox: Sandbox, client: Any) -> None:
    sandbox.set_now(LATE_IN_GRACE)
    sandbox.configure(grace_accepts_old_hours=False)
    assert refusal(client, a_record(Timestamp=hours_before(LATE_IN_GRACE, 24))) == OUT_OF_BOUNDS
    assert statuses(send(client, a_record(Timestamp=hours_before(LATE_IN_GRACE, 23)))) == ["Success"]


@pytest.mark.parametrize("now", [AFTER_GRACE, AFTER_GRACE + timedelta(hours=17), datetime(2027, 1, 1, 6, tzinfo=UTC)])
def test_from_six_on_the_first_the_previous_month_is_closed(sandbox: Sandbox, client: Any, now: datetime) -> None:
    sandbox.set_now(now)
    last_of_month = hours_before(now, now.hour + 1)
    assert last_of_month.month != now.month
    assert now - last_of_month < timedelta(hours=24) or now.hour == 23
    assert (
        refusal(client, a_record(Timestamp=now.replace(minute=0)), a_record(Timestamp=last_of_month)) == OUT_OF_BOUNDS
    )
    assert statuses(send(client, a_record(Timestamp=hours_before(now, now.hour)))) == ["Success"]


@pytest.mark.parametrize("back", [24, 28, 29])
def test_on_any_other_day_there_is_no_grace(sandbox: Sandbox, client: Any, back: int) -> None:
    second = datetime(2026, 12, 2, 3, tzinfo=UTC)
    sandbox.set_now(second)
    assert refusal(client, a_record(Timestamp=hours_before(second, back))) == OUT_OF_BOUNDS
    assert sandbox.bill() == []
