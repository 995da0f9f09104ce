"""The subscribers table as metering reads it (domain: the tables).

Belongs here: its keys and indexes, which product a licence is of, which licences are deprovisioning and until when.
Does not: writing it (the licences' lifecycle does), what deprovisioning means for an hour (hours).
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from metering_dagster import dynamodb
from metering_dagster.dynamodb import Explained, IndexShape, TableShape, value
from metering_dagster.metering.batches import Buyer

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

SHAPE = TableShape(
    title="the subscribers table",
    setting="SUBSCRIBERS_TABLE",
    hash_key="licenseArn",
    range_key="customerAWSAccountId",
    indexes=(
        IndexShape("deprovisioning-pending-index", "deprovisioningPendingFlag", "deprovisioningExpiry", include=()),
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
        """The product codes of those buyers whose row names one."""
        keys = [{_HASH: {"S": arn}, _RANGE: {"S": account}} for arn, account in sorted(set(buyers)) if account]
        codes = {}
        with Explained(self.client, self.name, SHAPE):
            for item in dynamodb.batch_get(self.client, self.name, keys):
                code = value(item, "productCode")
                if isinstance(code, str) and code:
                    codes[item[_HASH]["S"], item[_RANGE]["S"]] = code
        return codes

    def deprovisioning(self) -> Mapping[Buyer, datetime | None]:
        """The buyers whose flush window is open, with its end; None for an end that is no instant."""
        found: dict[Buyer, datetime | None] = {}
        with Explained(self.client, self.name, SHAPE):
            for page in dynamodb.pages(
                self.client.query,
                TableName=self.name,
                IndexName=SHAPE.indexes[0].name,
                KeyConditionExpression="deprovisioningPendingFlag = :yes",
                ExpressionAttributeValues={":yes": {"S": "1"}},
            ):
                for item in page:
                    found[item[_HASH]["S"], item[_RANGE]["S"]] = _instant(value(item, "deprovisioningExpiry"))
        return found


def _instant(text: object) -> datetime | None:
    try:
        instant = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return instant if instant is not None and instant.tzinfo else None
