"""The sweep of one shard: what can no longer be billed comes to its end in both tables (no Dagster).

Belongs here: which hours are looked at, in which order, and that one hour's trouble is its own. Does not: which hours a
shard owns (hours), what becomes of a row or a record (endings), what a person reads (metadata).
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from metering_dagster.core import hours
from metering_dagster.core.chunks import chunked
from metering_dagster.expiry.rules.sweep_decision import NEWEST
from metering_dagster.expiry.services.endings import HourSweep, Tell, end_records, end_rows, name_of_record
from metering_dagster.expiry.services.sweep_report import READ, RECORDS_ENDED, ROWS_ENDED, Sweep
from metering_dagster.ledger.rules.entries import Entry
from metering_dagster.metering.rules.isolation import stops_the_rest
from metering_dagster.metering.rules.usage_record import StoredAggregate
from metering_dagster.metering.services.aggregation import ATTEMPTS
from metering_dagster.metering.services.tables import Tables
from metering_dagster.metering.stores.usage_table import IndexedRow

WINDOW = 1_000
"""Rows or records that are held in memory at once, whatever an hour holds."""


def ignore(bucket: str, entry: Entry) -> None:
    """For a sweep that keeps no ledger."""


def hours_of_sweep(shard: int, now: datetime, as_of: datetime | None = None) -> list[datetime]:
    """Return what a sweep looks at: the shard's hours at `as_of` (default: `now`), but none that must not be expired
    now.

    A tick names itself as `as_of`: an hour's shard moves on with the clock, and a run that waited, or is made up for
    later, must meet the hours of its tick, for no other shard's sweep of that day meets them.
    """
    return [hour for hour in hours.shard_hours(shard, as_of or now) if hours.is_expirable(hour, now)]


def sweep(
    tables: Tables, shard_hours: Iterable[datetime], tell: Tell = ignore, *, whole: bool, report: Sweep | None = None
) -> Sweep:
    """End what is pending in these hours, newest first; unless it is `whole`, stop after six empty ones in a row.

    A whole sweep first scans the sparse index for what is filed where no Query looks (domain §3, misfiled rows).
    `tell` hears of what ended; `report` is what to count in, for whoever wants it even where the sweep breaks off.
    In shadow mode nothing is written, and the report says what would be.

    Whatever is raised for one group, record or hour leaves that one pending, is counted and named in the report, and
    stops nothing else. Only what stops the rest is raised: the caller's own trouble, a table that is gone.
    """
    report = report or Sweep()
    if whole:
        sweep_unreachable(tables, tell, report)
    empty = 0
    with closing(_look(tables, shard_hours)) as found:
        for seen in found:
            report.buckets += 1
            if seen.error is not None:
                _fail(report, hours.bucket(seen.hour), seen.error)
                empty = 0
                if report.failures.resting(READ):
                    break
                continue
            report.failures.went_well(READ)
            empty = 0 if seen.rows or seen.aggregates else empty + 1
            if empty:
                if empty == NEWEST and not whole:
                    break
                continue
            report.occupied += 1
            visit = HourSweep(tables, report, tell, hours.bucket(seen.hour), seen.hour)
            if seen.rows:
                _isolated(report, f"the raw rows of {visit.bucket}", partial(_sweep_rows, visit))
            if seen.aggregates:
                _isolated(report, f"the records of {visit.bucket}", partial(_sweep_records, visit))
    if not report.occupied and not report.failures.total:
        # An index that answers with nothing may be another table's: emptiness is believed of the right tables only.
        tables.usage.check_shape()
        tables.aggregated.check_shape()
    return report


def sweep_unreachable(tables: Tables, tell: Tell = ignore, report: Sweep | None = None) -> Sweep:
    """Find what is filed where no Query looks, in both tables: under no hour, one to come, or over 400 days ago.

    Each row and record is filed under the hour that its key says, or ends where that hour cannot be billed any more.
    What comes with the hour that is about to begin is left alone. `tell` hears of what ended, with `ledger.NO_HOUR`.
    """
    report = report or Sweep()
    bucket = hours.bucket(tables.clock())

    def rows() -> None:
        for window in chunked(tables.usage.unreachable_rows(tables.clock()), WINDOW):
            _end_with_patience(HourSweep(tables, report, tell, bucket, None), window)

    def records() -> None:
        for window in chunked(tables.aggregated.unreachable(tables.clock()), WINDOW):
            report.changed += len(end_records(HourSweep(tables, report, tell, bucket, None), window))

    _isolated(report, "the raw rows that are filed where no run looks", rows)
    _isolated(report, "the records that are filed where no run looks", records)
    return report


@dataclass(frozen=True)
class _Seen:
    """The content of an hour's index: anything or nothing; or the error that prevented the look."""

    hour: datetime
    rows: bool = False
    aggregates: bool = False
    error: Exception | None = None


def _look(tables: Tables, shard_hours: Iterable[datetime]) -> Generator[_Seen, None, None]:
    """Look at the hours, a few at a time."""

    def look(hour: datetime) -> _Seen:
        bucket = hours.bucket(hour)
        try:
            rows = tables.usage.count_pending(bucket, most=1)
            return _Seen(hour, bool(rows), bool(tables.aggregated.count_pending(bucket, most=1)))
        except Exception as error:
            if stops_the_rest(error):
                raise
            return _Seen(hour, error=error)

    with ThreadPoolExecutor(NEWEST) as pool:
        for these in chunked(shard_hours, NEWEST):
            yield from pool.map(look, these)


def _isolated(report: Sweep, what: str, do: Callable[[], None]) -> None:
    """Do this; where it raises, count and name it. The other hours are swept all the same."""
    try:
        do()
    except Exception as error:
        if stops_the_rest(error):
            raise
        _fail(report, what, error)


def _fail(report: Sweep, what: str, error: Exception) -> None:
    report.failures.add(READ, what, error)


def _sweep_rows(visit: HourSweep) -> None:
    for window in chunked(visit.tables.usage.pending_rows(visit.bucket), WINDOW):
        if visit.report.failures.resting(ROWS_ENDED):
            return
        _end_with_patience(visit, window)


def _end_with_patience(visit: HourSweep, window: Sequence[IndexedRow]) -> None:
    """End these rows; those that change meanwhile again, before they are left to the next sweep."""
    waiting = window
    for _ in range(ATTEMPTS):
        waiting = end_rows(visit, waiting)
        if not waiting:
            break
    visit.report.changed += len(waiting)


def _sweep_records(visit: HourSweep) -> None:
    """End the records that are pending; where some were refused, all that are left again."""
    refused: list[StoredAggregate] = []
    before: list[StoredAggregate] = []
    for _ in range(ATTEMPTS):
        if visit.report.failures.resting(RECORDS_ENDED):
            return
        pending = visit.tables.aggregated.pending(visit.bucket)
        before, refused = refused, [e for window in chunked(pending, WINDOW) for e in end_records(visit, window)]
        if not refused:
            return
    stuck = [entry for entry in refused if entry in before]  # nobody changes them: it is their size
    visit.report.changed += len(refused) - len(stuck)
    visit.report.unwritable += len(stuck)
    for entry in stuck:
        visit.report.note(f"{name_of_record(entry)}: DynamoDB does not take its end, with which it may pass 400 KB")
