"""What a person reads of a sweep in the UI and in the log.

Belongs here: putting the report into Dagster's metadata and into warnings. Does not: deciding anything. Buyers' data
stays masked.
"""

import dagster as dg

from metering_dagster.core.masking import markdown_list, printable
from metering_dagster.expiry.services.sweep_report import READ, RECORDS_ENDED, ROWS_ENDED, ExpiredUsage, Sweep
from metering_dagster.metering.rules.quantities import number_text

_WARNED_HOURS = 30
_REASONS = 5


def of_sweep(mode: str, report: Sweep, *, whole: bool) -> dict[str, dg.MetadataValue]:
    """Counts that plot over the runs, and what was lost by hour and dimension."""
    lost = report.total
    shown: dict[str, dg.MetadataValue] = {
        "mode": dg.MetadataValue.text(str(mode)),
        "whole": dg.MetadataValue.bool(whole),
        "hours_looked_at": dg.MetadataValue.int(report.buckets),
        "hours_with_something_pending": dg.MetadataValue.int(report.occupied),
        "dagster/partition_row_count": dg.MetadataValue.int(lost.rows + lost.records),
        "expired_rows": dg.MetadataValue.int(lost.rows),
        "expired_records": dg.MetadataValue.int(lost.records),
        "lost_quantity": dg.MetadataValue.float(float(lost.quantity)),
        "rejected": dg.MetadataValue.int(report.rejected.total()),
        "refiled_rows": dg.MetadataValue.int(report.refiled.total()),
        "refiled_records": dg.MetadataValue.int(report.refiled_records.total()),
        "filed_where_no_run_looks": dg.MetadataValue.int(report.unreachable.total()),
        "failed": dg.MetadataValue.int(report.failures.total),
        "settled_rows": dg.MetadataValue.int(report.settled),
        "late_rows": dg.MetadataValue.int(report.late_rows),
        "late_quantity": dg.MetadataValue.float(float(report.late)),
        "over_billed_quantity": dg.MetadataValue.float(float(report.over_billed)),
        "changed_meanwhile": dg.MetadataValue.int(report.changed),
    }
    if report.lost:
        records = [
            dg.TableRecord({"hour": hour, "dimension": dimension, **_numbers(loss)})
            for (hour, dimension), loss in report.lost.items()
        ]
        shown["lost"] = dg.MetadataValue.table(records)
        by_dimension = [
            dg.TableRecord({"dimension": name, **_numbers(loss)}) for name, loss in report.by_dimension.items()
        ]
        shown["lost_by_dimension"] = dg.MetadataValue.table(by_dimension)
    if report.rejected:
        reasons = [
            dg.TableRecord({"reason": printable(name), "count": n}) for name, n in sorted(report.rejected.items())
        ]
        shown["rejected_by_reason"] = dg.MetadataValue.table(reasons)
    if report.refiled:
        refiled = [dg.TableRecord({"hour": name, "rows": n}) for name, n in sorted(report.refiled.items())]
        shown["refiled"] = dg.MetadataValue.table(refiled)
    if report.refiled_records:
        refiled = [dg.TableRecord({"hour": name, "records": n}) for name, n in sorted(report.refiled_records.items())]
        shown["refiled_records_by_hour"] = dg.MetadataValue.table(refiled)
    if report.unreachable:
        values = [
            dg.TableRecord({"meteringPending": printable(name), "count": n})
            for name, n in report.unreachable.most_common()
        ]
        shown["filed_where_no_run_looks_by_value"] = dg.MetadataValue.table(values)
    notes = [*report.faults, *report.notes]
    if notes:
        shown["notes"] = dg.MetadataValue.md(markdown_list(notes))
    return shown


def warnings_of(report: Sweep, *, writes: bool) -> list[str]:
    """Return what was lost, hour by hour, in words; the first hours."""
    would = "" if writes else " (shadow mode: nothing was written)"
    lost = [
        f"{hour}: {loss.rows} raw rows and {loss.records} records can no longer be billed, "
        f"{number_text(loss.quantity)} together{would}"
        for hour, loss in report.by_hour.items()
    ]
    more = [f"{len(lost) - _WARNED_HOURS} more hours: see the metadata"] if len(lost) > _WARNED_HOURS else []
    misfiled = [
        f"{count} rows or records had meteringPending {value}, under which no run looks: each was filed under the hour "
        f"that its key says, or ended{would}"
        for value, count in report.unreachable.most_common()
    ]
    return [*lost[:_WARNED_HOURS], *more, *misfiled, *report.notes]


def faults_of(report: Sweep, ledger_fault: str | None) -> list[str]:
    """Return why the sweep is not green, in words; empty if it is."""
    failures, faults = report.failures, []
    if failures.total:
        counted = "; ".join(f"{count} {why}" for why, count in failures.by_why.most_common(_REASONS))
        first = f" The first: {failures.notes[0]}." if failures.notes else ""
        faults.append(
            f"{failures.total} groups, records or hours stay pending, everything else was swept: {counted}.{first} "
            "The next sweep tries them again."
        )
    resting = [words for step in (READ, ROWS_ENDED, RECORDS_ENDED) if (words := failures.resting(step))]
    faults += [f"The rest was {words}." for words in resting]
    if report.unwritable:
        faults.append(
            f"{report.unwritable} rows or records stay pending, for DynamoDB does not take their end: an item may not "
            "pass 400 KB. Make them smaller, or delete them; the notes name their groups."
        )
    if ledger_fault is not None:
        faults.append(ledger_fault)
    return faults


def _numbers(loss: ExpiredUsage) -> dict[str, str | int]:
    return {"rows": loss.rows, "records": loss.records, "quantity": number_text(loss.quantity)}
