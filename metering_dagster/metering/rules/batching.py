"""Which records share one call of BatchMeterUsage (domain: what metering is). Pure.

Belongs here: the limits of a call, one product a call, legacy apart, the grace's old hours apart, who goes first.
Does not: calling, retrying, halving (submission).
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from metering_dagster.core import hours
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.usage_record import Identity, api_record, identity, record_bytes

MAX_RECORDS = 25
MAX_REQUEST_BYTES = 1_000_000
_ENVELOPE_BYTES = 512
"""What the request holds beside its records: their list's name, and the product code of a legacy call."""

Buyer = tuple[str, str]
"""A subscriber's key: license, account."""


class Lane(StrEnum):
    """Why records may share a call."""

    PRODUCT = "product"
    """The subscriber row names the product."""
    DEFAULT = "default"
    """No row names the product: that it is the settings' one is a guess."""
    LICENSE = "license"
    """The product is not known: one license a call."""
    LEGACY = "legacy"


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one call."""

    lane: Lane
    owner: str
    """The product code; of the lane `LICENSE` the license's ARN."""
    records: tuple[Aggregate, ...]
    instant: datetime | None = None
    """The Timestamp of its records, another one of their hour than its beginning."""

    @property
    def licenses(self) -> list[str]:
        """Return the license keys of its records, each once."""
        return sorted({record.key.license_arn for record in self.records})

    @property
    def product_code(self) -> str | None:
        """Return the request's ProductCode: only of legacy calls, for with a LicenseArn it would bill twice."""
        return self.owner if self.lane is Lane.LEGACY else None

    def halves(self) -> tuple["Batch", "Batch"]:
        """Return the batch cut in two, to find the record that the service refuses. Needs two records."""
        middle = len(self.records) // 2
        return self.of(self.records[:middle]), self.of(self.records[middle:])

    def halves_by_license(self) -> tuple["Batch", "Batch"]:
        """Return the batch cut in two between licenses, to find the one that is of another product. Needs two
        licenses.
        """
        names = self.licenses
        first = frozenset(names[: len(names) // 2])
        return (
            self.of([record for record in self.records if record.key.license_arn in first]),
            self.of([record for record in self.records if record.key.license_arn not in first]),
        )

    def of(self, records: Iterable[Aggregate]) -> "Batch":
        """Return a batch like this one, of these records."""
        return Batch(self.lane, self.owner, tuple(records), self.instant)


@dataclass(frozen=True, slots=True)
class Products:
    """The product of each buyer's license: by subscriber row, else the one that the settings name, else unknown."""

    codes: Mapping[Buyer, str]
    default: str | None = None

    def lane_of(self, aggregate: Aggregate) -> tuple[Lane, str]:
        """Return the lane of a record, and the product or license that owns it."""
        key = aggregate.key
        if key.is_legacy:
            return Lane.LEGACY, key.license_arn
        code = self.codes.get((key.license_arn, key.account))
        if code:
            return Lane.PRODUCT, code
        return (Lane.DEFAULT, self.default) if self.default else (Lane.LICENSE, key.license_arn)


def cut_batches(
    aggregates: Iterable[Aggregate],
    products: Products,
    urgent: Set[Buyer],
    now: datetime,
    quantities: Quantities,
) -> list[Batch]:
    """Cut records into calls: at most 25 records and 1 MB, one product, legacy apart, hours from 24 on apart.

    The records of `urgent` buyers (deprovisioning licenses) go in the first calls. Two records that the service would
    take for one never share a call, or their answers could not be told apart.
    """

    def is_patient(aggregate: Aggregate) -> bool:
        return (aggregate.key.license_arn, aggregate.key.account) not in urgent

    open_batches: dict[tuple[bool, Lane, str, bool], _OpenBatch] = {}
    done: list[tuple[bool, Batch]] = []
    for aggregate in sorted(aggregates, key=lambda a: (is_patient(a), a.key)):
        lane, owner = products.lane_of(aggregate)
        in_grace = hours.offset_of(aggregate.key.hour, now) > hours.LAST_OFFSET
        slot = (is_patient(aggregate), lane, owner, in_grace)
        record = api_record(aggregate, quantities)
        size, who = record_bytes(record) + 2, identity(record)
        batch = open_batches.get(slot)
        if batch is None or not batch.takes(size, who):
            if batch is not None:
                done.append((slot[0], Batch(lane, owner, tuple(batch.records))))
            batch = open_batches[slot] = _OpenBatch([], set(), _ENVELOPE_BYTES)
        batch.add(aggregate, size, who)
    done += [
        (patient, Batch(lane, owner, tuple(batch.records))) for (patient, lane, owner, _), batch in open_batches.items()
    ]
    return [batch for _, batch in sorted(done, key=lambda entry: entry[0])]


@dataclass(slots=True)
class _OpenBatch:
    records: list[Aggregate]
    identities: set[Identity]
    size: int

    def takes(self, size: int, who: Identity) -> bool:
        return len(self.records) < MAX_RECORDS and self.size + size < MAX_REQUEST_BYTES and who not in self.identities

    def add(self, aggregate: Aggregate, size: int, who: Identity) -> None:
        self.records.append(aggregate)
        self.identities.add(who)
        self.size += size
