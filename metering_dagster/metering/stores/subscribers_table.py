"""The subscribers table as metering reads it (domain: the tables).

Belongs here: its keys and indexes, which product a license is of, which licenses are deprovisioning and until when.
Does not: writing it (the licenses' lifecycle does), what deprovisioning means for an hour (hours).
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from metering_dagster.core.aws import dynamodb
from metering_dagster.core.aws.dynamodb import Explained, IndexShape, Item, TableShape, value
from metering_dagster.core.instants import instant_of
from metering_dagster.metering.rules.batching import Buyer
from metering_dagster.metering.rules.flush_window import Windows

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

FLAG, FLAGGED = "deprovisioningPendingFlag", "1"
"""The marker of a row whose flush window is open."""
EXPIRY = "deprovisioningExpiry"
SHAPE = TableShape(
    title="the subscribers table",
    setting="SUBSCRIBERS_TABLE",
    hash_key="licenseArn",
    range_key="customerAWSAccountId",
    indexes=(
        IndexShape("deprovisioning-pending-index", FLAG, EXPIRY, include=()),
        IndexShape("agreementId-index", "agreementId", None),
        IndexShape("customerAWSAccountId-index", "customerAWSAccountId", None),
    ),
)
_HASH, _RANGE = SHAPE.hash_key, SHAPE.range_key


class SubscribersTable:
    """The subscribers of one deployment. Errors of DynamoDB come out as `MeteringError`s, in words."""

    def __init__(self, client: "DynamoDBClient", name: str) -> None:
        self.client, self.name = client, name

    def product_codes(self, buyers: Iterable[Buyer]) -> dict[Buyer, str]:
        """Return the product codes of those buyers whose row names one."""
        keys = [{_HASH: {"S": arn}, _RANGE: {"S": account}} for arn, account in sorted(set(buyers)) if account]
        codes = {}
        with Explained(self.client, self.name, SHAPE):
            for item in dynamodb.batch_get(self.client, self.name, keys):
                code = value(item, "productCode")
                if isinstance(code, str) and code:
                    codes[item[_HASH]["S"], item[_RANGE]["S"]] = code
        return codes

    def deprovisioning(self) -> Windows:
        """Return the buyers whose flush window is open: found by the sparse index, and read again consistently."""
        found: dict[Buyer, datetime | None] = {}
        for item in open_windows(self.client, self.name):
            found[item[_HASH]["S"], item[_RANGE]["S"]] = instant_of(value(item, EXPIRY))
        return found


def open_windows(client: "DynamoDBClient", table: str) -> Iterator[Item]:
    """Yield every row that carries the flag of a flush window, as it stands in the table now."""
    with Explained(client, table, SHAPE):
        for page in dynamodb.pages(
            client.query,
            TableName=table,
            IndexName=SHAPE.indexes[0].name,
            KeyConditionExpression=f"{FLAG} = :yes",
            ExpressionAttributeValues={":yes": {"S": FLAGGED}},
        ):
            keys = [{_HASH: item[_HASH], _RANGE: item[_RANGE]} for item in page]
            # The index follows the table a little later, so it may show windows that somebody has just closed.
            yield from (item for item in dynamodb.batch_get(client, table, keys) if value(item, FLAG) == FLAGGED)
