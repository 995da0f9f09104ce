"""The sparse index `metering_pending`, which the usage and the aggregated table both have.

Belongs here: finding what is pending for an hour by Query (an item is in it while it has `meteringPending`).
Does not: what the items are. The index is eventually consistent: read the base table before deciding anything.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from metering_dagster import dynamodb
from metering_dagster.dynamodb import Explained, Item, TableShape
from metering_dagster.errors import UnreachableError
from metering_dagster.masking import mask_text

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

NAME = "metering_pending"
HASH_KEY, RANGE_KEY = "meteringPending", "licenseArn"
_AT_ONCE = 100
"""Items a page where the first will do: a licence mostly has one buyer."""


class PendingIndex:
    """The index of one table. Errors of DynamoDB come out as `MeteringError`s, in words."""

    def __init__(self, client: "DynamoDBClient", table: str, shape: TableShape) -> None:
        self.client, self.table, self.shape = client, table, shape

    def pages(self, bucket: str, license_arn: str | None, attributes: str) -> Iterator[Sequence[Item]]:
        """The items filed under this hour, every page, in the order of licences; of one licence alone, if named."""
        request = self._request(bucket, license_arn) | {"ProjectionExpression": attributes}
        with Explained(self.client, self.table, self.shape):
            for answer in dynamodb.answers(self.client.query, **request):
                self._check(answer["Items"])
                yield answer["Items"]

    def count(self, bucket: str, most: int | None = None, until: float | None = None) -> int:
        """How many items are filed under this hour; with `most`, no further than that is counted.

        `until`, by `time.monotonic()`: a count that is not through by then is an `UnreachableError`.
        """
        request = self._request(bucket, None) | {"Select": "COUNT"} | ({"Limit": most} if most else {})
        found = 0
        with Explained(self.client, self.table, self.shape):
            for answer in dynamodb.answers(self.client.query, **request):
                found += answer["Count"]
                if most is not None and found >= most:
                    return most
                if until is not None and "LastEvaluatedKey" in answer and time.monotonic() > until:
                    raise UnreachableError(
                        f"What is pending in {bucket} in {self.shape.title} {mask_text(self.table)} was not counted in "
                        f"time: {found} items were seen, and there are more. Nothing was written."
                    )
        return found

    def holds(self, bucket: str, license_arn: str, wanted: Callable[[Item], bool]) -> bool:
        """Whether an item of this hour and licence is wanted, by its keys: read no further than to the first."""
        keys = f"{self.shape.hash_key}, {self.shape.range_key}"
        request = self._request(bucket, license_arn) | {"ProjectionExpression": keys, "Limit": _AT_ONCE}
        with Explained(self.client, self.table, self.shape):
            for answer in dynamodb.answers(self.client.query, **request):
                self._check(answer["Items"])
                if any(wanted(item) for item in answer["Items"]):
                    return True
        return False

    def _check(self, items: Sequence[Item]) -> None:
        """An index always carries its table's keys: where ours are missing, it is a table of another kind."""
        if items and self.shape.range_key not in items[0]:
            error = dynamodb.shape_error(self.client, self.table, self.shape)
            if error is not None:
                raise error

    def _request(self, bucket: str, license_arn: str | None) -> dict[str, Any]:
        condition, values = f"{HASH_KEY} = :hour", {":hour": {"S": bucket}}
        if license_arn is not None:
            condition += f" AND {RANGE_KEY} = :licence"
            values[":licence"] = {"S": license_arn}
        return {
            "TableName": self.table,
            "IndexName": NAME,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": values,
        }
