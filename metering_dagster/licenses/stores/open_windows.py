"""The subscribers table as the finalizer uses it: the windows that are open, and closing one.

Belongs here: reading the rows that carry the flag, the conditional write that takes it away. Does not: when a window is
over (window_end), what is lost then (finalization), any other write of a subscriber.
"""

from datetime import datetime
from typing import TYPE_CHECKING

from metering_dagster.core.aws import dynamodb
from metering_dagster.core.aws.dynamodb import Explained, typed, value
from metering_dagster.licenses.rules.window_end import OpenWindow
from metering_dagster.metering.stores.subscribers_table import EXPIRY, FLAG, FLAGGED, SHAPE, open_windows

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_HASH, _RANGE = SHAPE.hash_key, SHAPE.range_key


class ClosingStore:
    """The flush windows of one deployment. Errors of DynamoDB come out as `MeteringError`s, in words."""

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        self.client, self.table = client, table

    def open_windows(self) -> list[OpenWindow]:
        """Return every window that is open: found by the sparse index, and read again consistently."""
        return [
            OpenWindow((item[_HASH]["S"], item[_RANGE]["S"]), value(item, EXPIRY), value(item, "updatedAt"))
            for item in open_windows(self.client, self.table)
        ]

    def finalize(self, window: OpenWindow, now: datetime) -> bool:
        """Close the window for good; False, and nothing is written, where it is no longer the one that was read.

        Its flag must still be there with the same expiry; where that says no time, with the same `updatedAt`, for then
        it was that which decided.
        """
        arn, account = window.buyer
        decisive = {EXPIRY: window.expiry} | ({} if window.has_readable_expiry else {"updatedAt": window.updated_at})
        conditions = [f"{FLAG} = :flagged"]
        values: dict[str, object] = {":flagged": FLAGGED, ":inactive": "inactive", ":now": dynamodb.stamp(now)}
        for name, was in decisive.items():
            absent = f"(attribute_not_exists({name}) OR attribute_type({name}, :null))"
            conditions.append(f"{name} = :{name}" if was is not None else absent)
            values |= {f":{name}": was} if was is not None else {":null": "NULL"}
        with Explained(self.client, self.table, SHAPE):
            try:
                self.client.update_item(
                    TableName=self.table,
                    Key={_HASH: {"S": arn}, _RANGE: {"S": account}},
                    UpdateExpression=f"SET subscriptionStatus = :inactive, updatedAt = :now REMOVE {FLAG}, {EXPIRY}",
                    ConditionExpression=" AND ".join(conditions),
                    ExpressionAttributeValues={name: typed(each) for name, each in values.items()},
                )
            except self.client.exceptions.ConditionalCheckFailedException:
                return False
        return True
