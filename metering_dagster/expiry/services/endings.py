"""How raw rows and records that can no longer be billed come to their end (no Dagster).

Belongs here: judging and writing for one window of rows or records, and what is done when one changed or fails. Does
not: which hours are looked at, and in which order (sweep); the rules of misfiled rows and committed groups (metering).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

from metering_dagster.core import hours
from metering_dagster.core.aws.transactions import Fate
from metering_dagster.core.chunks import chunked
from metering_dagster.core.masking import digest, mask
from metering_dagster.expiry.services.sweep_ledger import NO_HOUR
from metering_dagster.expiry.services.sweep_report import RECORDS_ENDED, ROWS_ENDED, Sweep
from metering_dagster.expiry.stores.uncommitted_rows import end_uncommitted
from metering_dagster.ledger.rules.entries import Entry
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.group_steps import name_of, named
from metering_dagster.metering.rules.raw_row import (
    BillableRow,
    GroupKey,
    RawRow,
    RowEnd,
    account_of,
    group_of,
    judge,
    key_fault,
    parse_sort_key,
)
from metering_dagster.metering.rules.statuses import RawStatus, Reason, RecordStatus
from metering_dagster.metering.rules.usage_record import RecordEnd, StoredAggregate, judge_aggregate
from metering_dagster.metering.services import ledger_entries
from metering_dagster.metering.services.aggregation import settle_group
from metering_dagster.metering.services.aggregation_report import Aggregation
from metering_dagster.metering.services.discovery import Discovery, mend
from metering_dagster.metering.services.tables import Tables
from metering_dagster.metering.stores.commit_items import Committed
from metering_dagster.metering.stores.usage_table import IndexedRow

Tell = Callable[[str, Entry], None]
"""Hears of everything that ended, with the hour in which it was found."""

AT_ONCE = 100
"""Records whose end is written in one call: a transaction, so that an error says of none whether it was written."""


@dataclass(frozen=True)
class HourSweep:
    """The sweep of one hour; or of a window of what is filed where no Query looks."""

    tables: Tables
    report: Sweep
    told: Tell
    bucket: str
    """That hour; of what is filed where no Query looks, the current one, in which is told what names no hour."""
    hour: datetime | None
    """None for what is filed where no Query looks: under no hour, one to come, or one over 400 days ago."""
    settled: set[GroupKey] = field(default_factory=set)
    """In shadow mode the groups that were settled before, for there nothing ends."""
    seen: set[tuple[str, str]] = field(default_factory=set)
    """What was counted as filed where no Query looks."""

    def tell(self, entry: Entry) -> None:
        """Tell the ledger: in the file of this hour, or of the entry's own, where it was filed where no Query looks."""
        if self.hour is None:
            self.told(NO_HOUR, replace(entry, bucket=entry.bucket or self.bucket))
        else:
            self.told(self.bucket, entry)

    def takes(self, pending: str | None, now: datetime) -> bool:
        """Return whether what stands in the table so is this visit's; else the index was behind, and others dealt with
        it.
        """
        if self.hour is not None:
            return pending == self.bucket
        return pending is not None and not hours.is_named(pending, now)

    def found(self, pending: str | None, license_arn: str, sort_key: str) -> None:
        """Count, once, what is filed where no Query looks."""
        if self.hour is None and pending is not None and (license_arn, sort_key) not in self.seen:
            self.seen.add((license_arn, sort_key))
            self.report.find(pending)


def closed_reason(hour: datetime) -> str:
    """Return why what is still pending in this hour ends unbilled."""
    return f"Still pending when its hour could no longer be billed, at {hours.closes_for_good(hour):%Y-%m-%dT%H:%MZ}"


# Raw rows.

_Group = list[IndexedRow]
"""The rows of one group; or one row whose key names none."""


def _named_group(rows: _Group) -> tuple[str, tuple[str, str]]:
    """Return what people call them, and what must not be shown of them."""
    first = rows[0]
    key = group_of(first.license_arn, first.sort_key)
    if key is not None:
        return named(key)
    called = f"a row of license {mask(first.license_arn)} ({digest(first.license_arn, first.sort_key)}) without an hour"
    return called, (first.license_arn, account_of(first.sort_key))


def end_rows(visit: HourSweep, rows: Sequence[IndexedRow]) -> list[IndexedRow]:
    """End these rows, as they stand in the table now; return those that changed while that was done.

    One group's trouble is its own: its rows stay pending, and it is counted and named.
    """
    groups: dict[tuple[str, object], _Group] = {}
    for row in rows:
        key = group_of(row.license_arn, row.sort_key)
        groups.setdefault((row.license_arn, key or row.sort_key), []).append(row)
    again: list[IndexedRow] = []

    def end(these: Sequence[_Group]) -> list[None]:
        again.extend(_end_rows(visit, [row for group in these for row in group]))
        return [None] * len(these)

    deque(visit.report.failures.each(ROWS_ENDED, list(groups.values()), end, _named_group), maxlen=0)
    return again


def _end_rows(visit: HourSweep, rows: Sequence[IndexedRow]) -> list[IndexedRow]:
    """Settle the groups that were committed, whatever their rows look like; then judge the others."""
    tables, now = visit.tables, visit.tables.clock()
    groups: dict[GroupKey, list[RawRow]] = {}
    odd: list[RawRow] = []
    for row in tables.usage.rows(rows):
        key = group_of(row.license_arn, row.sort_key)
        if not visit.takes(row.pending, now):
            continue
        if visit.hour is None and key is not None and hours.is_next(key.hour, now):
            continue  # its hour is about to begin: a seller's clock may be some seconds ahead
        visit.found(row.pending, row.license_arn, row.sort_key)
        if key is None:
            odd.append(row)
        else:
            groups.setdefault(key, []).append(row)
    committed = tables.aggregated.committed(list(groups)) if groups else {}
    again = [row for key, found in committed.items() if not _settle(visit, key, found) for row in groups[key]]
    past: dict[GroupKey, list[RawRow]] = {}
    for key, these in groups.items():
        if key in committed:
            continue
        for row in these:
            fault = key_fault(row.sort_key, row.account, row.dimension, row.timestamp)
            if fault is None and hours.is_expirable(key.hour, now):
                past.setdefault(key, []).append(row)
            else:
                odd.append(row)
    _mend(visit, odd)
    again += _expire(visit, past, now)
    return [IndexedRow(row.license_arn, row.sort_key, row.account, row.dimension) for row in again]


def _mend(visit: HourSweep, odd: Sequence[RawRow]) -> None:
    failures = visit.report.failures
    mended = Discovery(settled=Aggregation(tell=visit.tell), tell=visit.tell, failures=failures)
    try:
        mend(visit.tables, None if visit.hour is None else visit.bucket, odd, mended)
    finally:
        visit.report.mend(mended)  # also what was done before it broke off


def _settle(visit: HourSweep, key: GroupKey, committed: Committed) -> bool:
    """End the rows of a group that was committed; whether none of them changed meanwhile."""
    if key in visit.settled:
        return True
    done = Aggregation(tell=visit.tell, failures=visit.report.failures)
    try:
        settle_group(visit.tables, key, committed, done)
    finally:
        visit.report.settle(done)
    if not visit.tables.writes:
        visit.settled.add(key)
    return not done.unsettled


@dataclass(frozen=True)
class _Expiry:
    """A row's end, and what is to be said of it: made before anything is written, so that no end goes uncounted."""

    key: GroupKey
    end: RowEnd
    lost: Decimal
    entry: Entry


def _expire(visit: HourSweep, groups: Mapping[GroupKey, Sequence[RawRow]], now: datetime) -> list[RawRow]:
    """End the rows of groups that were never committed; return those that were refused."""
    ends = {key: [_expired(key, row, now) for row in rows] for key, rows in groups.items()}
    waiting = {
        _place_of(end.row): _Expiry(key, end, _quantity(visit, end.row), ledger_entries.of_row(end))
        for key, of_key in ends.items()
        for end in of_key
    }
    if not visit.tables.writes:
        for expiry in waiting.values():
            _lose(visit, expiry)
        return []
    refused = []
    try:
        for key, end, fate in end_uncommitted(visit.tables, ends, now):
            expiry = waiting.pop(_place_of(end.row))
            if fate is Fate.WRITTEN:
                _lose(visit, expiry)
            elif fate is Fate.REFUSED:
                refused.append(end.row)
            else:
                visit.report.unwritable += 1
                visit.report.note(
                    f"{name_of(key)}: DynamoDB does not take the end of a row, which may pass 400 KB with it"
                )
    except Exception:
        _lose_what_was_written(visit, waiting)
        raise
    return refused


def _lose_what_was_written(visit: HourSweep, waiting: Mapping[tuple[str, str], _Expiry]) -> None:
    """Count the ends that stand in the table though nobody said so: the writing broke off after them."""
    places = [IndexedRow(license_arn, sort_key, None, None) for license_arn, sort_key in waiting]
    for row in visit.tables.usage.rows(places):
        expiry = waiting[_place_of(row)]
        if row.pending is None and row.status == expiry.end.status and row.reason == expiry.end.reason:
            _lose(visit, expiry)


def _lose(visit: HourSweep, expiry: _Expiry) -> None:
    visit.report.lose(expiry.key.bucket, expiry.key.dimension, rows=1, quantity=expiry.lost)
    visit.tell(expiry.entry)


def _quantity(visit: HourSweep, row: RawRow) -> Decimal:
    found = judge(row, visit.tables.quantities)
    return found.quantity if isinstance(found, BillableRow) else Decimal(0)


def _place_of(row: RawRow) -> tuple[str, str]:
    return row.license_arn, row.sort_key


def _expired(key: GroupKey, row: RawRow, now: datetime) -> RowEnd:
    if row.pending == key.bucket:
        reason = closed_reason(key.hour)
    elif row.pending is not None and hours.is_named(row.pending, now):
        reason = f"Filed under another hour until its own, {key.bucket}, could not be billed any more"
    else:
        reason = f"Filed where no run looks until its own hour, {key.bucket}, could not be billed any more"
    return RowEnd(row, RawStatus.EXPIRED, reason)


# Records.


def name_of_record(entry: StoredAggregate) -> str:
    """Return a record in a message, masked."""
    where = f"{mask(entry.license_arn)} ({digest(entry.license_arn, entry.sort_key)})"
    hour = _own_hour(entry)
    return f"{hours.bucket(hour) if hour else 'no hour'}: a record of license {where}"


def end_records(visit: HourSweep, stored: Sequence[StoredAggregate]) -> list[StoredAggregate]:
    """End these records, or file them where they belong; return those that were refused.

    One record's trouble is its own: it stays pending, and is counted and named.
    """
    refused: list[StoredAggregate] = []

    def end(these: Sequence[StoredAggregate]) -> list[None]:
        refused.extend(_end_records(visit, these))
        return [None] * len(these)

    def named_record(entry: StoredAggregate) -> tuple[str, tuple[str, str]]:
        return name_of_record(entry), entry.buyer

    for some in chunked(stored, AT_ONCE):
        deque(visit.report.failures.each(RECORDS_ENDED, some, end, named_record), maxlen=0)
    return refused


@dataclass(frozen=True)
class _RecordExpiry:
    """A record's end, and what is to be said of it: made before anything is written, so that no end goes uncounted."""

    entry: StoredAggregate
    end: RecordEnd
    lost: Decimal
    told: Entry
    bucket: str
    dimension: str


def _end_records(visit: HourSweep, stored: Sequence[StoredAggregate]) -> list[StoredAggregate]:
    now = visit.tables.clock()
    if visit.hour is not None and not hours.is_expirable(visit.hour, now):
        return []  # the month has turned during the sweep, and what is left waits until the grace has closed
    ends: list[_RecordExpiry] = []
    moves: list[tuple[StoredAggregate, str]] = []
    for entry in stored:
        place = _place(visit, entry, now)
        if isinstance(place, RecordEnd):
            ends.append(_record_expiry(visit, entry, place, now))
        elif place is not None:
            moves.append((entry, place))
    for entry in (*(expiry.entry for expiry in ends), *(entry for entry, _ in moves)):
        visit.found(entry.pending, entry.license_arn, entry.sort_key)
    return [*_write_ends(visit, ends, now), *_refile(visit, moves, now)]


def _record_expiry(visit: HourSweep, entry: StoredAggregate, end: RecordEnd, now: datetime) -> _RecordExpiry:
    found, parts = judge_aggregate(entry, now, visit.tables.quantities), parse_sort_key(entry.sort_key)
    lost = found.quantity if isinstance(found, Aggregate) else Decimal(0)
    told, bucket = ledger_entries.of_unsendable(end), visit.bucket
    own = _own_hour(entry)
    if visit.hour is None and end.status is RecordStatus.EXPIRED and own is not None:
        bucket = hours.bucket(own)
        told = replace(told, bucket=bucket)  # it is missing there, and not in the hour of this sweep
    return _RecordExpiry(entry, end, lost, told, bucket, parts.dimension if parts else "")


def _write_ends(visit: HourSweep, ends: Sequence[_RecordExpiry], now: datetime) -> list[StoredAggregate]:
    tables, refused = visit.tables, []
    written = tables.aggregated.record([e.end for e in ends], now) if tables.writes and ends else [True] * len(ends)
    for expiry, ok in zip(ends, written, strict=True):
        if not ok:
            refused.append(expiry.entry)
            continue
        if expiry.end.status is RecordStatus.EXPIRED:
            visit.report.lose(expiry.bucket, expiry.dimension, records=1, quantity=expiry.lost)
        else:
            visit.report.rejected[expiry.end.reason] += 1
            visit.report.note(f"{name_of_record(expiry.entry)} was rejected: {expiry.end.reason}")
        visit.tell(expiry.told)
    return refused


def _refile(visit: HourSweep, moves: Sequence[tuple[StoredAggregate, str]], now: datetime) -> list[StoredAggregate]:
    if not moves:
        return []
    written = visit.tables.aggregated.refile(moves, now) if visit.tables.writes else [True] * len(moves)
    for (_, bucket), ok in zip(moves, written, strict=True):
        visit.report.refiled_records[bucket] += ok
    return [entry for (entry, _), ok in zip(moves, written, strict=True) if not ok]


def _place(visit: HourSweep, entry: StoredAggregate, now: datetime) -> RecordEnd | str | None:
    """Return what becomes of a record: its end, the hour that it belongs to, or nothing yet."""
    own = _own_hour(entry)
    if visit.hour is not None:
        # A record whose key names an hour that is still open is filed wrongly, and not late.
        if hours.is_expirable(own or visit.hour, now):
            return _end(entry, RecordStatus.EXPIRED, closed_reason(visit.hour))
        return _end(entry, RecordStatus.REJECTED, Reason.SORT_KEY_MISMATCH.value)
    if own is None:
        malformed = parse_sort_key(entry.sort_key) is None
        code = Reason.MALFORMED_SORT_KEY if malformed else Reason.MALFORMED_TIMESTAMP
        return _end(entry, RecordStatus.REJECTED, code.value)
    if hours.is_next(own, now):
        return None  # its hour is about to begin: a seller's clock may be some seconds ahead
    if own > now:
        return _end(entry, RecordStatus.REJECTED, Reason.TIMESTAMP_IN_FUTURE.value)
    if hours.is_expirable(own, now):
        return _end(entry, RecordStatus.EXPIRED, closed_reason(own))
    return hours.bucket(own)


def _end(entry: StoredAggregate, status: RecordStatus, reason: str) -> RecordEnd:
    return RecordEnd(entry.license_arn, entry.sort_key, entry.pending, entry.quantity, status, reason)


def _own_hour(entry: StoredAggregate) -> datetime | None:
    parts = parse_sort_key(entry.sort_key)
    try:
        return hours.parse_bucket(parts.timestamp) if parts else None
    except ValueError:
        return None
