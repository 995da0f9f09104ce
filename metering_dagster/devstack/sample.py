"""Sample usage: the rows of a seller of three products, with some forty buyers, in the last 23 whole hours.

Belongs here: the buyers, the daily rhythm of their usage, the faults of real usage. Does not: loading it into a running
stack (loading), sample billing data (billing_sample), judging a row.

`generate` is pure: the same `now` and seed make the same sample. Each row has its real usage, so that any metering of
it can be checked.
"""

import math
import random
import string
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from enum import StrEnum
from functools import partial
from typing import Any

from metering_dagster.core.hours import FIRST_OFFSET, HOUR, LAST_CALL_OFFSET, LAST_OFFSET, bucket, hour_at_offset

DEFAULT_SEED = 2026
SORT_KEY = "customerAWSAccountId_dimension_timestamp"
PRODUCTS = 3
BUYERS = 40
BUYERS_OF_TWO_PRODUCTS = 12
ORDINARY_OFFSETS = range(2, 19)
"""The offsets of faults that must be metered before the last call, even if an hour begins during the demo."""
LATER_OFFSETS = (5, 14)
"""The offsets of late usage: only a few hours, so that a rehearsal has few to meter again."""
LAST_CALL = range(LAST_CALL_OFFSET, LAST_CALL_OFFSET + 1)
QUIETEST, BUSIEST = 0.28, 0.88
"""The share of streams that have any usage, twelve hours from their peak and at their peak."""
PEAKS = (8, 13, 14, 15, 16, 17, 18, 21)
ALLOCATED_SHARE, UNALLOCATED_ROWS = 0.2, 0.15
TAGS = (
    (("team", "search"), ("env", "prod")),
    (("team", "search"), ("env", "staging")),
    (("team", "ml-platform"), ("env", "prod")),
    (("team", "billing"),),
    (),
)
"""The tag sets of allocations; the last is the untagged bucket."""


class SampleKind(StrEnum):
    """Kind of a sample row."""

    GOOD = "good"
    ZERO = "zero"
    """All rows of its group are 0."""
    BAD = "bad"
    """Breaks the contract; `code` is its reason code."""
    MISFILED = "misfiled"
    """Pending under a neighboring hour."""
    LATE = "late"
    """A new second of an hour that has been metered."""
    OVERWRITTEN = "overwritten"
    """A second that has been metered, with another quantity."""
    REPEATED = "repeated"
    """A row that has been metered, put again unchanged."""
    STALE = "stale"
    """Of an hour that left its window unmetered."""


@dataclass(frozen=True)
class SampleRow:
    """Row as the seller writes it, with its real usage."""

    item: Mapping[str, Any]
    used: Decimal
    """The real usage that no earlier row has: the quantity before any damage. For an overwritten row it is the
    difference to the first one, for a repeated one 0.
    """
    kind: SampleKind = SampleKind.GOOD
    code: str | None = None
    """The reason code that a bad row must get."""

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Return the license, account, dimension and hour that its usage belongs to."""
        account, _, _ = str(self.item[SORT_KEY]).partition("#")
        return self.item["licenseArn"], account, self.item["dimension"], self.item["timestamp"][:13]


@dataclass(frozen=True)
class Sample:
    """Content of one seller's tables, and the marketplace's catalog of it."""

    now: datetime
    rows: tuple[SampleRow, ...]
    """The rows at the start."""
    later: tuple[SampleRow, ...]
    """The rows that arrive after their hours have been metered once."""
    subscribers: tuple[Mapping[str, Any], ...]
    products: tuple[str, ...]
    dimensions: tuple[str, ...]
    legacy_customers: tuple[str, ...]
    """The customer identifiers of buyers without a license."""

    @property
    def licenses(self) -> dict[str, str]:
        """Return each license with its product."""
        return {row["licenseArn"]: row["productCode"] for row in self.subscribers}


@dataclass(frozen=True)
class _Dimension:
    name: str
    most: int
    """The most units in one row."""
    decimals: int

    def quantity(self, rng: random.Random) -> Decimal:
        return Decimal(rng.randint(2, self.most * 10**self.decimals)).scaleb(-self.decimals)


_DIMENSIONS = (
    _Dimension("api-calls", 5_000, 0),
    _Dimension("storage-gb-hours", 120, 6),
    _Dimension("active-users", 60, 0),
    _Dimension("gpu#a100-hours", 2, 4),
    _Dimension("data-transfer-gb", 40, 3),
)


@dataclass(frozen=True)
class License:
    """License of one buyer for one product. For a legacy buyer `arn` is the product code."""

    arn: str
    account: str
    product: str
    agreement: str
    customer_identifier: str | None = None


@dataclass(frozen=True)
class Stream:
    """Usage of one license in one dimension: at most one group each hour."""

    license: License
    dimension: _Dimension
    peak: int
    allocated: bool

    def activity(self, hour: datetime) -> float:
        """Return the probability of usage in this hour: highest at its peak, lowest twelve hours from it."""
        swing = (1 + math.cos((hour.hour - self.peak) * math.tau / 24)) / 2
        return QUIETEST + (BUSIEST - QUIETEST) * swing


@dataclass
class _Group:
    """Rows of one stream in one hour, while the sample is made."""

    stream: Stream
    hour: datetime
    offset: int
    rows: list[SampleRow]


@dataclass(frozen=True)
class SampleCast:
    """Products, licenses and streams of a seed: the same at any time."""

    products: tuple[str, ...]
    licenses: tuple[License, ...]
    streams: tuple[Stream, ...]


def cast_of(seed: int = DEFAULT_SEED) -> SampleCast:
    """Return the products, licenses and streams of a seed."""
    rng = random.Random(seed)
    products = tuple(f"prod-{_text(rng, 13)}" for _ in range(PRODUCTS))
    licenses = _licenses(rng, products)
    return SampleCast(products, tuple(licenses), tuple(_streams(rng, licenses)))


def generate(now: datetime, seed: int = DEFAULT_SEED) -> Sample:
    """Generate the sample of the 23 hours before that of `now`. A seed has the same buyers at any time."""
    cast = cast_of(seed)
    licenses = cast.licenses
    offsets = range(LAST_OFFSET, FIRST_OFFSET - 1, -1)
    groups = [group for offset in offsets for group in _hour(cast.streams, offset, now, seed)]
    special = _Special(random.Random(f"{seed}/special/{bucket(now)}"), groups, now)
    special.spoil()
    later = special.later()
    return Sample(
        now=now,
        rows=tuple(row for group in groups for row in group.rows),
        later=later,
        subscribers=tuple(subscriber_of(each, now) for each in licenses if each.customer_identifier is None),
        products=cast.products,
        dimensions=tuple(dimension.name for dimension in _DIMENSIONS),
        legacy_customers=tuple(each.customer_identifier for each in licenses if each.customer_identifier),
    )


def _text(rng: random.Random, length: int, alphabet: str = string.ascii_lowercase + string.digits) -> str:
    return "".join(rng.choices(alphabet, k=length))


def _licenses(rng: random.Random, products: Sequence[str]) -> list[License]:
    """Generate a license for each buyer and product; the last buyer is a legacy one, keyed by product code."""
    issuer = _text(rng, 12, string.digits)
    accounts = [str(number) for number in rng.sample(range(10**11, 10**12), BUYERS)]
    licenses = []
    for position, account in enumerate(accounts[:-1]):
        for product in rng.sample(products, 2 if position < BUYERS_OF_TWO_PRODUCTS else 1):
            spelling = rng.choice((":", "/"))
            arn = f"arn:aws:license-manager::{issuer}:license{spelling}l-{_text(rng, 32, '0123456789abcdef')}"
            licenses.append(License(arn, account, product, f"agmt-{_text(rng, 24)}"))
    identifier = _text(rng, 11, string.ascii_letters + string.digits)
    return [*licenses, License(products[-1], accounts[-1], products[-1], "", identifier)]


def _streams(rng: random.Random, licenses: Sequence[License]) -> list[Stream]:
    """Generate one and two dimensions by turns; some are allocated to tags, but not a legacy buyer's."""
    streams = []
    for position, each in enumerate(licenses):
        peak = rng.choice(PEAKS)
        for dimension in rng.sample(_DIMENSIONS, 1 + position % 2):
            allocated = rng.random() < ALLOCATED_SHARE and each.customer_identifier is None
            streams.append(Stream(each, dimension, peak, allocated))
    return streams


def subscriber_of(held: License, now: datetime) -> Mapping[str, Any]:
    """Return the subscribers table's row of a license that has been active for 90 days."""
    since = _stamp(now - timedelta(days=90))
    return {
        "licenseArn": held.arn,
        "customerAWSAccountId": held.account,
        "productCode": held.product,
        "agreementId": held.agreement,
        "agreementStatus": "active",
        "subscriptionStatus": "active",
        "createdAt": since,
        "updatedAt": since,
    }


def _hour(streams: Sequence[Stream], offset: int, now: datetime, seed: int) -> Iterator[_Group]:
    """Generate the groups of one hour, the same ones for the same hour and seed."""
    hour = hour_at_offset(now, offset)
    rng = random.Random(f"{seed}/{bucket(hour)}")
    for stream in streams:
        activity = stream.activity(hour)
        if rng.random() < activity:
            seconds = sorted(rng.sample(range(3600), rng.randint(4, 6 + int(6 * activity))))
            rows = [row_at(rng, stream, hour + timedelta(seconds=second), now) for second in seconds]
            yield _Group(stream, hour, offset, rows)


def row_at(rng: random.Random, stream: Stream, second: datetime, now: datetime) -> SampleRow:
    """Generate the row of one second, written some seconds later, but not after `now`."""
    quantity = stream.dimension.quantity(rng)
    written = _stamp(min(second + timedelta(seconds=rng.randint(1, 40)), now))
    held, text = stream.license, second.strftime("%Y-%m-%dT%H:%M:%S")
    item: dict[str, Any] = {
        "licenseArn": held.arn,
        SORT_KEY: f"{held.account}#{stream.dimension.name}#{text}",
        "customerAWSAccountId": held.account,
        "dimension": stream.dimension.name,
        "timestamp": text,
        "quantity": quantity,
        "meteringPending": bucket(second),
        "createdAt": written,
        "updatedAt": written,
    }
    if held.customer_identifier is not None:
        item["customerIdentifier"] = held.customer_identifier
    if stream.allocated and rng.random() >= UNALLOCATED_ROWS:
        item["usageAllocations"] = _allocations(rng, stream.dimension, quantity)
    return SampleRow(item, quantity)


def _allocations(rng: random.Random, dimension: _Dimension, quantity: Decimal) -> list[dict[str, Any]]:
    """Split the quantity in two; whole numbers for a dimension without decimals, else the API's strings."""
    step = Decimal(1).scaleb(-dimension.decimals)
    first = (quantity * rng.randint(10, 90) / 100).quantize(step, ROUND_DOWN)
    shares = [share for share in (first, quantity - first) if share]
    allocations = []
    for share, tags in zip(shares, rng.sample(TAGS, len(shares)), strict=True):
        allocation: dict[str, Any] = {"AllocatedUsageQuantity": share}
        if dimension.decimals:
            allocation = {"AllocatedUsageQuantityAsDecimal": f"{share:f}"}
        if tags:
            allocation["Tags"] = [{"Key": key, "Value": value} for key, value in tags]
        allocations.append(allocation)
    return allocations


def _stamp(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"


class _Special:
    """Faults and late usage for some groups of an ordinary sample, each group in one way only."""

    def __init__(self, rng: random.Random, groups: Sequence[_Group], now: datetime) -> None:
        self._rng = rng
        self._now = now
        self._accounts = sorted({group.stream.license.account for group in groups})
        ordinary = [group for group in groups if group.stream.license.customer_identifier is None]
        self._free = rng.sample(ordinary, len(ordinary))

    def _take(
        self, count: int, offsets: Container[int] = ORDINARY_OFFSETS, allocated: bool | None = None
    ) -> list[_Group]:
        fit = [g for g in self._free if g.offset in offsets and allocated in (None, g.stream.allocated)][:count]
        self._free = [group for group in self._free if group not in fit]
        return fit

    def spoil(self) -> None:
        """Damage some groups from the start."""
        for group in self._take(1, LAST_CALL) + self._take(2):
            self._damage(group, "NonNumericQuantity", lambda item: {"quantity": "abc"})
        for group in self._take(2):
            self._damage(group, "NegativeQuantity", lambda item: {"quantity": -item["quantity"]})
        for group in self._take(1, allocated=False):
            self._damage(group, "TooManyDecimals", lambda item: {"quantity": item["quantity"] + Decimal("1E-7")})
        for group in self._take(1, allocated=True):
            self._damage(group, "AllocationSumMismatch", partial(self._misallocated, group.stream.dimension))
        for group in self._take(2):
            self._damage(group, "MalformedSortKey", lambda item: {SORT_KEY: _without_dimension(item)})
        for group in self._take(1):
            self._damage(group, "SortKeyMismatch", lambda item: {"customerAWSAccountId": self._another_account(item)})
        for group in self._take(1, LAST_CALL) + self._take(3):
            group.rows = [_zero(row) for row in group.rows]
        for group in self._take(5):
            place, neighbor = self._place(group), group.hour + self._rng.choice((-1, 1)) * HOUR
            group.rows[place] = _changed(group.rows[place], SampleKind.MISFILED, {"meteringPending": bucket(neighbor)})

    def later(self) -> tuple[SampleRow, ...]:
        """Return the rows that arrive after their groups have been metered; the groups stay unchanged."""
        late = [self._late(group) for group in self._take(8, LATER_OFFSETS)]
        overwritten = [
            self._overwritten(group, factor)
            for factor, group in zip(("2", "3", "0.5"), self._take(3, LATER_OFFSETS, allocated=False), strict=True)
        ]
        repeated = [self._repeated(group) for group in self._take(4, LATER_OFFSETS)]
        return (*late, *overwritten, *repeated)

    def _place(self, group: _Group) -> int:
        return self._rng.randrange(len(group.rows))

    def _another_account(self, item: Mapping[str, Any]) -> str:
        return self._rng.choice([account for account in self._accounts if account != item["customerAWSAccountId"]])

    def _misallocated(self, dimension: _Dimension, item: Mapping[str, Any]) -> Mapping[str, Any]:
        quantity = item["quantity"]
        return {"usageAllocations": _allocations(self._rng, dimension, quantity), "quantity": quantity + 1}

    def _damage(self, group: _Group, code: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        place = self._place(group)
        group.rows[place] = _changed(group.rows[place], SampleKind.BAD, change(group.rows[place].item), code)

    def _late(self, group: _Group) -> SampleRow:
        taken = {_second(row.item["timestamp"]) for row in group.rows}
        second = self._rng.choice([second for second in range(3600) if second not in taken])
        row = row_at(self._rng, group.stream, group.hour + timedelta(seconds=second), self._now)
        return _changed(row, SampleKind.LATE, {"createdAt": _stamp(self._now), "updatedAt": _stamp(self._now)})

    def _overwritten(self, group: _Group, factor: str) -> SampleRow:
        row = group.rows[self._place(group)]
        step = Decimal(1).scaleb(-group.stream.dimension.decimals)
        quantity = (row.used * Decimal(factor)).quantize(step, ROUND_DOWN)
        changes = {"quantity": quantity, "updatedAt": _stamp(self._now)}
        return replace(_changed(row, SampleKind.OVERWRITTEN, changes), used=quantity - row.used)

    def _repeated(self, group: _Group) -> SampleRow:
        return replace(group.rows[self._place(group)], kind=SampleKind.REPEATED, used=Decimal(0))


def _second(timestamp: str) -> int:
    """Return the second within its hour."""
    _, minute, second = timestamp.split(":")
    return 60 * int(minute) + int(second)


def _changed(row: SampleRow, kind: SampleKind, changes: Mapping[str, Any], code: str | None = None) -> SampleRow:
    return replace(row, item={**row.item, **changes}, kind=kind, code=code)


def _zero(row: SampleRow) -> SampleRow:
    item = {name: value for name, value in row.item.items() if name != "usageAllocations"}
    return SampleRow({**item, "quantity": Decimal(0)}, Decimal(0), SampleKind.ZERO)


def _without_dimension(item: Mapping[str, Any]) -> str:
    return f"{item['customerAWSAccountId']}#{item['timestamp']}"
