"""What sellers wrote, version by version, and what became of it: the judge's own books.

Belongs here: rows and groups as the judge keeps them, in its own words and arithmetic; nothing of it comes from the
product. Does not: what is right (judge), what sellers write (sellers).
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

Group = tuple[str, str, str, str]
"""License, account, dimension, hour bucket."""
HOUR = 3600.0
_LOG = 40


UNBILLED = frozenset({"CustomerNotSubscribed", "RejectedClientSide", "SubmissionExpired", "DryRunSubmitted"})
"""How a record ends of which no bill holds anything."""
RESTORED = "the table was restored"
"""A run's trouble: it read what is not there any more."""


@dataclass(slots=True)
class Version:
    """What stood in one row from one write of the seller to the next."""

    at: float
    quantity: Decimal = Decimal(0)
    """What counts, if nothing is wrong with it."""
    allocations: str = ""
    fault: str | None = None
    """The reason code that it deserves by itself."""
    filed: str | None = None
    placed_at: float = 0.0
    """Since when it is filed where it is."""
    gone: bool = False
    """The seller deleted the row."""
    ended_at: float | None = None
    status: str | None = None
    reason: str = ""
    number: Decimal | None = None
    """What another pipeline reads in it: a number, also where that is a text; None where there is none."""
    stamp: float | None = None
    """When it was written, by its own stamps; None where these say nothing."""
    ended_by: object = None
    """Whoever ended it: a run of the pipeline, or nobody that it knows."""
    late_by: Decimal = Decimal(0)
    """Of a late one beside another's total: which part of the group's figure it states."""

    @property
    def is_good(self) -> bool:
        """Whether it can be counted."""
        return not self.gone and self.fault is None

    def was_pending(self, at: float) -> bool:
        """Whether it was still waiting then."""
        return not self.gone and self.at <= at and self.status_at(at) is None

    def status_at(self, at: float) -> str | None:
        """How it had ended by then; None while it waited."""
        return self.status if self.ended_at is not None and self.ended_at <= at else None


@dataclass(slots=True)
class Row:
    """One second of one group; or a row that only holds it, for its key names no second."""

    group: Group | None
    second: int | None
    versions: list[Version] = field(default_factory=list)

    @property
    def now(self) -> Version:
        """What stands there."""
        return self.versions[-1]

    def at(self, instant: float) -> Version | None:
        """What stood there then."""
        for version in reversed(self.versions):
            if version.at <= instant:
                return version
        return None

    def content(self, instant: float, *, orphans: bool = False) -> tuple[Decimal, str] | None:
        """What would have been counted then: a good row that waited, or stood rejected by whomever.

        `orphans`: the group lost its aggregate and its commit. So what was called counted is counted again, and
        all of it is read as another pipeline reads.
        """
        version = self.at(instant)
        if version is None or version.gone:
            return None
        status = version.status_at(instant)
        if orphans and status in {None, "Aggregated"} and version.number is not None:
            return version.number, version.allocations
        if not version.is_good or status not in {None, "RejectedClientSide"}:
            return None
        return version.quantity, version.allocations


@dataclass(slots=True)
class Commit:
    """A group as the pipeline committed it."""

    at: float
    read_at: float
    """When its rows were read: what was written after that is late, though it stood there at the commit."""
    by: str
    quantity: Decimal
    counted: Mapping[int, tuple[Decimal, str]]
    """Quantity and allocations by second."""

    @property
    def allocations(self) -> str:
        """What its record is to say of allocations: those of all rows, and the untagged rest where some have any."""
        if not any(allocations for _, allocations in self.counted.values()):
            return ""
        sums: dict[str, Decimal] = {}
        for quantity, allocations in self.counted.values():
            for tags, part in json.loads(allocations) if allocations else [["[]", str(quantity)]]:
                sums[tags] = sums.get(tags, Decimal(0)) + Decimal(part)
        return _canonical({tags: part for tags, part in sums.items() if part or tags != "[]"})


class Total(NamedTuple):
    """An aggregate that the pipeline did not make: its seller's total, or another pipeline's."""

    at: float
    quantity: Decimal
    fault: str | None
    """What is wrong with it by the contract."""
    allocations: str = ""
    stamped: bool = False
    """Whether it says when it was made."""
    until: float = float("inf")
    """When it was deleted, or written over."""
    number: Decimal | None = None
    """What another pipeline reads in it, whatever is wrong with it by the contract."""


@dataclass(slots=True)
class GroupBook:
    """One group."""

    name: Group
    rows: dict[str, Row] = field(default_factory=dict)
    fault: str | None = None
    """The reason code that the whole group deserves."""
    commit: Commit | None = None
    direct: list[Total] = field(default_factory=list)
    """Aggregates that others wrote, one after the other."""
    deleted: list[float] = field(default_factory=list)
    """When somebody deleted its aggregate, or a restored backup did not have it."""
    undone: list[Commit] = field(default_factory=list)
    """Commits that a restored backup did not have."""
    stands_since: float | None = None
    """Since when an aggregate stands there; None: none does."""
    is_astray: bool = False
    """Whether its aggregate is filed where no Query looks."""
    stands_by: object = None
    """The run that wrote it; None for others."""
    put_back: bool = False
    """Whether the aggregate that stands there was put back by the pipeline."""
    foretold: list[tuple[float, Decimal | None]] = field(default_factory=list)
    """What shadow runs told would be billed: when they read it, and how much; None: they did not name it."""
    sent: bool = False
    """Whether its record ever reached the service."""
    billed: list[tuple[float, Decimal]] = field(default_factory=list)
    receipt: str = ""
    """Of the bill's line."""
    is_twins_bill: bool = False
    """The service answered with what it has of a twin of this group."""
    answers: set[str] = field(default_factory=set)
    """What the service said of its record."""
    refusals: set[str] = field(default_factory=set)
    """The codes of calls that carried nothing but its record."""
    status: str | None = None
    """Of its aggregate, once that is final."""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG))

    def is_held(self, at: float) -> bool:
        """Whether a row with a fault stood in it then.

        Where the group was aggregated before and is again, what waits is read as others do: a text that is a number is
        no fault then.
        """
        standing = [version for row in self.rows.values() if (version := row.at(at)) is not None and not version.gone]
        again = any(version.status_at(at) == "Aggregated" for version in standing)
        for version in standing:
            if version.fault is None:
                continue
            if again and version.was_pending(at) and version.number is not None:
                continue
            if version.status_at(at) not in {"Aggregated", "LateUsage"}:  # beside another's total it may end so
                return True
        return False

    def total_at(self, at: float) -> Total | None:
        """The aggregate of others that stood there then."""
        return next((total for total in reversed(self.direct) if total.at <= at < total.until), None)

    def good_sum(self, at: float) -> Decimal:
        """What its rows that waited then add up to."""
        found = Decimal(0)
        for row in self.rows.values():
            version = row.at(at)
            if version is not None and version.is_good and version.was_pending(at):
                found += version.quantity
        return found


class Books:
    """All groups and rows."""

    def __init__(self) -> None:
        self.groups: dict[Group, GroupBook] = {}
        self.rows: dict[tuple[str, str], Row] = {}
        self.by_hour: dict[str, list[GroupBook]] = {}
        self.secrets: set[str] = set()
        self.identifiers: dict[tuple[str, str], list[str]] = {}
        """The accounts (or none) under which usage of a legacy product's customer identifier is filed."""

    def group(self, name: Group) -> GroupBook:
        """The group's page, a new one if need be."""
        if name not in self.groups:
            self.groups[name] = GroupBook(name)
            self.by_hour.setdefault(name[3], []).append(self.groups[name])
        return self.groups[name]

    def identifier_of(self, group: GroupBook) -> str | None:
        """The customer identifier that its rows name."""
        license, account, *_ = group.name
        for (product, name), accounts in self.identifiers.items():
            if product == license and account in accounts:
                return name
        return None

    def of_customer(self, product: str, identifier: str, dimension: str, bucket: str) -> list[GroupBook]:
        """The groups that the service takes for one record."""
        names = [(product, account, dimension, bucket) for account in self.identifiers.get((product, identifier), ())]
        return [self.groups[name] for name in names if name in self.groups]

    def twins_of(self, group: GroupBook) -> list[GroupBook]:
        """The others that the service takes for the same record as this one."""
        identifier, (license, _, *rest) = self.identifier_of(group), group.name
        return [each for each in self.of_customer(license, identifier or "", *rest) if each is not group]

    def find(self, hash_key: str, sort_key: str) -> GroupBook | None:
        """The group whose aggregate has this key."""
        account, _, rest = sort_key.partition("#")
        dimension, _, bucket = rest.rpartition("#")
        return self.groups.get((hash_key, account, dimension, bucket))

    def wrote(self, now: float, key: tuple[str, str], group: Group | None, second: int | None, version: Version) -> Row:
        """The seller wrote (or deleted) a row."""
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = Row(group, second)
        version.placed_at = now
        row.versions.append(version)
        if group is not None:
            book = self.group(group)
            book.rows[key[1]] = row
            what = "deletes" if version.gone else f"writes {version.fault or version.quantity}, filed {version.filed}"
            book.log.append(f"{moment(now)} the seller {what} at {key[1].rpartition('#')[2]}")
        return row

    def everything(self) -> Iterator[tuple[tuple[str, str], Row]]:
        """All rows with their keys."""
        yield from self.rows.items()


def is_hour(text: str) -> bool:
    """Whether this is an hour that some Query asks for at some time: no other text, and none years back."""
    return re.fullmatch(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}", text) is not None and text >= "2022"


def moment(now: float) -> str:
    """A moment in words."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3]


def bucket_of(now: float) -> str:
    """The hour that holds a moment."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H}"


def start_of(bucket: str) -> float:
    """When an hour begins."""
    return datetime.fromisoformat(bucket + ":00").replace(tzinfo=UTC).timestamp()


def month_after(bucket: str) -> float:
    """When the month after this hour's begins."""
    start = datetime.fromisoformat(bucket + ":00").replace(tzinfo=UTC)
    return (start.replace(day=1, hour=0) + timedelta(days=32)).replace(day=1).timestamp()


def is_billable(bucket: str, now: float) -> bool:
    """Whether the service takes usage of this hour (domain: how late)."""
    back = (now // HOUR) - (start_of(bucket) // HOUR)
    turned = now - month_after(bucket)
    if turned >= 0:
        return back <= 29 and turned < 6 * HOUR
    return 0 <= back <= 23


def comes_back(bucket: str, now: float) -> bool:
    """Whether the coming month's grace lets this hour in again, up to 29 back at the month's turn."""
    month = month_after(bucket)
    return now < month <= start_of(bucket) + 29 * HOUR


def closes(bucket: str) -> float:
    """When nothing of this hour can be billed any more (but for hours that the month's grace lets in again)."""
    after_a_day, month = start_of(bucket) + 24 * HOUR, month_after(bucket)
    return month + 6 * HOUR if after_a_day >= month else after_a_day


def closes_for_good(bucket: str) -> float:
    """The same, with that grace."""
    month = month_after(bucket)
    return month + 6 * HOUR if start_of(bucket) + 30 * HOUR > month else closes(bucket)


def is_last_visit(bucket: str, now: float) -> bool:
    """Whether a tick at this time is the one that looks after commits without an aggregate: at offset 22, at five in
    the grace."""
    in_grace = 5 * HOUR <= now - month_after(bucket) < 6 * HOUR
    return in_grace or (now // HOUR - start_of(bucket) // HOUR == 22 and is_billable(bucket, now))


def opens(bucket: str, lock: int) -> float:
    """When the lock of this hour is over."""
    return min(start_of(bucket) + max(lock, 1) * HOUR, month_after(bucket) + 3 * HOUR)


def is_last_call(bucket: str, now: float) -> bool:
    """Whether what is held or zero goes now or never."""
    return now // HOUR - start_of(bucket) // HOUR >= 22 or now - month_after(bucket) >= 5 * HOUR


def canonical(allocations: Sequence[Mapping[str, Any]] | None) -> str:
    """Allocations in one form, equal ones alike."""
    if allocations is None:
        return ""
    sums: dict[str, Decimal] = {}
    for each in allocations:
        tags = json.dumps(sorted((tag["Key"], tag["Value"]) for tag in each.get("Tags", [])))
        part = each.get("AllocatedUsageQuantityAsDecimal", each.get("AllocatedUsageQuantity"))
        sums[tags] = sums.get(tags, Decimal(0)) + Decimal(str(part))
    return _canonical(sums)


def _canonical(sums: Mapping[str, Decimal]) -> str:
    return json.dumps(sorted((tags, str(quantity.normalize())) for tags, quantity in sums.items()))
