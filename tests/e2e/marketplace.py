"""What the project meets: its three tables and the marketplace; and what it ought to have billed.

Tables, keys and rows are written down here once more, as the reference pipeline has them, so that a wrong name in the
project shows.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import boto3
from botocore.config import Config

from tests.e2e.processes import HOST, ask, free_port, started, until

NOW = datetime.fromisoformat("2026-03-18T12:20:00+00:00")
"""Where all clocks but the machine's stand still."""
ISSUER = "arn:aws:license-manager::111122223333:license:l-"
PRODUCT = "prod-e2e"
DIMENSIONS = ("api-calls", "gpu#a100-hours")
HASH, SORT = "licenseArn", "customerAWSAccountId_dimension_timestamp"

Group: TypeAlias = tuple[str, str, str, str]
"""License, account, dimension, hour."""
Bill: TypeAlias = dict[Group, Decimal]


def hour_back(offset: int) -> str:
    """The hour bucket so many hours before the frozen one."""
    return f"{NOW - timedelta(hours=offset):%Y-%m-%dT%H}"


def license(number: int) -> tuple[str, str]:
    """A license and its account."""
    return f"{ISSUER}{number:032x}", f"{444400000000 + number}"


class Marketplace:
    """Tables and bill, spoken to over HTTP alone; remembers what is to be billed."""

    def __init__(self, dynamodb_url: str, sandbox_url: str) -> None:
        self.dynamodb_url, self.sandbox_url = dynamodb_url, sandbox_url
        self.expected: Bill = {}
        self._client: Any = _client("dynamodb", dynamodb_url)
        self._queues: Any = _client("sqs", dynamodb_url)

    def environment(self) -> dict[str, str]:
        """What the project must be told."""
        return {
            "USAGE_TABLE": "e2e-usage",
            "AGGREGATED_USAGE_TABLE": "e2e-aggregated",
            "SUBSCRIBERS_TABLE": "e2e-subscribers",
            "METERING_MODE": "live",
            "METERING_NOW": NOW.isoformat(),
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_DYNAMODB": self.dynamodb_url,
            "AWS_ENDPOINT_URL_MARKETPLACE_METERING": self.sandbox_url,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def create(self) -> None:
        """The three tables, the queue, and whom the marketplace knows."""
        self.queue_url = str(self._queues.create_queue(QueueName="e2e-events")["QueueUrl"])
        pending = {"IndexName": "metering_pending", "KeySchema": _schema("meteringPending", HASH)}
        some = {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["customerAWSAccountId", "dimension"]}
        self._table("e2e-usage", SORT, [pending | {"Projection": some}])
        self._table("e2e-aggregated", "account_dimension_hour", [pending | {"Projection": {"ProjectionType": "ALL"}}])
        flagged = {
            "IndexName": "deprovisioning-pending-index",
            "KeySchema": _schema("deprovisioningPendingFlag", "deprovisioningExpiry"),
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
        plain = [
            {
                "IndexName": f"{name}-index",
                "KeySchema": _schema(name),
                "Projection": {"ProjectionType": "ALL"},
            }
            for name in ("agreementId", "customerAWSAccountId")
        ]
        self._table("e2e-subscribers", "customerAWSAccountId", [flagged, *plain])
        self.control("configure", {"products": [PRODUCT], "dimensions": list(DIMENSIONS), "calls_per_second": 10})

    def subscribe(self, numbers: Iterable[int]) -> None:
        """Buyers with a license each."""
        for arn, account in map(license, numbers):
            self._put("e2e-subscribers", {
                HASH: arn, "customerAWSAccountId": account, "productCode": PRODUCT, "agreementStatus": "active",
                "subscriptionStatus": "active",
            })  # fmt: skip

    def use(self, number: int, dimension: str, hour: str, quantities: Iterable[Any], *, billed: bool = True) -> None:
        """Raw rows of one group, one a second; `billed` says what is to come of them."""
        arn, account = license(number)
        quantities = list(quantities)
        for second, quantity in enumerate(quantities):
            self.put_row(number, dimension, f"{hour}:{second // 60:02d}:{second % 60:02d}", quantity)
        if billed:
            self.expected[arn, account, dimension, hour] = sum(quantities, Decimal(0))

    def expect(self, number: int, dimension: str, hour: str, quantity: Decimal) -> None:
        """This is to be on the bill."""
        arn, account = license(number)
        self.expected[arn, account, dimension, hour] = quantity

    def put_row(self, number: int, dimension: str, timestamp: str, quantity: Any) -> None:
        """One raw row, as the seller writes it."""
        arn, account = license(number)
        self._put("e2e-usage", {
            HASH: arn, SORT: f"{account}#{dimension}#{timestamp}", "customerAWSAccountId": account,
            "dimension": dimension, "timestamp": timestamp, "quantity": quantity, "meteringPending": timestamp[:13],
        })  # fmt: skip

    def statuses(self, number: int, hour: str) -> Counter[str]:
        """How the raw rows of a license and hour stand, by status; `pending` for those that wait."""
        found = self._client.query(
            TableName="e2e-usage", KeyConditionExpression="licenseArn = :l", ExpressionAttributeValues={
                ":l": {"S": license(number)[0]}
            },
        )  # fmt: skip
        return Counter(
            "pending" if "meteringPending" in item else item["meteringStatus"]["S"]
            for item in found["Items"]
            if item["timestamp"]["S"].startswith(hour)
        )

    def bill(self) -> Bill:
        """What the marketplace billed; a group billed twice is a failure at once."""
        billed: Bill = {}
        for each in self.control("bill"):
            group = each["license_arn"], each["customer_aws_account_id"], each["dimension"], each["hour"]
            assert group not in billed, f"billed twice: {group}"
            billed[group] = Decimal(each["quantity"])
        return billed

    def check(self) -> None:
        """The bill is what was put into the tables, group by group, and nothing else."""
        assert self.bill() == self.expected

    def subscriber(self, number: int) -> dict[str, str]:
        """A subscriber's row as it stands, its texts."""
        arn, account = license(number)
        key = {HASH: {"S": arn}, "customerAWSAccountId": {"S": account}}
        found = self._client.get_item(TableName="e2e-subscribers", Key=key, ConsistentRead=True)
        return {name: value["S"] for name, value in found.get("Item", {}).items() if "S" in value}

    def deprovision(self, number: int, at: datetime) -> None:
        """What happens when a license ends: the marketplace takes its usage an hour more, and an event tells of it."""
        arn, account = license(number)
        self.control("configure", {"deprovisioned": {arn: at.isoformat()}})
        body = {
            "detail-type": "License Deprovisioned - Manufacturer",
            "time": f"{at:%Y-%m-%dT%H:%M:%SZ}",
            "detail": {"acceptor": {"accountId": account}, "license": {"arn": arn}, "product": {"code": PRODUCT}},
        }
        self._queues.send_message(QueueUrl=self.queue_url, MessageBody=json.dumps(body))

    def messages(self) -> int:
        """How many events are in the queue, received ones included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._queues.get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    def control(self, path: str, document: Any = None) -> Any:
        """The sandbox's control API."""
        return ask(f"{self.sandbox_url}/_sandbox/{path}", document)

    def _put(self, table: str, item: dict[str, Any]) -> None:
        typed = {
            name: {"N": str(value)} if isinstance(value, int | Decimal) else {"S": value}
            for name, value in item.items()
        }
        self._client.put_item(TableName=table, Item=typed)

    def _table(self, name: str, sort: str, indexes: list[dict[str, Any]]) -> None:
        keys = {HASH, sort} | {key["AttributeName"] for index in indexes for key in index["KeySchema"]}
        self._client.create_table(
            TableName=name,
            KeySchema=_schema(HASH, sort),
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in sorted(keys)],
            GlobalSecondaryIndexes=indexes,
            BillingMode="PAY_PER_REQUEST",
        )

    def close(self) -> None:
        self._client.close()
        self._queues.close()


def _client(service: str, url: str) -> Any:
    credentials = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    return boto3.client(service, endpoint_url=url, region_name="us-east-1", config=Config(proxies={}), **credentials)


def _schema(*names: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "KeyType": kind} for name, kind in zip(names, ("HASH", "RANGE"), strict=False)]


@contextmanager
def running_marketplace(folder: Path, project: Path) -> Iterator[Marketplace]:
    """The emulator and the sandbox, with empty tables; the sandbox's clock stands still."""
    sandbox_command = [
        "metering_dagster.devstack.sandbox", "--database", str(folder / "bill.sqlite"), "--now", NOW.isoformat(),
    ]  # fmt: skip
    port = free_port()
    emulator_environment = {
        "BIND_HOST": HOST, "GATEWAY_PORT": str(port), "SERVICES": "dynamodb,sqs", "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0", "PERSIST_STATE": "0", "TMPDIR": str(folder), "STATE_DIR": str(folder / "state"),
    }  # fmt: skip
    with (
        started("sandbox", sandbox_command, folder, {"PYTHONPATH": str(project)}) as sandbox,
        started("ministack", ["ministack"], folder, emulator_environment) as emulator,
    ):
        line = until(lambda: next((x for x in sandbox.said().splitlines() if x.endswith("}")), None), "the sandbox")
        url = f"http://{HOST}:{port}"
        emulator.answers(f"{url}/_ministack/health")
        marketplace = Marketplace(url, _url_in(line))
        marketplace.create()
        try:
            yield marketplace
        finally:
            marketplace.close()


def _url_in(line: str) -> str:
    return str(json.loads(line)["url"])
