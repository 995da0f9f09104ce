"""The service's rules for one BatchMeterUsage request. Pure: the parsed body, `now` and the world are arguments.

Belongs here: refusals with their codes, and what each record would bill. Does not: quantities and allocations
(quantities.py), earlier records (bill.py), throttling and faults (desk.py), bytes and HTTP (server.py).
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from metering_dagster.devstack.sandbox.errors import Code, RefusedError
from metering_dagster.devstack.sandbox.quantities import check_allocations, quantity_of
from metering_dagster.devstack.sandbox.shapes import structure, text
from metering_dagster.devstack.sandbox.world import World

MOST_RECORDS = 25
LONGEST_DIMENSION = 255
LONGEST_NAME = 255
LICENSE_ARN = re.compile(
    r"arn:aws[a-zA-Z-]*:[A-Za-z0-9][A-Za-z0-9_/.-]{0,62}:[A-Za-z0-9_/.-]{0,63}:[A-Za-z0-9_/.-]{0,63}"
    r":[A-Za-z0-9][A-Za-z0-9:_/+=,@.-]{0,1023}"
)
ACCOUNT = re.compile(r"[0-9]+")
PRODUCT_CODE = re.compile(r"[-a-zA-Z0-9/=:_.@]+")
REQUEST_MEMBERS = frozenset({"UsageRecords", "ProductCode"})
RECORD_MEMBERS = frozenset(
    {"Timestamp", "Dimension", "LicenseArn", "CustomerAWSAccountId", "CustomerIdentifier", "Quantity"}
    | {"QuantityAsDecimal", "UsageAllocations"}
)
OLDEST_HOUR_BACK = 23
OLDEST_HOUR_BACK_IN_GRACE = 29
GRACE_ENDS_AT = 6
AFTER_DEPROVISIONING = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Identity:
    """Identity of a record: equal ones bill once. A product code in the request makes another identity."""

    region: str
    product_code: str
    license_arn: str
    customer_aws_account_id: str
    customer_identifier: str
    dimension: str
    hour: str


@dataclass(frozen=True)
class AcceptedRecord:
    """Acceptable record: what it would bill, and whether its customer may be billed."""

    identity: Identity
    quantity: Decimal
    subscribed: bool
    record: Mapping[str, Any]
    """As it was sent."""


def examine(request: Any, region: str, now: datetime, world: World) -> tuple[AcceptedRecord, ...]:
    """Return the records of an acceptable call, in its order. Raises `RefusedError`, which fails the whole call."""
    if region in world.disabled_regions:
        raise RefusedError(Code.DISABLED_API, "The API is not offered in this Region.")
    body = structure(request, "The request", REQUEST_MEMBERS)
    records = _records(body)
    product_code = text(body, "ProductCode") or ""
    _check_one_kind_of_call(records, product_code)
    usages = tuple(_usage(record, region, product_code, now, world) for record in records)
    _check_products(usages, product_code, world)
    return usages


def hour_of(timestamp: Any) -> datetime | None:
    """Return the hour of an epoch number; None for an invalid number, or one too far off for a date."""
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        return None
    try:
        return (EPOCH + timedelta(seconds=timestamp)).replace(minute=0, second=0, microsecond=0)
    except OverflowError:
        return None


def bucket(hour: datetime) -> str:
    """Return the hour as text, `2026-11-20T10`."""
    return hour.strftime("%Y-%m-%dT%H")


def _records(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    records = body.get("UsageRecords")
    if not isinstance(records, list) or not 1 <= len(records) <= MOST_RECORDS:
        raise RefusedError(Code.VALIDATION, f"UsageRecords must be a list of 1 to {MOST_RECORDS} records.")
    return [structure(record, "A usage record", RECORD_MEMBERS) for record in records]


def _check_one_kind_of_call(records: Sequence[Mapping[str, Any]], product_code: str) -> None:
    """Refuse a call that mixes license and legacy records, or a legacy call without its product."""
    with_license = sum(record.get("LicenseArn") is not None for record in records)
    if 0 < with_license < len(records):
        raise RefusedError(Code.LICENSE, "Records with and without a LicenseArn cannot be mixed in one call.")
    if not with_license and not product_code:
        raise RefusedError(Code.PRODUCT_CODE, "Records without a LicenseArn need the ProductCode of the request.")
    if product_code and (len(product_code) > LONGEST_NAME or PRODUCT_CODE.fullmatch(product_code) is None):
        raise RefusedError(Code.PRODUCT_CODE, "The ProductCode is malformed.")


def _usage(record: Mapping[str, Any], region: str, product_code: str, now: datetime, world: World) -> AcceptedRecord:
    kind, quantity = quantity_of(record)
    dimension = _dimension(record, world)
    account, identifier = _customer(record, world)
    license_arn = _license(record, world)
    hour = _hour(record, now, world)
    _check_start(record, {account, identifier, license_arn}, world)
    check_allocations(record.get("UsageAllocations"), kind, quantity)
    identity = Identity(region, product_code, license_arn, account, identifier, dimension, bucket(hour))
    return AcceptedRecord(identity, quantity, _subscribed(identity, now, world), record)


def _dimension(record: Mapping[str, Any], world: World) -> str:
    dimension = text(record, "Dimension")
    if dimension is None:
        raise RefusedError(Code.VALIDATION, "A usage record needs a Dimension.")
    if not 1 <= len(dimension) <= LONGEST_DIMENSION:
        raise RefusedError(Code.USAGE_DIMENSION, f"A dimension has 1 to {LONGEST_DIMENSION} characters.")
    if world.dimensions is not None and dimension not in world.dimensions:
        raise RefusedError(Code.USAGE_DIMENSION, "The product has no such dimension.")
    return dimension


def _customer(record: Mapping[str, Any], world: World) -> tuple[str, str]:
    """Return account and identifier, one of which is empty."""
    account, identifier = text(record, "CustomerAWSAccountId") or "", text(record, "CustomerIdentifier") or ""
    if bool(account) == bool(identifier):
        raise _unknown_customer("Exactly one of CustomerAWSAccountId and CustomerIdentifier must be given.")
    if account and (len(account) > LONGEST_NAME or ACCOUNT.fullmatch(account) is None):
        raise _unknown_customer("A CustomerAWSAccountId has digits only.")
    if len(identifier) > LONGEST_NAME:
        raise _unknown_customer(f"A CustomerIdentifier has at most {LONGEST_NAME} characters.")
    if record.get("LicenseArn") is not None:
        if identifier:
            raise _unknown_customer("A record with a LicenseArn names its customer by CustomerAWSAccountId.")
    elif world.customers is not None and (account or identifier) not in world.customers:
        raise _unknown_customer("There is no such customer.")
    return account, identifier


def _license(record: Mapping[str, Any], world: World) -> str:
    """Return the license; empty for a legacy record."""
    license_arn = text(record, "LicenseArn")
    if license_arn is None:
        return ""
    if LICENSE_ARN.fullmatch(license_arn) is None:
        raise RefusedError(Code.LICENSE, "The LicenseArn is malformed.")
    if world.licenses is not None and license_arn not in world.licenses:
        raise RefusedError(Code.LICENSE, "There is no such license.")
    return license_arn


def _hour(record: Mapping[str, Any], now: datetime, world: World) -> datetime:
    """Return the record's hour, if it is billable at `now`: neither in the future nor too old."""
    timestamp = record.get("Timestamp")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        raise RefusedError(Code.VALIDATION, "A usage record needs a Timestamp in seconds since 1970.")
    hour = hour_of(timestamp)
    if hour is None or timestamp > (now - EPOCH).total_seconds():
        raise _out_of_bounds("The timestamp is in the future, or no date at all.")
    back = (now.replace(minute=0, second=0, microsecond=0) - hour) // timedelta(hours=1)
    previous_month = (hour.year, hour.month) != (now.year, now.month)
    grace = now.day == 1 and now.hour < GRACE_ENDS_AT
    if previous_month and not grace:
        raise _out_of_bounds("The month of the timestamp is closed.")
    oldest = OLDEST_HOUR_BACK_IN_GRACE if previous_month and world.grace_accepts_old_hours else OLDEST_HOUR_BACK
    if back > oldest:
        raise _out_of_bounds("The timestamp is 24 hours old, or older.")
    return hour


def _check_start(record: Mapping[str, Any], names: Set[str], world: World) -> None:
    """Refuse a record whose instant is before its buyer's subscription, even in the same hour."""
    instant = EPOCH + timedelta(seconds=record["Timestamp"])
    if any(instant < start for name, start in world.subscribed_from.items() if name in names):
        raise _out_of_bounds("The timestamp is before the start of the software usage.")


def _subscribed(identity: Identity, now: datetime, world: World) -> bool:
    names = {identity.customer_aws_account_id, identity.customer_identifier, identity.license_arn} - {""}
    deprovisioned = world.deprovisioned.get(identity.license_arn)
    open_still = deprovisioned is None or now < deprovisioned + AFTER_DEPROVISIONING
    return open_still and not names & world.unsubscribed


def _check_products(usages: Sequence[AcceptedRecord], product_code: str, world: World) -> None:
    """Refuse a call with licenses of several products, or of a product that is unknown or failing."""
    licenses = world.licenses or {}
    products = {product for usage in usages if (product := licenses.get(usage.identity.license_arn))}
    if len(products) > 1:
        raise RefusedError(Code.LICENSE, "The licenses of one call must belong to one product.")
    if product_code and world.products is not None and product_code not in world.products:
        raise RefusedError(Code.PRODUCT_CODE, "There is no such product.")
    if world.failing_products & (products | {product_code}):
        raise RefusedError(Code.PRODUCT_CODE, "The product code does not match the product.")


def _unknown_customer(message: str) -> RefusedError:
    return RefusedError(Code.CUSTOMER_IDENTIFIER, message)


def _out_of_bounds(message: str) -> RefusedError:
    return RefusedError(Code.TIMESTAMP, message)
