"""BatchMeterUsage: one call, and what its answer or error means (domain: what metering is).

Belongs here: sending a batch, matching the answer to its records, every error class of the API.
Does not: what to do about it (submission), when a call may be sent (quota).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from metering_dagster.dynamodb import CALLER_CODES, is_connection_error, is_credentials_error
from metering_dagster.masking import mask_names, mask_text, printable
from metering_dagster.metering.batches import Batch
from metering_dagster.metering.groups import Aggregate
from metering_dagster.metering.quantities import Quantities
from metering_dagster.metering.reasons import RecordStatus
from metering_dagster.metering.records import Identity, api_record, identity

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
_STATUSES = {
    status.value: status for status in (RecordStatus.SUCCESS, RecordStatus.NOT_SUBSCRIBED, RecordStatus.DUPLICATE)
}


class Trouble(Enum):
    """Why a whole call failed, by what is to be done about it."""

    TRANSIENT = "send it again"
    REFUSED = "halve it until the bad record stands alone, and reject that one"
    PRODUCT = "leave this product's records pending, go on with the others"
    CALLER = "stop at once, leave everything pending"
    UNKNOWN = "halve it, and leave a record that is refused alone pending"


@dataclass(frozen=True, slots=True)
class Result:
    """The service's word on one record."""

    aggregate: Aggregate
    status: RecordStatus
    record_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call that went through said.

    A record in neither list of the answer counts as unprocessed, and so does one with a status that nobody knows.
    """

    results: tuple[Result, ...]
    unprocessed: tuple[Aggregate, ...]


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
        self, client: "MarketplaceMeteringClient", quantities: Quantities, before_send: Callable[[], object]
    ) -> None:
        """`before_send` is called when a call is ready to leave, signed and all: it returns when the call may."""
        self.client, self.quantities = client, quantities

        def wait(**_: object) -> None:
            before_send()  # what a handler returns, the SDK would take for the answer

        client.meta.events.register("before-send.meteringmarketplace.BatchMeterUsage", wait)

    @property
    def region(self) -> str:
        """Where calls go; the quota and a record's identity are of this Region."""
        return self.client.meta.region_name

    @property
    def where(self) -> str:
        """The Region and endpoint, for messages."""
        return mask_text(f"{self.region} at {self.client.meta.endpoint_url}")

    def send(self, batch: Batch) -> Answer | CallFailure:
        """Send one call, once. The SDK does not retry, for each attempt takes a slot of the quota."""
        records = [api_record(aggregate, self.quantities) for aggregate in batch.records]
        request: dict[str, Any] = {"UsageRecords": records}
        if batch.product_code is not None:
            request["ProductCode"] = batch.product_code
        try:
            answer = self.client.batch_meter_usage(**request)
        except Exception as error:
            failure = _failure(error, batch)
            if failure is None:
                raise
            return failure
        if "Results" not in answer and "UnprocessedRecords" not in answer:
            words = "what answers there is not the Metering API; check AWS_ENDPOINT_URL_MARKETPLACE_METERING"
            return CallFailure(Trouble.TRANSIENT, "NoAnswer", words)
        waiting: dict[Identity | None, Aggregate] = {
            identity(record): aggregate for record, aggregate in zip(records, batch.records, strict=True)
        }
        results = []
        for result in answer.get("Results", []):
            status = _STATUSES.get(result.get("Status", ""))
            aggregate = waiting.pop(_who(result.get("UsageRecord", {})), None) if status else None
            if status is not None and aggregate is not None:
                results.append(Result(aggregate, status, result.get("MeteringRecordId", "")))
        return Answer(tuple(results), tuple(waiting.values()))


def _who(record: Mapping[str, Any]) -> Identity | None:
    """Whom an echoed record names; None where it lacks what tells: the model requires nothing of an answer."""
    return identity(record) if {"Dimension", "Timestamp"} <= record.keys() else None


def _failure(error: Exception, batch: Batch) -> CallFailure | None:
    """The meaning of an error of the SDK; None for one that is none of its."""

    def masked(words: str) -> str:
        # The service may quote whom the call was about, and not every name is known by its form.
        return mask_names(words, (name for aggregate in batch.records for name in _names(aggregate)))

    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        http = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return CallFailure(
            _trouble(code, http), printable(code), masked(error.response.get("Error", {}).get("Message", ""))
        )
    if is_credentials_error(error):
        return CallFailure(Trouble.CALLER, type(error).__name__, masked(str(error)))
    if is_connection_error(error) or isinstance(error, ResponseParserError):
        return CallFailure(Trouble.TRANSIENT, type(error).__name__, masked(str(error)))
    if isinstance(error, BotoCoreError):
        return CallFailure(Trouble.UNKNOWN, type(error).__name__, masked(str(error)))
    return None


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
