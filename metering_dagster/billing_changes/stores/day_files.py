"""The files of what is reported: one of each day, in parquet, and small JSON documents beside them.

Belongs here: names, generations, documents, damage in words. Does not: what is reported (day_diff), columns
(day_parquet), replacing files safely (conditional_files).

`day=2026-11-28/cells.parquet` is replaced as a whole. Names that begin with `_` are no days.
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
"""What parsing a file of somebody else's, or a damaged one, raises; beside Arrow's own errors."""


@dataclass(frozen=True)
class StoredDay:
    """The stored report of a day, and the generation of its file."""

    report: DayReport
    generation: str


@dataclass(frozen=True)
class Replacement:
    """A day's new report, and the generation of the file that it was compared with."""

    report: DayReport
    replaces: str | None
    """None: there was no file."""


@dataclass(frozen=True)
class StoredDocument:
    """A JSON document and its generation."""

    content: Mapping[str, Any]
    generation: str


class DayFiles:
    """The report files of one deployment. Errors of the place are raised as `MeteringError`."""

    def __init__(self, uri: str, settings: Settings) -> None:
        """`uri` is a folder or `s3://bucket/prefix`."""
        self.uri, self._settings = uri.rstrip("/"), settings

    def uri_of(self, day: date) -> str:
        """Return where the day's file lies."""
        return f"{self.uri}/{_name(day)}"

    def read(self, day: date) -> StoredDay | None:
        """Return what was reported of this day; None if nothing was. Raises `DamagedFileError` for a file that is not
        ours.
        """
        stored = self._place.read(_name(day))
        if stored is None:
            return None
        with _Damage(self.uri_of(day), _REPORTED_AGAIN):
            report = report_of(table_of(stored.content))
            if report.day != day:
                raise ValueError(f"it is the file of {report.day}")
            return StoredDay(report, stored.generation)

    def table(self, day: date) -> "pa.Table | None":
        """Return the day's file as it is, with the columns of `columns.BILLING_CHANGES`; None if there is none."""
        stored = self._place.read(_name(day))
        if stored is None:
            return None
        with _Damage(self.uri_of(day), _REPORTED_AGAIN):
            return table_of(stored.content)

    def replace(self, replacement: Replacement) -> str:
        """Put a report in the place of the file that it was compared with; the new generation.

        Read the file before the database: then a report never takes the place of a later reading. Raises
        `ReplacedMeanwhileError` if another run was faster, and leaves that one's file.
        """
        report = replacement.report
        return self._place.replace(_name(report.day), parquet_of(report), replacement.replaces)

    def generations(self) -> dict[date, str]:
        """Return the days of which something was reported, with the generations of their files; no file is read."""
        found = self._place.generations(f"day=*/{_FILE}")
        days = {_day_of(name): generation for name, generation in found.items()}
        return {day: days[day] for day in sorted(day for day in days if day is not None)}

    def document(self, name: str) -> StoredDocument | None:
        """Return the JSON document of this name, such as `_consumers/warehouse`; None if there is none.

        Raises `DamagedFileError` for one that is no JSON object.
        """
        stored = self._place.read(f"{name}.json")
        if stored is None:
            return None
        with _Damage(f"{self.uri}/{name}.json", _NEVER_WRITTEN):
            content = json.loads(stored.content)
            if not isinstance(content, dict):
                raise ValueError("it is no JSON object")
            return StoredDocument(content, stored.generation)

    def replace_document(self, name: str, content: Mapping[str, Any], generation: str | None) -> str:
        """Put this content in the place of the generation that was read (None: there was none); the new generation.

        Raises `ReplacedMeanwhileError` if somebody else was faster.
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


_REPORTED_AGAIN = (
    "delete it and materialize the day again: every cell of it is then reported again, but for those that had vanished"
)
_NEVER_WRITTEN = "delete it: it then counts as never written"


class _Damage:
    """A block in which a file that cannot be understood comes out as `DamagedFileError`."""

    def __init__(self, place: str, remedy: str) -> None:
        """`remedy`: what to do where there is no copy of it."""
        self.place, self.remedy = place, remedy

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _MISUNDERSTOOD) or is_arrows(error):
            said = " ".join(str(error).split()).rstrip(".")
            raise DamagedFileError(
                f"{self.place} is not as this project wrote it ({type(error).__name__}: {said}). It was left as it "
                f"is. Put it back from a copy, or {self.remedy}."
            ) from error
