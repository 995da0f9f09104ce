"""Put a sample into a running stack: rows, subscribers, what the marketplace knows.

Belongs here: writing items fast and completely. Does not: what the sample is (sample), how the stack runs (stack).
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
    """Put the rows into the usage table, over whatever is there; how many."""
    return _write(client, table, [row.item for row in rows])


def load_subscribers(client: "DynamoDBClient", table: str, subscribers: Iterable[Mapping[str, Any]]) -> int:
    """Put the subscribers into their table, over whatever is there; how many."""
    return _write(client, table, list(subscribers))


def configure_sandbox(stack: "LocalStack", sample: Sample, leaving: Departure | None = None) -> None:
    """Tell the sandbox which products, dimensions, licenses and legacy customers exist: it refuses all others.

    And which license is deprovisioned, so that it accepts that one's usage for an hour more.
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
    """All of it: what DynamoDB leaves over is sent again, after a pause that grows."""
    for attempt in range(WRITE_ATTEMPTS):
        answer: Any = client.batch_write_item(RequestItems={table: batch})
        batch = answer.get("UnprocessedItems", {}).get(table, [])
        if not batch:
            return
        time.sleep(min(0.05 * 2**attempt, 2.0))
    left = len(batch)
    raise UnreachableError(f"DynamoDB table {table} left {left} sample items unwritten, again and again. Load again.")
