"""What the ledger is told of an hour (pure).

Belongs here: ledger entries made from rows, groups and records. Does not: when they are told, how they are stored.
"""

from decimal import Decimal

from metering_dagster.ledger.rules.entries import Entry, EntryKind, EntryOutcome
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.raw_row import GroupKey, RowEnd, group_of, parse_sort_key
from metering_dagster.metering.rules.statuses import RawStatus
from metering_dagster.metering.rules.usage_record import RecordEnd


def of_row(end: RowEnd) -> Entry:
    """Return a raw row that ended in no record: rejected, late or expired."""
    row = end.row
    parts = parse_sort_key(row.sort_key)
    # What cannot be billed is missing in the hour that its key names, wherever it was filed.
    group = group_of(row.license_arn, row.sort_key) if end.status in (RawStatus.LATE, RawStatus.EXPIRED) else None
    return Entry(
        kind=EntryKind.ROW.value,
        outcome=end.status.value if end.status else "",
        license_arn=row.license_arn,
        customer_aws_account_id=parts.account if parts else str(row.account or ""),
        dimension=parts.dimension if parts else str(row.dimension or ""),
        quantity=row.quantity if isinstance(row.quantity, Decimal) else None,
        reason=end.reason,
        sort_key=row.sort_key,
        late_by=end.late_by,
        bucket=group.bucket if group else "",
    )


def of_waiting(key: GroupKey, quantity: Decimal, rows: int, *, held: bool) -> Entry:
    """Return a group that stays pending: held by a bad row, or waiting at zero."""
    return Entry(
        kind=EntryKind.GROUP.value,
        outcome=(EntryOutcome.HELD if held else EntryOutcome.WAITING).value,
        license_arn=key.license_arn,
        customer_aws_account_id=key.account,
        dimension=key.dimension,
        quantity=quantity,
        rows=rows,
    )


def of_record(end: RecordEnd, aggregate: Aggregate) -> Entry:
    """Return a record, and how it ended."""
    return _record(aggregate, end.status.value, end.reason, end.record_id)


def of_unsendable(end: RecordEnd) -> Entry:
    """Return an aggregate that breaks the contract, told as far as its key can be read."""
    parts = parse_sort_key(end.sort_key)
    return Entry(
        kind=EntryKind.RECORD.value,
        outcome=end.status.value,
        license_arn=end.license_arn,
        customer_aws_account_id=parts.account if parts else "",
        dimension=parts.dimension if parts else "",
        quantity=end.quantity if isinstance(end.quantity, Decimal) else None,
        reason=end.reason,
        sort_key=end.sort_key,
    )


def of_would_bill(aggregate: Aggregate) -> Entry:
    """Return a record that a live run would have sent."""
    return _record(aggregate, EntryOutcome.WOULD_BILL.value)


def _record(aggregate: Aggregate, outcome: str, reason: str = "", record_id: str = "") -> Entry:
    key = aggregate.key
    return Entry(
        kind=EntryKind.RECORD.value,
        outcome=outcome,
        license_arn=key.license_arn,
        customer_aws_account_id=key.account,
        dimension=key.dimension,
        quantity=aggregate.quantity,
        reason=reason,
        metering_record_id=record_id,
        customer_identifier=aggregate.customer_identifier or "",
    )
