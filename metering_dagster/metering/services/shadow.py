"""Shadow mode: what a live run would have billed for an hour, worked out without writing to any table (no Dagster).

Belongs here: putting the fold and the pending aggregates together into the ledger. Does not: the fold itself.
"""

from decimal import Decimal

from metering_dagster.core.masking import mask_text
from metering_dagster.ledger.rules.entries import EntryOutcome
from metering_dagster.metering.rules.isolation import Failures
from metering_dagster.metering.rules.quantities import EXACT
from metering_dagster.metering.services import ledger_entries
from metering_dagster.metering.services.aggregation import aggregate
from metering_dagster.metering.services.aggregation_report import Tell
from metering_dagster.metering.services.sendable import pending_windows, reject_unsendable
from metering_dagster.metering.services.submission_report import Submission
from metering_dagster.metering.services.tables import Slice, Tables


def would_bill(tables: Tables, part: Slice, tell: Tell) -> Submission:
    """Fold the hour and look at what is pending; `tell` hears what would be billed. No table is written to."""
    report, failures = Submission(), Failures()
    aggregates = [
        *(
            record
            for window in pending_windows(tables, part, failures)
            for record in reject_unsendable(tables, window, report, failures=failures)
        ),
        *aggregate(tables, part).would_commit,
    ]
    report.add_failures(failures)
    report.records = len(aggregates)
    report.by_status[EntryOutcome.WOULD_BILL.value] += len(aggregates)
    for record in sorted(aggregates, key=lambda record: record.key):
        dimension = mask_text(record.key.dimension)
        so_far = report.by_dimension.get(dimension, Decimal(0))
        report.by_dimension[dimension] = EXACT.add(so_far, record.quantity)
        tell(ledger_entries.of_would_bill(record))
    return report
