"""The reason codes of `RejectedClientSide`, and the terminal states (domain: terminal states). Pure.

Belongs here: the words that end up in `meteringStatus` and `meteringStatusReason`, in the order of the domain's text.
Does not: how a fault is found.
"""

from enum import StrEnum


class RawStatus(StrEnum):
    """A final state of a raw row."""

    AGGREGATED = "Aggregated"
    REJECTED = "RejectedClientSide"
    LATE = "LateUsage"
    EXPIRED = "AggregationExpired"


class RecordStatus(StrEnum):
    """A final state of an aggregate."""

    SUCCESS = "Success"
    DUPLICATE = "DuplicateRecord"
    NOT_SUBSCRIBED = "CustomerNotSubscribed"
    REJECTED = "RejectedClientSide"
    EXPIRED = "SubmissionExpired"
    DRY_RUN = "DryRunSubmitted"


ANSWERS = frozenset({RecordStatus.SUCCESS, RecordStatus.DUPLICATE, RecordStatus.NOT_SUBSCRIBED})
"""What the service says of one record. It is about the bill, so it outlasts what we concluded by ourselves."""


class Reason(StrEnum):
    """Why a row or a whole group breaks the contract, in the order the faults are looked for."""

    MALFORMED_SORT_KEY = "MalformedSortKey"
    SORT_KEY_MISMATCH = "SortKeyMismatch"
    MALFORMED_TIMESTAMP = "MalformedTimestamp"
    MISSING_QUANTITY = "MissingQuantity"
    NON_NUMERIC_QUANTITY = "NonNumericQuantity"
    NEGATIVE_QUANTITY = "NegativeQuantity"
    NON_INTEGER_QUANTITY = "NonIntegerQuantity"
    TOO_MANY_DECIMALS = "TooManyDecimals"
    QUANTITY_TOO_LARGE = "QuantityTooLarge"
    """Of one row, or of the sum of its group."""
    MALFORMED_ALLOCATIONS = "MalformedAllocations"
    INVALID_ALLOCATION = "InvalidAllocation"
    TOO_MANY_TAGS = "TooManyTags"
    MISSING_TAG_KEY_OR_VALUE = "MissingTagKeyOrValue"
    INVALID_TAG = "InvalidTag"
    ALLOCATION_SUM_MISMATCH = "AllocationSumMismatch"
    # Of the whole group.
    MISSING_DIMENSION = "MissingDimension"
    DIMENSION_TOO_LONG = "DimensionTooLong"
    TIMESTAMP_IN_FUTURE = "TimestampInFuture"
    INVALID_LICENSE_ARN = "InvalidLicenseArn"
    MISSING_CUSTOMER_AWS_ACCOUNT_ID = "MissingCustomerAWSAccountId"
    INVALID_CUSTOMER_AWS_ACCOUNT_ID = "InvalidCustomerAWSAccountId"
    MISSING_LEGACY_IDENTIFIER = "MissingLegacyIdentifier"
    TOO_MANY_ALLOCATIONS = "TooManyAllocations"
    AGGREGATE_TOO_LARGE = "AggregateTooLarge"
