"""May this hour be metered now? (design: by hand)

Belongs here: the refusal of an hour that is not over or still locked, in words; the difference to one that is past its
window. Does not: the hour policy itself (hours), what to do with an hour that is past (ops).
"""

from datetime import datetime

from metering_dagster.core import hours
from metering_dagster.core.errors import HourRefusedError


def refuse_open_hour(hour: datetime, now: datetime, lock_hours: int, *, ignore_lock: bool = False) -> None:
    """Refuse the current hour, a future one and one that is still locked; the message says when it opens.

    `ignore_lock` overrides the lock, never the current hour.
    """
    bucket, offset = hours.bucket(hour), hours.offset_of(hour, now)
    opens = f"{hours.opens_at(hour, lock_hours):%Y-%m-%dT%H:%MZ}"
    untouched = "Nothing was read or written."
    if offset < 0:
        raise HourRefusedError(f"{bucket} lies in the future. {untouched} It opens at {opens}.")
    if offset == 0:
        raise HourRefusedError(
            f"{bucket} is the current hour: usage of it still arrives, and what is sent once is billed for good. "
            f"{untouched} It opens at {opens}."
        )
    if hours.is_locked(hour, now, lock_hours) and not ignore_lock:
        raise HourRefusedError(
            f"{bucket} is still open for late usage until {opens} "
            f"(METERING_LOCK_HOURS={hours.clamp_lock(lock_hours)}). {untouched} "
            "Run it again then, or set ignore_lock: true in the run's config to bill it now, for good."
        )
