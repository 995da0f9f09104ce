"""Requests and client CPU for each raw row, at 1, 60 and 3,600 rows a group, against the embedded emulator.

Measured: the visit as it is (one consistent Query a group, transactions of up to 100 actions that several small groups
share), and beside it the plain way of writing, one UpdateItem for each row. Run it with `make bench`.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from metering_dagster.core.aws.dynamodb import create_table
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.devstack.loading import load
from metering_dagster.devstack.sample import SORT_KEY, SampleRow
from metering_dagster.devstack.stack import LocalStack, running_stack
from metering_dagster.metering.services.aggregation import aggregate
from metering_dagster.metering.services.discovery import discover
from metering_dagster.metering.services.tables import Slice, Tables
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table
from metering_dagster.metering.stores.aggregated_table import AggregatedTable
from metering_dagster.metering.stores.subscribers_table import SubscribersTable
from metering_dagster.metering.stores.usage_table import UsageTable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

NOW = datetime(2026, 3, 10, 12, 30, tzinfo=UTC)
HOUR = datetime(2026, 3, 10, 10, tzinfo=UTC)
SHAPES = ((1, 3_600), (60, 120), (3_600, 4))
"""Rows a group, and groups."""


@dataclass
class Cost:
    """What a piece of work cost the client."""

    requests: int = 0
    sent: int = 0
    cpu: float = 0.0
    wall: float = 0.0


def main() -> None:
    """Print a table of costs."""
    print(f"{'rows a group':>12} {'rows':>6} {'':24} {'requests/row':>12} {'bytes sent/row':>14} {'CPU ms/row':>10} "
          f"{'rows/s':>7}")  # fmt: skip
    with tempfile.TemporaryDirectory() as state, running_stack(Path(state), persist=False, now=NOW) as stack:
        for rows, groups in SHAPES:
            visit = _measure(stack, f"v{rows}", rows, groups, _visit)
            plain = _measure(stack, f"p{rows}", rows, groups, _plain)
            total = rows * groups
            _print(rows, total, "the visit, all of it", visit)
            _print(rows, total, "one UpdateItem a row", plain)
            print(f"{'':45} the visit takes {visit.requests / plain.requests:.3f} of the requests and "
                  f"{visit.cpu / plain.cpu:.2f} of the CPU of the plain writes alone")  # fmt: skip


def _print(rows: int, total: int, what: str, cost: Cost) -> None:
    print(f"{rows:>12} {total:>6} {what:24} {cost.requests / total:>12.4f} {cost.sent / total:>14.0f} "
          f"{1000 * cost.cpu / total:>10.3f} {total / cost.wall:>7.0f}")  # fmt: skip


def _measure(
    stack: LocalStack, prefix: str, rows: int, groups: int, work: Callable[["DynamoDBClient", str], object]
) -> Cost:
    client = _client(stack)
    for shape, name in ((usage_table.SHAPE, "usage"), (aggregated_table.SHAPE, "aggregated"),
                        (subscribers_table.SHAPE, "subscribers")):  # fmt: skip
        create_table(client, f"{prefix}-{name}", shape)
    load(client, f"{prefix}-usage", list(_rows(rows, groups)))
    with _costing(client) as cost:
        work(client, prefix)
    return cost


def _client(stack: LocalStack) -> "DynamoDBClient":
    return boto3.client(
        "dynamodb",
        endpoint_url=stack.dynamodb_url,
        region_name=stack.region,
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(max_pool_connections=32, parameter_validation=False, proxies={}),
    )


@contextmanager
def _costing(client: "DynamoDBClient") -> Iterator[Cost]:
    cost = Cost()

    def count(request: Any, **_: object) -> None:
        cost.requests += 1
        cost.sent += len(request.body or b"")

    client.meta.events.register("before-send.dynamodb", count)
    wall, cpu = time.perf_counter(), time.process_time()
    yield cost
    cost.wall, cost.cpu = time.perf_counter() - wall, time.process_time() - cpu


def _visit(client: "DynamoDBClient", prefix: str) -> None:
    usage = UsageTable(client, f"{prefix}-usage")
    tables = Tables(
        usage=usage,
        aggregated=AggregatedTable(client, f"{prefix}-aggregated", usage, Quantities.DECIMAL),
        subscribers=SubscribersTable(client, f"{prefix}-subscribers"),
        quantities=Quantities.DECIMAL,
        clock=lambda: NOW,
    )
    part = Slice(HOUR)
    discover(tables, part)
    done = aggregate(tables, part)
    if usage.count_pending(part.bucket) or not done.committed:
        raise SystemExit("the visit left rows pending: the figures would be worth nothing")


def _plain(client: "DynamoDBClient", prefix: str) -> None:
    """What the rows' final state alone costs, written one by one."""
    usage = UsageTable(client, f"{prefix}-usage")
    for row in list(usage.pending_rows("2026-03-10T10")):
        client.update_item(
            TableName=usage.name,
            Key={"licenseArn": {"S": row.license_arn}, SORT_KEY: {"S": row.sort_key}},
            UpdateExpression="SET meteringStatus = :s, meteringStatusReason = :r, updatedAt = :u "
            "REMOVE meteringPending",
            ConditionExpression="meteringPending = :p AND attribute_exists(licenseArn)",
            ExpressionAttributeValues={
                ":s": {"S": "Aggregated"},
                ":r": {"S": "Aggregated total quantity 3600 from 3600 raw usage records"},
                ":u": {"S": "2026-03-10T12:30:00Z"},
                ":p": {"S": "2026-03-10T10"},
            },
        )


def _rows(rows: int, groups: int) -> Iterator[SampleRow]:
    for group in range(groups):
        arn = f"arn:aws:license-manager::294406891311:license:l-{group % 40:08d}"
        account = f"{group:012d}"
        for second in range(rows):
            timestamp = f"2026-03-10T10:{second // 60:02d}:{second % 60:02d}"
            yield SampleRow({
                "licenseArn": arn,
                SORT_KEY: f"{account}#api-calls#{timestamp}",
                "customerAWSAccountId": account,
                "dimension": "api-calls",
                "timestamp": timestamp,
                "quantity": Decimal("1.25"),
                "meteringPending": "2026-03-10T10",
                "createdAt": timestamp + "Z",
                "updatedAt": timestamp + "Z",
            }, Decimal("1.25"))  # fmt: skip


if __name__ == "__main__":
    main()
