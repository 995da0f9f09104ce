"""The error codes of a whole call, and their HTTP statuses.

Belongs here: names that go over the wire. Does not: the conditions of each code (rules.py, desk.py).
"""

from enum import StrEnum


class Code(StrEnum):
    """Error codes of BatchMeterUsage, then those of the protocol around it."""

    USAGE_DIMENSION = "InvalidUsageDimensionException"
    LICENSE = "InvalidLicenseException"
    TAG = "InvalidTagException"
    USAGE_ALLOCATIONS = "InvalidUsageAllocationsException"
    CUSTOMER_IDENTIFIER = "InvalidCustomerIdentifierException"
    TIMESTAMP = "TimestampOutOfBoundsException"
    THROTTLING = "ThrottlingException"
    INTERNAL = "InternalServiceErrorException"
    PRODUCT_CODE = "InvalidProductCodeException"
    DISABLED_API = "DisabledApiException"
    VALIDATION = "ValidationException"
    SERIALIZATION = "SerializationException"
    UNKNOWN_OPERATION = "UnknownOperationException"
    MISSING_TOKEN = "MissingAuthenticationTokenException"


STATUSES = {Code.INTERNAL: 500, Code.MISSING_TOKEN: 403}


def http_status(code: str) -> int:
    """Return the usual HTTP status of an error code."""
    return {str(known): status for known, status in STATUSES.items()}.get(code, 400)


class RefusedError(Exception):
    """Failure of a whole call: none of it is billed. The message never quotes the request."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class ControlError(ValueError):
    """Invalid control request."""
