"""The codes with which a whole call fails, and their HTTP statuses.

Belongs here: names that go over the wire. Does not: when each of them is due (rules.py, desk.py).
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
    """Return the HTTP status an error goes out with, where nothing else was asked for."""
    return {str(known): status for known, status in STATUSES.items()}.get(code, 400)


class RefusedError(Exception):
    """The whole call fails and nothing of it is billed. The message never quotes what the caller sent."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class ControlError(ValueError):
    """Whoever steers the sandbox asked for something that it does not understand."""
