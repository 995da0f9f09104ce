"""AWS clients as this project configures them.

Belongs here: time-outs, retries, the guard of a frozen clock. Does not: any call.
"""

import os
import re
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from metering_dagster.core.addresses import is_loopback
from metering_dagster.core.errors import CallerError, SettingsError
from metering_dagster.core.masking import mask_text

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_meteringmarketplace import MarketplaceMeteringClient
    from mypy_boto3_sns import SNSClient
    from mypy_boto3_sqs import SQSClient

_CONNECTIONS = 32
"""More than the threads that use one client side by side."""
_TABLES = Config(
    connect_timeout=5,
    read_timeout=10,
    retries={"mode": "standard", "total_max_attempts": 3},
    max_pool_connections=_CONNECTIONS,
    parameter_validation=False,  # costs a third of the client's CPU; the shapes of our requests are tested
)
_PROBE = Config(
    connect_timeout=2,
    read_timeout=3,
    retries={"mode": "standard", "total_max_attempts": 2},
    parameter_validation=False,
)
"""A tick has a minute for everything; where a probe cannot tell, the run is asked for."""
_METERING = Config(
    connect_timeout=5,
    read_timeout=20,
    retries={"mode": "standard", "total_max_attempts": 1},  # each attempt takes a slot of the quota: we send again
    max_pool_connections=_CONNECTIONS,
)
_ALERTS = Config(
    connect_timeout=2,
    read_timeout=4,
    retries={"mode": "standard", "total_max_attempts": 2},
)
"""A tick has a minute for everything; what was not delivered is sent by the next one."""
_FILES = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
"""Small objects, read and replaced as a whole. All attempts together end within a tick's minute."""
_QUEUE = Config(connect_timeout=2, read_timeout=5, retries={"mode": "standard", "total_max_attempts": 2})
"""Both a tick and a run use it. What is not received is received later."""
_QUEUE_HOST = re.compile(r"https?://sqs(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)(?:[:/]|$)")


class AwsSettings(Protocol):
    """The settings that clients are made by."""

    @property
    def region(self) -> str | None:
        """Return the Region of the tables and the API; None: as the SDK finds it."""

    @property
    def subscribers_table_region(self) -> str:
        """Return the Region of the subscribers table, which the marketplace's queue lies in as well."""

    @property
    def events_queue_url(self) -> str | None:
        """Return the queue of lifecycle events."""

    @property
    def frozen_now(self) -> datetime | None:
        """Return a clock that stands still; with it only loopback is called."""


class Clients:
    """The clients of one deployment. They share one session, so the SDK's models are read once (0.2 s of CPU)."""

    def __init__(self, settings: AwsSettings) -> None:
        self.settings = settings

    @cached_property
    def _session(self) -> boto3.session.Session:
        """Not boto3's default session: that one is shared by the whole process, and not made for several threads.

        boto3 itself reads `AWS_DEFAULT_REGION` alone; the other SDKs, and AWS where it runs containers, `AWS_REGION`.
        """
        return boto3.session.Session(region_name=os.environ.get("AWS_REGION") or None)

    def dynamodb(self, region: str | None = None) -> "DynamoDBClient":
        """Return a client of DynamoDB, in the SDK's own Region or the one named."""
        client: DynamoDBClient = self._client("dynamodb", _TABLES, region)
        return client

    def probe(self, region: str | None = None) -> "DynamoDBClient":
        """Return a client of DynamoDB that gives up soon, in the SDK's own Region or the one named."""
        client: DynamoDBClient = self._client("dynamodb", _PROBE, region)
        return client

    def metering(self) -> "MarketplaceMeteringClient":
        """Return a client of the Metering API, in the SDK's own Region."""
        client: MarketplaceMeteringClient = self._client("meteringmarketplace", _METERING, None)
        return client

    def sns(self, region: str) -> "SNSClient":
        """Return a client of SNS in this Region that gives up soon."""
        client: SNSClient = self._client("sns", _ALERTS, region)
        return client

    def s3(self) -> Any:
        """Return a client of S3, in the SDK's own Region."""
        return self._client("s3", _FILES, None)

    def sqs(self) -> "SQSClient":
        """Return a client of SQS, in the Region of the queue of lifecycle events; the same one each time.

        The Region is that of the queue's URL where its host tells it, else the one of the subscribers table.
        """
        return self._sqs

    @cached_property
    def _sqs(self) -> "SQSClient":
        host = _QUEUE_HOST.match(self.settings.events_queue_url or "")
        region = host[1] if host else self.settings.subscribers_table_region
        client: SQSClient = self._client("sqs", _QUEUE, region)
        return client

    def _client(self, service: str, config: Config, region: str | None) -> Any:
        untouched = "Nothing was read or written."
        try:
            client = self._session.client(service, region_name=region or self.settings.region, config=config)  # type: ignore[call-overload]
        except BotoCoreError as error:
            raise CallerError(
                f"No {service} client can be made: {mask_text(str(error))}. {untouched} "
                "Set AWS_REGION and the credentials as the AWS SDK expects them."
            ) from error
        except ValueError as error:
            raise SettingsError(
                f"No {service} client can be made: {mask_text(str(error))}. {untouched} "
                "Mend the AWS_ENDPOINT_URL settings."
            ) from error
        if self.settings.frozen_now is not None and not is_loopback(client.meta.endpoint_url):
            raise SettingsError(
                f"METERING_NOW is refused: {service} would be called at {mask_text(client.meta.endpoint_url)}, "
                f"which is not on loopback. {untouched} Unset METERING_NOW, or name local endpoints."
            )
        return client
