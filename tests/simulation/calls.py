"""The judge of the calls of the Metering API: what is sent, how fast, and what the bill says of it.

Belongs here: invariants (a) and (f), call by call. Does not: the tables (judge).
"""

import json
import re
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from tests.simulation.books import Books, GroupBook, bucket_of, canonical, is_billable, moment
from tests.simulation.judge import A_MOMENT, Judge, Violation
from tests.simulation.kernel import Kernel
from tests.simulation.memory import MemoryMarketplace
from tests.simulation.wire import Errand

_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,9})(\.[0-9]{1,6})?")
_ARN = re.compile(r"arn:aws[a-zA-Z-]*:[A-Za-z0-9][A-Za-z0-9_/.-]{0,62}:[A-Za-z0-9_/.-]{0,63}:[A-Za-z0-9_/.-]{0,63}:"
                  r"[A-Za-z0-9][A-Za-z0-9:_/+=,@.-]{0,1023}")  # fmt: skip
_TAG = re.compile(r"[a-zA-Z0-9+ -=._:\/@]+")


class Teller:
    """Looks at every call, and at each new line of the bill."""

    def __init__(self, kernel: Kernel, books: Books, judge: Judge, marketplace: MemoryMarketplace) -> None:
        self.kernel, self.books, self.judge, self.marketplace = kernel, books, judge, marketplace
        self.calls = 0
        self._lines = 0
        self._recent: deque[float] = deque(maxlen=10)

    def carried_out(self, errand: Errand, request: Mapping[str, Any], answer: Any, error: Any) -> None:
        """A call reached the service."""
        self.calls += 1
        now, records = self.kernel.now, request["UsageRecords"]
        if not 1 <= len(records) <= 25 or len(json.dumps(request, default=str)) >= 1_000_000:
            raise Violation("f", f"{errand.name} sent a call of {len(records)} records")
        if "stood still" not in errand.troubles:
            if len(self._recent) == 10 and now - self._recent[0] < 1.0:
                raise Violation("f", f"{errand.name} made the 11th call within a second")
            self._recent.append(now)
        groups = [self._group(request, record) for record in records]
        if len({group.name for group in groups}) < len(groups):
            raise Violation("f", f"{errand.name} sent a group and hour twice in one call")
        self._of_one_product(errand, groups)
        for record, group in zip(records, groups, strict=True):
            self._sent(errand, request, record, group)
        self._new_lines(errand)
        if answer is not None:
            for result in answer["Results"]:
                group = self._group(request, result["UsageRecord"])
                group.answers.add(result["Status"])
                group.log.append(f"{moment(now)} {errand.name}: the service says {result['Status']}")
        else:
            code = getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__)
            if code == "ThrottlingException":
                raise Violation("f", f"{errand.name} was throttled by the service itself")
            if len(groups) == 1:
                groups[0].refusals.add(code)
            for group in groups:
                group.log.append(f"{moment(now)} {errand.name}: a call of {len(groups)} fails with {code}")

    def _of_one_product(self, errand: Errand, groups: list[GroupBook]) -> None:
        """A call carries one product's records, by the subscriber rows that have stood for an hour."""
        known = (self.judge.products.get(group.name[:2]) for group in groups)
        if len({product for product, since in filter(None, known) if since <= self.kernel.now - 3600}) > 1:
            raise Violation("f", f"{errand.name} mixed products in one call")

    def _group(self, request: Mapping[str, Any], record: Mapping[str, Any]) -> GroupBook:
        licence = record.get("LicenseArn") or request.get("ProductCode", "")
        account = record.get("CustomerAWSAccountId")
        if account is None:
            account = self.books.identifiers[licence, record["CustomerIdentifier"]]
        hour = bucket_of(record["Timestamp"].timestamp())
        group = self.books.groups.get((licence, account, record["Dimension"], hour))
        if group is None:
            raise Violation("a", f"a record was sent of a group of which nobody wrote anything: {record}")
        return group

    def _sent(self, errand: Errand, request: Mapping[str, Any], record: Mapping[str, Any], group: GroupBook) -> None:
        """What a rule could have known."""
        faults = [*_faults(request, record)]
        now, bucket = self.kernel.now, group.name[3]
        late = "stood still" not in errand.troubles and not is_billable(bucket, now - A_MOMENT)
        if late and not is_billable(bucket, now):
            faults.append("its hour cannot be billed any more")
        end = self.judge.expiry_ends.get(group.name[:2])
        if bucket == bucket_of(now) and (end is None or now < end - 600):
            faults.append("its hour is not over")
        if faults:
            raise Violation("f", f"{errand.name} sent a record although {', '.join(faults)}: {record}", group)
        quantity = _quantity(record)
        group.log.append(f"{moment(now)} {errand.name}: sent {quantity}")
        if not _is_known(group, quantity):
            raise Violation("a", f"{errand.name} sent {quantity}, which is not what was committed", group)
        allocations = canonical(record.get("UsageAllocations"))
        if allocations != (group.commit.allocations if group.commit is not None else ""):
            raise Violation("a", f"{errand.name} sent other allocations than were committed: {allocations}", group)

    def _new_lines(self, errand: Errand) -> None:
        lines = self.marketplace.books.lines
        for line in lines[self._lines :]:
            licence = line.license_arn or line.product_code or ""
            account = line.customer_aws_account_id
            if account is None:
                account = self.books.identifiers[licence, line.customer_identifier or ""]
            group = self.books.groups[licence, account, line.dimension, line.hour]
            quantity = Decimal(line.quantity)
            if group.billed:
                raise Violation("a", f"{errand.name} had a group and hour billed twice", group)
            group.billed.append((self.kernel.now, quantity))
            group.receipt = line.metering_record_id
            group.log.append(f"{moment(self.kernel.now)} {errand.name}: billed {quantity}")
        self._lines = len(lines)


def _is_known(group: GroupBook, quantity: Decimal) -> bool:
    if group.commit is not None:
        return quantity == group.commit.quantity
    return any(quantity == stated for _, stated, fault in group.direct if fault is None)


def _quantity(record: Mapping[str, Any]) -> Decimal:
    return Decimal(str(record.get("QuantityAsDecimal", record.get("Quantity"))))


def _tags_are_fit(tags: list[Mapping[str, str]]) -> bool:
    return 1 <= len(tags) <= 5 and all(
        len(tag["Key"]) <= 100
        and len(tag["Value"]) <= 256
        and _TAG.fullmatch(tag["Key"])
        and _TAG.fullmatch(tag["Value"])
        for tag in tags
    )


def _faults(request: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """What is wrong with a record by itself."""
    found = []
    decimal, whole = record.get("QuantityAsDecimal"), record.get("Quantity")
    if (decimal is None) == (whole is None):
        found.append("it states no quantity, or two")
    if decimal is not None and not _DECIMAL.fullmatch(decimal):
        found.append("its quantity is malformed")
    if whole is not None and not (type(whole) is int and 0 <= whole <= 2147483647):
        found.append("its quantity is out of bounds")
    if not 1 <= len(record["Dimension"]) <= 255:
        found.append("its dimension has no length that is allowed")
    stamp = record["Timestamp"]
    if not isinstance(stamp, datetime) or stamp.tzinfo is None:
        found.append("its time is none")
    licence, account = record.get("LicenseArn"), record.get("CustomerAWSAccountId")
    if licence is not None:
        if "ProductCode" in request:
            found.append("the call names a product as well as a licence")
        if not _ARN.fullmatch(licence) or not (account or "").isdigit() or "CustomerIdentifier" in record:
            found.append("licence or account are malformed")
    elif "ProductCode" not in request or bool(account) == bool(record.get("CustomerIdentifier")):
        found.append("it names no product, or not one customer")
    allocations = record.get("UsageAllocations")
    if allocations is not None:
        parts = [
            Decimal(str(each.get("AllocatedUsageQuantityAsDecimal", each.get("AllocatedUsageQuantity"))))
            for each in allocations
        ]
        if not all(_tags_are_fit(each["Tags"]) for each in allocations if "Tags" in each):
            found.append("its tags are malformed")
        sets = [json.dumps(sorted((t["Key"], t["Value"]) for t in each.get("Tags", []))) for each in allocations]
        if sum(parts) != _quantity(record) or len(set(sets)) < len(sets) or not 1 <= len(parts) <= 2500:
            found.append("its allocations do not add up")
    return found
