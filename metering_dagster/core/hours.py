"""The hour policy: which hour is open, billable, at its last call (domain: the hour policy).

Belongs here: arithmetic of hour buckets, offsets, lock, month's grace and cutoffs. Pure: `now` is an argument.
Does not: what is in an hour, where the clock or the settings come from.

An hour is an aware datetime in UTC, floored to the hour; its bucket is that hour as text.
"""

import re
from datetime import UTC, datetime, timedelta

from metering_dagster.core.errors import UnknownShardError
from metering_dagster.core.masking import mask_text

HOUR = timedelta(hours=1)
FIRST_OFFSET = 1
LAST_OFFSET = 23
"""The offsets 1..23 name 23 disjoint buckets with no gap; a record's hour must be less than 24 h old."""
GRACE_LAST_OFFSET = 29
"""On the 1st before 06:00, previous-month hours up to this many back are still billable."""
LAST_CALL_OFFSET = 22
GRACE_OPENS = timedelta(hours=3)
GRACE_LAST_CALL = timedelta(hours=5)
GRACE_CLOSES = timedelta(hours=6)
"""All three counted from 00:00 UTC on the 1st."""
FLUSH_WINDOW = timedelta(minutes=10)
"""How long before its license's expiry a deprovisioning license's usage is at its last call."""
MIN_LOCK_HOURS, MAX_LOCK_HOURS = 1, 20
SHARDS = 7
"""The age-out's: an hour's shard is how many hours back it lies, modulo this."""
OLDEST_OFFSET = 400 * 24
"""How far back the age-out looks: 400 days."""

_BUCKET = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3])")
"""Hours by name, for some versions of Python read 24 as the next day's 0."""
_BUCKET_LENGTH = len("2026-11-28T10")


def floor_hour(instant: datetime) -> datetime:
    """Return the hour that holds `instant`, in UTC. A naive instant is refused (ValueError): its zone would
    be a guess.
    """
    if instant.tzinfo is None:
        raise ValueError(f"an instant without a time zone: {instant.isoformat()}")
    return instant.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def bucket(hour: datetime) -> str:
    """Return the hour's name in the tables and its partition key, such as `2026-11-28T10`."""
    return floor_hour(hour).isoformat()[:_BUCKET_LENGTH]


def parse_bucket(text: str) -> datetime:
    """Return the hour that a bucket names; ValueError where it names none."""
    if not _BUCKET.fullmatch(text):
        raise ValueError(f"not an hour bucket (YYYY-MM-DDTHH): {text!r}")
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def hour_at_offset(now: datetime, offset: int) -> datetime:
    """Return the hour that lies `offset` hours before the current one."""
    return floor_hour(now) - offset * HOUR


def offset_of(hour: datetime, now: datetime) -> int:
    """Return how many hours back `hour` is; 0 for the current hour, negative in the future."""
    return (floor_hour(now) - floor_hour(hour)) // HOUR


def is_named(text: str, now: datetime) -> bool:
    """Return whether a Query of ours ever names this value of `meteringPending`, as it stands at `now`.

    It must be an hour, not ahead of the current one, and at most 400 days back (domain §3, misfiled rows).
    """
    try:
        return 0 <= offset_of(parse_bucket(text), now) <= OLDEST_OFFSET
    except ValueError:
        return False


def is_next(hour: datetime, now: datetime) -> bool:
    """Return whether `hour` is the one that comes after the current one.

    Where a seller's clock is some seconds ahead, its rows name it before it has begun.
    """
    return offset_of(hour, now) == -1


def month_start(instant: datetime) -> datetime:
    """00:00 UTC on the 1st of the month of `instant`."""
    return floor_hour(instant).replace(day=1, hour=0)


def is_previous_month(hour: datetime, now: datetime) -> bool:
    """Return whether `hour` lies in any month before now's."""
    return floor_hour(hour) < month_start(now)


def clamp_lock(configured: int) -> int:
    """Return `METERING_LOCK_HOURS` as it is applied: 1 to 20 hours."""
    return min(max(configured, MIN_LOCK_HOURS), MAX_LOCK_HOURS)


def _into_month(now: datetime) -> timedelta:
    return now.astimezone(UTC) - month_start(now)


def lock_of(hour: datetime, now: datetime, lock_hours: int) -> int:
    """Return the lock in force for `hour`: none for the previous month on the 1st from 03:00 to 06:00, else as
    configured.
    """
    if is_previous_month(hour, now) and GRACE_OPENS <= _into_month(now) < GRACE_CLOSES:
        return 0
    return clamp_lock(lock_hours)


def is_locked(hour: datetime, now: datetime, lock_hours: int) -> bool:
    """Return whether `hour` is still open for late usage (the current hour always is)."""
    offset = offset_of(hour, now)
    return offset < FIRST_OFFSET or offset < lock_of(hour, now, lock_hours)


def opens_at(hour: datetime, lock_hours: int) -> datetime:
    """Return the instant at which the lock of `hour` is over: after the lock, or at 03:00 on the 1st if that comes
    first.
    """
    by_lock = floor_hour(hour) + clamp_lock(lock_hours) * HOUR
    grace = _next_month_start(hour) + GRACE_OPENS
    return min(by_lock, grace)


def is_billable(hour: datetime, now: datetime) -> bool:
    """Return whether usage of `hour` may still be sent: less than 24 h old and of this month, or in the month's grace.

    The current hour is billable, a future one is not. The grace, on the 1st before 06:00, reaches 29 hours back into
    the previous month.
    """
    offset = offset_of(hour, now)
    if is_previous_month(hour, now):
        return offset <= GRACE_LAST_OFFSET and _into_month(now) < GRACE_CLOSES
    return 0 <= offset <= LAST_OFFSET


def billable_hours(now: datetime) -> list[datetime]:
    """Return every hour that may still be sent, the current one included, the oldest first."""
    back = (hour_at_offset(now, offset) for offset in range(GRACE_LAST_OFFSET, -1, -1))
    return [hour for hour in back if is_billable(hour, now)]


def closes_at(hour: datetime, now: datetime) -> datetime:
    """Return the first instant at which `hour`, as it stands at `now`, is no longer billable; a past one if it is not.

    24 h after its beginning; for the hours of a month's last day 06:00 on the 1st, as the month's grace has it. What is
    left of the evening before that day comes back into the window for the grace, until 30 h lie behind it.
    """
    next_month = _next_month_start(hour)
    after_a_day = floor_hour(hour) + (LAST_OFFSET + 1) * HOUR
    closes = next_month + GRACE_CLOSES if after_a_day >= next_month else after_a_day
    if now >= closes and is_billable(hour, now):
        return floor_hour(hour) + (GRACE_LAST_OFFSET + 1) * HOUR
    return closes


def reopens_at(hour: datetime, now: datetime) -> datetime | None:
    """00:00 on the 1st, if `hour` is past its window on the month's last day and the grace opens it again; else None.

    These are the hours from 19:00 of the day before the last on: on the 1st they are at most 29 hours back.
    """
    if offset_of(hour, now) <= LAST_OFFSET or not _is_reopened(hour):
        return None
    first = _next_month_start(hour)
    return first if now < first else None


def reopened_hours(now: datetime) -> list[datetime]:
    """Return every hour that is past its window at `now` and that the month's coming grace opens again, the oldest
    first.
    """
    back = (hour_at_offset(now, offset) for offset in range(GRACE_LAST_OFFSET, LAST_OFFSET, -1))
    return [hour for hour in back if reopens_at(hour, now) is not None]


def closes_for_good(hour: datetime) -> datetime:
    """Return the first instant from which `hour` can never be billed again, the month's grace counted in."""
    if not _is_reopened(hour):
        return floor_hour(hour) + (LAST_OFFSET + 1) * HOUR
    return min(_next_month_start(hour) + GRACE_CLOSES, floor_hour(hour) + (GRACE_LAST_OFFSET + 1) * HOUR)


def _is_reopened(hour: datetime) -> bool:
    """Return whether the grace after the month of `hour` reaches back to it."""
    return offset_of(hour, _next_month_start(hour)) <= GRACE_LAST_OFFSET


def is_expirable(hour: datetime, now: datetime) -> bool:
    """Return whether what is pending in `hour` can only be expired: past its window, and never to be billed again.

    Not so an hour that the month's coming grace opens again; nor, on the 1st before 06:00, any of the previous month.
    """
    if is_billable(hour, now) or floor_hour(hour) > floor_hour(now) or reopens_at(hour, now) is not None:
        return False
    return not (is_previous_month(hour, now) and _into_month(now) < GRACE_CLOSES)


def parse_shard(text: str) -> int:
    """Return the shard of the age-out that a partition key names; `UnknownShardError` where it names none."""
    if text not in {str(shard) for shard in range(SHARDS)}:
        raise _unknown_shard(repr(mask_text(text)))
    return int(text)


def _unknown_shard(named: str) -> UnknownShardError:
    return UnknownShardError(
        f"There is no shard {named} of the age-out: they are 0 to {SHARDS - 1}. Nothing was read or written."
    )


def shard_hours(shard: int, now: datetime) -> list[datetime]:
    """Return the hours that this shard of the age-out owns at `now`, newest first, up to 400 days back.

    24 hours back and more, none of them in the month's grace; and once that has closed, the previous month's hours less
    than 24 back as well. On a month's last day, those that the coming grace opens again are left out.
    `UnknownShardError` for a shard that is none.
    """
    if not 0 <= shard < SHARDS:
        raise _unknown_shard(str(shard))
    if _into_month(now) < GRACE_CLOSES:
        return []  # what is of this month is billable, and nothing older is expired before the grace has closed
    current = floor_hour(now)
    owned = [current - offset * HOUR for offset in range(shard or SHARDS, OLDEST_OFFSET + 1, SHARDS)]
    recent = current - GRACE_LAST_OFFSET * HOUR
    return [hour for hour in owned if hour < recent or is_expirable(hour, now)]


def is_last_call(hour: datetime, now: datetime, expiry: datetime | None = None) -> bool:
    """Return whether what is held or zero goes now or never: offset 22 on, a previous month's hour from 05:00 on the
    1st, a deprovisioning license (of which `expiry` is the end of its window) from 10 minutes before that.
    """
    if expiry is not None and now >= expiry - FLUSH_WINDOW:
        return True
    if is_previous_month(hour, now) and _into_month(now) >= GRACE_LAST_CALL:
        return True
    return offset_of(hour, now) >= LAST_CALL_OFFSET


def _next_month_start(hour: datetime) -> datetime:
    start = month_start(hour)
    return start.replace(year=start.year + 1, month=1) if start.month == 12 else start.replace(month=start.month + 1)
