"""A day of the ledger as a table and a picture.

Belongs here: adding up an hour's entries, the day's table, drawing it. Does not: where the ledger lies (files), when a
report is made (assets). An hour is reduced to a few lines as it is read, so a day costs the memory of its largest hour.
"""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from metering_dagster.core.masking import mask_text
from metering_dagster.ledger.rules.entries import BILLED, EntryKind, EntryOutcome
from metering_dagster.ledger.services.latest_entries import GROUP, in_order_of_time, last_of_each_group
from metering_dagster.ledger.stores.files import Ledger

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from matplotlib.axes import Axes

MOST_DIMENSIONS = 8
"""Drawn one by one; what is left is drawn together."""


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """The sum of one dimension and outcome in one hour."""

    hour: str
    dimension: str
    kind: str
    outcome: str
    entries: int
    quantity: Decimal


def lines_of_hour(ledger: Ledger, bucket: str) -> list[Line]:
    """Return the hour in lines: of a record only its last answer, of a waiting group only what no record has
    replaced.
    """
    table = ledger.table_of_hour(bucket)
    if table is None:
        return []
    import pyarrow.compute as pc

    ordered = in_order_of_time(table)
    records = last_of_each_group(ordered.filter(pc.equal(ordered["kind"], EntryKind.RECORD.value)))
    waiting = last_of_each_group(ordered.filter(pc.equal(ordered["kind"], EntryKind.GROUP.value)))
    waiting = waiting.join(records.select(GROUP), keys=GROUP, join_type="left anti")
    rows = ordered.filter(pc.equal(ordered["kind"], EntryKind.ROW.value))
    return [
        *_lines(bucket, EntryKind.RECORD, records, "quantity"),
        *_lines(bucket, EntryKind.GROUP, waiting, "quantity"),
        *_lines(bucket, EntryKind.ROW, rows.filter(pc.not_equal(rows["outcome"], EntryOutcome.LATE.value)), "quantity"),
        *_lines(bucket, EntryKind.ROW, rows.filter(pc.equal(rows["outcome"], EntryOutcome.LATE.value)), "late_by"),
    ]


def _lines(bucket: str, kind: EntryKind, table: "pa.Table", quantity: str) -> list[Line]:
    sums = table.group_by(["dimension", "outcome"]).aggregate([("outcome", "count"), (quantity, "sum")]).to_pylist()
    return [
        Line(
            bucket,
            entry["dimension"] or "",
            kind.value,
            entry["outcome"] or "",
            entry["outcome_count"],
            entry[f"{quantity}_sum"] or Decimal(0),
        )
        for entry in sums
    ]


def table_of_day(lines: Iterable[Line]) -> "pd.DataFrame":
    """Return one row for each hour, dimension, kind and outcome, in that order; quantities are exact decimals."""
    import pandas as pd

    columns = ["hour", "dimension", "kind", "outcome", "entries", "quantity"]
    rows = [(line.hour, line.dimension, line.kind, line.outcome, line.entries, line.quantity) for line in lines]
    return pd.DataFrame(sorted(rows), columns=columns)


def draw(day: str, table: "pd.DataFrame") -> bytes:
    """Return the day as a PNG: usage by hour, a strip for each dimension, and below it what became of everything."""
    from matplotlib.figure import Figure

    hours = [f"{day}T{hour:02d}" for hour in range(24)]
    usage = _usage(table, hours)
    figure = Figure(figsize=(8, 1.1 * len(usage) + 2.2), dpi=80, layout="constrained")
    strips = figure.subplots(len(usage) + 1, 1, sharex=True, height_ratios=[1] * len(usage) + [1.8], squeeze=False)[
        :, 0
    ]
    for strip, (dimension, quantities) in zip(strips, usage.items(), strict=False):
        strip.bar(range(24), quantities, color="#4f43dd", width=0.8)
        strip.set_ylabel(mask_text(dimension), rotation=0, ha="right", va="center", fontsize=8, parse_math=False)
        strip.tick_params(labelsize=8)
        strip.spines[["top", "right"]].set_visible(False)
    _draw_outcomes(strips[-1], table, hours)
    figure.suptitle(f"Usage of {day} (UTC) by dimension, and what became of it", fontsize=10)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _usage(table: "pd.DataFrame", hours: list[str]) -> dict[str, list[float]]:
    """Billed quantity of each dimension by hour, the largest by entries first."""
    billed = table[table["outcome"].isin(list(BILLED))]
    order = list(billed.groupby("dimension")["entries"].sum().sort_values(ascending=False).index)
    named = order[:MOST_DIMENSIONS]
    found: dict[str, list[float]] = {}
    for name in [*named, *(["others"] if len(order) > len(named) else [])]:
        mine = billed[billed["dimension"] == name] if name in named else billed[~billed["dimension"].isin(named)]
        by_hour = mine.groupby("hour")["quantity"].sum()
        found[name] = [float(by_hour.get(hour, 0)) for hour in hours]
    return found


_COLORS = {
    EntryOutcome.SUCCESS: "#2fb36f", EntryOutcome.DRY_RUN: "#8ccfae", EntryOutcome.WOULD_BILL: "#8ccfae",
    EntryOutcome.DUPLICATE: "#d23b3b", EntryOutcome.NOT_SUBSCRIBED: "#e58a2f", EntryOutcome.REJECTED: "#b3347f",
    EntryOutcome.LATE: "#e5c12f", EntryOutcome.EXPIRED: "#6b6b6b", EntryOutcome.UNSENT: "#2b2b2b",
    EntryOutcome.HELD: "#5aa3d6", EntryOutcome.WAITING: "#c3c9d4",
}  # fmt: skip


def _draw_outcomes(axes: "Axes", table: "pd.DataFrame", hours: list[str]) -> None:
    bottom = [0] * 24
    for outcome, color in _COLORS.items():
        by_hour = table[table["outcome"] == outcome.value].groupby("hour")["entries"].sum()
        counts = [int(by_hour.get(hour, 0)) for hour in hours]
        if any(counts):
            axes.bar(range(24), counts, bottom=bottom, color=color, width=0.8, label=outcome.value)
            bottom = [low + count for low, count in zip(bottom, counts, strict=True)]
    axes.set_xlabel("hour (UTC)", fontsize=8)
    axes.set_ylabel("records, rows\nand groups", rotation=0, ha="right", va="center", fontsize=8)
    axes.set_xticks(range(0, 24, 2), [f"{hour:02d}" for hour in range(0, 24, 2)])
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if any(bottom):
        axes.legend(fontsize=8, ncols=5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.3))
