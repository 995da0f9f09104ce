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

from tests.simulation.beside import verdict
from tests.simulation.books import (
    RESTORED,
    Books,
    Commit,
    GroupBook,
    Row,
    Version,
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
                names = after.get("committedLicense"), after.get("committedGroup")
                hashed, ranged = names if all(names) else (after["licenseArn"], after["account_dimension_hour"])
                counted[hashed["S"].removeprefix(_COUNTED), ranged["S"]] = after
        if changes and errand.mode == "shadow":
            raise Violation("b", f"{errand.name} in shadow mode wrote {changes[0][2] or changes[0][1]}")
        for table, before, after in changes:
            if table == USAGE:
                self._row(errand, before, after)
            elif table == AGGREGATED:
                key = (after or before or {})["licenseArn"]["S"]
                if not key.startswith(OURS):
                    self._aggregate(errand, before, after, counted)
            else:
                self._subscriber(errand, before, after)

    def foretold(self, errand: Errand, bucket: str, told: Mapping[tuple[str, str, str], Decimal]) -> None:
        """A deployment in shadow mode tells its ledger what would be billed: so it must be, if nothing else happens."""
        if errand.troubles:
            return
        for key, (first, _) in errand.reads.items():
            group = self.books.find(*key)
            if group is not None and group.name[3] == bucket:
                group.foretold.append((first, told.get(group.name[:3])))

    def _as_foretold(self, errand: Errand, group: GroupBook, read_at: float, quantity: Decimal) -> None:
        """A commit of what a shadow run had read as well counts what that had told, if it is as much a last call."""
        bucket, versions = group.name[3], [version for row in group.rows.values() for version in row.versions]
        changes = [at for version in versions for at in (version.at, version.placed_at, version.ended_at) if at]
        for since, told in group.foretold:
            if told == quantity or any(since <= at < read_at for at in [*changes, *group.deleted]):
                continue
            alike = is_last_call(bucket, since) == is_last_call(bucket, self.kernel.now)
            if told is None and (not alike or group.name[:2] in self.expiry_ends):
                continue
            words = f"{errand.name} committed {quantity}; a shadow run at {moment(since)} told {told}"
            raise Violation("c", words, group)

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
        was = before.get("meteringStatus", {}).get("S")
        stands = "meteringPending" not in before and filed is None
        if stands and not _may_be_judged_again(version, group, status):
            raise Violation("b", f"{errand.name} wrote {status} over the final state {was} of a row", group)
        if filed is not None:
            self._refiled(errand, row, group, before, str(filed["S"]))
            return
        reason = after.get("meteringStatusReason", {}).get("S", "")
        if group is not None:
            group.log.append(f"{moment(now)} {errand.name}: row {key[1].rpartition('#')[2]} is {status} ({reason})")
        version.ended_at, version.status, version.reason, version.ended_by = now, status, reason, errand
        version.late_by = Decimal(after.get("lateBy", {}).get("N", 0))
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
        # Of a group that lost aggregate and commit and is held, what was called counted waits with the rest.
        is_orphan = group is not None and group.commit is None and group.stands_since is None and bool(group.deleted)
        waits_again = is_orphan and group is not None and group.is_held(self.kernel.now)
        states = {"RejectedClientSide", *(["Aggregated"] if waits_again else [])}
        if version.status is not None and (version.status not in states or version.fault is not None):
            raise Violation("b", f"{errand.name} made a row pending that was {version.status} for good", group)
        if group is not None:
            group.log.append(f"{moment(self.kernel.now)} {errand.name}: a row is pending under {filed} again")
        version.filed, version.placed_at, version.stamp = filed, self.kernel.now, self.kernel.now
        version.ended_at = version.status = None

    def _aggregated(self, errand: Errand, row: Row, group: GroupBook | None) -> None:
        version = row.now
        if group is not None and group.commit is None and group.direct:
            self._beside(errand, row, group)
            return
        if group is None or not (version.is_good or group.undone or group.deleted):
            raise Violation("c", f"{errand.name} counted a row with a fault: {version.fault}", group)
        if group.commit is None:
            raise Violation("c", f"{errand.name} called a row counted whose group was never committed", group)
        counted = group.commit.counted.get(row.second) if row.second is not None else None
        if counted not in ((version.quantity, version.allocations), (version.number, version.allocations)):
            raise Violation("c", f"{errand.name} called a row counted that the commit did not count so", group)

    def _beside(self, errand: Errand, row: Row, group: GroupBook) -> None:
        """A row beside another's total ended: as the figure of the group says, of all that stood there as it was read.

        Not where somebody else was at the group meanwhile: what was read no longer stands there.
        """
        version, (license, *parts) = row.now, group.name
        read_at, _ = errand.reads.get((license, "#".join(parts)), (0.0, 0.0))
        for other in (each for row in group.rows.values() for each in row.versions):
            if other.fault == "SortKeyMismatch":
                return  # whether another pipeline takes such a row for one of this group, nobody can say
            ended_since = other.ended_at is not None and other.ended_at >= read_at and other.ended_by is not errand
            if other.at >= read_at or other.placed_at >= read_at or ended_since:
                return
        total = group.total_at(read_at)
        if total is None or total.at >= min(read_at, errand.started) or total.until < self.kernel.now:
            return
        key = next(key for key, each in group.rows.items() if each is row)
        due = verdict(group, total, read_at).get(key)
        ended = version.status, version.late_by
        if due != ended:
            words = f"{errand.name} ended a row beside the total {total.number} as {ended}, which is to be {due}"
            raise Violation("c", words, group)

    def _rejected(self, errand: Errand, row: Row, group: GroupBook | None) -> None:
        version = row.now
        total = group.total_at(errand.started) if group is not None and group.commit is None else None
        if version.number is not None and total is not None and total.until > self.kernel.now:
            raise Violation("c", f"{errand.name} rejected a row beside another's total: {version.reason}", group)
        if version.reason == "MissingLegacyIdentifier" and group is not None and self._has_a_holder(group):
            return
        if version.reason not in {version.fault, group.fault if group else None}:
            due = version.fault or (group.fault if group else None)
            raise Violation("c", f"{errand.name} rejected a row as {version.reason}; its fault is {due}", group)

    def _late(self, errand: Errand, row: Row, group: GroupBook | None) -> None:
        version = row.now
        if group is not None and group.commit is None and group.direct:
            self._beside(errand, row, group)
            return
        if group is None or not version.is_good:
            raise Violation("c", f"{errand.name} called a row late that has a fault: {version.fault}", group)
        # A run that read the commit before the table was restored settles by what it read.
        read_before = group.undone[-1] if group.undone and RESTORED in errand.troubles else None
        commit = group.commit or read_before
        if commit is None:
            raise Violation("d", f"{errand.name} called a row late whose group was never committed", group)
        content = (version.quantity, version.allocations)
        if row.second is not None and commit.counted.get(row.second) == content:
            raise Violation("c", f"{errand.name} called a row late that its group's commit had counted", group)

    def _expired(self, errand: Errand, row: Row, group: GroupBook | None) -> None:
        version, now = row.now, self.kernel.now
        if group is None or row.group is None:
            raise Violation("b", f"{errand.name} expired a row whose key is none")
        if group.commit is not None:
            raise Violation("d", f"{errand.name} called a row expired though its group was committed", group)
        total = group.total_at(errand.started)
        if total is not None and total.until > now and version.number is not None:
            raise Violation("d", f"{errand.name} called a row expired beside another's total", group)
        self._may_expire(errand, group, now)
        if version.is_good and group.fault is None and not group.direct and not group.undone:
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
        group = self.books.find(*key)
        if before is None:
            if group is not None and group.commit is not None and key not in counted:
                self._was_put_back(errand, group, after)
            else:
                self._committed(errand, key, after, counted.get(key))
            return
        assert group is not None
        if before.get("quantity") != after.get("quantity"):
            raise Violation("a", f"{errand.name} changed the quantity of a record", group)
        status = after.get("meteringStatus", {}).get("S", "")
        was = before.get("meteringStatus", {}).get("S") if "meteringPending" not in before else None
        if "meteringPending" in after:
            if after["meteringPending"]["S"] == key[1].rpartition("#")[2] != before["meteringPending"]["S"]:
                group.log.append(f"{moment(self.kernel.now)} {errand.name}: the record is filed under its hour")
                group.is_astray, group.stands_since = False, self.kernel.now
                return
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
        refused = status in {"CustomerNotSubscribed", "RejectedClientSide"}
        if refused and group.put_back and "may have been billed before" not in reason:
            words = f"{errand.name} was refused what it had put back, and does not say that it may have been billed"
            raise Violation("c", words, group)

    def _record_ended(  # noqa: PLR0912  # one branch for each state
        self, errand: Errand, group: GroupBook, status: str, reason: str, quantity: Decimal | None
    ) -> None:
        billed = group.billed[0][1] if group.billed else None
        if billed is None and status == "DuplicateRecord":  # of a twin that was billed no trace need be left
            billed = next((twin.billed[0][1] for twin in self.books.twins_of(group) if twin.billed), None)
            group.is_twins_bill = billed is not None
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
            own = group.direct[-1].fault if group.direct else None
            twin = "MissingLegacyIdentifier" if self._has_a_holder(group) else None
            if not any(reason.startswith(each) for each in (own, twin, *group.refusals) if each):
                raise Violation("c", f"{errand.name} rejected a record as {reason}, which nobody said of it", group)
        elif status == "SubmissionExpired":
            self._may_expire(errand, group, self.kernel.now)
            fault = group.direct[-1].fault if group.direct and group.commit is None else None
            if fault is None:
                seen_since = None if group.is_astray else group.stands_since  # where it was filed no tick looks
                self.on_loss(group, seen_since or self.kernel.now)
        elif status == "DryRunSubmitted":
            if errand.mode != "dry-run":
                raise Violation("b", f"{errand.name} is no dry run, and ended a record as {status}", group)
        else:
            raise Violation("b", f"{errand.name} ended a record as {status!r}, which is no end", group)

    def _has_a_holder(self, group: GroupBook) -> bool:
        """Whether a twin, which the service takes for the same record, has an aggregate that may be billed."""
        unbilled = {"CustomerNotSubscribed", "RejectedClientSide", "SubmissionExpired", "DryRunSubmitted"}
        return any(
            (twin.commit is not None or twin.direct) and (twin.billed or twin.status not in unbilled)
            for twin in self.books.twins_of(group)
        )

    def _was_put_back(self, errand: Errand, group: GroupBook, after: Mapping[str, Any]) -> None:
        """The aggregate of a commit is there again: pending, as the record that the commit made."""
        commit, now, bucket = group.commit, self.kernel.now, group.name[3]
        assert commit is not None
        group.log.append(f"{moment(now)} {errand.name}: put back with {_quantity(after)}")
        stored = after.get("usageAllocations")
        made = _quantity(after), canonical(None if stored is None else _plain(stored))
        if made != (commit.quantity, commit.allocations):
            words = f"{errand.name} put back {made}; the commit made {commit.quantity, commit.allocations}"
            raise Violation("a", words, group)
        if _text(after, "customerIdentifier") != self.books.identifier_of(group):
            raise Violation("a", f"{errand.name} put back a record of another customer", group)
        if _text(after, "meteringPending") != bucket or not group.deleted:
            raise Violation("b", f"{errand.name} put back an aggregate that nobody had deleted, or not pending", group)
        counted = [row.now for row in group.rows.values() if row.second in commit.counted]
        if counted and all(version.gone and version.at < errand.started for version in counted):
            raise Violation("c", f"{errand.name} put back a record of which no counted row exists any more", group)
        late = not is_billable(bucket, now) and not is_billable(bucket, now - A_MOMENT)
        if late and "stood still" not in errand.troubles:
            raise Violation("f", f"{errand.name} put back {bucket}, which cannot be billed", group)
        group.status, group.put_back, group.stands_since, group.stands_by = None, True, now, errand

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
        group.status, group.put_back, group.stands_since, group.stands_by = None, False, now, errand
        stored = after.get("usageAllocations")
        if canonical(None if stored is None else _plain(stored)) != group.commit.allocations:
            words = f"{errand.name} committed other allocations than its rows have: {group.commit.allocations}"
            raise Violation("a", words, group)
        self._as_foretold(errand, group, read_at[1], quantity)
        self._was_due(errand, group, read_at[1], quantity)

    def _was_due(self, errand: Errand, group: GroupBook, read_at: float, quantity: Decimal) -> None:
        """A held group, and one that sums to zero, go at their last call only."""
        license, account, _, bucket = group.name
        last = is_last_call(bucket, self.kernel.now)
        end = self.expiry_ends.get((license, account))
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
            raise Violation("e", f"{errand.name} made a license {status} that was {was}")
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
            raise Violation("e", f"{errand.name} left the marks of a window on an inactive license")


def _due(
    errand: Errand, group: GroupBook, read_at: tuple[float, float], stated: Mapping[int, Decimal]
) -> dict[int, tuple[Decimal, str]]:
    """What a commit had to count: all that stood there as it read; what changed between two pages, either way."""
    due: dict[int, tuple[Decimal, str]] = {}
    stood = [version for row in group.rows.values() if (version := row.at(read_at[0])) is not None]
    orphans = any(not version.gone and version.status_at(read_at[0]) == "Aggregated" for version in stood)
    for row in group.rows.values():
        if row.second is None:
            continue
        first, last = (row.content(at, orphans=orphans) for at in read_at)
        fitting = [found for found in (last, first) if (found[0] if found else None) == stated.get(row.second)]
        if not fitting:
            words = f"{stated.get(row.second)} at second {row.second}, where {first} stood as it was read"
            raise Violation("a", f"{errand.name} counted {words}", group)
        if fitting[0] is not None:
            due[row.second] = fitting[0]
    if set(stated) - set(due):
        raise Violation("a", f"{errand.name} counted seconds in which nobody wrote: {set(stated) - set(due)}", group)
    return due


def _may_be_judged_again(version: Version, group: GroupBook | None, status: str) -> bool:
    """Whether a final state of a row is none for good: it stands rejected and is good, or its group lost its record."""
    if version.status == "RejectedClientSide":
        return version.fault is None and status in {"Aggregated", "LateUsage", "RejectedClientSide"}
    return version.status == status == "Aggregated" and group is not None and bool(group.deleted)


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
