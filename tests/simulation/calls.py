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

from metering_dagster.devstack.sandbox.bill import BilledRecord
from tests.simulation.books import RESTORED, UNBILLED, Books, GroupBook, bucket_of, canonical, is_billable, moment
from tests.simulation.judge import A_MOMENT, Judge, Violation
from tests.simulation.kernel import Kernel
from tests.simulation.memory import MemoryMarketplace
from tests.simulation.wire import Errand

_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,9})(\.[0-9]{1,6})?")
_ARN = re.compile(r"arn:aws[a-zA-Z-]*:[A-Za-z0-9][A-Za-z0-9_/.-]{0,62}:[A-Za-z0-9_/.-]{0,63}:[A-Za-z0-9_/.-]{0,63}:"
                  r"[A-Za-z0-9][A-Za-z0-9:_/+=,@.-]{0,1023}")  # fmt: skip
_IDENTITY = ("LicenseArn", "CustomerAWSAccountId", "CustomerIdentifier", "Dimension", "Timestamp")
_Identity = tuple[str, str, str, str]
"""What the service takes for one record: license or product, buyer, dimension, hour."""
_TAG = re.compile(r"[a-zA-Z0-9+ -=._:\/@]+")


class Teller:
    """Looks at every call, and at each new line of the bill."""

    def __init__(self, kernel: Kernel, books: Books, judge: Judge, marketplace: MemoryMarketplace) -> None:
        self.kernel, self.books, self.judge, self.marketplace = kernel, books, judge, marketplace
        self.calls = 0
        self._lines = 0
        self._recent: dict[str, deque[float]] = {}
        self._regions: dict[str, str] = {}
        """The Region of each hour's first call."""

    def carried_out(self, errand: Errand, request: Mapping[str, Any], answer: Any, error: Any) -> None:
        """A call reached the service."""
        self.calls += 1
        now, records = self.kernel.now, request["UsageRecords"]
        if not 1 <= len(records) <= 25 or len(json.dumps(request, default=str)) >= 1_000_000:
            raise Violation("f", f"{errand.name} sent a call of {len(records)} records")
        if "stood still" not in errand.troubles:
            recent = self._recent.setdefault(errand.region, deque(maxlen=10))
            if len(recent) == 10 and now - recent[0] < 1.0:
                raise Violation("f", f"{errand.name} made the 11th call within a second")
            recent.append(now)
        if errand.mode != "live":
            raise Violation("a", f"{errand.name} in {errand.mode} mode called the service")
        groups = [self._group(request, record) for record in records]
        if len({group.name for group in groups}) < len(groups):
            raise Violation("f", f"{errand.name} sent a group and hour twice in one call")
        self._of_one_product(errand, groups)
        for record, group in zip(records, groups, strict=True):
            self._sent(errand, request, record, group)
        pairs = list(zip(records, groups, strict=True))
        self._new_lines(errand.name, {_identity(request, record): group for record, group in pairs})
        if answer is not None:
            for result in answer["Results"]:
                group = next(group for record, group in pairs if _same(record, result["UsageRecord"]))
                group.answers.add(result["Status"])
                group.log.append(f"{moment(now)} {errand.name}: the service says {result['Status']}")
        else:
            code = getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__)
            if code == "ThrottlingException":
                raise Violation("f", f"{errand.name} was throttled by the service itself")
            # Refused with the hour's beginning, a record may still be taken with its last second (domain: before the
            # subscription).
            early = code == "TimestampOutOfBoundsException" and records[0]["Timestamp"].timestamp() % 3600 == 0
            if len(groups) == 1 and not (early and is_billable(groups[0].name[3], now)):
                groups[0].refusals.add(code)
            for group in groups:
                group.log.append(f"{moment(now)} {errand.name}: a call of {len(groups)} fails with {code}")

    def _of_one_product(self, errand: Errand, groups: list[GroupBook]) -> None:
        """A call carries one product's records, by the subscriber rows that have stood for an hour."""
        known = (self.judge.products.get(group.name[:2]) for group in groups)
        if len({product for product, since in filter(None, known) if since <= self.kernel.now - 3600}) > 1:
            raise Violation("f", f"{errand.name} mixed products in one call")

    def _group(self, request: Mapping[str, Any], record: Mapping[str, Any]) -> GroupBook:
        license = record.get("LicenseArn") or request.get("ProductCode", "")
        account, hour = record.get("CustomerAWSAccountId"), bucket_of(record["Timestamp"].timestamp())
        if account is not None:
            group = self.books.groups.get((license, account, record["Dimension"], hour))
        else:
            these = self.books.of_customer(license, record["CustomerIdentifier"], record["Dimension"], hour)
            these.sort(key=lambda group: (not _is_known(group, _quantity(record)), group.status is not None))
            group = these[0] if these else None
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
        if self._regions.setdefault(bucket, errand.region) != errand.region:
            words = (
                f"{errand.name} sent it in {errand.region}, and its hour was first called in {self._regions[bucket]}"
            )
            raise Violation("a", words, group)
        for twin in self.books.twins_of(group):
            is_traceless = twin.commit is None and twin.stands_since is None  # others made it, and somebody deleted it
            if twin.sent and twin.status not in UNBILLED and not is_traceless:
                raise Violation("a", f"{errand.name} sent it beside its twin {' / '.join(twin.name)}", group)
        group.sent = True
        group.log.append(f"{moment(now)} {errand.name}: sent {quantity}")
        # A run that read the table before it was restored sends what it read.
        undone = [each for each in group.undone if RESTORED in errand.troubles and each.quantity == quantity]
        if not undone and not _is_known(group, quantity):
            raise Violation("a", f"{errand.name} sent {quantity}, which is not what was committed", group)
        allocations = canonical(record.get("UsageAllocations"))
        known = {group.commit.allocations} if group.commit else {total.allocations for total in group.direct}
        known |= {commit.allocations for commit in undone}
        if allocations not in known:
            raise Violation("a", f"{errand.name} sent other allocations than were committed: {allocations}", group)

    def sent_by_others(self, group: GroupBook) -> None:
        """Another pipeline has sent this group's record."""
        lines = self.marketplace.books.lines[self._lines :]
        self._new_lines("another pipeline", {_of_line(line): group for line in lines})

    def _new_lines(self, who: str, groups: Mapping[_Identity, GroupBook]) -> None:
        lines = self.marketplace.books.lines
        for line in lines[self._lines :]:
            group, quantity = groups[_of_line(line)], Decimal(line.quantity)
            if group.billed:
                raise Violation("a", f"{who} had a group and hour billed twice", group)
            group.billed.append((self.kernel.now, quantity))
            group.receipt = line.metering_record_id
            group.log.append(f"{moment(self.kernel.now)} {who}: billed {quantity}")
        self._lines = len(lines)


def _identity(request: Mapping[str, Any], record: Mapping[str, Any]) -> _Identity:
    license = record.get("LicenseArn") or request.get("ProductCode", "")
    buyer = record.get("CustomerAWSAccountId") or record["CustomerIdentifier"]
    return license, buyer, record["Dimension"], bucket_of(record["Timestamp"].timestamp())


def _of_line(line: BilledRecord) -> _Identity:
    buyer = line.customer_aws_account_id or line.customer_identifier or ""
    return line.license_arn or line.product_code or "", buyer, line.dimension, line.hour


def _same(sent: Mapping[str, Any], echo: Mapping[str, Any]) -> bool:
    return all(sent.get(name) == echo.get(name) for name in _IDENTITY)


def _is_known(group: GroupBook, quantity: Decimal) -> bool:
    if group.commit is not None:
        return quantity == group.commit.quantity
    return any(quantity == total.quantity for total in group.direct if total.fault is None)


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
    license, account = record.get("LicenseArn"), record.get("CustomerAWSAccountId")
    if license is not None:
        if "ProductCode" in request:
            found.append("the call names a product as well as a license")
        if not _ARN.fullmatch(license) or not (account or "").isdigit() or "CustomerIdentifier" in record:
            found.append("license or account are malformed")
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
