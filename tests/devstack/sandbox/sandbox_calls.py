"""An ordinary call to the sandbox, from which each test differs in one thing."""

from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from metering_dagster.devstack.sandbox import SandboxClient
from tests.simulation.memory import MemoryMarketplace

NOW = datetime(2026, 11, 20, 10, 30, tzinfo=UTC)
HOUR = datetime(2026, 11, 20, 8, tzinfo=UTC)
ACCOUNT = "111122223333"
LICENSE = "arn:aws:license-manager::999988887777:license:l-one"
OTHER_LICENSE = "arn:aws:license-manager::999988887777:license/l-two"
PRODUCT = "product-one"
SESSION = boto3.session.Session("AKIDEXAMPLE", "secret")
EXACTLY_ONE_CALL = Config(
    retries={"total_max_attempts": 1}, parameter_validation=False, connect_timeout=10, read_timeout=30
)


def metering(url: str, region: str = "us-east-1", config: Config | None = None) -> Any:
    """A client that never retries and checks nothing by itself."""
    merged = EXACTLY_ONE_CALL.merge(config) if config else EXACTLY_ONE_CALL
    return SESSION.client("meteringmarketplace", region, endpoint_url=url, config=merged)


def client_of(sandbox: SandboxClient | MemoryMarketplace, region: str = "us-east-1") -> Any:
    """A client of the service, wherever it is."""
    if isinstance(sandbox, MemoryMarketplace):
        return sandbox.client(region=region)
    return metering(sandbox.url, region)


def a_record(**changes: Any) -> dict[str, Any]:
    """A record of a license; None leaves a member out."""
    record = {"Timestamp": HOUR, "Dimension": "api_calls", "QuantityAsDecimal": "17", "LicenseArn": LICENSE}
    record |= {"CustomerAWSAccountId": ACCOUNT, **changes}
    return {name: value for name, value in record.items() if value is not None}


def a_legacy_record(**changes: Any) -> dict[str, Any]:
    """A record of a product that knows no licenses."""
    return a_record(**{"LicenseArn": None, "CustomerAWSAccountId": None, "CustomerIdentifier": "buyer-one"} | changes)


def some_records(number: int, **changes: Any) -> list[dict[str, Any]]:
    """That many records of different dimensions."""
    return [a_record(Dimension=f"dimension-{place:02}", **changes) for place in range(number)]


def an_allocation(quantity: Any = "17", /, **tags: str) -> dict[str, Any]:
    """An allocation with these tags; with none, the untagged bucket."""
    listed = {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]} if tags else {}
    return {"AllocatedUsageQuantityAsDecimal": quantity, **listed}


def send(client: Any, *records: dict[str, Any], **request: Any) -> dict[str, Any]:
    """The service's answer."""
    answer: dict[str, Any] = client.batch_meter_usage(UsageRecords=list(records), **request)
    return answer


def statuses(answer: dict[str, Any]) -> list[str]:
    """One for each record, in order."""
    return [result["Status"] for result in answer["Results"]]


def refusal(client: Any, *records: dict[str, Any], **request: Any) -> str:
    """The code with which the whole call fails; it must fail."""
    try:
        answer = send(client, *records, **request)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    raise AssertionError(f"accepted: {statuses(answer)}")


def hours_before(now: datetime, hours: int) -> datetime:
    """The start of the hour so many hours back."""
    return now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours)
