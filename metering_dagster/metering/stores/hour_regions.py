"""To which Region an hour belongs: that of its first call (domain: Region).

Belongs here: the item of our own that says so, noted before that call, and its release where no call can have billed.
Does not: what becomes of an hour of another Region (submission). A record's identity holds within one Region: sent in
another, the same record bills twice.
"""

import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from metering_dagster.core import hours
from metering_dagster.core.aws import dynamodb
from metering_dagster.core.aws.dynamodb import Explained, TableShape
from metering_dagster.core.errors import UnreachableError
from metering_dagster.metering.rules import own_item_keys

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_LIFE = timedelta(days=35)
"""How long the item is kept (`ttl`), as long as a commit."""
_ATTEMPTS = 5
"""How often a claim that meets another process is tried."""


class HourRegions:
    """The Regions of hours, as items of our own in the aggregated table. A process asks once for an hour."""

    def __init__(self, client: "DynamoDBClient", table: str, shape: TableShape) -> None:
        self.client, self.table, self.shape = client, table, shape
        self._known: dict[str, str] = {}
        self._token = uuid.uuid4().hex
        """Marks what only this process has claimed so far."""

    def claim(self, hour: datetime, region: str, now: datetime) -> str:
        """Return the Region that the hour belongs to: from now on this one, if it belongs to none yet."""
        bucket = hours.bucket(hour)
        if bucket not in self._known:
            self._known[bucket] = self._claim(hour, region, now)
        return self._known[bucket]

    def _claim(self, hour: datetime, region: str, now: datetime) -> str:
        key, stamp = own_item_keys.region_key(hours.bucket(hour)), {"S": dynamodb.stamp(now)}
        item: Any = {
            self.shape.hash_key: {"S": key.hash_key},
            self.shape.range_key: {"S": key.range_key},
            "meteringRegion": {"S": region},
            "claimedBy": {"S": self._token},
            "createdAt": stamp,
            "updatedAt": stamp,
            "ttl": {"N": str(int((hour + _LIFE).timestamp()))},
        }
        with Explained(self.client, self.table, self.shape):
            for _ in range(_ATTEMPTS):
                try:
                    self.client.put_item(
                        TableName=self.table,
                        Item=item,
                        ConditionExpression=f"attribute_not_exists({self.shape.hash_key})",
                        ReturnValuesOnConditionCheckFailure="ALL_OLD",
                    )
                except self.client.exceptions.ConditionalCheckFailedException as refused:
                    there: Any = refused.response.get("Item", {})
                    owner = str(dynamodb.value(there, "meteringRegion"))
                    if owner != region or "claimedBy" not in there or self._share(item, region):
                        return owner
                else:
                    return region
        raise UnreachableError(
            f"To which Region {hours.bucket(hour)} belongs changed each time it was read. Nothing of it was sent; the "
            "next run tries again."
        )

    def release(self, hour: datetime) -> None:
        """Give the hour back, if only this process has claimed it: no call of it can have billed anything."""
        bucket = hours.bucket(hour)
        key = own_item_keys.region_key(bucket)
        self._known.pop(bucket, None)
        with Explained(self.client, self.table, self.shape):
            try:
                self.client.delete_item(
                    TableName=self.table,
                    Key={self.shape.hash_key: {"S": key.hash_key}, self.shape.range_key: {"S": key.range_key}},
                    ConditionExpression="claimedBy = :me",
                    ExpressionAttributeValues={":me": {"S": self._token}},
                )
            except self.client.exceptions.ConditionalCheckFailedException:
                return  # another process relies on it

    def _share(self, item: Any, region: str) -> bool:
        """Rely on the claim of another process in this Region, so that it releases it no more; False if it has."""
        try:
            self.client.update_item(
                TableName=self.table,
                Key={name: item[name] for name in (self.shape.hash_key, self.shape.range_key)},
                UpdateExpression="SET updatedAt = :now REMOVE claimedBy",
                ConditionExpression="meteringRegion = :region",
                ExpressionAttributeValues={":now": item["updatedAt"], ":region": {"S": region}},
            )
        except self.client.exceptions.ConditionalCheckFailedException:
            return False
        return True
