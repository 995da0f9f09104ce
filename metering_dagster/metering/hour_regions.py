"""To which Region an hour belongs: that of its first call (domain: Region).

Belongs here: the item of our own that says so, noted before that call. Does not: what becomes of an hour of another
Region (submission). A record's identity holds within one Region: sent in another, the same record bills twice.
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from metering_dagster import dynamodb, hours
from metering_dagster.dynamodb import Explained, TableShape
from metering_dagster.metering import own_items

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_LIFE = timedelta(days=35)
"""How long the item is kept (`ttl`), as long as a commit."""


class HourRegions:
    """The Regions of hours, as items of our own in the aggregated table. A process asks once for an hour."""

    def __init__(self, client: "DynamoDBClient", table: str, shape: TableShape) -> None:
        self.client, self.table, self.shape = client, table, shape
        self._known: dict[str, str] = {}

    def claim(self, hour: datetime, region: str, now: datetime) -> str:
        """Return the Region that the hour belongs to: from now on this one, if it belongs to none yet."""
        bucket = hours.bucket(hour)
        if bucket not in self._known:
            self._known[bucket] = self._claim(hour, region, now)
        return self._known[bucket]

    def _claim(self, hour: datetime, region: str, now: datetime) -> str:
        key, stamp = own_items.region_key(hours.bucket(hour)), {"S": dynamodb.stamp(now)}
        item: Any = {
            self.shape.hash_key: {"S": key.hash_key},
            self.shape.range_key: {"S": key.range_key},
            "meteringRegion": {"S": region},
            "createdAt": stamp,
            "updatedAt": stamp,
            "ttl": {"N": str(int((hour + _LIFE).timestamp()))},
        }
        with Explained(self.client, self.table, self.shape):
            try:
                self.client.put_item(
                    TableName=self.table,
                    Item=item,
                    ConditionExpression=f"attribute_not_exists({self.shape.hash_key})",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except self.client.exceptions.ConditionalCheckFailedException as refused:
                there: Any = refused.response.get("Item", {})
                return str(dynamodb.value(there, "meteringRegion"))
        return region
