"""The files of the reports: one parquet file for each day, and small JSON documents beside them.

Belongs here: names, generations, documents, messages about damaged files. Does not: the report (rules/day_diff),
columns (day_parquet), replacing files safely (conditional_files).

`day=2026-11-28/cells.parquet` is replaced as a whole. Names that begin with `_` are documents, not days.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metering_dagster.billing_changes.rules.day_diff import DayReport
from metering_dagster.billing_changes.stores.conditional_files import Bucket, FileStore, Folder
from metering_dagster.billing_changes.stores.day_parquet import parquet_of, report_of, table_of
from metering_dagster.core.arrow import is_arrows
from metering_dagster.core.errors import DamagedFileError, SettingsError
from metering_dagster.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

_FILE = "cells.parquet"
_MISUNDERSTOOD = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, OSError, RecursionError)
"""Errors of parsing a damaged file, or one of another program; Arrow raises its own besides."""


@dataclass(frozen=True)
class StoredDay:
    """Report of a day, and the generation of its file."""

    report: DayReport
    generation: str


@dataclass(frozen=True)
class Replacement:
    """New report of a day, and the generation of the file that it was compared with."""

    report: DayReport
    replaces: str | None
    """None: there was no file."""


@dataclass(frozen=True)
class StoredDocument:
    """JSON document and its generation."""

    content: Mapping[str, Any]
    generation: str


class DayFiles:
    """Files of one deployment's reports. Its methods raise `MeteringError`s for the place."""

    def __init__(self, uri: str, settings: Settings) -> None:
        """Keep the `uri`, which is a folder or `s3://bucket/prefix`."""
        self.uri, self._settings = uri.rstrip("/"), settings

    def uri_of(self, day: date) -> str:
        """Return the URI of the day's file."""
        return f"{self.uri}/{_name(day)}"

    def read(self, day: date) -> StoredDay | None:
        """Read the report of this day; None if there is none. Raises `DamagedFileError` for an invalid file."""
        stored = self._place.read(_name(day))
        if stored is None:
            return None
        with _Damage(self.uri_of(day), _REPORTED_AGAIN):
            report = report_of(table_of(stored.content))
            if report.day != day:
                raise ValueError(f"it is the file of {report.day}")
            return StoredDay(report, stored.generation)

    def table(self, day: date) -> "pa.Table | None":
        """Read the day's file with the columns of `column_schemas.BILLING_CHANGES`; None if there is none.

        Raises `DamagedFileError` for an invalid file.
        """
        stored = self._place.read(_name(day))
        if stored is None:
            return None
        with _Damage(self.uri_of(day), _REPORTED_AGAIN):
            return table_of(stored.content)

    def replace(self, replacement: Replacement) -> str:
        """Replace the file that the report was compared with; return the new generation.

        Read the file before the database: then a report never replaces one of a later reading. Raises
        `ReplacedMeanwhileError` if another run replaced the file meanwhile, and leaves that run's file.
        """
        report = replacement.report
        return self._place.replace(_name(report.day), parquet_of(report), replacement.replaces)

    def generations(self) -> dict[date, str]:
        """Return the days that have a report, with their files' generations, without reading a file."""
        found = self._place.generations(f"day=*/{_FILE}")
        days = {_day_of(name): generation for name, generation in found.items()}
        return {day: days[day] for day in sorted(day for day in days if day is not None)}

    def document(self, name: str) -> StoredDocument | None:
        """Read the JSON document of this name, such as `_consumers/warehouse`; None if there is none.

        Raises `DamagedFileError` for an invalid JSON object.
        """
        stored = self._place.read(f"{name}.json")
        if stored is None:
            return None
        with _Damage(f"{self.uri}/{name}.json", _NEVER_WRITTEN):
            content = json.loads(stored.content)
            if not isinstance(content, dict):
                raise ValueError("it is not a JSON object")
            return StoredDocument(content, stored.generation)

    def replace_document(self, name: str, content: Mapping[str, Any], generation: str | None) -> str:
        """Replace the document of the generation that was read (None: there was none); return the new generation.

        Raises `ReplacedMeanwhileError` if another program replaced it meanwhile.
        """
        text = json.dumps(content, sort_keys=True, indent=1)
        return self._place.replace(f"{name}.json", f"{text}\n".encode(), generation)

    @cached_property
    def _place(self) -> FileStore:
        if self.uri.startswith("s3://"):
            from metering_dagster.core.aws.clients import Clients

            return Bucket(Clients(self._settings).s3(), self.uri)
        if "://" in self.uri:
            raise SettingsError(
                f"BILLING_CHANGES_URI is {self.uri!r}, which is not supported. Nothing was read or written. Name a "
                "folder or s3://BUCKET/PREFIX."
            )
        return Folder(Path(self.uri))


def _name(day: date) -> str:
    return f"day={day.isoformat()}/{_FILE}"


def _day_of(name: str) -> date | None:
    try:
        return date.fromisoformat(name.removeprefix("day=").removesuffix(f"/{_FILE}"))
    except ValueError:
        return None  # a folder of another program


_REPORTED_AGAIN = (
    "delete it and materialize the day again: every cell is then reported again, except those that had vanished"
)
_NEVER_WRITTEN = "delete it: it then counts as never written"


class _Damage:
    """Block that raises `DamagedFileError` where a file cannot be understood."""

    def __init__(self, place: str, remedy: str) -> None:
        """Keep the `remedy` to name where there is no copy of the file."""
        self.place, self.remedy = place, remedy

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _MISUNDERSTOOD) or is_arrows(error):
            message = " ".join(str(error).split()).rstrip(".")
            raise DamagedFileError(
                f"{self.place} is damaged, or not a file of this project ({type(error).__name__}: {message}). It was "
                f"left as it is. Restore it from a copy, or {self.remedy}."
            ) from error
