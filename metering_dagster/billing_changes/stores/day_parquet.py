"""The parquet form of a day's report: written, and read back.

Belongs here: columns, and the exact form of each value. Does not: where files are stored (day_files).
"""

import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING, Any

from metering_dagster.billing_changes.rules.cells import Amounts, Cell, Side, Signal, Subscription, instant_of
from metering_dagster.billing_changes.rules.day_diff import CellChange, DayReport
from metering_dagster.core.arrow import column_of_texts

if TYPE_CHECKING:
    import pyarrow as pa

_MICROUNIT = Decimal("0.000001")
_VERSION = "1"
_SIDES = {"daily": Signal.DAILY, "facts": Signal.FACTS}
_SEPARATOR = ", "


def schema() -> "pa.Schema":
    """Return the columns of a day's file, in their order."""
    import pyarrow as pa

    text, flag, instant = pa.string(), pa.bool_(), pa.timestamp("us", tz="UTC")
    amount, whole = pa.decimal128(38, 6), pa.int64()
    sides = [
        (f"{side}_{name}", kind)
        for side in _SIDES
        for name, kind in (
            ("rows", whole), ("unstamped", whole), ("newest", instant), ("stamps", pa.decimal128(38, 0)),
            ("amounts", text),
        )
    ]  # fmt: skip
    return pa.schema([
        ("date", pa.date32()), ("subscription_id", text), ("external_id", text), ("name", text), ("provider", text),
        ("integration_id", text), ("is_resource_group", flag), ("last_ingested_at", instant), ("signals", text),
        ("amount", amount), ("amount_before", amount), ("currency", text), ("touched", flag), ("changed", flag),
        ("vanished", flag), ("reported_at", instant), ("amounts", text), ("amounts_before", text), *sides,
    ])  # fmt: skip


def parquet_of(report: DayReport) -> bytes:
    """Return the report as a parquet file's content."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [_record(row) for row in report.rows]
    about = {
        "version": _VERSION, "day": report.day.isoformat(), "state": report.state,
        **{name: value.isoformat(timespec="microseconds") for name, value in (
            ("read_at", report.read_at), ("since", report.since), ("newest", report.newest)) if value is not None},
    }  # fmt: skip
    columns = [
        column_of_texts([_text(record[name]) for record in records], kind)
        for name, kind in zip(schema().names, schema().types, strict=True)
    ]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays(columns, schema=schema().with_metadata(about))
    pq.write_table(table, sink, write_page_checksum=True)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _record(row: CellChange) -> dict[str, object]:
    one = row.cell.subscription
    record: dict[str, object] = {
        "date": row.cell.day, "subscription_id": one.id, "external_id": one.external_id, "name": one.name,
        "provider": one.provider, "integration_id": one.integration_id, "is_resource_group": one.is_resource_group,
        "last_ingested_at": row.last_ingested_at, "signals": _SEPARATOR.join(row.signals),
        "amount": _shown(row.amount), "amount_before": _shown(row.amount_before), "currency": row.currency,
        "touched": row.touched, "changed": row.changed, "vanished": row.vanished, "reported_at": row.reported_at,
        "amounts": _amounts_text(row.amounts), "amounts_before": _amounts_text(row.amounts_before),
    }  # fmt: skip
    for name, signal in _SIDES.items():
        side = row.cell.sides.get(signal)
        record |= {
            f"{name}_rows": side and side.rows, f"{name}_unstamped": side and side.unstamped,
            f"{name}_newest": side and side.newest, f"{name}_stamps": side and side.stamps,
            f"{name}_amounts": _amounts_text(side.amounts) if side else None,
        }  # fmt: skip
    return record


def _shown(amount: Decimal | None) -> Decimal | None:
    """Round the amount to six decimals, as the tables have them; the column `amounts` has it exactly."""
    return None if amount is None else amount.quantize(_MICROUNIT, ROUND_HALF_EVEN)


def _amounts_text(amounts: Amounts | None) -> str | None:
    return None if amounts is None else json.dumps({currency: f"{amount:f}" for currency, amount in amounts})


def _text(value: object) -> str | None:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return None if value is None else f"{value:f}" if isinstance(value, Decimal) else str(value)


def table_of(content: bytes) -> "pa.Table":
    """Read the file's columns. Raises `ValueError`, or an error of Arrow, for an invalid file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Not by read_table, which imports pandas.
    table = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read(use_threads=False)
    if not table.schema.equals(schema()):
        raise ValueError("it has other columns")
    return table


def report_of(table: "pa.Table") -> DayReport:
    """Read the report of a file's table. Raises `ValueError` or `KeyError` for an invalid one."""
    import pyarrow as pa

    about = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    if about["version"] != _VERSION:
        raise ValueError(f"version {about['version']}")
    # Instants as numbers: Arrow would convert them through pandas.
    values = {
        name: (table[name].cast(pa.int64()) if pa.types.is_timestamp(kind) else table[name]).to_pylist()
        for name, kind in zip(table.schema.names, table.schema.types, strict=True)
    }
    records = [dict(zip(values, record, strict=True)) for record in zip(*values.values(), strict=True)]
    since, newest = (datetime.fromisoformat(about[name]) if name in about else None for name in ("since", "newest"))
    return DayReport(
        date.fromisoformat(about["day"]),
        read_at=datetime.fromisoformat(about["read_at"]),
        since=since,
        state=about["state"],
        newest=newest,
        rows=tuple(_row(record) for record in records),
    )


def _row(record: Mapping[str, Any]) -> CellChange:
    one = Subscription(
        record["subscription_id"], record["integration_id"], record["external_id"], record["name"],
        record["provider"], record["is_resource_group"],
    )  # fmt: skip
    reported_at = _instant(record["reported_at"])
    if reported_at is None:
        raise ValueError("reported_at is missing")
    return CellChange(
        Cell(one, record["date"], daily=_side(record, "daily"), facts=_side(record, "facts")),
        last_ingested_at=_instant(record["last_ingested_at"]),
        amounts_before=_amounts(record["amounts_before"]),
        signals=tuple(Signal(text) for text in record["signals"].split(_SEPARATOR) if text),
        touched=record["touched"],
        changed=record["changed"],
        vanished=record["vanished"],
        reported_at=reported_at,
    )


def _side(record: Mapping[str, Any], name: str) -> Side | None:
    if record[f"{name}_rows"] is None:
        return None
    return Side(
        record[f"{name}_rows"],
        unstamped=record[f"{name}_unstamped"],
        newest=_instant(record[f"{name}_newest"]),
        stamps=int(record[f"{name}_stamps"]),
        amounts=_amounts(record[f"{name}_amounts"]) or (),
    )


def _amounts(text: str | None) -> Amounts | None:
    if text is None:
        return None
    return tuple((currency, Decimal(amount)) for currency, amount in json.loads(text).items())


def _instant(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else instant_of(microseconds)
