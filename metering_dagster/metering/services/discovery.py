"""Find what is pending for one hour, and set right what is filed wrongly (no Dagster).

Belongs here: the survey of the sparse index, rows whose key is no key or contradicts them, misfiled rows.
Does not: aggregating (aggregation), the faults themselves (raw_row).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from metering_dagster.core import hours
from metering_dagster.core.masking import digest, mask
from metering_dagster.metering.rules.group_steps import named
from metering_dagster.metering.rules.isolation import Failures
from metering_dagster.metering.rules.raw_row import GroupKey, RawRow, RowEnd, account_of, group_of, key_fault
from metering_dagster.metering.rules.statuses import RawStatus, Reason
from metering_dagster.metering.services import ledger_entries
from metering_dagster.metering.services.aggregation import settle_group
from metering_dagster.metering.services.aggregation_report import Aggregation, Tell, ignore
from metering_dagster.metering.services.tables import Slice, Tables
from metering_dagster.metering.stores.commit_items import Committed
from metering_dagster.metering.stores.usage_table import IndexedRow

_ODD_AT_ONCE = 1_000
"""Odd rows are collected and written this many at a time: memory stays flat, even where a seller misfiles an hour."""


@dataclass
class Discovery:
    """The survey of an hour's pending usage, in counts."""

    rows: int = 0
    groups: int = 0
    licenses: int = 0
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
    failures: Failures = field(default_factory=Failures)
    """Groups and rows in which something was raised: they are left as they are."""
    tell: Tell = ignore


def discover(tables: Tables, part: Slice, tell: Tell = ignore) -> Discovery:
    """Survey the slice; `tell` hears of rows that end here. Memory is that of one license's groups."""
    report = Discovery(settled=Aggregation(tell=tell), tell=tell)
    odd: list[IndexedRow] = []
    groups: set[GroupKey] = set()
    current = None
    for row in tables.usage.pending_rows(part.bucket, part.licenses):
        key = group_of(row.license_arn, row.sort_key)
        if not part.holds((row.license_arn, account_of(row.sort_key))):
            continue
        if row.license_arn != current:
            report.licenses, report.groups = report.licenses + 1, report.groups + len(groups)
            current, groups = row.license_arn, set()
        report.rows += 1
        fault = key_fault(row.sort_key, row.account, row.dimension)
        if fault is not None or key is None or key.bucket != part.bucket:
            odd.append(row)
        else:
            groups.add(key)
        if len(odd) >= _ODD_AT_ONCE:
            mend(tables, part.bucket, _rows_of(tables, odd, report), report)
            odd = []
    report.groups += len(groups)
    mend(tables, part.bucket, _rows_of(tables, odd, report), report)
    report.aggregates = _pending_aggregates(tables, part)
    if not report.rows and not report.aggregates:
        # An index that answers with nothing may be another table's: an empty hour is believed of the right tables only.
        tables.usage.check_shape()
        tables.aggregated.check_shape()
    return report


def _rows_of(tables: Tables, odd: Sequence[IndexedRow], report: Discovery) -> list[RawRow]:
    """Return these rows as they stand in the table; one that cannot be read is left, and counted."""

    def read(these: Sequence[IndexedRow]) -> list[RawRow | None]:
        found = {(row.license_arn, row.sort_key): row for row in tables.usage.rows(these)}
        return [found.get((row.license_arn, row.sort_key)) for row in these]

    return [row for _, row in report.failures.each("read", odd, read, _named_row) if row is not None]


def pending_of(tables: Tables, part: Slice) -> tuple[int, int]:
    """Return how many raw rows and aggregates of the slice's buyers are pending."""
    rows = sum(
        part.holds((row.license_arn, account_of(row.sort_key)))
        for row in tables.usage.pending_rows(part.bucket, part.licenses)
    )
    return rows, _pending_aggregates(tables, part)


def _pending_aggregates(tables: Tables, part: Slice) -> int:
    if part.buyers is None:
        return tables.aggregated.count_pending(part.bucket)
    unreadable = Failures()
    found = tables.aggregated.pending(part.bucket, part.licenses, unreadable)
    return sum(part.holds(stored.buyer) for stored in found) + unreadable.total


def mend(tables: Tables, bucket: str | None, odd: Iterable[RawRow], report: Discovery) -> None:
    """Give odd rows of this hour, as they were just read from the table, each its end or its right place.

    None: rows that are filed where no Query looks, each under a value of its own.
    Where others made the aggregate of a row's group, its rows are settled before any is judged.
    """
    now = tables.clock()
    report.settled.failures = report.failures
    ends: list[RowEnd] = []
    of_groups: dict[GroupKey, list[RawRow]] = {}
    for row in odd:
        if row.pending is None or (bucket is not None and row.pending != bucket):
            continue  # the index was behind: another run has dealt with it
        key = group_of(row.license_arn, row.sort_key)
        if key is not None:
            of_groups.setdefault(key, []).append(row)
        else:
            with report.failures.isolated("judged", row, _named_row):
                ends += _faults([row])
    keys = list(of_groups)
    for key, committed in report.failures.each("looked up", keys, tables.aggregated.committed_each, named):
        rows = of_groups[key]
        with report.failures.isolated("judged", key, named):
            faults = _faults(rows)
            faulty = {end.row.sort_key for end in faults}
            sound = [row for row in rows if row.sort_key not in faulty]
            if committed is not None and (sound or committed.counted is None):
                _settle(tables, bucket, key, committed, report)
            elif committed is None and key.bucket != bucket:
                ends += _places(key, sound, now)
            if committed is None or committed.counted is not None:
                ends += faults
    _write(tables, ends, report)


def _faults(rows: Iterable[RawRow]) -> list[RowEnd]:
    """Return the ends of those rows whose key is at fault, by itself or beside the attributes."""
    judged = ((row, key_fault(row.sort_key, row.account, row.dimension, row.timestamp)) for row in rows)
    return [RowEnd(row, RawStatus.REJECTED, fault.value) for row, fault in judged if fault is not None]


def _named_row(row: RawRow | IndexedRow) -> tuple[str, tuple[str, str]]:
    """Return what people call a row whose key names no group, and what must not be shown of it."""
    called = f"a row of license {mask(row.license_arn)} ({digest(row.license_arn, row.sort_key)})"
    return called, (row.license_arn, account_of(row.sort_key))


def _settle(tables: Tables, bucket: str | None, key: GroupKey, committed: Committed, report: Discovery) -> None:
    late_before = report.settled.late_rows
    settle_group(tables, key, committed, report.settled)
    if key.bucket != bucket:
        report.lost[key.bucket] += report.settled.late_rows - late_before


def _places(key: GroupKey, rows: Iterable[RawRow], now: datetime) -> list[RowEnd]:
    """Return where misfiled rows of an uncommitted group belong."""
    if key.hour > hours.floor_hour(now):
        return [RowEnd(row, RawStatus.REJECTED, Reason.TIMESTAMP_IN_FUTURE.value) for row in rows]
    if hours.is_expirable(key.hour, now):
        words = f"Filed under another hour until its own, {key.bucket}, could not be billed any more"
        return [RowEnd(row, RawStatus.EXPIRED, words) for row in rows]
    return [RowEnd(row, None, pending=key.bucket) for row in rows]


def _write(tables: Tables, ends: Sequence[RowEnd], report: Discovery) -> None:
    def write(these: Sequence[RowEnd]) -> list[bool]:
        return tables.usage.write(these, tables.clock()) if tables.writes else [True] * len(these)

    for end, ok in report.failures.each("recorded", ends, write, lambda end: _named_row(end.row)):
        if not ok:
            report.changed += 1
        elif end.pending is not None:
            report.refiled[end.pending] += 1
        else:
            entry = ledger_entries.of_row(end)
            report.tell(entry)
            if end.status is RawStatus.EXPIRED:
                report.expired += 1
                report.lost[entry.bucket] += 1
            else:
                report.rejected[end.reason] += 1
