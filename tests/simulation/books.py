"""What sellers wrote, version by version, and what became of it: the judge's own books.

Belongs here: rows and groups as the judge keeps them, in its own words and arithmetic; nothing of it comes from the
product. Does not: what is right (judge), what sellers write (sellers).
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

Group = tuple[str, str, str, str]
"""Licence, account, dimension, hour bucket."""
HOUR = 3600.0
_LOG = 40


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

    @property
    def is_good(self) -> bool:
        """Whether it can be counted."""
        return not self.gone and self.fault is None

    def was_pending(self, at: float) -> bool:
        """Whether it was still waiting then."""
        return not self.gone and self.at <= at and (self.ended_at is None or self.ended_at > at)


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

    def content(self, instant: float) -> tuple[Decimal, str] | None:
        """What would have been counted then."""
        version = self.at(instant)
        if version is None or not version.is_good or not version.was_pending(instant):
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


@dataclass(slots=True)
class GroupBook:
    """One group."""

    name: Group
    rows: dict[str, Row] = field(default_factory=dict)
    fault: str | None = None
    """The reason code that the whole group deserves."""
    commit: Commit | None = None
    direct: list[tuple[float, Decimal, str | None]] = field(default_factory=list)
    """Aggregates that the seller wrote: when, how much, what is wrong with it."""
    billed: list[tuple[float, Decimal]] = field(default_factory=list)
    receipt: str = ""
    """Of the bill's line."""
    answers: set[str] = field(default_factory=set)
    """What the service said of its record."""
    refusals: set[str] = field(default_factory=set)
    """The codes of calls that carried nothing but its record."""
    status: str | None = None
    """Of its aggregate, once that is final."""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG))

    def is_held(self, at: float) -> bool:
        """Whether a row with a fault stood in it then."""
        for row in self.rows.values():
            version = row.at(at)
            if version is not None and version.fault is not None and not version.gone:
                return True
        return False

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
        self.identifiers: dict[tuple[str, str], str] = {}
        """The account behind a customer identifier of a legacy product."""

    def group(self, name: Group) -> GroupBook:
        """The group's page, a new one if need be."""
        if name not in self.groups:
            self.groups[name] = GroupBook(name)
            self.by_hour.setdefault(name[3], []).append(self.groups[name])
        return self.groups[name]

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
        sums[tags] = sums.get(tags, Decimal(0)) + Decimal(str(each["AllocatedUsageQuantityAsDecimal"]))
    return _canonical(sums)


def _canonical(sums: Mapping[str, Decimal]) -> str:
    return json.dumps(sorted((tags, str(quantity.normalize())) for tags, quantity in sums.items()))
