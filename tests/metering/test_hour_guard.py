"""An hour by hand: what is not over or still locked is refused, in words that say when it opens."""

from datetime import UTC, datetime

import pytest

from metering_dagster.core.errors import HourRefusedError
from metering_dagster.core.hours import HOUR, parse_bucket
from metering_dagster.metering.rules.hour_guard import refuse_open_hour
from tests.metering.builders import NOW


def refusal(bucket, now=NOW, lock=1, *, ignore_lock=False):
    """The words of the refusal; None where the hour may be metered."""
    try:
        refuse_open_hour(parse_bucket(bucket), now, lock, ignore_lock=ignore_lock)
    except HourRefusedError as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("ignore_lock", [False, True])
def test_the_current_hour_is_refused_whatever_the_config_says(ignore_lock):
    words = refusal("2026-11-28T12", ignore_lock=ignore_lock)
    assert "2026-11-28T12 is the current hour" in words
    assert "It opens at 2026-11-28T13:00Z" in words
    assert "Nothing was read or written" in words


@pytest.mark.parametrize("ignore_lock", [False, True])
def test_an_hour_in_the_future_is_refused_whatever_the_config_says(ignore_lock):
    words = refusal("2026-11-28T13", lock=6, ignore_lock=ignore_lock)
    assert "2026-11-28T13 lies in the future" in words
    assert "It opens at 2026-11-28T19:00Z" in words


@pytest.mark.parametrize(("lock", "opens"), [(4, "13:00Z"), (20, "05:00Z"), (99, "05:00Z")])
def test_a_locked_hour_is_refused_unless_the_config_overrides_the_lock(lock, opens):
    words = refusal("2026-11-28T09", lock=lock)
    assert "2026-11-28T09 is still open for late usage until 2026-11-2" in words
    assert opens in words
    assert f"METERING_LOCK_HOURS={min(lock, 20)}" in words
    assert "ignore_lock: true" in words
    assert refusal("2026-11-28T09", lock=lock, ignore_lock=True) is None


def test_nobody_overrides_the_lock_unawares():
    with pytest.raises(HourRefusedError, match="still open"):
        refuse_open_hour(parse_bucket("2026-11-28T11"), NOW, 4)


def test_the_grace_opens_an_hour_of_the_previous_month_before_its_lock_is_over():
    on_the_1st = datetime(2027, 1, 1, 2, 59, tzinfo=UTC)
    assert "until 2027-01-01T03:00Z" in refusal("2026-12-31T22", on_the_1st, lock=6)
    assert refusal("2026-12-31T22", on_the_1st.replace(hour=3), lock=6) is None


@pytest.mark.parametrize("back", [1, 2, 23, 24, 29, 400])
def test_an_hour_whose_lock_is_over_is_not_refused_even_past_its_window(back):
    refuse_open_hour(NOW.replace(minute=0, second=0) - back * HOUR, NOW, 1)


def test_a_refusal_says_what_is_what_was_left_and_what_to_do():
    assert refusal("2026-11-28T09", lock=4) == (
        "2026-11-28T09 is still open for late usage until 2026-11-28T13:00Z (METERING_LOCK_HOURS=4). "
        "Nothing was read or written. "
        "Run it again then, or set ignore_lock: true in the run's config to bill it now, for good."
    )
