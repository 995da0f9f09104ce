"""The sweep of one shard: what can no longer be billed comes to its end in both tables (no Dagster).

Belongs here: the order of looking, judging, writing, and what is done when something changed meanwhile. Does not: which
hours a shard owns (hours), the rules of misfiled rows and committed groups (metering), what a person reads (metadata).
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from metering_dagster import hours
from metering_dagster.chunks import chunked
from metering_dagster.errors import TableError
from metering_dagster.expiry.report import Sweep
from metering_dagster.expiry.ticks import NEWEST
from metering_dagster.expiry.uncommitted import end_uncommitted
from metering_dagster.ledger.entries import Entry
from metering_dagster.masking import digest, mask
from metering_dagster.metering import telling
from metering_dagster.metering.aggregation import ATTEMPTS, settle_group
from metering_dagster.metering.aggregation_report import Aggregation
from metering_dagster.metering.commit_items import Committed
from metering_dagster.metering.discovery import Discovery, mend
from metering_dagster.metering.group_steps import name_of
from metering_dagster.metering.groups import Aggregate
from metering_dagster.metering.reasons import RawStatus, Reason, RecordStatus
from metering_dagster.metering.records import RecordEnd, StoredAggregate, judge_aggregate
from metering_dagster.metering.rows import GroupKey, RawRow, RowEnd, Usage, group_of, judge, key_fault, parse_sort_key
from metering_dagster.metering.tables import Tables
from metering_dagster.metering.usage_table import IndexedRow
from metering_dagster.transactions import Fate

Tell = Callable[[str, Entry], None]
"""Hears of everything that ended, with the hour in which it was found."""

WINDOW = 1_000
"""Rows or records that are held in memory at once, whatever an hour holds."""
MOST_FAULTS = 3
"""Hours whose tables refuse what is asked of them, before a sweep gives up."""


def ignore(bucket: str, entry: Entry) -> None:
    """For a sweep that keeps no ledger."""


def hours_of_sweep(shard: int, now: datetime, as_of: datetime | None = None) -> list[datetime]:
    """What a sweep looks at: the shard's hours at `as_of` (default: `now`), but none that must not be expired now.

    A tick names itself as `as_of`: an hour's shard moves on with the clock, and a run that waited, or is made up for
    later, must meet the hours of its tick, for no other shard's sweep of that day meets them.
    """
    return [hour for hour in hours.shard_hours(shard, as_of or now) if hours.is_expirable(hour, now)]


def sweep(
    tables: Tables, shard_hours: Iterable[datetime], tell: Tell = ignore, *, whole: bool, report: Sweep | None = None
) -> Sweep:
    """End what is pending in these hours, newest first; unless it is `whole`, stop after six empty ones in a row.

    `tell` hears of what ended; `report` is what to count in, for whoever wants it even where the sweep breaks off.
    In shadow mode nothing is written, and the report says what would be.
    """
    report = report or Sweep()
    empty = 0
    with closing(_look(tables, shard_hours)) as found:
        for hour, rows, aggregates in found:
            report.buckets += 1
            empty = 0 if rows or aggregates else empty + 1
            if empty:
                if empty == NEWEST and not whole:
                    break
                continue
            report.occupied += 1
            _sweep_hour(_Visit(tables, hour, report, tell), rows=rows, aggregates=aggregates)
    if not report.occupied:
        # An index that answers with nothing may be another table's: emptiness is believed of the right tables only.
        tables.usage.check_shape()
        tables.aggregated.check_shape()
    return report


def _look(tables: Tables, shard_hours: Iterable[datetime]) -> Generator[tuple[datetime, bool, bool], None, None]:
    """Whether anything is filed under each hour, as raw row and as record; a few hours at a time."""

    def look(hour: datetime) -> tuple[datetime, bool, bool]:
        bucket = hours.bucket(hour)
        rows = tables.usage.count_pending(bucket, most=1)
        return hour, bool(rows), bool(tables.aggregated.count_pending(bucket, most=1))

    with ThreadPoolExecutor(NEWEST) as pool:
        for these in chunked(shard_hours, NEWEST):
            yield from pool.map(look, these)


@dataclass(frozen=True)
class _Visit:
    """The sweep of one hour."""

    tables: Tables
    hour: datetime
    report: Sweep
    told: Tell
    settled: set[GroupKey] = field(default_factory=set)
    """In shadow mode the groups that were settled before, for there nothing ends."""

    @property
    def bucket(self) -> str:
        return hours.bucket(self.hour)

    @property
    def closed(self) -> str:
        """Why nothing more can be billed here, as a reason."""
        closed = hours.closes_for_good(self.hour)
        return f"Still pending when its hour could no longer be billed, at {closed:%Y-%m-%dT%H:%MZ}"

    def tell(self, entry: Entry) -> None:
        self.told(self.bucket, entry)


def _sweep_hour(visit: _Visit, *, rows: bool, aggregates: bool) -> None:
    """Sweep both tables' hour. Where a table refuses that, the other hours are swept all the same."""
    try:
        if rows:
            _sweep_rows(visit)
        if aggregates:
            _sweep_aggregates(visit)
    except TableError as error:
        visit.report.faults.append(f"{visit.bucket}: {error}")
        if len(visit.report.faults) >= MOST_FAULTS:
            raise


def _sweep_rows(visit: _Visit) -> None:
    for window in chunked(visit.tables.usage.pending_rows(visit.bucket), WINDOW):
        waiting = window
        for _ in range(ATTEMPTS):
            waiting = _end_rows(visit, waiting)
            if not waiting:
                break
        visit.report.changed += len(waiting)


def _end_rows(visit: _Visit, rows: Sequence[IndexedRow]) -> list[IndexedRow]:
    """End these rows, as they stand in the table now; those that changed while that was done."""
    tables, now = visit.tables, visit.tables.clock()
    groups: dict[GroupKey, list[RawRow]] = {}
    odd: list[RawRow] = []
    for row in tables.usage.rows(rows):
        key = group_of(row.license_arn, row.sort_key)
        fault = key_fault(row.sort_key, row.account, row.dimension, row.timestamp)
        if row.pending != visit.bucket:
            continue  # the index was behind: somebody has dealt with it
        if fault is None and key is not None and hours.is_expirable(key.hour, now):
            groups.setdefault(key, []).append(row)
        else:
            odd.append(row)
    mended = Discovery(settled=Aggregation(tell=visit.tell), tell=visit.tell)
    mend(tables, visit.bucket, odd, mended)
    visit.report.mend(mended)
    committed = tables.aggregated.committed(list(groups)) if groups else {}
    again = [row for key, found in committed.items() if not _settle(visit, key, found) for row in groups[key]]
    again += _expire(visit, {key: these for key, these in groups.items() if key not in committed}, now)
    return [IndexedRow(row.license_arn, row.sort_key, row.account, row.dimension) for row in again]


def _settle(visit: _Visit, key: GroupKey, committed: Committed) -> bool:
    """End the rows of a group that was committed; whether none of them changed meanwhile."""
    if key in visit.settled:
        return True
    if not visit.tables.writes:
        visit.settled.add(key)
    done = Aggregation(tell=visit.tell)
    settle_group(visit.tables, key, committed, done)
    visit.report.settle(done)
    return not done.unsettled


def _expire(visit: _Visit, groups: Mapping[GroupKey, Sequence[RawRow]], now: datetime) -> list[RawRow]:
    """End the rows of groups that were never committed; those that were refused."""
    ends = {key: [RowEnd(row, RawStatus.EXPIRED, _reason(visit, key)) for row in rows] for key, rows in groups.items()}
    if visit.tables.writes:
        fates: Iterable[tuple[GroupKey, RowEnd, Fate]] = end_uncommitted(visit.tables, ends, now)
    else:
        fates = ((key, end, Fate.WRITTEN) for key, of_key in ends.items() for end in of_key)
    refused = []
    for key, end, fate in fates:
        if fate is Fate.WRITTEN:
            found = judge(end.row, visit.tables.quantities)
            lost = found.quantity if isinstance(found, Usage) else Decimal(0)
            visit.report.lose(key.bucket, key.dimension, rows=1, quantity=lost)
            visit.tell(telling.of_row(end))
        elif fate is Fate.REFUSED:
            refused.append(end.row)
        else:
            visit.report.unwritable += 1
            visit.report.note(f"{name_of(key)}: DynamoDB does not take the end of a row, which may pass 400 KB with it")
    return refused


def _reason(visit: _Visit, key: GroupKey) -> str:
    if key.bucket == visit.bucket:
        return visit.closed
    return f"Filed under another hour until its own, {key.bucket}, could not be billed any more"


def _sweep_aggregates(visit: _Visit) -> None:
    """End the records that are pending; where some were refused, all that are left again."""
    refused: list[StoredAggregate] = []
    before: list[StoredAggregate] = []
    for _ in range(ATTEMPTS):
        pending = visit.tables.aggregated.pending(visit.bucket)
        before, refused = refused, [e for window in chunked(pending, WINDOW) for e in _end_aggregates(visit, window)]
        if not refused:
            return
    stuck = [entry for entry in refused if entry in before]  # nobody changes them: it is their size
    visit.report.changed += len(refused) - len(stuck)
    visit.report.unwritable += len(stuck)
    for entry in stuck:
        visit.report.note(f"{_name_of(visit, entry)}: DynamoDB does not take its end, with which it may pass 400 KB")


def _end_aggregates(visit: _Visit, stored: Sequence[StoredAggregate]) -> list[StoredAggregate]:
    """End these records; those that were refused."""
    tables, now = visit.tables, visit.tables.clock()
    if not hours.is_expirable(visit.hour, now):
        return []  # the month has turned during the sweep, and what is left waits until the grace has closed
    ends = [_aggregate_end(visit, entry, now) for entry in stored]
    written = tables.aggregated.record(ends, now) if tables.writes else [True] * len(ends)
    for entry, end, ok in zip(stored, ends, written, strict=True):
        if ok and end.status is RecordStatus.EXPIRED:
            found = judge_aggregate(entry, now, tables.quantities)
            lost = found.quantity if isinstance(found, Aggregate) else Decimal(0)
            parts = parse_sort_key(entry.sort_key)
            visit.report.lose(visit.bucket, parts.dimension if parts else "", records=1, quantity=lost)
        elif ok:
            visit.report.rejected[end.reason] += 1
            visit.report.note(f"{_name_of(visit, entry)} was rejected: {end.reason}")
        if ok:
            visit.tell(telling.of_unsendable(end))
    return [entry for entry, ok in zip(stored, written, strict=True) if not ok]


def _name_of(visit: _Visit, entry: StoredAggregate) -> str:
    licence = f"{mask(entry.license_arn)} ({digest(entry.license_arn, entry.sort_key)})"
    return f"{visit.bucket}: a record of licence {licence}"


def _aggregate_end(visit: _Visit, entry: StoredAggregate, now: datetime) -> RecordEnd:
    """`SubmissionExpired`; but a record whose key names an hour that is still open is filed wrongly, and not late."""
    parts = parse_sort_key(entry.sort_key)
    try:
        own = hours.parse_bucket(parts.timestamp) if parts else visit.hour
    except ValueError:
        own = visit.hour
    status, reason = RecordStatus.EXPIRED, visit.closed
    if not hours.is_expirable(own, now):
        status, reason = RecordStatus.REJECTED, Reason.SORT_KEY_MISMATCH.value
    return RecordEnd(entry.license_arn, entry.sort_key, entry.pending, entry.quantity, status, reason)
