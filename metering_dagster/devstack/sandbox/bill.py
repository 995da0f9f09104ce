"""The sandbox's bill, calls and configuration, in SQLite. Each write is committed before its response is sent.

Belongs here: the tables, and the rule that the first quantity of an identity is billed. Does not: which records may be
billed (rules.py), responses (desk.py).
"""

import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from decimal import Decimal
from enum import StrEnum
from os import PathLike
from typing import Any

from metering_dagster.devstack.sandbox.rules import AcceptedRecord, Identity
from metering_dagster.devstack.sandbox.world import World

BUSY_SECONDS = 30.0
IDENTITY = tuple(each.name for each in fields(Identity))
SCHEMA = f"""
create table if not exists billed (
    place integer primary key autoincrement,
    {" ".join(f"{name} text not null," for name in IDENTITY)}
    quantity text not null,
    allocations text,
    metering_record_id text not null,
    unique ({", ".join(IDENTITY)})
);
create table if not exists calls (
    sequence integer primary key autoincrement,
    monotonic real not null,
    at text not null,
    records integer not null,
    bytes integer not null,
    region text not null,
    product_code text not null,
    hours text not null,
    licenses integer not null,
    outcome text
);
create table if not exists world (only_one integer primary key check (only_one = 1), document text not null);
"""


class BillStatus(StrEnum):
    """Status of one record in a response."""

    SUCCESS = "Success"
    CUSTOMER_NOT_SUBSCRIBED = "CustomerNotSubscribed"
    DUPLICATE_RECORD = "DuplicateRecord"


@dataclass(frozen=True)
class RecordOutcome:
    """Result of one record; only a billed one has an id."""

    status: BillStatus
    metering_record_id: str | None = None


@dataclass(frozen=True)
class BilledRecord:
    """Line of the bill. The quantity has no trailing zeros."""

    region: str
    product_code: str | None
    license_arn: str | None
    customer_aws_account_id: str | None
    customer_identifier: str | None
    dimension: str
    hour: str
    quantity: str
    allocations: list[dict[str, Any]] | None
    metering_record_id: str


@dataclass(frozen=True)
class Call:
    """Call as it arrived. `at` and `monotonic` are real time, whatever the sandbox's clock says."""

    sequence: int
    monotonic: float
    at: str
    records: int
    bytes: int
    region: str
    product_code: str | None
    hours: list[str]
    licenses: int
    outcome: str | None
    """"ok", an error's code or the fault that ended it; None while the call is in progress."""


class Bill:
    """Database of the bill, on one connection that all threads share in turn."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = normal")  # outlives the process, if not the machine's power
        self._connection.executescript(SCHEMA)

    def close(self) -> None:
        """Close the connection. Nothing is lost: all that was answered is committed."""
        with self._lock:
            self._connection.close()

    def settle(self, usages: Sequence[AcceptedRecord]) -> list[RecordOutcome]:
        """Bill new records, in order. A record billed before stays as it is, even if its buyer has unsubscribed."""
        with self._transaction() as connection:
            return [_settle_one(connection, usage) for usage in usages]

    def billed(self) -> list[BilledRecord]:
        """Return the bill, in the order it was written."""
        with self._lock:
            rows = self._connection.execute(
                f"select {', '.join(IDENTITY)}, quantity, allocations, metering_record_id from billed order by place"
            ).fetchall()
        return [_billed_record(row) for row in rows]

    def open_call(self, call: Call) -> int:
        """Record a call that has arrived; return its number."""
        with self._transaction() as connection:
            row = connection.execute(
                "insert into calls (monotonic, at, records, bytes, region, product_code, hours, licenses)"
                " values (:monotonic, :at, :records, :bytes, :region, :product_code, :hours, :licenses)"
                " returning sequence",
                {**asdict(call), "product_code": call.product_code or "", "hours": json.dumps(call.hours)},
            ).fetchone()
        return int(row[0])

    def close_call(self, sequence: int, outcome: str) -> None:
        """Record how the call ended."""
        with self._transaction() as connection:
            connection.execute("update calls set outcome = ? where sequence = ?", (outcome, sequence))

    def calls(self) -> list[Call]:
        """Return all calls in the order they arrived."""
        with self._lock:
            rows = self._connection.execute("select * from calls order by sequence").fetchall()
        return [_call(row) for row in rows]

    def world(self) -> World:
        """Return the stored configuration."""
        with self._lock:
            row = self._connection.execute("select document from world").fetchone()
        return World() if row is None else World().changed(json.loads(row[0]))

    def keep_world(self, world: World) -> None:
        """Store the configuration, so that it survives a restart."""
        with self._transaction() as connection:
            connection.execute("insert or replace into world values (1, ?)", (json.dumps(world.document()),))

    def forget(self) -> None:
        """Delete everything, as in a new database."""
        with self._transaction() as connection:
            for table in ("billed", "calls", "world", "sqlite_sequence"):
                connection.execute(f"delete from {table}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("begin immediate")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("rollback")
                raise
            self._connection.execute("commit")


def _settle_one(connection: sqlite3.Connection, usage: AcceptedRecord) -> RecordOutcome:
    key = astuple(usage.identity)
    condition = " and ".join(f"{name} = ?" for name in IDENTITY)
    first = connection.execute(f"select quantity, metering_record_id from billed where {condition}", key).fetchone()
    if first is not None:
        same = Decimal(first[0]) == usage.quantity
        return RecordOutcome(BillStatus.SUCCESS, first[1]) if same else RecordOutcome(BillStatus.DUPLICATE_RECORD)
    if not usage.subscribed:
        return RecordOutcome(BillStatus.CUSTOMER_NOT_SUBSCRIBED)
    record_id = str(uuid.uuid4())
    allocations = usage.record.get("UsageAllocations")
    values = (*key, _plain(usage.quantity), None if allocations is None else json.dumps(allocations), record_id)
    columns = (*IDENTITY, "quantity", "allocations", "metering_record_id")
    marks = ", ".join("?" * len(columns))
    connection.execute(f"insert into billed ({', '.join(columns)}) values ({marks})", values)
    return RecordOutcome(BillStatus.SUCCESS, record_id)


def _plain(quantity: Decimal) -> str:
    return format(quantity.normalize(), "f")


def _billed_record(row: sqlite3.Row) -> BilledRecord:
    values: dict[str, Any] = {name: value or None for name, value in dict(row).items()}
    if values["allocations"] is not None:
        values["allocations"] = json.loads(values["allocations"])
    return BilledRecord(**values)


def _call(row: sqlite3.Row) -> Call:
    return Call(**{**dict(row), "product_code": row["product_code"] or None, "hours": json.loads(row["hours"])})
