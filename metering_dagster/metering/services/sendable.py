"""What of an hour can be sent, and how records come to their end in the table (no Dagster).

Belongs here: listing what is pending, judging it, claiming legacy identities, writing ends down record by record where
they cannot be written together. Does not: sending (submission), what breaks the contract (usage_record).
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from metering_dagster.core.chunks import chunked
from metering_dagster.core.errors import ItemRefusedError, UnreachableError
from metering_dagster.core.masking import digest, mask, mask_text
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.group_steps import name_of
from metering_dagster.metering.rules.isolation import Failures, stops_the_rest
from metering_dagster.metering.rules.raw_row import GroupKey, account_of, parse_sort_key
from metering_dagster.metering.rules.statuses import Reason, RecordStatus
from metering_dagster.metering.rules.usage_record import (
    Identity,
    RecordEnd,
    StoredAggregate,
    api_record,
    identity,
    judge_aggregate,
)
from metering_dagster.metering.services import ledger_entries
from metering_dagster.metering.services.aggregation_report import Tell, ignore
from metering_dagster.metering.services.tables import Slice, Tables
from metering_dagster.metering.stores.record_ends import Written

if TYPE_CHECKING:
    from metering_dagster.metering.services.submission_report import Submission

WINDOW = 1_000
"""Records that are held in memory at once."""
PUT_BACK = "its aggregate had been gone and was put back, so it may have been billed before"
"""What is said of a record that was put back and then refused."""
SHORT = {
    Written.BARE: "the status alone was written: the item is full (400 KB)",
    Written.UNMARKED: "told by the ledger alone: the item is full (400 KB), so only its meteringPending was removed",
}
"""What is said where less than the whole end was written."""


def pending_windows(tables: Tables, part: Slice, failures: Failures | None = None) -> Iterator[list[StoredAggregate]]:
    """Return what is pending in the slice, a bounded number at a time: deprovisioning licenses first, each record once.

    What cannot be read is left out and counted among the failures; without those it raises.
    """
    return chunked(_pending(tables, part, failures), WINDOW)


def _pending(tables: Tables, part: Slice, failures: Failures | None) -> Iterator[StoredAggregate]:
    urgent = {buyer for buyer in part.expiries or () if part.holds(buyer)}
    for stored in tables.aggregated.pending(part.bucket, sorted({arn for arn, _ in urgent}), failures):
        if stored.buyer in urgent:
            yield stored
    others = None if part.buyers is None else sorted({arn for arn, _ in part.buyers - urgent})
    for stored in tables.aggregated.pending(part.bucket, others, failures):
        if stored.buyer not in urgent and part.holds(stored.buyer):
            yield stored


def reject_unsendable(
    tables: Tables,
    stored: Iterable[StoredAggregate],
    report: "Submission",
    tell: Tell = ignore,
    failures: Failures | None = None,
) -> list[Aggregate]:
    """Return the records that can be sent; those that break the contract end as `RejectedClientSide`, and are counted.

    One that cannot be judged is left out and counted among the failures. So is, of legacy records, one whose identity
    another group holds: it ends as `MissingLegacyIdentifier`, for the service would take the two for one.
    """
    failures = Failures() if failures is None else failures
    now = tables.clock()
    entries = list(stored)
    good: list[tuple[StoredAggregate, Aggregate]] = []
    faulty: list[tuple[StoredAggregate, Reason]] = []
    for entry in entries:
        try:
            judged = judge_aggregate(entry, now, tables.quantities)
        except Exception as error:
            if stops_the_rest(error):
                raise
            failures.add("judged", _name_of_stored(entry), error, _secrets(entry))
            continue
        if isinstance(judged, Reason):
            faulty.append((entry, judged))
        else:
            good.append((entry, judged))
    twins = _twins(tables, [aggregate for _, aggregate in good], now, failures)
    faulty += [(entry, Reason.MISSING_LEGACY_IDENTIFIER) for entry, a in good if twins.get(a.key) is True]
    _reject(tables, faulty, report, tell, failures)
    return [aggregate for _, aggregate in good if aggregate.key not in twins]


def _twins(tables: Tables, aggregates: Sequence[Aggregate], now: datetime, failures: Failures) -> dict[GroupKey, bool]:
    """Return the legacy records that must not be sent: True where another group holds the identity, False where that
    cannot be found out and the record is left.
    """
    legacy = [aggregate for aggregate in aggregates if aggregate.key.is_legacy]
    if not tables.writes:
        seen: dict[Identity, GroupKey] = {}
        mine = {a.key: identity(api_record(a, tables.quantities)) for a in legacy}
        return {key: True for key, who in mine.items() if seen.setdefault(who, key) != key}
    return _claim(tables, legacy, now, failures) if legacy else {}


def _claim(tables: Tables, legacy: Sequence[Aggregate], now: datetime, failures: Failures) -> dict[GroupKey, bool]:
    """Claim the identities all together, or, where that fails, one by one."""
    try:
        claimed = tables.aggregated.identities.claim(legacy, now)
        failures.went_well("claimed")
    except Exception as error:
        if stops_the_rest(error):
            raise
        if failures.resting("claimed"):
            failures.skip("claimed", len(legacy))
            return {aggregate.key: False for aggregate in legacy}
        if len(legacy) > 1:
            parts = [_claim(tables, [aggregate], now, failures) for aggregate in legacy]
            return {key: refused for part in parts for key, refused in part.items()}
        (one,) = legacy
        failures.add("claimed", name_of(one.key), error, [one.key.account, one.customer_identifier or ""])
        return {one.key: False}
    for key in claimed.undecided:
        changed = UnreachableError("the holder of its customer identifier changed each time it was read")
        failures.add("claimed", name_of(key), changed)
    return dict.fromkeys(claimed.refused, True) | dict.fromkeys(claimed.undecided, False)


def _reject(
    tables: Tables,
    faulty: Sequence[tuple[StoredAggregate, Reason]],
    report: "Submission",
    tell: Tell,
    failures: Failures,
) -> None:
    """End what breaks the contract."""
    ends = [
        RecordEnd(
            entry.license_arn,
            entry.sort_key,
            entry.pending,
            entry.quantity,
            RecordStatus.REJECTED,
            f"{reason.value}; {PUT_BACK}" if entry.put_back else reason.value,
            stored=entry.stored,
        )
        for entry, reason in faulty
    ]
    names = [_name_of_stored(entry) for entry, _ in faulty]
    written = write_ends(tables, ends, names, failures) if tables.writes else [Written.WHOLE] * len(ends)
    for end, how, name in zip(ends, written, names, strict=True):
        if how is None:
            continue
        if how is Written.REFUSED:
            report.ended_by_others += 1
            continue
        tell(ledger_entries.of_unsendable(end))
        report.by_status[end.status.value] += 1
        report.rejected[end.reason] += 1
        report.note(f"{name} breaks the contract: {end.reason}" + (f"; {SHORT[how]}" if how in SHORT else ""))


def write_ends(
    tables: Tables, ends: Sequence[RecordEnd], names: Sequence[str], failures: Failures
) -> list[Written | None]:
    """Write how records ended; how much of each was written, None where it could not be and the record stays pending.

    Where writing all of them fails each is written by itself, so that what is wrong with one is told of that one alone.
    """
    if not ends:
        return []
    try:
        written: list[Written | None] = [*tables.aggregated.write_ends(ends, tables.clock())]
        failures.went_well("recorded")
    except Exception as error:
        if stops_the_rest(error):
            raise
        if len(ends) > 1:
            return [_write_one(tables, end, name, failures) for end, name in zip(ends, names, strict=True)]
        failures.add("recorded", names[0], error, (ends[0].license_arn, account_of(ends[0].sort_key)))
        return [None]
    for place, how in enumerate(written):
        if how is Written.INVALID:
            refusal = ItemRefusedError(
                f"DynamoDB takes no write of this item; how it ended is {ends[place].status.value}"
            )
            failures.add("recorded", names[place], refusal)
            written[place] = None
    return written


def _write_one(tables: Tables, end: RecordEnd, name: str, failures: Failures) -> Written | None:
    if failures.resting("recorded"):
        failures.skip("recorded")
        return None
    return write_ends(tables, [end], [name], failures)[0]


def _name_of_stored(entry: StoredAggregate) -> str:
    """Return the aggregate in a message: what its key says, masked, and a digest that tells two apart."""
    parts = parse_sort_key(entry.sort_key)
    what = f"{mask_text(parts.timestamp)} {mask_text(parts.dimension)}" if parts else "of an unreadable key"
    return f"an aggregate {what} of license {mask(entry.license_arn)} ({digest(entry.license_arn, entry.sort_key)})"


def _secrets(entry: StoredAggregate) -> tuple[str, ...]:
    identifier = entry.customer_identifier
    return entry.license_arn, account_of(entry.sort_key), identifier if isinstance(identifier, str) else ""
