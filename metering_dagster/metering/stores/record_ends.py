"""Writing how a record ended into the aggregated table (domain: terminal states).

Belongs here: the conditions of such a write, and how much of it a full item takes. Does not: what the end is
(submission, expiry), any other write of an aggregate (aggregated_table).
"""

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING

from metering_dagster.core.aws import dynamodb, transactions
from metering_dagster.core.aws.dynamodb import Explained, TableShape, typed
from metering_dagster.core.aws.transactions import Fate, Unit, transact_each
from metering_dagster.metering.rules.statuses import ANSWERS, RecordStatus
from metering_dagster.metering.rules.usage_record import RecordEnd

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

JUDGED = ("customerAWSAccountId", "dimension", "hourBucket", "usageAllocations", "customerIdentifier")
"""Beside the quantity: what an aggregate is judged by before it is sent."""
_PENDING_OR_EXPIRED = (
    "(meteringPending = :pending OR (attribute_not_exists(meteringPending) AND meteringStatus = :expired))"
)
_NO_QUANTITY = "attribute_not_exists(quantity) OR attribute_type(quantity, :null)"
_ACTION_BYTES = 4_000
"""What an action sends beside its values, from above."""


class Written(Enum):
    """The part of a record's end that was written."""

    WHOLE = "all of it"
    BARE = "the status alone: reason, record id and updatedAt do not fit into the item's 400 KB"
    UNMARKED = "nothing but that it is no longer pending: not even the status fits into the item's 400 KB"
    REFUSED = "nothing: it is no longer pending, or not as it was read"
    INVALID = "nothing: DynamoDB takes no write of this item"


def write_ends(
    client: "DynamoDBClient", table: str, shape: TableShape, ends: Sequence[RecordEnd], now: datetime
) -> list[Written]:
    """Write how records ended, each on the condition that it is still pending with the quantity that was read.

    What the service answered also replaces `SubmissionExpired`: the call was under way when the age-out came, and the
    bill is the truth. Of an item that is full, less is written: it must not be sent again and again.
    """
    written = [Written.INVALID] * len(ends)
    for how in (Written.WHOLE, Written.BARE, Written.UNMARKED):
        left = [place for place, so_far in enumerate(written) if so_far is Written.INVALID]
        if not left:
            break
        with Explained(client, table, shape):
            fates, invalid = transact_each(client, [_end_unit(table, shape, ends[place], now, how) for place in left])
        if invalid is not None and all(fate is Fate.INVALID for fate in fates):
            misshapen = dynamodb.shape_error(client, table, shape)  # of a misshapen table all are invalid
            if misshapen is not None:
                raise misshapen
        for place, fate in zip(left, fates, strict=True):
            if fate is not Fate.INVALID:
                written[place] = how if fate is Fate.WRITTEN else Written.REFUSED
    return written


def _end_unit(table: str, shape: TableShape, end: RecordEnd, now: datetime, how: Written) -> Unit:
    whole = how is Written.WHOLE
    values = {
        ":pending": end.pending,
        ":status": end.status.value if how is not Written.UNMARKED else None,
        ":now": dynamodb.stamp(now) if whole else None,
        ":quantity": end.quantity,
        ":null": "NULL" if end.quantity is None else None,
        ":reason": (end.reason or None) if whole else None,
        ":record": (end.record_id or None) if whole else None,
        ":expired": RecordStatus.EXPIRED.value if end.status in ANSWERS else None,
    }
    sent = {name: typed(value) for name, value in values.items() if value is not None}
    conditions = [_PENDING_OR_EXPIRED if ":expired" in sent else "meteringPending = :pending"]
    conditions += ["quantity = :quantity"] if ":quantity" in sent else [f"({_NO_QUANTITY})"]
    for name in JUDGED if end.stored else ():
        if name in end.stored:
            conditions.append(f"{name} = :{name}")
            sent[f":{name}"] = end.stored[name]
        else:
            conditions.append(f"attribute_not_exists({name})")
    named = {
        ":status": "meteringStatus",
        ":now": "updatedAt",
        ":reason": "meteringStatusReason",
        ":record": "meteringRecordId",
    }
    sets = [f"{name} = {value}" for value, name in named.items() if value in sent]
    # What an earlier submission of this record left behind is not true any more.
    removes = ["meteringPending"] + ([] if ":reason" in sent else ["meteringStatusReason"])
    action = {
        "Update": {
            "TableName": table,
            "Key": {shape.hash_key: {"S": end.license_arn}, shape.range_key: {"S": end.sort_key}},
            "UpdateExpression": (f"SET {', '.join(sets)} " if sets else "") + f"REMOVE {', '.join(removes)}",
            "ConditionExpression": " AND ".join(conditions),
            "ExpressionAttributeValues": sent,
        }
    }
    return Unit((action,), _ACTION_BYTES + transactions.bytes_of(sent))
