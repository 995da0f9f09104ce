"""Find what is pending for one hour, and set right what is filed wrongly (no Dagster).

Belongs here: the survey of the sparse index, rows whose key is no key or contradicts them, misfiled rows.
Does not: folding (aggregation), the faults themselves (rows).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from metering_dagster import hours
from metering_dagster.metering import telling
from metering_dagster.metering.aggregation import Aggregation, Tell, ignore, settle_group
from metering_dagster.metering.isolation import Failures
from metering_dagster.metering.reasons import RawStatus, Reason
from metering_dagster.metering.rows import GroupKey, RawRow, RowEnd, account_of, group_of, key_fault
from metering_dagster.metering.tables import Slice, Tables
from metering_dagster.metering.usage_table import IndexedRow

_ODD_AT_ONCE = 1_000
"""Odd rows are collected and written this many at a time: memory stays flat, even where a seller misfiles an hour."""


@dataclass
class Discovery:
    """What is pending for an hour, in counts."""

    rows: int = 0
    groups: int = 0
    licences: int = 0
    aggregates: int = 0
    """Aggregates that were pending before this visit: direct submits, or what an earlier visit did not send."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Rows whose key is at fault, by reason code."""
    refiled: Counter[str] = field(default_factory=Counter)
    """Misfiled rows by the hour that they were moved to."""
    expired: int = 0
    """Misfiled rows whose own hour cannot be billed any more."""
    lost: Counter[str] = field(default_factory=Counter)
    """Misfiled rows that no bill will hold, late or expired, by their own hour."""
    settled: Aggregation = field(default_factory=Aggregation)
    """What became of misfiled rows whose own group was committed before."""
    changed: int = 0
    """Odd rows that changed meanwhile: the next visit takes them."""
    tell: Tell = ignore


def discover(tables: Tables, part: Slice, tell: Tell = ignore) -> Discovery:
    """Survey the slice; `tell` hears of rows that end here. Memory is that of one licence's groups."""
    report = Discovery(settled=Aggregation(tell=tell), tell=tell)
    odd: list[IndexedRow] = []
    for licence in part.licences:
        groups: set[GroupKey] = set()
        current = None
        for row in tables.usage.pending_rows(part.bucket, licence):
            key = group_of(row.license_arn, row.sort_key)
            if not part.holds((row.license_arn, account_of(row.sort_key))):
                continue
            if row.license_arn != current:
                report.licences, report.groups = report.licences + 1, report.groups + len(groups)
                current, groups = row.license_arn, set()
            report.rows += 1
            fault = key_fault(row.sort_key, row.account, row.dimension)
            if fault is not None or key is None or key.bucket != part.bucket:
                odd.append(row)
            else:
                groups.add(key)
            if len(odd) >= _ODD_AT_ONCE:
                mend(tables, part.bucket, tables.usage.rows(odd), report)
                odd = []
        report.groups += len(groups)
    mend(tables, part.bucket, tables.usage.rows(odd), report)
    report.aggregates = _pending_aggregates(tables, part)
    if not report.rows and not report.aggregates:
        # An index that answers with nothing may be another table's: an empty hour is believed of the right tables only.
        tables.usage.check_shape()
        tables.aggregated.check_shape()
    return report


def pending_of(tables: Tables, part: Slice) -> tuple[int, int]:
    """How many raw rows and aggregates of the slice's buyers are pending."""
    rows = sum(
        part.holds((row.license_arn, account_of(row.sort_key)))
        for licence in part.licences
        for row in tables.usage.pending_rows(part.bucket, licence)
    )
    return rows, _pending_aggregates(tables, part)


def _pending_aggregates(tables: Tables, part: Slice) -> int:
    if part.buyers is None:
        return tables.aggregated.count_pending(part.bucket)
    unreadable = Failures()
    readable = sum(
        part.holds(stored.buyer)
        for licence in part.licences
        for stored in tables.aggregated.pending(part.bucket, licence, unreadable)
    )
    return readable + unreadable.total


def mend(tables: Tables, bucket: str, odd: Iterable[RawRow], report: Discovery) -> None:
    """Give odd rows of this hour, as they were just read from the table, each its end or its right place."""
    now = tables.clock()
    ends: list[RowEnd] = []
    misfiled: dict[GroupKey, list[RawRow]] = {}
    for row in odd:
        if row.pending != bucket:
            continue  # the index was behind: somebody has dealt with it
        fault = key_fault(row.sort_key, row.account, row.dimension, row.timestamp)
        key = group_of(row.license_arn, row.sort_key)
        if fault is not None:
            ends.append(RowEnd(row, RawStatus.REJECTED, fault.value))
        elif key is not None and key.bucket != bucket:
            misfiled.setdefault(key, []).append(row)
    committed = tables.aggregated.committed(list(misfiled)) if misfiled else {}
    for key, rows in misfiled.items():
        if key in committed:
            late_before = report.settled.late_rows
            settle_group(tables, key, committed[key], report.settled)
            report.lost[key.bucket] += report.settled.late_rows - late_before
        else:
            ends += _places(key, rows, now)
    _write(tables, ends, report)


def _places(key: GroupKey, rows: Iterable[RawRow], now: datetime) -> list[RowEnd]:
    """Where misfiled rows of an uncommitted group belong."""
    if key.hour > hours.floor_hour(now):
        return [RowEnd(row, RawStatus.REJECTED, Reason.TIMESTAMP_IN_FUTURE.value) for row in rows]
    if hours.is_expirable(key.hour, now):
        words = f"Filed under another hour until its own, {key.bucket}, could not be billed any more"
        return [RowEnd(row, RawStatus.EXPIRED, words) for row in rows]
    return [RowEnd(row, None, pending=key.bucket) for row in rows]


def _write(tables: Tables, ends: Sequence[RowEnd], report: Discovery) -> None:
    now = tables.clock()
    written = tables.usage.write(ends, now) if tables.writes else [True] * len(ends)
    for end, ok in zip(ends, written, strict=True):
        if not ok:
            report.changed += 1
        elif end.pending is not None:
            report.refiled[end.pending] += 1
        else:
            entry = telling.of_row(end)
            report.tell(entry)
            if end.status is RawStatus.EXPIRED:
                report.expired += 1
                report.lost[entry.bucket] += 1
            else:
                report.rejected[end.reason] += 1
