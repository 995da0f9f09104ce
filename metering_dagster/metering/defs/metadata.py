"""What a person reads of an hour in the UI: counts, quantities, short tables.

Belongs here: putting reports into Dagster's metadata. Does not: deciding anything. Buyers' data stays masked.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.core.masking import markdown_list, mask_text, printable
from metering_dagster.ledger.rules.entries import HourSummary
from metering_dagster.metering.rules.quantities import number_text, total

if TYPE_CHECKING:
    from metering_dagster.metering.services.aggregation_report import Aggregation
    from metering_dagster.metering.services.discovery import Discovery
    from metering_dagster.metering.services.submission_report import Submission

PENDING_ROWS, PENDING_AGGREGATES = "pending_rows_after", "pending_aggregates_after"
"""What was pending after a run."""
Metadata = dict[str, dg.MetadataValue]


def of_closed_hour(mode: str, words: str) -> Metadata:
    """Of an hour past its window with nothing pending."""
    return {"mode": dg.MetadataValue.text(str(mode)), "closed": dg.MetadataValue.text(words)}


def of_discovery(mode: str, found: "Discovery") -> Metadata:
    """Return what was pending."""
    shown: Metadata = {
        "mode": dg.MetadataValue.text(str(mode)),
        "dagster/partition_row_count": dg.MetadataValue.int(found.rows),
        "rows": dg.MetadataValue.int(found.rows),
        "groups": dg.MetadataValue.int(found.groups),
        "licenses": dg.MetadataValue.int(found.licenses),
        "pending_aggregates": dg.MetadataValue.int(found.aggregates),
        "rejected_rows": dg.MetadataValue.int(found.rejected.total() + found.settled.rejected.total()),
        "refiled_rows": dg.MetadataValue.int(found.refiled.total()),
        "expired_rows": dg.MetadataValue.int(found.expired),
        "late_rows": dg.MetadataValue.int(found.settled.late_rows),
        "late_quantity": _quantity(found.settled.late),
        "over_billed_quantity": _quantity(found.settled.over_billed),
        "cleaned_rows": dg.MetadataValue.int(found.settled.cleaned),
    }
    changed = found.changed + len(found.settled.unsettled)
    if changed:
        shown["changed_meanwhile"] = dg.MetadataValue.int(changed)
    if found.failures.total:
        shown["failed_groups_or_rows"] = dg.MetadataValue.int(found.failures.total)
    rejected = found.rejected + found.settled.rejected
    shown |= _table("rejected", "reason", "rows", rejected) | _table("refiled", "hour", "rows", found.refiled)
    return shown | _notes([*found.failures.notes, *found.settled.notes])


def of_aggregation(mode: str, done: "Aggregation") -> Metadata:
    """Return what was committed, held, waiting, rejected and late."""
    shown: Metadata = {
        "mode": dg.MetadataValue.text(str(mode)),
        "dagster/partition_row_count": dg.MetadataValue.int(done.committed),
        "committed_groups": dg.MetadataValue.int(done.committed),
        "committed_rows": dg.MetadataValue.int(done.rows),
        "committed_quantity": _quantity(total(done.by_dimension.values())),
        "held_groups": dg.MetadataValue.int(done.held_groups),
        "held_rows": dg.MetadataValue.int(done.held_rows),
        "held_quantity": _quantity(done.held_quantity),
        "zero_groups": dg.MetadataValue.int(done.zero_groups),
        "zero_rows": dg.MetadataValue.int(done.zero_rows),
        "rejected_rows": dg.MetadataValue.int(done.rejected.total()),
        "late_rows": dg.MetadataValue.int(done.late_rows),
        "late_quantity": _quantity(done.late),
        "over_billed_quantity": _quantity(done.over_billed),
        "cleaned_rows": dg.MetadataValue.int(done.cleaned),
    }
    seldom = {
        "failed_groups": done.failures.total,
        "put_back_aggregates": done.put_back,
        "withdrawn_groups": done.withdrawn,
        "groups_left_as_they_are": done.left_groups,
    }
    shown |= {name: dg.MetadataValue.int(count) for name, count in seldom.items() if count}
    shown |= _by_dimension(done.by_dimension) | _table("rejected", "reason", "rows", done.rejected)
    return shown | _notes([*done.failures.notes, *done.notes])


def of_submission(
    mode: str,
    done: "Submission",
    standing: HourSummary,
    pending: tuple[int, int],
    ledger: str | None,
) -> Metadata:
    """Return what is billed of the hour by now, what this run did, what is left.

    The hour by now is as the ledger says (`standing`), or where that knows less, as this run says. `pending` are the
    raw rows and aggregates that still wait.
    """
    billed = _larger(standing.billed, done.by_dimension)
    ended = Counter(standing.outcomes) | done.by_status
    shown: Metadata = {"mode": dg.MetadataValue.text(str(mode))}
    shown |= _statuses(ended, done.by_status) | _by_dimension(billed)
    shown |= {
        "billed_quantity": _quantity(total(billed.values())),
        "billed_in_this_run": _quantity(total(done.by_dimension.values())),
        "records": dg.MetadataValue.int(done.records),
        "calls": dg.MetadataValue.int(done.calls),
        "rejected_records": dg.MetadataValue.int(done.rejected.total()),
        "left_pending": dg.MetadataValue.int(done.left.total()),
        PENDING_ROWS: dg.MetadataValue.int(pending[0]),
        PENDING_AGGREGATES: dg.MetadataValue.int(pending[1]),
        "dagster/partition_row_count": dg.MetadataValue.int(sum(ended.values())),
    }
    if done.ended_by_others:
        shown["changed_meanwhile"] = dg.MetadataValue.int(done.ended_by_others)
    if done.unknown_products:
        shown["records_of_unknown_products"] = dg.MetadataValue.int(done.unknown_products)
    if ledger:
        shown["ledger"] = dg.MetadataValue.path(ledger)
    shown |= _table("rejected", "reason", "records", done.rejected) | _table("left", "why", "records", done.left)
    return shown | _notes([*done.warnings, *done.notes])


def _larger(standing: Mapping[str, Decimal], run: Mapping[str, Decimal]) -> Mapping[str, Decimal]:
    """By dimension as it is shown; the run alone where the ledger knows less than it."""
    by_now: dict[str, Decimal] = {}
    for dimension, quantity in standing.items():
        shown = mask_text(dimension)
        by_now[shown] = by_now.get(shown, Decimal(0)) + quantity
    return by_now if total(by_now.values()) >= total(run.values()) else run


def _statuses(ended: Mapping[str, int], run: Mapping[str, int]) -> Metadata:
    if not ended:
        return {}
    records = [
        dg.TableRecord({"status": printable(status), "records": count, "in this run": run.get(status, 0)})
        for status, count in sorted(ended.items())
    ]
    return {"statuses": dg.MetadataValue.table(records)}


def _quantity(value: Decimal) -> dg.MetadataValue:
    """Return a number that plots over the partitions; the exact one is in the table of dimensions."""
    return dg.MetadataValue.float(float(value))


def _by_dimension(quantities: Mapping[str, Decimal]) -> Metadata:
    return _table("dimensions", "dimension", "quantity", {d: number_text(q) for d, q in quantities.items()})


def _table(name: str, what: str, count: str, rows: Mapping[str, int | str]) -> Metadata:
    if not rows:
        return {}
    records = [dg.TableRecord({what: printable(key), count: value}) for key, value in sorted(rows.items())]
    return {name: dg.MetadataValue.table(records)}


def _notes(notes: Sequence[str]) -> Metadata:
    return {"notes": dg.MetadataValue.md(markdown_list(notes))} if notes else {}
