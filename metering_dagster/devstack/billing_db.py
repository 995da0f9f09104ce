"""The sample's billing database: a SQLite file, written as a collector would.

Belongs here: making the tables, inserting rows, writing rows again. Does not: which rows (billing_sample,
billing_reingest), the product's own readings (billing_changes/stores/queries).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metering_dagster.devstack.billing_reingest import Reingest
from metering_dagster.devstack.billing_sample import BillingSample, Daily, Fact

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

_KEYS = {
    "cmdb_cost_facts": ("scope_id", "integration_id", "resource_group", "service"),
    "cmdb_cloud_billing_daily": ("scope_id",),
}
"""The columns that tell the rows of a day apart. NULL equals NULL here, unlike in a unique key."""
PATIENCE_SECONDS = 30
"""The time to wait for another process that reads the file."""


def url_of(path: Path) -> str:
    """Return the `BILLING_DATABASE_URL` of this file."""
    return f"sqlite:///{path.absolute()}"


def fill(path: Path, sample: BillingSample) -> None:
    """Make missing tables, and insert missing rows; existing rows are left as they are."""
    from sqlalchemy import select

    from metering_dagster.billing_changes.stores.billing_tables import ADVISED, DAILY, FACTS, METADATA, SUBSCRIPTIONS

    path.parent.mkdir(parents=True, exist_ok=True)
    with _writing(path) as connection:
        METADATA.create_all(connection)
        for index in ADVISED:
            index.create(connection, checkfirst=True)
        if connection.execute(select(SUBSCRIPTIONS.c.id).limit(1)).first() is None:
            _insert(connection, SUBSCRIPTIONS, [asdict(each) for each in sample.subscriptions])
        for table, rows in ((FACTS, sample.facts), (DAILY, sample.daily)):
            names = _KEYS[table.name]
            there = {tuple(row) for row in connection.execute(select(table.c.date, *(table.c[name] for name in names)))}
            new = [row for row in rows if (row.day, *(getattr(row, name) for name in names)) not in there]
            _insert(connection, table, [_columns(row) for row in new])


def write_again(path: Path, again: Reingest) -> None:
    """Replace the rows of the same keys, and delete those that are gone, in one transaction."""
    from metering_dagster.billing_changes.stores.billing_tables import DAILY, FACTS

    with _writing(path) as connection:
        for table, rows, gone in ((FACTS, again.facts, again.gone_facts), (DAILY, again.daily, again.gone_daily)):
            for row in (*rows, *gone):
                same = (table.c[name].is_not_distinct_from(getattr(row, name)) for name in _KEYS[table.name])
                connection.execute(table.delete().where(table.c.date == row.day, *same))
            _insert(connection, table, [_columns(row) for row in rows])


@contextmanager
def _writing(path: Path) -> Iterator["Connection"]:
    """Give a block one transaction."""
    from sqlalchemy import create_engine

    engine = create_engine(url_of(path), connect_args={"timeout": PATIENCE_SECONDS})
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def _insert(connection: "Connection", table: "Table", rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(table.insert(), rows)


def _columns(row: Fact | Daily) -> dict[str, Any]:
    """Return the row by the table's column names; stamps are in UTC, without a zone."""
    columns = {"date" if name == "day" else name: value for name, value in asdict(row).items()}
    return {name: value.replace(tzinfo=None) if isinstance(value, datetime) else value
            for name, value in columns.items()}  # fmt: skip
