"""The judge: watches every change of the tables and every call, and says at once what must not be.

Belongs here: what may become of rows, records and subscribers, step by step. Does not: calls of the Metering API
(calls), what was lost and whether that is excused (losses), the books themselves (books).

It knows the domain, and nothing of the product: a rule that the product has wrong is not wrong here in the same way.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tests.simulation.books import (
    Books,
    Commit,
    Group,
    GroupBook,
    Row,
    canonical,
    comes_back,
    is_billable,
    is_last_call,
    moment,
    month_after,
)
from tests.simulation.buyers import Market
from tests.simulation.kernel import Kernel
from tests.simulation.sellers import AGGREGATED, USAGE, Shop
from tests.simulation.wire import Errand

OURS = "metering-dagster#"
_COUNTED = "metering-dagster#counted#"
_ANSWERS = {"Success", "DuplicateRecord", "CustomerNotSubscribed"}
A_MOMENT = 90.0
"""Between the last look at the clock and what goes by it: reads and writes that fail once, a wait for the quota."""
_CONTENT = ("quantity", "usageAllocations", "customerIdentifier", "customerAWSAccountId", "dimension", "timestamp")
Change = tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]


class Violation(BaseException):  # it must pass through whatever the product catches
    """An invariant does not hold."""

    def __init__(self, invariant: str, words: str, group: GroupBook | None = None) -> None:
        self.invariant, self.words, self.group = invariant, words, group
        lines = [f"({invariant}) {words}"]
        if group is not None:
            lines += [f"    group {' / '.join(group.name)}", *(f"      {line}" for line in group.log)]
        super().__init__("\n".join(lines))


class Judge:
    """Hears of each change, at once."""

    def __init__(self, kernel: Kernel, books: Books, shop: Shop, market: Market, lock: int) -> None:
        self.kernel, self.books, self.shop, self.market, self.lock = kernel, books, shop, market, lock
        self.expiry_ends: dict[tuple[str, str], float] = {}
        """The end of each flush window, as the subscribers table has it."""
        self.windows: dict[tuple[str, str], list[tuple[float, float]]] = {}
        """When each end was written, and the end."""
        self.products: dict[tuple[str, str], tuple[str, float]] = {}
        """What a subscriber row says of its product, and since when."""
        self.on_loss: Callable[[GroupBook, float], None] = lambda group, since: None
        """Asked of everything that ends unbilled, since when it was there."""
        self._changes: list[Change] = []
        self._beside_a_total: dict[Group, GroupBook] = {}
        """Whose rows were called counted, though the group's total is its seller's own."""

    # What is heard.

    def changed(self, table: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
        """A change of a table; those of one call are judged together."""
        if not self.shop.is_writing:
            self._changes.append((table, before, after))

    def settle(self, errand: Errand) -> None:
        """All changes of one call have happened."""
        changes, self._changes = self._changes, []
        counted: dict[tuple[str, str], Mapping[str, Any]] = {}
        for _, _, after in changes:
            if after is not None and "counted" in after:
                key = after["licenseArn"]["S"].removeprefix(_COUNTED), after["account_dimension_hour"]["S"]
                counted[key] = after
        for table, before, after in changes:
            if table == USAGE:
                self._row(errand, before, after)
            elif table == AGGREGATED:
                key = (after or before or {})["licenseArn"]["S"]
                if not key.startswith(OURS):
                    self._aggregate(errand, before, after, counted)
            else:
                self._subscriber(errand, before, after)
        for group in self._beside_a_total.values():
            _completes_the_total(errand, group)
        self._beside_a_total.clear()

    # Raw rows.

    def _row(self, errand: Errand, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
        if before is None or after is None:
            what = "deleted a row" if after is None else "brought back a row that its seller had deleted"
            raise Violation("b", f"{errand.name} {what}: {before or after}")
        key = (after["licenseArn"]["S"], after["customerAWSAccountId_dimension_timestamp"]["S"])
        row = self.books.rows[key]
        group = self.books.groups.get(row.group) if row.group else None
        if any(before.get(name) != after.get(name) for name in _CONTENT):
            raise Violation("c", f"{errand.name} changed what a seller wrote", group)
        now, version = self.kernel.now, row.now
        filed, status = after.get("meteringPending"), after.get("meteringStatus", {}).get("S", "")
        if "meteringPending" not in before and filed is None:
            was = before.get("meteringStatus", {}).get("S")
            raise Violation("b", f"{errand.name} wrote {status} over the final state {was} of a row", group)
        if filed is not None:
            self._refiled(errand, row, group, before, str(filed["S"]))
            return
        reason = after.get("meteringStatusReason", {}).get("S", "")
        if group is not None:
            group.log.append(f"{moment(now)} {errand.name}: row {key[1].rpartition('#')[2]} is {status} ({reason})")
        version.ended_at, version.status, version.reason = now, status, reason
        judge = {
            "Aggregated": self._aggregated,
            "RejectedClientSide": self._rejected,
            "LateUsage": self._late,
            "AggregationExpired": self._expired,
        }.get(status)
        if judge is None:
            raise Violation("b", f"{errand.name} ended a row as {status!r}, which is no end", group)
        judge(errand, row, group)

    def _refiled(
        self, errand: Errand, row: Row, group: GroupBook | None, before: Mapping[str, Any], filed: str
    ) -> None:
        """A row is pending again, or under another hour."""
        version = row.now
        if row.group is None or filed != row.group[3]:
            raise Violation("b", f"{errand.name} filed a row under {filed}, which is not the hour of its key", group)
        if version.status is not None and (version.status != "RejectedClientSide" or version.fault is not None):
            raise Violation("b", f"{errand.name} made a row pending that was {version.status} for good", group)
        if group is not None:
            group.log.append(f"{moment(self.kernel.now)} {errand.name}: a row is pending under {filed} again")
        version.filed, version.placed_at = filed, self.kernel.now
        version.ended_at = version.status = None

    def _aggregated(self, errand: Errand, row: Row, group: GroupBook | None) -> None:
        version = row.now
        if group is None or not version.is_good:
            raise Violation("c", f"{errand.name} counted a row with a fault: {version.fault}", group)
        if group.commit is None:
            if not group.direct:
                raise Violation("c", f"{errand.name} called a row counted whose group was never committed", group)
            self._beside_a_total[group.name] = group
            return
        content = (version.quantity, version.allocations)
        if row.second is None or group.commit.counted.get(row.second) != content:
            raise Violation("c", f"{errand.name} called a row counted that the commit did not count so", group)

    def _rejected(self, errand: Errand, row: Row, group: GroupBook | None) -> None:
        version = row.now
        if version.reason not in {version.fault, group.fault if group else None}:
            due = version.fault or (group.fault if group else None)
            raise Violation("c", f"{errand.name} rejected a row as {version.reason}; its fault is {due}", group)

    def _late(self, errand: Errand, row: Row, group: GroupBook | None) -> None:
        version = row.now
        if group is None or not version.is_good:
            raise Violation("c", f"{errand.name} called a row late that has a fault: {version.fault}", group)
        if group.commit is None:
            if not group.direct:
                raise Violation("d", f"{errand.name} called a row late whose group was never committed", group)
            return
        content = (version.quantity, version.allocations)
        if row.second is not None and group.commit.counted.get(row.second) == content:
            raise Violation("c", f"{errand.name} called a row late that its group's commit had counted", group)

    def _expired(self, errand: Errand, row: Row, group: GroupBook | None) -> None:
        version, now = row.now, self.kernel.now
        if group is None or row.group is None:
            raise Violation("b", f"{errand.name} expired a row whose key is none")
        if group.commit is not None:
            raise Violation("d", f"{errand.name} called a row expired though its group was committed", group)
        self._may_expire(errand, group, now)
        if version.is_good and group.fault is None and not group.direct:
            self.on_loss(group, max(version.at, version.placed_at) if version.filed == row.group[3] else now)

    def _may_expire(self, errand: Errand, group: GroupBook, now: float) -> None:
        bucket = group.name[3]
        in_grace = 0 <= now - month_after(bucket) < 6 * 3600
        if is_billable(bucket, now) or in_grace or comes_back(bucket, now):
            raise Violation("d", f"{errand.name} expired usage of {bucket}, which could still be billed", group)

    # Aggregates.

    def _aggregate(
        self,
        errand: Errand,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        counted: Mapping[tuple[str, str], Mapping[str, Any]],
    ) -> None:
        if after is None:
            raise Violation("b", f"{errand.name} deleted an aggregate: {before}")
        key = (after["licenseArn"]["S"], after["account_dimension_hour"]["S"])
        if before is None:
            self._committed(errand, key, after, counted.get(key))
            return
        group = self.books.find(*key)
        assert group is not None
        if before.get("quantity") != after.get("quantity"):
            raise Violation("a", f"{errand.name} changed the quantity of a record", group)
        status = after.get("meteringStatus", {}).get("S", "")
        was = before.get("meteringStatus", {}).get("S") if "meteringPending" not in before else None
        if "meteringPending" in after:
            raise Violation("b", f"{errand.name} left a record pending that it wrote to", group)
        if was is not None and not (was == "SubmissionExpired" and status in _ANSWERS):
            raise Violation("b", f"{errand.name} wrote {status} over the final state {was} of a record", group)
        reason = after.get("meteringStatusReason", {}).get("S", "")
        group.log.append(f"{moment(self.kernel.now)} {errand.name}: the record is {status} {reason}".rstrip())
        group.status = status
        receipt = _text(after, "meteringRecordId")
        if status == "Success" and (receipt is None or receipt != group.receipt):
            raise Violation(
                "a", f"{errand.name} wrote Success with the receipt {receipt}; it is {group.receipt}", group
            )
        self._record_ended(errand, group, status, reason, _quantity(after))

    def _record_ended(
        self, errand: Errand, group: GroupBook, status: str, reason: str, quantity: Decimal | None
    ) -> None:
        billed = group.billed[0][1] if group.billed else None
        if status == "Success":
            if billed != quantity:
                raise Violation("a", f"{errand.name} wrote Success for {quantity}; the bill says {billed}", group)
        elif status == "DuplicateRecord":
            if billed is None or billed == quantity:
                raise Violation("a", f"{errand.name} wrote DuplicateRecord for {quantity}; billed is {billed}", group)
        elif status == "CustomerNotSubscribed":
            if status not in group.answers:
                raise Violation("c", f"{errand.name} wrote {status}, which the service never said", group)
        elif status == "RejectedClientSide":
            own = group.direct[-1][2] if group.direct else None
            if reason not in {own, *group.refusals}:
                raise Violation("c", f"{errand.name} rejected a record as {reason}, which nobody said of it", group)
        elif status == "SubmissionExpired":
            self._may_expire(errand, group, self.kernel.now)
            fault = group.direct[-1][2] if group.direct and group.commit is None else None
            if fault is None:
                self.on_loss(group, group.direct[-1][0] if group.commit is None else group.commit.at)
        else:
            raise Violation("b", f"{errand.name} ended a record as {status!r}, which is no end", group)

    def _committed(
        self, errand: Errand, key: tuple[str, str], after: Mapping[str, Any], counted: Mapping[str, Any] | None
    ) -> None:
        """A group was committed: with all that was there, and nothing else."""
        group = self.books.find(*key)
        now, quantity = self.kernel.now, Decimal(after["quantity"]["N"])
        if group is None:
            raise Violation("a", f"{errand.name} committed a group of which nobody wrote anything: {key}")
        group.log.append(f"{moment(now)} {errand.name}: committed with {quantity}")
        read_at = errand.reads.get(key)
        if read_at is None:
            raise Violation("a", f"{errand.name} committed a group that it never read from the table", group)
        if counted is None:
            raise Violation("c", f"{errand.name} committed a group and did not remember what it counted", group)
        stated = {
            int(second): Decimal(text)
            for second, text, _ in json.loads(zlib.decompress(bytes(counted["counted"]["B"])))
        }
        due = _due(errand, group, read_at, stated)
        if sum(stated.values()) != quantity:
            raise Violation("a", f"{errand.name} committed {quantity}; its rows sum to {sum(stated.values())}", group)
        group.commit = Commit(now, read_at[0], errand.name, quantity, due)
        stored = after.get("usageAllocations")
        if canonical(None if stored is None else _plain(stored)) != group.commit.allocations:
            words = f"{errand.name} committed other allocations than its rows have: {group.commit.allocations}"
            raise Violation("a", words, group)
        self._was_due(errand, group, read_at[1], quantity)

    def _was_due(self, errand: Errand, group: GroupBook, read_at: float, quantity: Decimal) -> None:
        """A held group, and one that sums to zero, go at their last call only."""
        licence, account, _, bucket = group.name
        last = is_last_call(bucket, self.kernel.now)
        end = self.expiry_ends.get((licence, account))
        last = last or (end is not None and self.kernel.now >= end - 600)
        if not last and group.is_held(read_at):
            raise Violation("d", f"{errand.name} ended a hold before the last call", group)
        if not last and quantity == 0:
            raise Violation("d", f"{errand.name} committed a zero before the last call", group)
        late = not is_billable(bucket, self.kernel.now) and not is_billable(bucket, self.kernel.now - A_MOMENT)
        if late and "stood still" not in errand.troubles:
            raise Violation("f", f"{errand.name} committed {bucket}, which cannot be billed", group)

    # Subscribers.

    def _subscriber(self, errand: Errand, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
        if after is None:
            raise Violation("e", f"{errand.name} deleted a subscriber")
        buyer = (after["licenseArn"]["S"], after["customerAWSAccountId"]["S"])
        product = _text(after, "productCode")
        if product is not None and product != _text(before, "productCode"):
            self.products[buyer] = product, self.kernel.now
        was, status = _text(before, "subscriptionStatus"), _text(after, "subscriptionStatus")
        order = {None: 0, "active": 0, "deprovisioning": 1, "inactive": 2}
        if order[status] < order[was]:
            raise Violation("e", f"{errand.name} made a licence {status} that was {was}")
        expiry, old = _text(after, "deprovisioningExpiry"), _text(before, "deprovisioningExpiry")
        ending = self.market.endings.get(buyer)
        if expiry is not None and expiry != old:
            instant = datetime.fromisoformat(expiry).astimezone(UTC).timestamp()
            if ending is None or instant - 3600 not in ending.stated:
                raise Violation("e", f"{errand.name} wrote an expiry that no event states: {expiry}")
            if old is not None and expiry > old:
                raise Violation("e", f"{errand.name} moved an expiry later, from {old} to {expiry}")
            self.expiry_ends[buyer] = instant
            self.windows.setdefault(buyer, []).append((self.kernel.now, instant))
        if status == "inactive" and was != "inactive":
            end = self.expiry_ends.get(buyer)
            if end is None or self.kernel.now < end:
                raise Violation("e", f"{errand.name} closed a flush window before its end")
        if status == "inactive" and ("deprovisioningPendingFlag" in after or expiry is not None):
            raise Violation("e", f"{errand.name} left the marks of a window on an inactive licence")


def _due(
    errand: Errand, group: GroupBook, read_at: tuple[float, float], stated: Mapping[int, Decimal]
) -> dict[int, tuple[Decimal, str]]:
    """What a commit had to count: all that stood there as it read; what changed between two pages, either way."""
    due: dict[int, tuple[Decimal, str]] = {}
    for row in group.rows.values():
        if row.second is None:
            continue
        first, last = row.content(read_at[0]), row.content(read_at[1])
        fitting = [found for found in (last, first) if (found[0] if found else None) == stated.get(row.second)]
        if not fitting:
            words = f"{stated.get(row.second)} at second {row.second}, where {first} stood as it was read"
            raise Violation("a", f"{errand.name} counted {words}", group)
        if fitting[0] is not None:
            due[row.second] = fitting[0]
    if set(stated) - set(due):
        raise Violation("a", f"{errand.name} counted seconds in which nobody wrote: {set(stated) - set(due)}", group)
    return due


def _completes_the_total(errand: Errand, group: GroupBook) -> None:
    """Rows beside a seller's own total are its missing part only where they and all counted before add up to it."""
    licence, *parts = group.name
    read_at, _ = errand.reads.get((licence, "#".join(parts)), (0.0, 0.0))
    if any(version.at >= read_at for row in group.rows.values() for version in row.versions):
        return  # its seller wrote on meanwhile: what was read no longer stands there
    there = [row.now for row in group.rows.values() if row.now.is_good]
    found = sum((v.quantity for v in there if v.ended_at is None or v.status == "Aggregated"), Decimal(0))
    if found not in {quantity for _, quantity, _ in group.direct}:
        words = f"{errand.name} called rows counted, and with them it is {found}, which is no total of its seller's"
        raise Violation("c", words, group)


def _plain(typed: Mapping[str, Any]) -> Any:
    """A typed value without its types, as far as allocations have them."""
    (kind, value), *_ = typed.items()
    if kind == "L":
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in value.items()} if kind == "M" else value


def _quantity(item: Mapping[str, Any]) -> Decimal | None:
    """What an aggregate states; None where that is no number, as a seller's may be."""
    found = item.get("quantity", {}).get("N")
    return None if found is None else Decimal(found)


def _text(item: Mapping[str, Any] | None, name: str) -> str | None:
    found = (item or {}).get(name, {}).get("S")
    return None if found is None else str(found)
