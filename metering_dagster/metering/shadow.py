"""Shadow mode: what a live run would have billed for an hour, worked out without writing to any table (no Dagster).

Belongs here: putting the fold and the pending aggregates together into the ledger. Does not: the fold itself.
"""

from collections.abc import Sequence
from decimal import Decimal

from metering_dagster.ledger.files import Entry, write_entries
from metering_dagster.metering.aggregation import aggregate
from metering_dagster.metering.groups import Aggregate
from metering_dagster.metering.quantities import EXACT
from metering_dagster.metering.submission import Submission, pending_windows, reject_unsendable
from metering_dagster.metering.tables import Slice, Tables
from metering_dagster.settings import Mode

WOULD_BILL = "WouldBill"


def would_bill(tables: Tables, part: Slice, ledger_uri: str, run_id: str) -> Submission:
    """Fold the hour and look at what is pending, and write what would be billed into the ledger, and nowhere else."""
    report = Submission()
    aggregates = [
        *(record for window in pending_windows(tables, part) for record in reject_unsendable(tables, window, report)),
        *aggregate(tables, part).would_commit,
    ]
    report.records = len(aggregates)
    report.by_status[WOULD_BILL] += len(aggregates)
    for record in aggregates:
        so_far = report.by_dimension.get(record.key.dimension, Decimal(0))
        report.by_dimension[record.key.dimension] = EXACT.add(so_far, record.quantity)
    report.notes.append(f"Written to {write_entries(ledger_uri, part.bucket, run_id, _entries(aggregates, run_id))}")
    return report


def _entries(aggregates: Sequence[Aggregate], run_id: str) -> list[Entry]:
    return [
        Entry(
            license_arn=record.key.license_arn,
            customer_aws_account_id=record.key.account,
            customer_identifier=record.customer_identifier,
            dimension=record.key.dimension,
            quantity=record.quantity,
            status=WOULD_BILL,
            mode=Mode.SHADOW.value,
            run_id=run_id,
        )
        for record in sorted(aggregates, key=lambda record: record.key)
    ]
