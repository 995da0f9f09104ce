"""The files of what is reported: one of each day, in parquet, and small JSON documents beside them.

Belongs here: names, columns, a report out of a file and into one. Does not: what is reported (report), replacing files
safely (places). `day=2026-11-28/cells.parquet` is replaced as a whole; names that begin with `_` are no days.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metering_dagster.arrow import column_of_texts
from metering_dagster.billing.cells import Amounts, Cell, Side, Signal, Subscription
from metering_dagster.billing.places import Bucket, Folder, Place
from metering_dagster.billing.report import DayReport, Row
from metering_dagster.errors import DamagedFileError, SettingsError
from metering_dagster.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

_FILE = "cells.parquet"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROUNIT = Decimal("0.000001")
_VERSION = "1"
_SIDES = {"daily": Signal.DAILY, "facts": Signal.FACTS}
_SEPARATOR = ", "


@dataclass(frozen=True)
class Found:
    """What was reported of a day, and which generation of its file said so."""

    report: DayReport
    generation: str


@dataclass(frozen=True)
class Replacement:
    """What is to be reported of a day, and the generation of the file that it was compared with."""

    report: DayReport
    replaces: str | None
    """None: there was no file."""


@dataclass(frozen=True)
class Document:
    """A JSON document and its generation."""

    content: Mapping[str, Any]
    generation: str


class DayFiles:
    """What was reported, of one deployment. Errors of the place come out as `MeteringError`s, in words."""

    def __init__(self, uri: str, settings: Settings) -> None:
        """`uri` is a folder or `s3://bucket/prefix`."""
        self.uri, self._settings = uri.rstrip("/"), settings

    def uri_of(self, day: date) -> str:
        """Where the day's file lies."""
        return f"{self.uri}/{_name(day)}"

    def read(self, day: date) -> Found | None:
        """What was reported of this day; None if nothing was. Raises `DamagedFileError` for a file that is not ours."""
        stored = self._place.read(_name(day))
        if stored is None:
            return None
        with _Damage(self.uri_of(day)):
            return Found(_report(_opened(stored.content)), stored.generation)

    def table(self, day: date) -> "pa.Table | None":
        """The day's file as it is, with the columns of `columns.BILLING_CHANGES`; None if there is none."""
        stored = self._place.read(_name(day))
        if stored is None:
            return None
        with _Damage(self.uri_of(day)):
            return _opened(stored.content)

    def replace(self, replacement: Replacement) -> str:
        """Put a report in the place of the file that it was compared with; the new generation.

        Read the file before the database: then a report never takes the place of a later reading. Raises
        `ReplacedMeanwhileError` if another run was faster, and leaves that one's file.
        """
        report = replacement.report
        return self._place.replace(_name(report.day), _parquet(report), replacement.replaces)

    def generations(self) -> dict[date, str]:
        """The days of which something was reported, with the generations of their files; no file is read."""
        found = self._place.generations(f"day=*/{_FILE}")
        days = {_day_of(name): generation for name, generation in found.items()}
        return {day: days[day] for day in sorted(day for day in days if day is not None)}

    def document(self, name: str) -> Document | None:
        """The JSON document of this name, such as `_consumers/warehouse`; None if there is none.

        Raises `DamagedFileError` for one that is no JSON object.
        """
        stored = self._place.read(f"{name}.json")
        if stored is None:
            return None
        with _Damage(f"{self.uri}/{name}.json"):
            content = json.loads(stored.content)
            if not isinstance(content, dict):
                raise ValueError("it is no JSON object")
            return Document(content, stored.generation)

    def replace_document(self, name: str, content: Mapping[str, Any], generation: str | None) -> str:
        """Put this content in the place of the generation that was read (None: there was none); the new generation.

        Raises `ReplacedMeanwhileError` if somebody else was faster.
        """
        text = json.dumps(content, sort_keys=True, indent=1)
        return self._place.replace(f"{name}.json", f"{text}\n".encode(), generation)

    @cached_property
    def _place(self) -> Place:
        if self.uri.startswith("s3://"):
            from metering_dagster.aws import Clients

            return Bucket(Clients(self._settings).s3(), self.uri)
        if "://" in self.uri:
            raise SettingsError(
                f"BILLING_CHANGES_URI is {self.uri!r}. Nothing was read or written. Name a folder or "
                "s3://BUCKET/PREFIX."
            )
        return Folder(Path(self.uri))


def _name(day: date) -> str:
    return f"day={day.isoformat()}/{_FILE}"


def _day_of(name: str) -> date | None:
    try:
        return date.fromisoformat(name.removeprefix("day=").removesuffix(f"/{_FILE}"))
    except ValueError:
        return None  # somebody else's folder


class _Damage:
    """A block in which a file that cannot be understood comes out as `DamagedFileError`."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (ValueError, KeyError, TypeError, ArithmeticError, OSError)):
            # Arrow's errors are among these.
            raise DamagedFileError(
                f"{self.place} is not as this project wrote it ({type(error).__name__}: {error}). It was left as it "
                "is. Put it back from a copy, or delete it: it then counts as never written, and what it told is told "
                "again."
            ) from error


def schema() -> "pa.Schema":
    """The columns of a day's file, in their order."""
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


def _parquet(report: DayReport) -> bytes:
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
    pq.write_table(pa.Table.from_arrays(columns, schema=schema().with_metadata(about)), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _record(row: Row) -> dict[str, object]:
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
    """The amount with six decimals, as the tables have them; `amounts` has it exactly, whatever it is."""
    return None if amount is None else amount.quantize(_MICROUNIT, ROUND_HALF_EVEN)


def _amounts_text(amounts: Amounts | None) -> str | None:
    return None if amounts is None else json.dumps({currency: f"{amount:f}" for currency, amount in amounts})


def _text(value: object) -> str | None:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return None if value is None else f"{value:f}" if isinstance(value, Decimal) else str(value)


def _opened(content: bytes) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)  # read_table would import pandas
    if not table.schema.equals(schema()):
        raise ValueError("it has other columns")
    return table


def _report(table: "pa.Table") -> DayReport:
    import pyarrow as pa

    about = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    if about["version"] != _VERSION:
        raise ValueError(f"version {about['version']}")
    # The instants as numbers: as they are, they would be converted by way of pandas.
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


def _row(record: Mapping[str, Any]) -> Row:
    one = Subscription(
        record["subscription_id"], record["integration_id"], record["external_id"], record["name"],
        record["provider"], record["is_resource_group"],
    )  # fmt: skip
    reported_at = _instant(record["reported_at"])
    if reported_at is None:
        raise ValueError("reported_at is missing")
    return Row(
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
    return None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)
