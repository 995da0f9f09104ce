"""Strangers: another pipeline that was at the tables, persons who delete, a restored backup, DynamoDB's own TTL.

Belongs here: what they do and when. Does not: what sellers do (sellers), what should become of it (judge).

The other pipeline is the reference's: it sums what waits, a text that is a number as well, writes the aggregate with
numbers for its allocations, sends it or not, and cleans up its rows by halves. It has stricter rules than the contract,
by which it rejects whole groups.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from metering_dagster.devstack.sandbox.rules import AcceptedRecord, Identity
from tests.simulation.books import RESTORED, Group, GroupBook, bucket_of, moment, start_of
from tests.simulation.calls import Teller
from tests.simulation.daemon import Daemon
from tests.simulation.kernel import Kernel
from tests.simulation.memory import MemoryDynamoDB
from tests.simulation.memory.marketplace import REGION, MemoryMarketplace
from tests.simulation.plan import HOUR, Plan
from tests.simulation.sellers import AGGREGATED, DIMENSIONS, GHOST, USAGE, Buyer, Shop

_LOOKS_EVERY = 1800.0
Ends = Mapping[tuple[str, str], float]


@dataclass
class _Row:
    second: int
    quantity: Mapping[str, Any]
    fault: str | None = None
    allocations: list[dict[str, Any]] | None = None
    instead: Mapping[str, Any] | None = None


class Strangers:
    """Draws what is done to a world's tables by others, all of it before the world begins."""

    def __init__(
        self,
        kernel: Kernel,
        plan: Plan,
        shop: Shop,
        buyers: Sequence[Buyer],
        tables: MemoryDynamoDB,
        marketplace: MemoryMarketplace,
        teller: Teller,
        daemon: Daemon,
    ) -> None:
        self.kernel, self.plan, self.shop, self.buyers = kernel, plan, shop, buyers
        self.tables, self.marketplace, self.teller, self.daemon = tables, marketplace, teller, daemon
        self.chance = {name: random.Random(f"{name} {plan.seed}") for name in (
            "leftovers", "stamps", "deletions", "ttl",
        )}  # fmt: skip

    def begin(self, ends: Ends) -> None:
        """Plan all of it. `ends`: when a license is deprovisioned."""
        for hour in range(self.plan.hours):
            start = self.plan.start.timestamp() + hour * HOUR
            for habit, name, rate in (
                (self._leftover, "leftovers", self.plan.others), (self._stamped, "stamps", self.plan.stamps),
            ):  # fmt: skip
                for _ in range(int(self.plan.groups_an_hour)):
                    buyer = self.chance[name].choice(self.buyers)
                    is_drawn = self.chance[name].random() < rate
                    if is_drawn and start + 2 * HOUR < ends.get((buyer.license, buyer.account), self.plan.end):
                        habit(buyer, self.chance[name].choice(DIMENSIONS), bucket_of(start))
        if self.plan.deletions:
            for hour in range(self.plan.hours):
                self._at(self.plan.start.timestamp() + hour * HOUR, self._deletions)
        if self.plan.restores:
            self.tables.remember(AGGREGATED)
        for at, of in self.plan.restores:
            self._at(at, lambda of=of: self._restore(of))  # type: ignore[misc]
        if self.plan.short_lived:
            self._at(self.kernel.now + _LOOKS_EVERY, self._sweep)

    # Another pipeline's leftovers.

    def _leftover(self, buyer: Buyer, dimension: str, bucket: str) -> None:
        """Rows, an aggregate that another pipeline makes of those that wait, and rows that it does not clean up."""
        chance = self.chance["leftovers"]
        rows = self._rows(bucket)
        for row in rows:
            self._put(buyer, dimension, bucket, row, start_of(bucket) + row.second + chance.uniform(0.5, 20))
        made = start_of(bucket) + HOUR + chance.choice((chance.uniform(30, 600), chance.uniform(30, 4 * HOUR)))
        sends, cleans = chance.random() < 0.5, chance.choice((0.0, 0.5, 0.5, 1.0))
        is_short_lived = self.plan.short_lived > 0 and chance.random() < 0.2
        ttl = start_of(bucket) + chance.uniform(3, 26) * HOUR if is_short_lived else None
        self._at(made, lambda: self._aggregate(buyer, dimension, bucket, sends=sends, cleans=cleans, ttl=ttl))
        for _ in range(chance.choice((0, 0, 1, 2))):  # and what comes too late for it
            late = _Row(chance.randrange(3600), {"N": str(chance.randint(0, 40))})
            self._put(buyer, dimension, bucket, late, made + chance.uniform(1, 8 * HOUR))
        if chance.random() < 0.2:
            gone = chance.choice(rows)
            key = (buyer.license, f"{buyer.account}#{dimension}#{_stamp(bucket, gone.second)}")
            self._at(made + chance.uniform(1, 5 * HOUR), lambda: self.shop.delete(key))

    def _rows(self, bucket: str) -> list[_Row]:
        chance = self.chance["leftovers"]
        rows = []
        for second in sorted(chance.sample(range(3600), chance.choice((1, 2, 2, 3, 5)))):
            number, kind = str(chance.randint(0, 60)), chance.random()
            if kind < 0.2:
                rows.append(_Row(second, {"S": number}, "NonNumericQuantity"))
            elif kind < 0.35:
                rows.append(_Row(second, {"N": number}, instead={"timestamp": {"S": f"{_stamp(bucket, second)}Z"}}))
            elif kind < 0.45:
                rows.append(_Row(second, {"N": number}, instead={"usageAllocations": {"L": []}}))
            elif kind < 0.55:
                rows.append(_Row(second, {"N": "-3"}, "NegativeQuantity"))
            elif kind < 0.6:
                rows.append(_Row(second, {"BOOL": True}, "NonNumericQuantity"))
            else:
                rows.append(_Row(second, {"N": number}))
        return rows

    def _put(self, buyer: Buyer, dimension: str, bucket: str, row: _Row, at: float) -> None:
        stamped = self.chance["leftovers"].random() < 0.7
        self._at(at, lambda: self.shop.put_row(
            buyer, dimension, bucket, row.second, row.quantity, fault=row.fault, allocations=row.allocations,
            instead=row.instead, stamped=stamped,
        ))  # fmt: skip

    def _aggregate(
        self, buyer: Buyer, dimension: str, bucket: str, *, sends: bool, cleans: float, ttl: float | None
    ) -> None:
        """Sum what waits, write the aggregate, send it, clean up a part. Not where somebody has done so already."""
        group = (buyer.license, buyer.account, dimension, bucket)
        book, now = self.shop.books.group(group), self.kernel.now
        if book.commit is not None or book.stands_since is not None:
            return
        waiting = {key: row.now for key, row in book.rows.items() if _waits(row.now.number, row.now.was_pending(now))}
        quantity = sum((version.number or Decimal(0) for version in waiting.values()), Decimal(0))
        if not waiting or quantity < 0:
            return
        more: dict[str, Any] = {"createdAt": {"S": moment(now)}, "updatedAt": {"S": moment(now)}}
        if ttl is not None:
            more["ttl"] = {"N": str(int(max(ttl, now + 60)))}
        if sends and not buyer.identifier:
            more |= {**self._sent(group, quantity), "meteringPending": None}
        fault = self._fault(quantity)
        who = "another pipeline"
        self.shop.put_aggregate(buyer, dimension, bucket, {"N": str(quantity)}, fault, more=more, who=who)
        if sends and not buyer.identifier:
            self.teller.sent_by_others(book)
        for key in waiting:
            if self.chance["leftovers"].random() < cleans:
                words = f"Aggregated total quantity {quantity} from {len(waiting)} raw usage records"
                self.shop.stamp_row((buyer.license, key), "Aggregated", words)

    def _fault(self, quantity: Decimal) -> str | None:
        """Why the contract takes no record of this quantity, if it does not."""
        is_integer = self.plan.quantities.value == "integer"
        if is_integer and quantity != quantity.to_integral_value():
            return "NonIntegerQuantity"
        if quantity.normalize().as_tuple().exponent < -6:  # a row with more of them is in its sum as well
            return "TooManyDecimals"
        return "QuantityTooLarge" if quantity > (2**31 - 1 if is_integer else Decimal("9999999999.999999")) else None

    def _sent(self, group: Group, quantity: Decimal) -> dict[str, Any]:
        """Bill the record, and tell what its aggregate then says."""
        license, account, dimension, bucket = group
        arn, product = (license, "") if license.startswith("arn:") else ("", license)
        identity = Identity(REGION, product, arn, account, "", dimension, bucket)
        record = {"UsageAllocations": None}
        (outcome,) = self.marketplace.books.settle([AcceptedRecord(identity, quantity, True, record)])
        return {"meteringStatus": {"S": str(outcome.status)}, "meteringRecordId": {"S": outcome.metering_record_id}}

    # Its stricter rules.

    def _stamped(self, buyer: Buyer, dimension: str, bucket: str) -> None:
        """A group that another pipeline rejects, all of it or a half, by a rule that the contract has not."""
        chance = self.chance["stamps"]
        first, second, third = sorted(chance.sample(range(3600), 3))
        tags = [{"AllocatedUsageQuantityAsDecimal": "4", "Tags": [{"Key": "team", "Value": "a"}]}]
        kinds = [("NegativeQuantity", _Row(second, {"N": "-1"}, "NegativeQuantity"))]
        if self.plan.quantities.value != "integer":
            kinds += [
                ("NonIntegerQuantity", _Row(second, {"N": "1.5"})),
                ("MixedAllocatedAndUnallocated", _Row(second, {"N": "4"}, None, tags)),
            ]
        reason, odd = chance.choice(kinds)
        written = start_of(bucket) + HOUR * chance.uniform(0.3, 0.9)
        for row in (_Row(first, {"N": "5"}), odd, _Row(third, {"N": "2"})):
            self._put(buyer, dimension, bucket, row, written)
        stamped = [second, *(each for each in (first, third) if chance.random() < 0.7)]
        keys = [(buyer.license, f"{buyer.account}#{dimension}#{_stamp(bucket, each)}") for each in stamped]

        def stamp() -> None:
            book = self.shop.books.group((buyer.license, buyer.account, dimension, bucket))
            if book.stands_since is None and book.commit is None:
                for key in keys:
                    self.shop.stamp_row(key, "RejectedClientSide", reason)

        at = start_of(bucket) + HOUR + chance.uniform(1, 900)
        self._at(at, stamp)
        mended = _Row(second, {"N": "1"}) if odd.fault or chance.random() < 0.5 else odd
        if chance.random() < 0.8:  # its seller writes the one row again, so that it waits
            self._put(buyer, dimension, bucket, mended, at + chance.choice((60.0, HOUR, 20 * HOUR)) * chance.random())

    # Persons.

    def _deletions(self) -> None:
        """Some of the groups of the hour that ended a while ago lose their aggregate; what they do beside it."""
        chance = self.chance["deletions"]
        bucket = bucket_of(self.kernel.now - chance.choice((2, 3, 5, 12, 21)) * HOUR)
        for group in self.shop.books.by_hour.get(bucket, []):
            unbilled = bool(group.refusals) or (group.stands_since is not None and group.status is None)
            if chance.random() >= self.plan.deletions * (4 if unbilled else 1):
                continue
            self._at(self.kernel.now + chance.uniform(1, HOUR - 1), lambda group=group: self._delete(group))  # type: ignore[misc]

    def _delete(self, group: GroupBook) -> None:
        chance = self.chance["deletions"]
        also = chance.choice(("nothing", "nothing", "the rows are written again", "the rows are deleted"))
        if group.name[2] == GHOST:  # it was refused; the catalog is mended, and the hour is to be billed after all
            self.marketplace.configure(dimensions=sorted([*DIMENSIONS, GHOST]))
        if not self.shop.delete_aggregate(group.name, "a person"):
            return
        license = group.name[0]
        buyer = Buyer(*group.name[:2], None, self.shop.books.identifier_of(group))
        for key, row in list(group.rows.items()):
            if row.second is None or row.now.gone or row.now.fault is not None:
                continue
            if also == "the rows are deleted":
                self.shop.delete((license, key))
            elif also == "the rows are written again":
                self.shop.write_again(buyer, group.name, row)

    def _restore(self, of: float) -> None:
        """The aggregated table is made anew from a backup of an earlier moment."""
        now, books = self.kernel.now, self.shop.books
        for run in self.daemon.under_way():
            if run.errand is not None:
                run.errand.troubles.append(RESTORED)
        self.shop.is_writing = True
        self.tables.restore(AGGREGATED, of)
        self.shop.is_writing = False
        for group in books.groups.values():
            self._restored(group, of, now)

    def _restored(self, group: GroupBook, of: float, now: float) -> None:
        license, *parts = group.name
        item = self.tables.item(AGGREGATED, license, "#".join(parts))
        if group.commit is not None and group.commit.at > of:
            group.undone.append(group.commit)
            group.commit = None
        if (item is None) and group.stands_since is not None:
            self.shop.lost(group, now, "the restored backup")
        elif item is not None:
            ended = group.status
            group.status = None if "meteringPending" in item else item["meteringStatus"]["S"]
            waits_anew = ended is not None and group.status is None  # as before it was sent
            if waits_anew or group.stands_since is None or group.stands_since > of:
                group.stands_since = now
            group.put_back = "putBackAt" in item
            group.is_astray = item.get("meteringPending", {}).get("S", parts[-1]) != group.name[3]
        total = next((total for total in reversed(group.direct) if total.at <= of), None)
        if group.direct and group.commit is None:
            stands = item is not None and total is not None
            group.direct[-1] = group.direct[-1]._replace(until=min(now, group.direct[-1].until))
            if stands and total is not None:
                group.direct.append(total._replace(until=float("inf")))

    # TTL.

    def _sweep(self) -> None:
        """DynamoDB deletes some of what has outlived its `ttl`."""
        chance = self.chance["ttl"]
        for item in sorted(self.tables.outlived(USAGE), key=_key_of):
            if chance.random() < 0.3:
                self.shop.delete((item["licenseArn"]["S"], item["customerAWSAccountId_dimension_timestamp"]["S"]))
        for item in sorted(self.tables.outlived(AGGREGATED), key=_key_of):
            group = self.shop.books.find(item["licenseArn"]["S"], item["account_dimension_hour"]["S"])
            if group is not None and chance.random() < 0.3:
                self.shop.delete_aggregate(group.name, "TTL")
        self._at(self.kernel.now + _LOOKS_EVERY, self._sweep)

    def _at(self, at: float, what: Callable[[], object]) -> None:
        self.kernel.schedule(at, what)


def _stamp(bucket: str, second: int) -> str:
    return f"{bucket}:{second // 60:02d}:{second % 60:02d}"


def _waits(number: Decimal | None, is_pending: bool) -> bool:
    return number is not None and is_pending


def _key_of(item: Mapping[str, Any]) -> tuple[str, str]:
    sort = item.get("customerAWSAccountId_dimension_timestamp") or item["account_dimension_hour"]
    return item["licenseArn"]["S"], sort["S"]
