"""The loading of a sample into a running stack: rows, subscribers, the marketplace's catalog.

Belongs here: writing items fast and completely. Does not: the sample (sample), the stack's processes (stack).
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from metering_dagster.core.chunks import chunked
from metering_dagster.core.errors import UnreachableError
from metering_dagster.devstack.endings import Departure
from metering_dagster.devstack.sample import Sample, SampleRow
from metering_dagster.devstack.sandbox.client import SandboxClient

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from metering_dagster.devstack.stack import LocalStack

BATCH_ITEMS = 25
WRITERS = 8
WRITE_ATTEMPTS = 10


def load(client: "DynamoDBClient", table: str, rows: Iterable[SampleRow]) -> int:
    """Put the rows into the usage table, replacing existing ones; return their number."""
    return _write(client, table, [row.item for row in rows])


def load_subscribers(client: "DynamoDBClient", table: str, subscribers: Iterable[Mapping[str, Any]]) -> int:
    """Put the subscribers into their table, replacing existing ones; return their number."""
    return _write(client, table, list(subscribers))


def configure_sandbox(stack: "LocalStack", sample: Sample, leaving: Departure | None = None) -> None:
    """Configure the sandbox's products, dimensions, licenses and legacy customers: it refuses all others.

    It also gets the deprovisioned license, whose usage it accepts for one more hour.
    """
    SandboxClient(stack.sandbox_url).configure(
        products=list(sample.products),
        dimensions=list(sample.dimensions),
        licenses=sample.licenses | ({leaving.license_arn: leaving.subscriber["productCode"]} if leaving else {}),
        customers=list(sample.legacy_customers),
        deprovisioned={leaving.license_arn: leaving.deprovisioned_at} if leaving else {},
    )


def _write(client: "DynamoDBClient", table: str, items: Sequence[Mapping[str, Any]]) -> int:
    from boto3.dynamodb.types import TypeSerializer

    serialize = TypeSerializer().serialize
    puts = ({"PutRequest": {"Item": {name: serialize(value) for name, value in item.items()}}} for item in items)
    with ThreadPoolExecutor(WRITERS) as pool:
        for _ in pool.map(lambda batch: _write_batch(client, table, batch), chunked(puts, BATCH_ITEMS)):
            pass
    return len(items)


def _write_batch(client: "DynamoDBClient", table: str, batch: list[Any]) -> None:
    """Write a whole batch: send the items that DynamoDB leaves over again, after growing pauses.

    Raises `UnreachableError` if some are still left over after `WRITE_ATTEMPTS`.
    """
    for attempt in range(WRITE_ATTEMPTS):
        answer: Any = client.batch_write_item(RequestItems={table: batch})
        batch = answer.get("UnprocessedItems", {}).get(table, [])
        if not batch:
            return
        time.sleep(min(0.05 * 2**attempt, 2.0))
    left = len(batch)
    raise UnreachableError(
        f"DynamoDB table {table} left {left} sample items unwritten after {WRITE_ATTEMPTS} attempts. Load again."
    )
