"""Sellers: what they write, and all that they do wrong.

Belongs here: their habits, and the items that they write. Does not: what should become of it (judge).
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from metering_dagster.core.quantity_kind import Quantities
from tests.simulation.books import (
    UNBILLED,
    Books,
    Group,
    GroupBook,
    Row,
    Total,
    Version,
    bucket_of,
    canonical,
    moment,
    start_of,
)
from tests.simulation.kernel import Kernel
from tests.simulation.memory import MemoryDynamoDB
from tests.simulation.plan import HOUR, Plan

USAGE, AGGREGATED, SUBSCRIBERS = "usage", "aggregated", "subscribers"
DIMENSIONS = ("api_calls", "storage#gb", "users", "users#x")
GHOST = "no_such_dimension"
"""A dimension that the service does not know."""
_CREATED = "2026-01-01T00"
"""What most sellers' rows say of when they were made, whenever that was."""
_TAGS = ("a", "b", "c")
Faulty = tuple[Mapping[str, Any] | None, str, Mapping[str, Any]]
"""A quantity, the reason code that it deserves, and what else stands in the row."""
FAULTY_QUANTITIES: Sequence[Faulty] = (
    ({"N": "-1"}, "NegativeQuantity", {}),
    ({"S": "5"}, "NonNumericQuantity", {}),
    ({"BOOL": True}, "NonNumericQuantity", {}),
    (None, "MissingQuantity", {}),
    ({"N": "10000000000"}, "QuantityTooLarge", {}),
)


def faulty_rows(quantities: Quantities) -> Sequence[Faulty]:
    """All that may be wrong with a row whose key is right."""
    if quantities is Quantities.INTEGER:
        return [*FAULTY_QUANTITIES, ({"N": "1.5"}, "NonIntegerQuantity", {})]

    def allocated(fault: str, *parts: tuple[str, Sequence[Mapping[str, Any]]]) -> Faulty:
        entries = [
            {"M": {
                "AllocatedUsageQuantityAsDecimal": {"S": part},
                "Tags": {"L": [{"M": {name: {"S": text} for name, text in tag.items()}} for tag in tags]},
            }}
            for part, tags in parts
        ]  # fmt: skip
        return {"N": "5"}, fault, {"usageAllocations": {"L": entries}}

    team = {"Key": "team", "Value": "a"}
    return [
        *FAULTY_QUANTITIES,
        ({"N": "1.1234567"}, "TooManyDecimals", {}),
        ({"N": "5"}, "MalformedAllocations", {"usageAllocations": {"S": "none"}}),
        allocated("AllocationSumMismatch", ("4", [team])),
        allocated("InvalidAllocation", ("6", [team]), ("-1", [{"Key": "team", "Value": "b"}])),
        allocated("InvalidTag", ("5", [{"Key": "team", "Value": "ü"}])),
        allocated("MissingTagKeyOrValue", ("5", [{"Key": "team"}])),
        allocated("TooManyTags", ("5", [{"Key": f"k{number}", "Value": "v"} for number in range(6)])),
    ]


@dataclass(frozen=True)
class Buyer:
    """A license (or a legacy product's code) and an account."""

    license: str
    account: str
    product: str | None
    identifier: str | None = None

    @property
    def is_legacy(self) -> bool:
        """Whether it is billed by product code."""
        return not self.license.startswith("arn:")


class Shop:
    """Writes into the tables as sellers do, and into the judge's books."""

    def __init__(self, kernel: Kernel, tables: MemoryDynamoDB, books: Books) -> None:
        self.kernel, self.books = kernel, books
        self.client = tables.client()
        self.is_writing = False

    def put_row(
        self,
        buyer: Buyer,
        dimension: str,
        bucket: str,
        second: int,
        quantity: Mapping[str, Any] | None,
        *,
        fault: str | None = None,
        filed: str | None = "",
        timestamp: str | None = None,
        sort_key: str | None = None,
        allocations: Sequence[Mapping[str, Any]] | None = None,
        instead: Mapping[str, Any] | None = None,
        stamped: bool = False,
        ttl: float | None = None,
    ) -> None:
        """A raw row, whatever stood there; `instead`: attributes that contradict the key, or are spelt otherwise.

        `stamped`: it says truly when it was written, as a seller's own clock has it.
        """
        stamp = timestamp or f"{bucket}:{second // 60:02d}:{second % 60:02d}"
        key = sort_key or f"{buyer.account}#{dimension}#{stamp}"
        where = bucket if filed == "" else filed
        item: dict[str, Any] = {
            "licenseArn": {"S": buyer.license},
            "customerAWSAccountId_dimension_timestamp": {"S": key},
            "customerAWSAccountId": {"S": buyer.account},
            "dimension": {"S": dimension},
            "timestamp": {"S": stamp},
            "createdAt": {"S": f"{_CREATED}:00:00Z"},
            **({"updatedAt": {"S": moment(self.kernel.now)}} if stamped else {}),
            **({"ttl": {"N": str(int(ttl))}} if ttl is not None else {}),
            **(instead or {}),
        }
        if quantity is not None:
            item["quantity"] = dict(quantity)
        if where is not None:
            item["meteringPending"] = {"S": where}
        if allocations is not None:
            item["usageAllocations"] = _typed(allocations)
        if buyer.identifier:
            item["customerIdentifier"] = {"S": buyer.identifier}
        item = {name: value for name, value in item.items() if value != {"S": ""}}
        counts = Decimal(str(quantity["N"])) if fault is None and quantity is not None else Decimal(0)
        version = Version(self.kernel.now, counts, canonical(allocations), fault, where)
        if fault not in _FAULTS_OF_KEYS:
            version.number = _number(quantity)
        version.stamp = self.kernel.now if stamped else start_of(_CREATED)
        group = None if sort_key else (buyer.license, buyer.account, dimension, bucket)
        self._write(USAGE, item)
        self.books.wrote(self.kernel.now, (buyer.license, key), group, None if timestamp else second, version)

    def delete_row(self, buyer: Buyer, dimension: str, bucket: str, second: int, timestamp: str | None = None) -> None:
        """Delete a raw row, as the seller or TTL does."""
        stamp = timestamp or f"{bucket}:{second // 60:02d}:{second % 60:02d}"
        self.delete((buyer.license, f"{buyer.account}#{dimension}#{stamp}"))

    def write_again(self, buyer: Buyer, group: Group, row: Row) -> None:
        """The seller writes a good row again as it was, so that it waits."""
        version = row.now
        assert row.second is not None
        allocations = None
        if version.allocations:
            parts = [(json.loads(tags), quantity) for tags, quantity in json.loads(version.allocations)]
            allocations = [
                {"AllocatedUsageQuantityAsDecimal": f"{Decimal(quantity):f}",
                 "Tags": [{"Key": key, "Value": value} for key, value in tags]}
                for tags, quantity in parts
            ]  # fmt: skip
        self.put_row(
            buyer, group[2], group[3], row.second, {"N": str(version.quantity)}, allocations=allocations
        )  # fmt: skip

    def delete(self, key: tuple[str, str]) -> None:
        """Delete the raw row of this key, if there is one."""
        if key not in self.books.rows or self.books.rows[key].now.gone:
            return
        self.is_writing = True
        self.client.delete_item(TableName=USAGE, Key={
            "licenseArn": {"S": key[0]}, "customerAWSAccountId_dimension_timestamp": {"S": key[1]},
        })  # fmt: skip
        self.is_writing = False
        row = self.books.rows[key]
        self.books.wrote(self.kernel.now, key, row.group, row.second, Version(self.kernel.now, gone=True))

    def stamp_row(self, key: tuple[str, str], status: str, reason: str) -> None:
        """Another pipeline ends a row that waits, unconditionally, as the reference does."""
        version = self.books.rows[key].now
        if version.gone or version.ended_at is not None:
            return
        self.is_writing = True
        self.client.update_item(
            TableName=USAGE,
            Key={"licenseArn": {"S": key[0]}, "customerAWSAccountId_dimension_timestamp": {"S": key[1]}},
            UpdateExpression="SET meteringStatus = :s, meteringStatusReason = :r REMOVE meteringPending",
            ExpressionAttributeValues={":s": {"S": status}, ":r": {"S": reason}},
        )
        self.is_writing = False
        version.ended_at, version.status, version.reason = self.kernel.now, status, reason
        group = self.books.rows[key].group
        if group is not None:
            words = f"another pipeline: row {key[1].rpartition('#')[2]} is {status} ({reason})"
            self.books.group(group).log.append(f"{moment(self.kernel.now)} {words}")

    def delete_aggregate(self, group: Group, who: str) -> bool:
        """Delete the aggregate of a group, if there is one; whether there was."""
        book, key = self.books.group(group), _aggregate_key(group)
        if "Item" not in self.client.get_item(TableName=AGGREGATED, Key=key):
            return False
        self.is_writing = True
        self.client.delete_item(TableName=AGGREGATED, Key=key)
        self.is_writing = False
        self.lost(book, self.kernel.now, who)
        return True

    def lost(self, book: GroupBook, now: float, who: str) -> None:
        """The aggregate of a group is gone."""
        book.deleted.append(now)
        if book.direct and book.direct[-1].until > now:
            book.direct[-1] = book.direct[-1]._replace(until=now)
        if book.status in UNBILLED:
            book.sent = False  # it ended so that no bill holds it, whatever stands there now
        book.status, book.put_back, book.stands_since = None, False, None
        book.log.append(f"{moment(now)} {who} deletes the aggregate")

    def put_aggregate(
        self,
        buyer: Buyer,
        dimension: str,
        bucket: str,
        quantity: Mapping[str, Any] | None,
        fault: str | None,
        *,
        filed: str | None = None,
        more: Mapping[str, Any] | None = None,
        allocations: str = "",
        who: str = "the seller",
    ) -> None:
        """A finished total, straight into the aggregated table; never over one of the pipeline's."""
        group: Group = (buyer.license, buyer.account, dimension, bucket)
        book = self.books.group(group)
        if book.commit is not None:
            return
        now = self.kernel.now
        item: dict[str, Any] = {
            **_aggregate_key(group),
            "customerAWSAccountId": {"S": buyer.account},
            "dimension": {"S": dimension},
            "hourBucket": {"S": bucket},
            **({"quantity": dict(quantity)} if quantity is not None else {}),
            "meteringPending": {"S": filed or bucket},
            **(more or {}),
        }
        if buyer.identifier:
            item["customerIdentifier"] = {"S": buyer.identifier}
        item = {name: value for name, value in item.items() if value not in ({"S": ""}, None)}
        self._write(AGGREGATED, item)
        counts = Decimal(str(quantity["N"])) if fault is None and quantity is not None else Decimal(0)
        if book.direct and book.direct[-1].until > now:
            book.direct[-1] = book.direct[-1]._replace(until=now)
        book.direct.append(Total(now, counts, fault, allocations, "createdAt" in item, number=_number(quantity)))
        status = item.get("meteringStatus", {}).get("S")
        book.is_astray = filed is not None
        book.status, book.put_back, book.stands_since, book.stands_by = status, False, now, None
        book.log.append(f"{moment(now)} {who} submits {fault or counts} itself, {status or 'pending'}")

    def _write(self, table: str, item: Mapping[str, Any]) -> None:
        self.is_writing = True
        self.client.put_item(TableName=table, Item=dict(item))
        self.is_writing = False


_FAULTS_OF_KEYS = frozenset({"MalformedSortKey", "MalformedTimestamp", "SortKeyMismatch", "TimestampInFuture"})


def _number(quantity: Mapping[str, Any] | None) -> Decimal | None:
    """The number that another pipeline reads in a quantity: a text's as well."""
    text = (quantity or {}).get("N", (quantity or {}).get("S"))
    return None if text is None else Decimal(str(text))


def _aggregate_key(group: Group) -> dict[str, Any]:
    license, *parts = group
    return {"licenseArn": {"S": license}, "account_dimension_hour": {"S": "#".join(parts)}}


def _typed(allocations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def one(each: Mapping[str, Any]) -> dict[str, Any]:
        entry: dict[str, Any] = {"AllocatedUsageQuantityAsDecimal": {"S": each["AllocatedUsageQuantityAsDecimal"]}}
        if "Tags" in each:
            tags = [{"M": {"Key": {"S": tag["Key"]}, "Value": {"S": tag["Value"]}}} for tag in each["Tags"]]
            entry["Tags"] = {"L": tags}
        return {"M": entry}

    return {"L": [one(each) for each in allocations]}


class Sellers:
    """Draws what is written in a world, all of it before the world begins."""

    def __init__(self, kernel: Kernel, plan: Plan, chance: random.Random, shop: Shop, buyers: Sequence[Buyer]) -> None:
        self.kernel, self.plan, self.chance, self.shop, self.buyers = kernel, plan, chance, shop, buyers
        self.spelling = random.Random(f"spelling {plan.seed}")
        """A chance of its own, which moves nothing else that sellers draw."""

    def begin(self, ends: Mapping[tuple[str, str], float]) -> None:
        """Plan all usage. `ends`: when a license is deprovisioned; nothing of it arises after that hour."""
        for hour in range(self.plan.hours):
            start = self.plan.start.timestamp() + hour * HOUR
            for _ in range(self._count(self.plan.groups_an_hour)):
                buyer = self.chance.choice(self.buyers)
                if start < ends.get((buyer.license, buyer.account), self.plan.end):
                    self._group(buyer, bucket_of(start))
        for buyer in self.buyers:
            end = ends.get((buyer.license, buyer.account))
            if end is not None:
                self._last_hours(buyer, end)
        for at in self.plan.last_minute:
            buyer = self.chance.choice(self.buyers)
            if at < ends.get((buyer.license, buyer.account), self.plan.end) and self._does("last minute", 0.6):
                self._last_minute(buyer, at)

    def _count(self, mean: float) -> int:
        return int(mean) + (self.chance.random() < mean % 1)

    def _does(self, habit: str, often: float) -> bool:
        return habit not in self.plan.quiet and self.chance.random() < often

    def _last_hours(self, buyer: Buyer, end: float) -> None:
        """A license that ends is used until it does, and a little longer."""
        for _ in range(self.chance.randint(2, 6)):
            used = end + self.chance.uniform(-3 * HOUR, 0.9 * HOUR)
            bucket, second = bucket_of(used), int(used % HOUR)
            written = used + self.chance.choice((5.0, 60.0, 900.0))
            self._row(buyer, self.chance.choice(DIMENSIONS), bucket, second, written)

    def _last_minute(self, buyer: Buyer, at: float) -> None:
        """A finished total for the hour that closes, in the moment before somebody has it metered."""
        bucket, dimension, quantity = bucket_of(at - 23 * HOUR), self.chance.choice(DIMENSIONS), {"N": self._plain()}
        self._at(
            at - self.chance.uniform(0.5, 20),
            lambda: self.shop.put_aggregate(buyer, dimension, bucket, quantity, None),
        )

    def _group(self, buyer: Buyer, bucket: str) -> None:
        chance = self.chance
        dimension = GHOST if self._does("ghost", 0.02) else chance.choice(DIMENSIONS)
        if self._does("direct", 0.08):
            self._direct(buyer, dimension, bucket)
            if chance.random() < 0.8:
                return
        count = chance.choice((1, 1, 2, 2, 3, 4, 6))
        if self._does("many", 0.03):
            count = chance.randint(20, 60)
        elif self._does("large", 0.005):
            count = chance.randint(105, 240)
        seconds = sorted(chance.sample(range(3600), count))
        if self._does("group fault", 0.03):
            self._faulty_group(buyer, bucket, seconds)
            return
        for second in seconds:
            self._row(buyer, dimension, bucket, second, start_of(bucket) + second + chance.uniform(0.5, 20))
        if self.spelling.random() < self.plan.twins and buyer.identifier:
            self._twin(buyer, dimension, bucket)
        if self._does("bad", 0.12):
            self._bad(buyer, dimension, bucket)
        if self._does("impossible", 0.03):
            self._impossible(buyer, dimension, bucket)
        if self._does("future", 0.01):
            self._future(buyer, dimension, bucket)

    def _row(self, buyer: Buyer, dimension: str, bucket: str, second: int, written: float) -> None:
        """A good row; and what is done with it later."""
        chance, start = self.chance, start_of(bucket)
        quantity, allocations = self._quantity()
        filed = bucket
        if self._does("late", 0.1):
            written = max(written, start + HOUR * chance.choice((
                chance.uniform(1, 3), chance.uniform(1, 26), chance.uniform(21.5, 24.2), 23 + chance.uniform(0.3, 1.02),
            )))  # fmt: skip
        if self._does("misfiled", 0.02):
            filed = bucket_of(start + chance.choice((-30, -2, -1, 1, 2, 20)) * HOUR)

        instead, ttl = self._spelt(bucket, second, allocations is None), self._ends_at(bucket)
        if self.spelling.random() < self.plan.unread:
            filed = self._unread(bucket)

        def write(quantity: str = quantity, filed: str = filed) -> None:
            self.shop.put_row(
                buyer, dimension, bucket, second, {"N": quantity}, filed=filed, allocations=allocations,
                instead=instead, ttl=ttl,
            )  # fmt: skip

        self._at(written, write)
        if self._does("twice", 0.05):
            self._at(written + self._later(), lambda: write(filed=bucket))
        if self._does("over", 0.04):
            other = self._plain()
            self._at(
                written + self._later(),
                lambda: self.shop.put_row(buyer, dimension, bucket, second, {"N": other}),
            )
        if self._does("deleted", 0.02):
            self._at(written + self._later(), lambda: self.shop.delete_row(buyer, dimension, bucket, second))

    def _unread(self, bucket: str) -> str:
        """What no Query ever names, in the place of this hour."""
        return self.spelling.choice(("true", bucket.replace("T", " "), f"{bucket}:00", "2001-01-01T00"))

    def _twin(self, buyer: Buyer, dimension: str, bucket: str) -> None:
        """Usage of the same customer under a key without an account, which the service takes for the same record."""
        chance, twin = self.spelling, replace(buyer, account="")
        written = start_of(bucket) + chance.choice((chance.uniform(60, HOUR), chance.uniform(1, 20) * HOUR))
        quantity = {"N": chance.choice(("5", self._number_of(chance)))}
        if chance.random() < 0.25:
            self._at(written + HOUR, lambda: self.shop.put_aggregate(twin, dimension, bucket, quantity, None))
            return
        for second in chance.sample(range(3600), chance.choice((1, 2))):
            self._at(
                max(written, start_of(bucket) + second + 1),
                lambda second=second: self.shop.put_row(twin, dimension, bucket, second, quantity),  # type: ignore[misc]
            )

    def _number_of(self, chance: random.Random) -> str:
        return str(chance.randint(1, 99))

    def _spelt(self, bucket: str, second: int, plain: bool) -> Mapping[str, Any]:
        """Attributes that say what the key says, in another form."""
        chance = self.spelling
        if chance.random() >= self.plan.odd_rows:
            return {}
        at = start_of(bucket) + second
        stamp = f"{bucket}:{second // 60:02d}:{second % 60:02d}"
        timestamp = chance.choice((
            {"S": f"{stamp}Z"}, {"S": f"{stamp}+00:00"}, {"S": f"{stamp}.000Z"}, {"N": str(int(at))},
            {"N": str(int(at * 1000))}, {"S": "soon"},
        ))  # fmt: skip
        return {"timestamp": timestamp, **({"usageAllocations": {"L": []}} if plain and chance.random() < 0.5 else {})}

    def _ends_at(self, bucket: str) -> float | None:
        """When DynamoDB may delete the row, if ever."""
        if self.spelling.random() >= self.plan.short_lived:
            return None
        return start_of(bucket) + self.spelling.uniform(1, 30) * HOUR

    def _later(self) -> float:
        return self.chance.choice((
            self.chance.uniform(0.1, 60), self.chance.uniform(60, 2 * HOUR), self.chance.uniform(HOUR, 26 * HOUR),
        ))  # fmt: skip

    def _plain(self) -> str:
        chance = self.chance
        if self.plan.quantities is Quantities.INTEGER or chance.random() < 0.6:
            return str(
                chance.choice((0, 1, 2, 5, 17, 1000, 123456)) if chance.random() < 0.3 else chance.randint(1, 99)
            )
        return str(Decimal(chance.randint(1, 10**9)).scaleb(-chance.randint(1, 6)))

    def _quantity(self) -> tuple[str, list[dict[str, Any]] | None]:
        """A quantity, and perhaps how it is allocated."""
        chance = self.chance
        if not self._does("allocations", 0.15) or self.plan.quantities is Quantities.INTEGER:
            return self._plain(), None
        parts = [Decimal(chance.randint(1, 400)).scaleb(-2) for _ in range(chance.randint(1, 3))]
        tags = chance.sample(_TAGS, len(parts))
        allocations: list[dict[str, Any]] = [
            {"AllocatedUsageQuantityAsDecimal": str(part), "Tags": [{"Key": "team", "Value": tag}]}
            for part, tag in zip(parts, tags, strict=True)
        ]
        return str(sum(parts)), allocations

    def _bad(self, buyer: Buyer, dimension: str, bucket: str) -> None:
        """A row with a fault, which is mended, deleted or left."""
        chance = self.chance
        second = chance.randrange(3600)
        quantity, fault, more = chance.choice(faulty_rows(self.plan.quantities))
        written = start_of(bucket) + second + chance.uniform(0.5, 60)
        self._at(written, lambda: self.shop.put_row(
            buyer, dimension, bucket, second, quantity, fault=fault, instead=more))  # fmt: skip
        done = written + chance.choice((chance.uniform(60, HOUR), chance.uniform(HOUR, 25 * HOUR)))
        if self._does("mend", 0.6):
            mended = self._plain()
            self._at(done, lambda: self.shop.put_row(buyer, dimension, bucket, second, {"N": mended}))
        elif self._does("deleted", 0.5):
            self._at(done, lambda: self.shop.delete_row(buyer, dimension, bucket, second))

    def _impossible(self, buyer: Buyer, dimension: str, bucket: str) -> None:
        """A row whose key is none, or contradicts it."""
        chance = self.chance
        written = start_of(bucket) + chance.uniform(1, 3600)
        kind = chance.choice(("key", "mismatch", "time"))
        if kind == "key":
            key = f"{buyer.account}-{dimension}"
            self._at(written, lambda: self.shop.put_row(
                buyer, dimension, bucket, 0, {"N": "1"}, fault="MalformedSortKey", sort_key=key))  # fmt: skip
        elif kind == "mismatch":
            second = chance.randrange(3600)
            self._at(written, lambda: self.shop.put_row(
                buyer, dimension, bucket, second, {"N": "1"}, fault="SortKeyMismatch",
                instead={"dimension": {"S": "another"}}) if self._is_free(buyer, dimension, bucket, second) else None)  # fmt: skip  # noqa: E501
        else:
            stamp = f"{bucket}:61:00"
            self._at(written, lambda: self.shop.put_row(
                buyer, dimension, bucket, 0, {"N": "1"}, fault="MalformedTimestamp", timestamp=stamp))  # fmt: skip
            if chance.random() < 0.5:
                self._at(written + self._later(), lambda: self.shop.delete_row(buyer, dimension, bucket, 0, stamp))

    def _is_free(self, buyer: Buyer, dimension: str, bucket: str, second: int) -> bool:
        stamp = f"{bucket}:{second // 60:02d}:{second % 60:02d}"
        return (buyer.license, f"{buyer.account}#{dimension}#{stamp}") not in self.shop.books.rows

    def _future(self, buyer: Buyer, dimension: str, bucket: str) -> None:
        """A row of an hour that has not come, filed under this one."""
        ahead = bucket_of(start_of(bucket) + 60 * HOUR)
        self._at(
            start_of(bucket) + self.chance.uniform(1, 3600),
            lambda: self.shop.put_row(buyer, dimension, ahead, 7, {"N": "3"}, fault="TimestampInFuture", filed=bucket),
        )

    def _faulty_group(self, buyer: Buyer, bucket: str, seconds: Sequence[int]) -> None:
        """A group that breaks the contract as a whole."""
        chance = self.chance
        if buyer.is_legacy:
            return
        most = "2147483647" if self.plan.quantities is Quantities.INTEGER else "9999999999"
        account, dimension, fault, quantity = chance.choice((
            (f"x{buyer.account}", "api_calls", "InvalidCustomerAWSAccountId", "1"),
            ("", "api_calls", "MissingCustomerAWSAccountId", "1"),
            (buyer.account, "d" * 256, "DimensionTooLong", "1"),
            (buyer.account, "", "MissingDimension", "1"),
            (buyer.account, "too_much", "QuantityTooLarge", most),
        ))  # fmt: skip
        odd = Buyer(buyer.license, account, buyer.product)

        def write() -> None:
            # Both at once: one by itself may be without fault.
            for second in (seconds[0], (seconds[0] + 1) % 3600):
                self.shop.put_row(odd, dimension, bucket, second, {"N": quantity})
            self.shop.books.group((odd.license, account, dimension, bucket)).fault = fault

        self._at(start_of(bucket) + seconds[0] + chance.uniform(0.5, 20), write)

    def _direct(self, buyer: Buyer, dimension: str, bucket: str) -> None:
        chance = self.chance
        written = start_of(bucket) + chance.choice((chance.uniform(3600, 2 * HOUR), chance.uniform(600, 25 * HOUR)))
        quantity: Mapping[str, Any] | None = {"N": self._plain()}
        fault: str | None = None
        if self._does("bad", 0.15):
            quantity, fault, _ = chance.choice(FAULTY_QUANTITIES)
        filed = self._unread(bucket) if self.spelling.random() < 5 * self.plan.unread else None
        self._at(written, lambda: self.shop.put_aggregate(buyer, dimension, bucket, quantity, fault, filed=filed))
        if self._does("over", 0.2):
            other = self._plain()
            self._at(
                written + self._later(),
                lambda: self.shop.put_aggregate(buyer, dimension, bucket, {"N": other}, None),
            )

    def _at(self, at: float, write: Callable[[], object]) -> None:
        self.kernel.schedule(at, write)
