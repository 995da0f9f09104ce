"""Count what is pending, hour by hour; by Query, never by Scan, and nothing is written.

Belongs here: which queries, how many at once, telling held and zero rows from others. Does not: what the counts mean
(outlook), how it is printed (words), what a group's verdict is (metering).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from metering_dagster.admin.rules.outlook import Outlook, PendingCounts, hours_to_look_at, judging_order, outlook
from metering_dagster.core import hours
from metering_dagster.metering.rules.aggregate_group import GroupOutcome, belongs, judge_group

if TYPE_CHECKING:
    from metering_dagster.metering.rules.raw_row import GroupKey
    from metering_dagster.metering.services.deployment import Deployment
    from metering_dagster.metering.services.tables import Tables

Progress = Callable[[str, int, int], None]
"""Told what is being done, and how many steps of how many are behind."""

THREADS = 16
JUDGED_ROWS = 20_000
"""Held and zero rows are told apart by reading their groups: as long as all hours judged have so many pending rows."""
_TOLD_TIMES = 5
_COMMITTED_AT_ONCE = 50


@dataclass(frozen=True)
class Surroundings:
    """The place of a survey: mode, tables and endpoints."""

    mode: str
    usage_table: str
    aggregated_table: str
    region: str
    dynamodb: str
    metering: str
    is_clock_frozen: bool


def place(deployment: "Deployment") -> Surroundings:
    """Return where `survey` looks. Nothing is called."""
    tables = deployment.tables
    meta = tables.usage.client.meta
    return Surroundings(
        mode=deployment.mode.value,
        usage_table=tables.usage.name,
        aggregated_table=tables.aggregated.name,
        region=meta.region_name,
        dynamodb=meta.endpoint_url,
        metering=deployment.clients.metering().meta.endpoint_url,
        is_clock_frozen=deployment.settings.frozen_now is not None,
    )


def survey(deployment: "Deployment", days: int, progress: Progress) -> Outlook:
    """Return how the deployment stands now, looking so many days back."""
    tables, lock = deployment.tables, deployment.settings.lock_hours
    now = tables.clock()
    wanted = hours_to_look_at(now, days)
    with ThreadPoolExecutor(THREADS) as pool:
        counted: dict[datetime, PendingCounts] = {}
        for number, pending in enumerate(pool.map(lambda hour: _count(tables, hour), wanted), 1):
            counted[pending.hour] = pending
            if number == len(wanted) or number % max(len(wanted) // _TOLD_TIMES, 1) == 0:
                progress("counting what is pending, hour by hour", number, len(wanted))
        affordable = _affordable(judging_order([*counted.values()], now, lock))
        for number, pending in enumerate(affordable, 1):
            counted[pending.hour] = _judge(tables, pool, pending, now)
            progress("telling held and zero rows from others", len(wanted) + number, len(wanted) + len(affordable))
    return outlook(now, lock, [*counted.values()])


def _count(tables: "Tables", hour: datetime) -> PendingCounts:
    bucket = hours.bucket(hour)
    rows, aggregates = tables.usage.count_pending(bucket), tables.aggregated.count_pending(bucket)
    return PendingCounts(hour, rows, aggregates) if rows else PendingCounts(hour, 0, aggregates, held=0, zero=0)


def _affordable(ordered: Sequence[PendingCounts]) -> list[PendingCounts]:
    """As many of the hours, in this order, as can be read; one that is too large does not keep the next from it."""
    chosen, left = [], JUDGED_ROWS
    for pending in ordered:
        if pending.rows <= left:
            chosen.append(pending)
            left -= pending.rows
    return chosen


def _judge(tables: "Tables", pool: ThreadPoolExecutor, pending: PendingCounts, now: datetime) -> PendingCounts:
    """Return the same with its held and zero rows. Those of a committed group are late or a lost clean-up,
    and neither.
    """
    keys = [key for key, _ in tables.usage.pending_groups(hours.bucket(pending.hour))]
    waiting = [found for found in pool.map(lambda key: _waiting(tables, key, now), keys) if found is not None]
    held = zero = 0
    for start in range(0, len(waiting), _COMMITTED_AT_ONCE):
        some = waiting[start : start + _COMMITTED_AT_ONCE]
        committed = tables.aggregated.committed([key for key, _, _ in some])
        for key, is_held, rows in some:
            if key not in committed:
                held, zero = (held + rows, zero) if is_held else (held, zero + rows)
    return replace(pending, held=held, zero=zero)


def _waiting(tables: "Tables", key: "GroupKey", now: datetime) -> "tuple[GroupKey, bool, int] | None":
    """Return whether the group is held (else it is zero), and how many rows filed under its hour wait; None for any
    other.
    """
    rows = tables.usage.group_rows(key)
    verdict = judge_group(key, rows, now, tables.quantities, last_call=False)
    filed_here = sum(usage.row.pending == key.bucket for usage in verdict.usages)
    if verdict.outcome is GroupOutcome.ZERO:
        return key, False, filed_here
    stands = any(row.is_rejected and belongs(key, row) for row in rows)
    return (key, True, filed_here) if verdict.outcome is GroupOutcome.HOLD and stands else None
