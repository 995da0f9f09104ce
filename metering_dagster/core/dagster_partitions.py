"""The partitions of hours and of days (design: names that are fixed).

Belongs here: where they begin, how their keys are written. Does not: which hour may be metered (hours).
"""

from datetime import UTC, datetime

import dagster as dg

FIRST_HOUR = datetime(2026, 1, 1, tzinfo=UTC)


def hourly(first_hour: datetime = FIRST_HOUR) -> dg.HourlyPartitionsDefinition:
    """Return one partition for each hour bucket. `end_offset=1`: the current hour exists, for a last flush."""
    start = f"{first_hour:%Y-%m-%dT%H}"
    return dg.HourlyPartitionsDefinition(start_date=start, fmt="%Y-%m-%dT%H", timezone="UTC", end_offset=1)


def daily(first_hour: datetime = FIRST_HOUR) -> dg.DailyPartitionsDefinition:
    """Return one partition for each day, the current one included."""
    return dg.DailyPartitionsDefinition(
        start_date=f"{first_hour:%Y-%m-%d}", fmt="%Y-%m-%d", timezone="UTC", end_offset=1
    )
