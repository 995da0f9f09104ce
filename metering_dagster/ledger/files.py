"""One parquet file for each run and hour, hive-style by hour, in a folder or on `s3://`.

Belongs here: columns, names, writing. Does not: who writes what. A file holds buyers' data in full (domain: secrecy).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from metering_dagster.errors import UnreachableError


@dataclass(frozen=True, slots=True)
class Entry:
    """What happened to one group's record in one run."""

    license_arn: str
    customer_aws_account_id: str
    customer_identifier: str | None
    dimension: str
    quantity: Decimal
    status: str
    mode: str
    run_id: str


def write_entries(uri: str, hour: str, run_id: str, entries: Sequence[Entry]) -> str:
    """Write one run's entries of one hour; the file's URI. A run that writes again overwrites its own file alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem, root = _filesystem(uri)
    folder = f"{root}/hour={hour}"
    path = f"{folder}/{run_id}.parquet"
    schema = pa.schema(
        [
            ("license_arn", pa.string()),
            ("customer_aws_account_id", pa.string()),
            ("customer_identifier", pa.string()),
            ("dimension", pa.string()),
            ("quantity", pa.decimal128(38, 6)),
            ("status", pa.string()),
            ("mode", pa.string()),
            ("run_id", pa.string()),
        ]
    )
    columns = {name: [getattr(entry, name) for entry in entries] for name in schema.names}
    try:
        filesystem.create_dir(folder, recursive=True)
        pq.write_table(pa.table(columns, schema=schema), path, filesystem=filesystem)
    except OSError as error:
        raise UnreachableError(
            f"The ledger file of {hour} cannot be written at {uri} (METERING_LEDGER_URI): {error}. "
            "No table was touched by this. Mend the place or the permissions and run the hour again."
        ) from error
    return f"{uri.rstrip('/')}/hour={hour}/{run_id}.parquet"


def _filesystem(uri: str) -> tuple[Any, str]:
    from pyarrow import fs

    if "://" in uri:
        filesystem, root = fs.FileSystem.from_uri(uri)
        return filesystem, root.rstrip("/")
    return fs.LocalFileSystem(), str(Path(uri).absolute())


def default_uri(storage_directory: str) -> str:
    """Beside Dagster's storage, where no place is named."""
    return str(Path(storage_directory).parent / "metering_ledger")
