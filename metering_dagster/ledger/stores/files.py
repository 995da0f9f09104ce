"""The ledger's parquet files: one for each run, hour and asset, hive-style by hour, in a folder or on `s3://`.

Belongs here: columns, names, writing without holding a run in memory, reading an hour or a day. Does not: what entries
mean (entries). Files are only ever added: `hour=2026-11-28T10/<run>-<asset>.parquet`.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from metering_dagster.core.arrow import column_of_texts, is_arrows
from metering_dagster.core.errors import DamagedFileError, MeteringError, SettingsError, UnreachableError
from metering_dagster.core.masking import shown_value
from metering_dagster.ledger.rules.entries import Entry

if TYPE_CHECKING:
    import pyarrow as pa

BUFFER = 5_000
"""Entries that are held before they are written: memory stays flat as hours grow."""
_S3_CONNECT_SECONDS, _S3_ANSWER_SECONDS, _S3_ATTEMPTS = 3, 5, 3
"""An endpoint that does not answer is told of after some 15 s: an hour's steps go there six times, one by one."""
_DECIMALS, _DIGITS = 6, 38
_UNFINISHED = ".part"
_KEYS = ("kind", "outcome", "license_arn", "customer_aws_account_id", "dimension", "at")
"""Columns by which a file of the ledger is known, whichever version wrote it: one with none of them is no such file."""
_EPOCH = datetime.fromtimestamp(0, UTC)


def default_uri(storage_directory: str) -> str:
    """Return where the ledger lies if no place is named: beside Dagster's storage."""
    return str(Path(storage_directory).parent / "metering_ledger")


class LedgerFile:
    """The file of one run, hour and asset. It appears whole when it is closed, and not at all without an entry.

    Used by many threads. As a context manager it is closed also after an error: what was done is told.
    """

    def __init__(self, ledger: "Ledger", bucket: str, name: str, mode: str, run_id: str) -> None:
        self.ledger, self.bucket, self.name = ledger, bucket, name
        self._constant = {"mode": mode, "run_id": run_id}
        self._buffer: list[Entry] = []
        self._writer: Any = None
        self._lock = threading.Lock()
        self.entries = 0
        self.written: str | None = None
        """The URI, once it is closed."""
        self._fault: MeteringError | None = None

    def tell(self, entry: Entry) -> None:
        """Add an entry. A place that cannot be written keeps nobody from billing: it is told at the end."""
        with self._lock:
            self.entries += 1
            if self._fault is None:
                self._buffer.append(replace(entry, at=datetime.now(UTC)))
                if len(self._buffer) >= BUFFER:
                    self._attempt(self._flush)

    def close(self) -> str | None:
        """Finish the file; its URI, or None if there was nothing to tell.

        Raises `UnreachableError` if the place could not be written, now or before; `SettingsError` if it is none.
        """
        with self._lock:
            if not self.entries:
                return None
            if self._fault is None:
                self._attempt(self._finish)
            if self._fault is not None:
                raise self._fault
            return self.written

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except MeteringError as fault:
            if error is None:
                raise
            error.add_note(str(fault))  # the error that came first is the one to act on

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            with self.ledger.explained():
                write()
        except MeteringError as fault:
            self._fault = fault

    def _finish(self) -> None:
        self._flush()
        filesystem, root = self.ledger.filesystem
        path = f"{root}/hour={self.bucket}/{self.name}.parquet"
        self._writer.close()
        self._sink.close()
        if self._writing != path:
            _on_disk(self._writing)  # before its name says that it is whole
            filesystem.move(self._writing, path)
        self.written = f"{self.ledger.uri.rstrip('/')}/hour={self.bucket}/{self.name}.parquet"

    def _flush(self) -> None:
        import pyarrow as pa

        entries, self._buffer = self._buffer, []
        if not entries:
            return
        if self._writer is None:
            self._open()
        told: dict[str, Sequence[object]] = {
            f.name: [getattr(entry, f.name) for entry in entries] for f in fields(Entry)
        }
        told |= {name: [value] * len(entries) for name, value in self._constant.items()}
        columns = [
            column_of_texts([_text(value) for value in told[name]], kind)
            for name, kind in zip(_schema().names, _schema().types, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=_schema()))

    def _open(self) -> None:
        import pyarrow.parquet as pq

        filesystem, root = self.ledger.filesystem
        folder = f"{root}/hour={self.bucket}"
        local = self.ledger.is_local
        # An object on S3 appears when its upload ends; a local file is renamed then.
        self._writing = f"{folder}/.{self.name}.parquet{_UNFINISHED}" if local else f"{folder}/{self.name}.parquet"
        if local:
            _make_private(Path(self._writing))
        self._sink = filesystem.open_output_stream(self._writing)
        self._writer = pq.ParquetWriter(self._sink, _schema(), write_page_checksum=True)


class Ledger:
    """The ledger of one deployment. Errors of its place come out as `MeteringError`s, in words."""

    def __init__(self, uri: str, s3_endpoint: str | None = None, region: str | None = None) -> None:
        """`uri` is a folder or `s3://bucket/prefix`; `s3_endpoint` stands for AWS's own, where one is named."""
        self.uri, self.s3_endpoint, self.region = uri, s3_endpoint, region

    @property
    def is_local(self) -> bool:
        """Return whether it lies in a folder."""
        return "://" not in self.uri

    def file(self, bucket: str, name: str, mode: str, run_id: str) -> LedgerFile:
        """Return the file that a run adds for an hour."""
        return LedgerFile(self, bucket, name, mode, run_id)

    def files_of(self, bucket: str) -> list[str]:
        """Return the paths of the hour's files, whole ones only."""
        if self.is_local:  # an hour without files needs no pyarrow, whose import costs every run
            with self.explained():
                return sorted(str(path) for path in Path(self.uri).absolute().glob(f"hour={bucket}/*.parquet"))
        from pyarrow import fs

        filesystem, root = self.filesystem
        with self.explained():
            found = filesystem.get_file_info(fs.FileSelector(f"{root}/hour={bucket}", allow_not_found=True))
        return sorted(info.path for info in found if info.path.endswith(".parquet"))

    def read_hour(self, bucket: str) -> list[Entry]:
        """Return every entry of one hour; none where the ledger does not know it."""
        return [entry for batch in self.batches_of(bucket) for entry in entries_of(batch)]

    def batches_of(self, bucket: str) -> Iterator["pa.Table"]:
        """Yield the hour's entries, so many at a time as a run held when it wrote them."""
        paths = self.files_of(bucket)
        if not paths:
            return
        import pyarrow.parquet as pq

        for path in paths:
            with self.explained():
                file = pq.ParquetFile(path, filesystem=self.filesystem[0], page_checksum_verification=True)
            with file:
                fault = _fault_of(file.schema_arrow)
                if fault:
                    raise _damaged(path, fault)
                known = [name for name in _schema().names if name in file.schema_arrow.names]
                for group in range(file.num_row_groups):
                    with self.explained():
                        table = file.read_row_group(group, columns=known, use_threads=False)
                        table.validate(full=True)
                    yield _in_our_columns(table, path)

    def table_of_hour(self, bucket: str) -> "pa.Table | None":
        """Return the hour's entries as one table, with the columns of `Entry`, `mode` and `run_id`."""
        if not self.files_of(bucket):
            return None
        import pyarrow as pa

        return pa.concat_tables(self.batches_of(bucket))

    @cached_property
    def filesystem(self) -> tuple[Any, str]:
        """Return the file system, and the root's path in it. S3 by the AWS SDK's own credentials, in the bucket's
        Region.
        """
        from pyarrow import fs

        with self.explained():
            if self.is_local:
                return fs.LocalFileSystem(), str(Path(self.uri).absolute())
            if not self.uri.startswith("s3://"):
                # Arrow knows more places; some of them it asks for a quarter of an hour before it gives up.
                raise SettingsError(
                    f"METERING_LEDGER_URI is {shown_value(self.uri)}. Nothing was read there or written. Name a folder "
                    "or s3://BUCKET/PREFIX."
                )
            root = self.uri.removeprefix("s3://").rstrip("/")
            if self.s3_endpoint:
                endpoint = urlsplit(self.s3_endpoint)
                where = {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme, "region": self.region}
            else:
                where = {"region": fs.resolve_s3_region(root.partition("/")[0])}
            return fs.S3FileSystem(
                connect_timeout=_S3_CONNECT_SECONDS,
                request_timeout=_S3_ANSWER_SECONDS,
                retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_S3_ATTEMPTS),
                **where,
            ), root

    def explained(self) -> "_Explained":
        """Return a block whose errors of the file system come out in words."""
        return _Explained(self.uri)


def _make_private(file: Path) -> None:
    """Create the file, and the folders that it lacks, for this user alone: the ledger names buyers in full."""
    # From the file up: a path that is too long is refused before any of it is made.
    missing = list(itertools.takewhile(lambda folder: not folder.is_dir(), file.parents))
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.fchmod(descriptor, 0o600)  # whatever a killed run of another version left under this name
    finally:
        os.close(descriptor)


def _fault_of(found: "pa.Schema") -> str:
    """Return why a file with these columns is none of the ledger, whichever version wrote it; empty if it is one."""
    ours = _schema()
    if not any(name in found.names for name in _KEYS):
        return "it has other columns"
    for name in ours.names:
        if found.names.count(name) > 1:
            return f"its column {name} is there twice"
        if name in found.names and not _fits(found.field(name).type, ours.field(name).type):
            return f"its column {name} is {found.field(name).type}, not {ours.field(name).type}"
    return ""


def _fits(found: "pa.DataType", ours: "pa.DataType") -> bool:
    """Return whether values of the one type mean the same in the other: texts, decimals, integers, instants."""
    from pyarrow import types

    if types.is_dictionary(found):
        found = found.value_type
    if found == ours or types.is_null(found):
        return True
    if types.is_string(ours):
        return bool(types.is_large_string(found))
    if types.is_timestamp(ours):
        return bool(types.is_timestamp(found) and found.tz is not None)
    alike = types.is_decimal if types.is_decimal(ours) else types.is_integer
    return bool(alike(found))


def _in_our_columns(table: "pa.Table", path: str) -> "pa.Table":
    """Return the entries with our columns in our order; null what a file of another version lacks."""
    import pyarrow as pa

    ours, missing = _schema(), pa.nulls(table.num_rows)
    try:
        columns = [(table[f.name] if f.name in table.column_names else missing).cast(f.type) for f in ours]
    except pa.ArrowException as error:
        raise _damaged(path, f"it holds a value of the wrong type: {error}") from None
    return pa.Table.from_arrays(columns, schema=ours)


def _damaged(path: str, fault: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path} lies in the ledger (METERING_LEDGER_URI) and is no file of it: {fault}. "
        "It was left as it is. Move it elsewhere; no bill hangs on it."
    )


def _on_disk(path: str) -> None:
    """Return when the local file would outlast a power cut."""
    with Path(path).open("rb") as file:
        os.fsync(file.fileno())


def entries_of(table: "pa.Table") -> Iterator[Entry]:
    """Yield the entries of one batch."""
    import pyarrow as pa

    names = [f.name for f in fields(Entry) if f.name != "bucket"]
    texts = {name for name in names if pa.types.is_string(_schema().field(name).type)}
    # The instants as numbers: as they are, they would be converted by way of pandas.
    columns = [(table[name].cast(pa.int64()) if name == "at" else table[name]).to_pylist() for name in names]
    for values in zip(*columns, strict=True):
        # A text that a file of another version lacks is null in the table, and empty here.
        entry: dict[str, Any] = {
            name: "" if value is None and name in texts else value for name, value in zip(names, values, strict=True)
        }
        yield Entry(**entry | {"at": None if entry["at"] is None else _EPOCH + timedelta(microseconds=entry["at"])})


def _schema() -> "pa.Schema":
    import pyarrow as pa

    number, text = pa.decimal128(_DIGITS, _DECIMALS), pa.string()
    return pa.schema([
        ("kind", text), ("outcome", text), ("license_arn", text), ("customer_aws_account_id", text),
        ("dimension", text), ("quantity", number), ("at", pa.timestamp("us", tz="UTC")), ("reason", text),
        ("sort_key", text), ("late_by", number), ("rows", pa.int64()), ("metering_record_id", text),
        ("customer_identifier", text), ("mode", text), ("run_id", text),
    ])  # fmt: skip


def _text(value: object) -> str | None:
    if isinstance(value, Decimal):
        value = _storable(value)
    if isinstance(value, datetime):
        value = value.isoformat(timespec="microseconds")
    return None if value is None else str(value)


def _storable(value: Decimal) -> Decimal | None:
    """Return the value if the column holds it exactly, else None: a rejected row's quantity may be any number."""
    if not value.is_finite() or abs(value) >= Decimal(10) ** (_DIGITS - _DECIMALS):
        return None
    exponent = value.normalize().as_tuple().exponent
    return value if isinstance(exponent, int) and exponent >= -_DECIMALS else None


class _Explained:
    def __init__(self, uri: str) -> None:
        self.uri = uri

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A ValueError: no file system has a path like this.
        if isinstance(error, OSError | ValueError) or is_arrows(error):
            raise UnreachableError(
                f"The ledger at {self.uri} (METERING_LEDGER_URI) cannot be used: {error}. "
                "The tables are as the run left them; only its ledger file is missing. "
                "Mend the place or the permissions."
            ) from error
