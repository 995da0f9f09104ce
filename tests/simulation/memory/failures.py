"""Errors as botocore raises them.

Belongs here: making them, the real classes of each service, those that a simulator lets a call end with. Does not: when
they are due.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import botocore.session
from botocore import exceptions
from botocore.errorfactory import ClientExceptionsFactory
from botocore.exceptions import ClientError

_STATUS = {"InternalServerError": 500, "InternalServiceErrorException": 500, "ServiceUnavailable": 503}
THROTTLED = {
    "dynamodb": "ProvisionedThroughputExceededException",
    "sqs": "ThrottlingException",
    "meteringmarketplace": "ThrottlingException",
}
"""What each service says to a caller that is too fast."""
BROKEN = {
    "dynamodb": "InternalServerError",
    "sqs": "InternalFailure",
    "meteringmarketplace": "InternalServiceErrorException",
}
"""What each service says when the fault is its own."""


@functools.cache
def service_model(service: str) -> Any:
    """The SDK's own model of a service."""
    return _session().get_service_model(service)


@functools.cache
def error_classes(service: str) -> Any:
    """What a client has as `exceptions`: the SDK's own classes, made from its model."""
    return _factory().create_client_exceptions(service_model(service))


def error(service: str, operation: str, code: str, message: str = "", status: int | None = None, **more: Any) -> Any:
    """The error of an answer with this code; `more` goes into the answer."""
    http = status or _STATUS.get(code, 400)
    answer: dict[str, Any] = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": http, "RequestId": "", "HTTPHeaders": {}, "RetryAttempts": 0},
        "message": message,
        **more,
    }
    return error_classes(service).from_code(code)(answer, operation)


def throttled(service: str, operation: str) -> ClientError:
    """The service has had enough of this caller. Of a transaction see `conflict`."""
    failure: ClientError = error(service, operation, THROTTLED[service], "Rate exceeded")
    return failure


def broken(service: str, operation: str) -> ClientError:
    """A fault of the service itself."""
    failure: ClientError = error(service, operation, BROKEN[service], "Internal error", 500)
    return failure


def refused(service: str, operation: str, code: str = "AccessDeniedException") -> ClientError:
    """The caller itself is refused: permissions, credentials."""
    failure: ClientError = error(service, operation, code, "The caller may not do this")
    return failure


def canceled(operation: str, reasons: Sequence[Mapping[str, Any]]) -> ClientError:
    """A transaction that was given up: one reason for each action."""
    codes = ", ".join(str(reason["Code"]) for reason in reasons)
    failure: ClientError = error(
        "dynamodb",
        operation,
        "TransactionCanceledException",
        f"Transaction canceled, please refer cancellation reasons for specific reasons [{codes}]",
        CancellationReasons=list(reasons),
    )
    return failure


def conflict(actions: int, code: str = "TransactionConflict") -> ClientError:
    """A transaction of so many actions that met another writer, or (`ThrottlingError`) was too fast."""
    reasons: list[Mapping[str, Any]] = [{"Code": code, "Message": "Transaction is ongoing for the item"}]
    return canceled("TransactWriteItems", [*reasons, *({"Code": "None"} for _ in range(actions - 1))])


def timed_out(endpoint: str) -> exceptions.ReadTimeoutError:
    """No answer came: whether the call took effect, nobody knows."""
    return exceptions.ReadTimeoutError(endpoint_url=endpoint)


def unreachable(endpoint: str) -> exceptions.EndpointConnectionError:
    """No connection came about, so nothing took effect."""
    return exceptions.EndpointConnectionError(endpoint_url=endpoint)


@functools.cache
def _session() -> Any:
    return botocore.session.Session()


@functools.cache
def _factory() -> ClientExceptionsFactory:
    return ClientExceptionsFactory()
