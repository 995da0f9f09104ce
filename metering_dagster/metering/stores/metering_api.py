"""BatchMeterUsage: one call, and what its answer or error means (domain: what metering is).

Belongs here: sending a batch, every error class of the API. Does not: which record a result is about
(metering_response), what to do about it (submission), when a call may be sent (rate_limiter).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from metering_dagster.core import clock_skew
from metering_dagster.core.aws.dynamodb import CALLER_CODES, is_connection_error, is_credentials_error
from metering_dagster.core.errors import MeteringError
from metering_dagster.core.masking import mask_names, mask_text, printable
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.batching import Batch
from metering_dagster.metering.rules.metering_response import MeteringResponse, read_answer
from metering_dagster.metering.rules.usage_record import api_record

if TYPE_CHECKING:
    from mypy_boto3_meteringmarketplace import MarketplaceMeteringClient

OUT_OF_BOUNDS = "TimestampOutOfBoundsException"
"""An hour that the service takes no more, or not yet."""
_REFUSED_CODES = frozenset({
    "InvalidUsageDimensionException", "InvalidLicenseException", "InvalidTagException",
    "InvalidUsageAllocationsException", "InvalidCustomerIdentifierException", OUT_OF_BOUNDS,
})  # fmt: skip
_TRANSIENT_CODES = frozenset({
    "ThrottlingException", "InternalServiceErrorException", "Throttling", "TooManyRequestsException",
    "RequestThrottled", "RequestLimitExceeded", "ServiceUnavailable", "ServiceUnavailableException",
    "InternalFailure", "RequestTimeout", "RequestTimeoutException",
})  # fmt: skip
_SERVER_FAULT = 500


class Trouble(Enum):
    """Why a whole call failed, by what is to be done about it."""

    TRANSIENT = "send it again"
    REFUSED = "halve it until the bad record stands alone, and reject that one"
    PRODUCT = "leave this product's records pending, go on with the others"
    CALLER = "stop at once, leave everything pending"
    UNKNOWN = "halve it, and leave a record that is refused alone pending"


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A call that failed as a whole: nothing of it is known to be billed."""

    trouble: Trouble
    code: str
    message: str
    """The service's words, masked."""


class Marketplace:
    """The Metering API of one account and Region."""

    def __init__(
        self,
        client: "MarketplaceMeteringClient",
        quantities: Quantities,
        before_send: Callable[[], object],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`before_send` is called when a call is ready to leave, signed and all: it returns when the call may.

        `clock` is this machine's own, by which the SDK signs.
        """
        self.client, self.quantities, self.clock = client, quantities, clock

        def wait(**_: object) -> None:
            before_send()  # what a handler returns, the SDK would take for the answer

        client.meta.events.register("before-send.meteringmarketplace.BatchMeterUsage", wait)

    @property
    def region(self) -> str:
        """Return where calls go; the quota and a record's identity are of this Region."""
        return self.client.meta.region_name

    @property
    def where(self) -> str:
        """Return the Region and endpoint, for messages."""
        return mask_text(f"{self.region} at {self.client.meta.endpoint_url}")

    def send(self, batch: Batch) -> MeteringResponse | CallFailure:
        """Send one call, once. The SDK does not retry, for each attempt takes a slot of the quota."""
        records = [api_record(aggregate, self.quantities, batch.instant) for aggregate in batch.records]
        request: dict[str, Any] = {"UsageRecords": records}
        if batch.product_code is not None:
            request["ProductCode"] = batch.product_code
        try:
            answer = self.client.batch_meter_usage(**request)
        except MeteringError:
            raise  # of the quota
        except Exception as error:  # noqa: BLE001  # the SDK's parser raises anything over an odd body
            return _failure(error, batch, self.clock())
        read = read_answer(answer, records, batch.records)
        if isinstance(read, str):
            words = f"{read}; is it the Metering API? Check AWS_ENDPOINT_URL_MARKETPLACE_METERING"
            return CallFailure(Trouble.TRANSIENT, "NoAnswer", words)
        return read


def _failure(error: Exception, batch: Batch, now: datetime) -> CallFailure:
    """Return the meaning of an error that a call ended with."""

    def masked(words: str) -> str:
        # The service may quote whom the call was about, and not every name is known by its form.
        return mask_names(words, (name for aggregate in batch.records for name in _names(aggregate)))

    kind = type(error).__name__
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        http = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        said = masked(error.response.get("Error", {}).get("Message", ""))
        skew = clock_skew.words(error.response, now)
        words = f"{said.rstrip('.')}. {skew.rstrip('.')}" if skew else said
        return CallFailure(_trouble(code, http), printable(code), words)
    if is_credentials_error(error):
        return CallFailure(Trouble.CALLER, kind, masked(str(error)))
    if is_connection_error(error) or isinstance(error, ResponseParserError):
        return CallFailure(Trouble.TRANSIENT, kind, masked(str(error)))
    if isinstance(error, BotoCoreError):
        return CallFailure(Trouble.UNKNOWN, kind, masked(str(error)))
    # The SDK's parser fails in many ways over a body that is not what its model says.
    return CallFailure(Trouble.TRANSIENT, kind, f"the answer cannot be read: {masked(str(error))}")


def _names(aggregate: Aggregate) -> tuple[str, ...]:
    key = aggregate.key
    return key.account, aggregate.customer_identifier or "", "" if key.is_legacy else key.license_arn


def _trouble(code: str, http: int) -> Trouble:
    if code in _REFUSED_CODES:
        return Trouble.REFUSED
    if code == "InvalidProductCodeException":
        return Trouble.PRODUCT
    if code == "DisabledApiException" or code in CALLER_CODES:
        return Trouble.CALLER
    if code in _TRANSIENT_CODES or http >= _SERVER_FAULT:
        return Trouble.TRANSIENT
    return Trouble.UNKNOWN
