"""What the ledger says of one hour by now, read batch by batch.

Belongs here: adding up what went well as it is read, and holding only what did not. Does not: what entries mean
(entries), a day's report (daily_report).
"""

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from metering_dagster.ledger.rules.entries import BILLED, Entry, EntryKind, HourSummary, standing_of
from metering_dagster.ledger.services.latest_entries import GROUP, in_order_of_time, last_of_each_group
from metering_dagster.ledger.stores.files import Ledger, entries_of

if TYPE_CHECKING:
    import pyarrow as pa


def standing_of_hour(ledger: Ledger, bucket: str) -> HourSummary:
    """Return the same as `standing_of` all entries of the hour; of those that went well it holds a few columns."""
    if not ledger.files_of(bucket):
        return HourSummary()
    import pyarrow as pa

    outcomes: Counter[str] = Counter()
    billed: dict[str, Decimal] = {}
    exceptions: list[Entry] = []
    goods: list[pa.Table] = []
    for batch in ledger.batches_of(bucket):
        good, others = _apart(batch)
        goods.append(good.select([*GROUP, "outcome", "quantity", "at"]))
        exceptions += [entry for entry in entries_of(others) if entry.kind != EntryKind.GROUP]
    if goods:
        latest = last_of_each_group(in_order_of_time(pa.concat_tables(goods)))
        sums = latest.group_by(["dimension", "outcome"]).aggregate([("outcome", "count"), ("quantity", "sum")])
        for line in sums.to_pylist():
            outcomes[line["outcome"]] += line["outcome_count"]
            dimension = line["dimension"] or ""
            billed[dimension] = billed.get(dimension, Decimal(0)) + (line["quantity_sum"] or Decimal(0))
    records = {entry.group for entry in exceptions if entry.kind == EntryKind.RECORD}
    if records:
        # Of a record that was sent again only the last answer counts.
        for batch in ledger.batches_of(bucket):
            exceptions += [entry for entry in entries_of(_apart(batch)[0]) if entry.group in records]
    standing = standing_of(exceptions)
    left = Counter({outcome: count for outcome, count in standing.outcomes.items() if outcome not in BILLED})
    return replace(standing, outcomes=outcomes + left, billed=billed)


def _apart(batch: "pa.Table") -> tuple["pa.Table", "pa.Table"]:
    """Return the records that are billed, and everything else."""
    import pyarrow.compute as pc

    good = pc.and_(pc.equal(batch["kind"], EntryKind.RECORD.value), _is_billed(batch["outcome"]))
    return batch.filter(good), batch.filter(pc.invert(good))


def _is_billed(outcomes: "pa.ChunkedArray") -> "pa.ChunkedArray":
    import pyarrow.compute as pc

    first, *others = sorted(BILLED)
    found = pc.equal(outcomes, first)
    for outcome in others:
        found = pc.or_(found, pc.equal(outcomes, outcome))
    return found
