"""The sparse index `metering_pending`, which the usage and the aggregated table both have.

Belongs here: finding what is pending for an hour by Query (an item is in it while it has `meteringPending`), and, by a
Scan of this index alone, what no such Query finds. Does not: what the items are. The index is eventually consistent:
read the base table before deciding anything.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime
from typing import TYPE_CHECKING, Any

from metering_dagster.core import hours
from metering_dagster.core.aws import dynamodb
from metering_dagster.core.aws.dynamodb import Explained, Item, TableShape
from metering_dagster.core.errors import UnreachableError
from metering_dagster.core.masking import mask_text

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

NAME = "metering_pending"
HASH_KEY, RANGE_KEY = "meteringPending", "licenseArn"
_LONGEST = 1024
"""Bytes of an index' range key, at most. A longer license has no item here, and DynamoDB refuses to be asked for it."""

_USUAL_HOURS = hours.GRACE_LAST_OFFSET + 1
"""The hours that can be billed hold nearly all that is pending: a Scan filters them out where DynamoDB reads."""
_SCANNED = 2_000
"""Items that one request of a Scan looks at, so that none takes long."""


class PendingIndex:
    """The index of one table. Errors of DynamoDB come out as `MeteringError`s, in words."""

    def __init__(self, client: "DynamoDBClient", table: str, shape: TableShape) -> None:
        self.client, self.table, self.shape = client, table, shape

    def pages(self, bucket: str, licenses: Sequence[str] | None, attributes: str) -> Iterator[Sequence[Item]]:
        """Read the items filed under this hour, of these licenses or of all (None), in the order of licenses.

        Every page is read; one may be empty. `attributes` must name `licenseArn`.
        """
        how = {"ProjectionExpression": attributes}
        with Explained(self.client, self.table, self.shape):
            if licenses is None:
                for answer in dynamodb.answers(self.client.query, **self._request(bucket), **how):
                    self._check(answer["Items"])
                    yield answer["Items"]
                return
            wanted = frozenset(licenses)
            for answer in self._leaps(bucket, wanted, how):
                self._check(answer["Items"])
                yield [item for item in answer["Items"] if item[RANGE_KEY]["S"] in wanted]

    def count(self, bucket: str, most: int | None = None, until: float | None = None) -> int:
        """Return how many items are filed under this hour; with `most`, no further than that is counted.

        `until`, by `time.monotonic()`: a count that is not through by then is an `UnreachableError`.
        """
        request = self._request(bucket) | {"Select": "COUNT"} | ({"Limit": most} if most else {})
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

    def unreachable(self, now: datetime) -> Iterator[Sequence[Item]]:
        """Scan the index for items whose `meteringPending` no Query will ever name (`hours.is_named`).

        Each has the keys of the table and its `meteringPending`. Every page is read, one after the other: so the Scan
        takes a fraction of what one partition of the index can give, and leaves the rest to those who bill. Memory is
        that of a page.
        """
        usual = {f":h{n}": {"S": hours.bucket(hours.hour_at_offset(now, n))} for n in range(_USUAL_HOURS)}
        request: dict[str, Any] = {
            "TableName": self.table,
            "IndexName": NAME,
            "ProjectionExpression": ", ".join(dict.fromkeys((self.shape.hash_key, self.shape.range_key, HASH_KEY))),
            "FilterExpression": f"NOT ({HASH_KEY} IN ({', '.join(usual)}))",
            "ExpressionAttributeValues": usual,
            "Limit": _SCANNED,
        }
        with Explained(self.client, self.table, self.shape):
            for answer in dynamodb.answers(self.client.scan, **request):
                self._check(answer["Items"])
                yield [item for item in answer["Items"] if not hours.is_named(item[HASH_KEY]["S"], now)]

    def _leaps(self, bucket: str, licenses: Set[str], how: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Query the hour from the first of these licenses to the last, leaping over what lies between.

        A page goes on into the licenses that follow. Where it ends outside the wanted ones, the next Query begins at
        the next wanted one. So there are never more Queries than the hour has pages. Nor are there more than one for
        each license and one for each page that ends inside a license.
        """
        wanted = sorted(license_arn for license_arn in licenses if len(license_arn.encode()) <= _LONGEST)
        place = 0
        while place < len(wanted):
            request = self._request(bucket, wanted[place], wanted[-1])
            place = len(wanted)
            for answer in dynamodb.answers(self.client.query, **request, **how):
                yield answer
                last = answer.get("LastEvaluatedKey")
                # Python compares texts by code points, DynamoDB by bytes of UTF-8, which is the same order.
                beyond = bisect_right(wanted, last[RANGE_KEY]["S"]) if last else len(wanted)
                if last and last[RANGE_KEY]["S"] != wanted[beyond - 1]:
                    place = beyond
                    break

    def _check(self, items: Sequence[Item]) -> None:
        """An index always carries its table's keys: where ours are missing, it is a table of another kind."""
        if items and self.shape.range_key not in items[0]:
            error = dynamodb.shape_error(self.client, self.table, self.shape)
            if error is not None:
                raise error

    def _request(self, bucket: str, first: str | None = None, last: str | None = None) -> dict[str, Any]:
        condition, values = f"{HASH_KEY} = :hour", {":hour": {"S": bucket}}
        if first is not None and last is not None:
            condition += f" AND {RANGE_KEY} BETWEEN :first AND :last"
            values |= {":first": {"S": first}, ":last": {"S": last}}
        return {
            "TableName": self.table,
            "IndexName": NAME,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": values,
        }
