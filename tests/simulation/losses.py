"""What was lost, and whether that is excused: invariants (b), (c), (d), (e), where a whole window has to be looked at.

Belongs here: which chances usage had, what a run left behind that said it was through, the sums at the end. Does not:
single changes (judge), single calls (calls).

A chance is a tick that looked while the usage was there for everybody to see. Usage that had a chance which nothing
disturbed and ends unbilled all the same is a violation; usage that had none is lost, and it is said why.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.simulation.books import (
    Books,
    GroupBook,
    Row,
    Version,
    bucket_of,
    closes,
    closes_for_good,
    is_billable,
    is_hour,
    is_last_call,
    is_last_visit,
    moment,
    opens,
    start_of,
)
from tests.simulation.buyers import UPDATED, Market
from tests.simulation.daemon import Daemon, Run, Tick
from tests.simulation.judge import OURS, Judge, Violation
from tests.simulation.kernel import Kernel
from tests.simulation.memory import MemoryDynamoDB, MemoryMarketplace
from tests.simulation.plan import HOUR, Plan
from tests.simulation.sellers import AGGREGATED, SUBSCRIBERS, USAGE

_IN_HAND = 400.0
"""After so many seconds no message is hidden any more that somebody received and did not delete."""
_TICKING = 1800.0
"""For how many seconds the ticks of an hour may be at it, when every call is slow."""
_DAY = 24 * HOUR
_FLUSH = "flush_deprovisioning"
_VISIBLE = 61.0
"""After so many seconds every index shows what was written."""


@dataclass(frozen=True)
class Loss:
    """Usage that could not be billed, and why."""

    group: GroupBook
    quantity: Decimal
    why: str


class Losses:
    """Looks back over windows and runs."""

    def __init__(
        self, kernel: Kernel, plan: Plan, books: Books, judge: Judge, market: Market, marketplace: MemoryMarketplace
    ) -> None:
        self.kernel, self.plan, self.books, self.judge, self.market = kernel, plan, books, judge, market
        self.marketplace = marketplace
        self.daemon: Daemon | None = None
        self.lost: list[Loss] = []

    def begin(self) -> None:
        """Look at every license once its window is over; and every hour at what should have come to its end."""
        self.kernel.schedule(self.plan.start.timestamp() + 24 * HOUR, self._overdue)
        for buyer, ending in self.market.endings.items():
            self.kernel.schedule(ending.at + 3 * HOUR, lambda buyer=buyer: self._after_the_end(buyer))  # type: ignore[misc]

    # (d)

    def expired(self, group: GroupBook, since: float, quantity: Decimal, *, record: bool) -> None:
        """Usage of a group ends unbilled, which was there since then: had it a chance?"""
        assert self.daemon is not None
        bucket = group.name[3]
        start = max(since + _VISIBLE, opens(bucket, self.plan.lock))
        seen = [tick for tick in self.daemon.ticks.get(bucket, []) if tick.at >= start]
        self._was_looked_at(group, start)
        disturbed = 0
        for tick in seen:
            if not record and self._waits(group, tick.at):
                continue
            if not tick.asked:
                if self._had_no_turn(bucket, tick):
                    continue
                words = f"the tick at {moment(tick.at)} saw nothing to do: {tick.reason}"
                raise Violation("d", f"usage ended unbilled though it was there when {words}", group)
            run = self._undisturbed(tick.run, group)
            if run is not None and run.ended and is_billable(bucket, run.ended):
                words = f"the run of {moment(run.started or 0)} took its hour through undisturbed: {run.failure}"
                raise Violation("d", f"usage ended unbilled though {words}", group)
            disturbed += 1
        self.lost.append(Loss(group, quantity, self._why(bucket, start, disturbed)))

    def _had_no_turn(self, bucket: str, tick: Tick) -> bool:
        """Whether a tick was right not to ask: by the hour policy, because of a run, or because nothing had changed."""
        if tick.was_running or tick.due < opens(bucket, self.plan.lock) or not is_billable(bucket, tick.due):
            return True
        return "as the last run left them" in tick.reason and not is_last_call(bucket, tick.due)

    def _undisturbed(self, run: Run | None, group: GroupBook) -> Run | None:
        """The run, if nothing stood between it and the group."""
        return run if run is not None and run.is_undisturbed and not self._met_others(run, group) else None

    def _met_others(self, run: Run, group: GroupBook) -> bool:
        """Whether somebody else was at the group while the run was: its seller, another run, or an index that did not
        show in time what the run itself committed (then it fails)."""
        assert self.daemon is not None
        since, until = run.started or 0.0, run.ended or self.kernel.now
        versions = [version for row in group.rows.values() for version in row.versions]
        writes = [at for version in versions for at in (version.at, version.placed_at)]
        writes += [version.ended_at for version in versions if version.ended_at is not None and not version.ended_by]
        writes += [total.at for total in group.direct] + group.deleted + [at for at, _ in self.plan.restores]
        if run.result == "failed" and group.commit is not None and since <= group.commit.at <= until:
            return True
        if self._may_be_elsewhere(group):
            return True
        spans = [*self.plan.behind]
        spans += [
            (other.started, other.ended or until)
            for other in self.daemon.runs
            if other is not run and other.started and (other.bucket == group.name[3] or other.job == _FLUSH)
        ]
        return any(since - _VISIBLE <= at <= until for at in writes) or any(
            start <= until and end >= since for start, end in spans
        )

    def _may_be_elsewhere(self, group: GroupBook) -> bool:
        """Whether the deployment's Region changed while the hour could be billed: it may belong to the other one."""
        bucket = group.name[3]
        edges = [at for span in self.plan.elsewhere for at in span]
        return any(start_of(bucket) <= at <= closes_for_good(bucket) for at in edges)

    def _was_looked_at(self, group: GroupBook, start: float) -> None:
        """Every hour that the system was there in, some tick looks at each hour that can be billed."""
        assert self.daemon is not None
        bucket = group.name[3]
        ticks = [tick.at for tick in self.daemon.ticks.get(bucket, [])]
        top = -(-start // HOUR) * HOUR
        while top < min(closes_for_good(bucket), self.kernel.now):
            there = not any(since <= top + _TICKING and until >= top for since, until in self.plan.away)
            if there and is_billable(bucket, top + _TICKING) and not any(top <= at < top + HOUR for at in ticks):
                raise Violation("d", f"usage ended unbilled, and no tick looked at it at {moment(top)}", group)
            top += HOUR

    def _waits(self, group: GroupBook, at: float) -> bool:
        """Whether the group was held, or summed to zero, and was not at its last call."""
        if is_last_call(group.name[3], at):
            return False
        return group.is_held(at) or group.good_sum(at) == 0

    def _why(self, bucket: str, start: float, disturbed: int) -> str:
        end = closes(bucket)
        if disturbed:
            spans = [*self.plan.down, *self.plan.locked_out]
            if any(since <= max(start, end - 22 * HOUR) and until >= end - HOUR for since, until in spans):
                return "the metering service was away"
            return "every run was disturbed"
        if any(since < end and until > start for since, until in self.plan.away):
            return "the system was away"
        return "it came too late, or was held, and no tick was left"

    # A run that says it is through.

    def over(self, run: Run) -> None:
        """A run has ended by itself; an hour that it took through has nothing left that it could have billed."""
        if run.job != "meter_hour" or run.result != "ok" or run.bucket is None or run.doing is None:
            return
        now, start = self.kernel.now, run.started or 0.0
        if not is_billable(run.bucket, now):
            return
        seen = start - _VISIBLE
        for group in self.books.by_hour.get(run.bucket, []):
            self._is_healed(run, group, seen)
            submitted = group.stands_since
            is_old = submitted is not None and (submitted <= seen or group.stands_by is run.errand)
            if group.status is None and is_old and not group.is_astray:
                raise Violation("d", f"{run.job} of {run.bucket} is green, and left a record pending", group)
            left = [row for row in group.rows.values() if _is_left(row.now, run.bucket, seen)]
            if not left or (_was_held(group, start, now) and not is_last_call(run.bucket, start)):
                continue
            has_aggregate = group.commit is not None or (bool(group.direct) and group.direct[-1].until > now)
            if not has_aggregate and _is_left_as_it_is(row.now for row in group.rows.values() if not row.now.gone):
                continue
            sums = {group.good_sum(start), group.good_sum(now)}  # its seller may write on while the run reads
            if 0 in sums and not is_last_call(run.bucket, start):
                continue
            raise Violation("d", f"{run.job} of {run.bucket} is green, and left {len(left)} rows pending", group)

    def _is_healed(self, run: Run, group: GroupBook, seen: float) -> None:
        """A run that ended a row of a committed group has put its record back, where somebody had deleted that."""
        if group.commit is None or group.stands_since is not None or not group.deleted or group.deleted[-1] > seen:
            return
        ended = [row.now for row in group.rows.values() if row.now.ended_by is run.errand]
        counted = [row.now for row in group.rows.values() if row.second in group.commit.counted]
        if ended and any(not version.gone or version.at > seen for version in counted):
            raise Violation("d", f"{run.job} of {run.bucket} is green, and did not put the record back", group)

    # (e)

    def _after_the_end(self, buyer: tuple[str, str]) -> None:
        end = self.market.endings[buyer].at + HOUR
        self._events_are_applied(buyer, end)
        windows = self.judge.windows.get(buyer)
        if windows is None or windows[0][0] + _VISIBLE >= end:
            return  # the event came too late
        for group in self.books.groups.values():
            if group.name[:2] != buyer or group.direct or group.fault or group.refusals or group.deleted:
                continue
            if group.status == "DryRunSubmitted" or self._may_be_elsewhere(group):
                continue
            if not (is_billable(group.name[3], end - 1) and buyer[1] not in self.market.unsubscribed):
                continue
            for row in group.rows.values():
                self._billed_in_time(group, row, windows, end)

    def _billed_in_time(self, group: GroupBook, row: Row, windows: list[tuple[float, float]], end: float) -> None:
        version = row.at(end - 600 - _VISIBLE)
        if version is None or not version.is_good or version.filed != group.name[3] or row.second is None:
            return
        written = max(version.at, version.placed_at)
        if version is not row.at(end) or written > end - 600 - _VISIBLE:
            return
        if version.ended_at is not None and version.ended_by is None:
            return  # another pipeline ended it
        commit = group.commit
        if commit is not None and commit.read_at < version.at:
            return
        counted = commit is not None and row.second in commit.counted
        if counted and group.billed and group.billed[0][0] <= end:
            return
        assert self.daemon is not None
        for tick in self.daemon.flush_ticks:
            if not max(written, windows[0][0]) + _VISIBLE <= tick.at < end:
                continue
            if self._goes_now(group, tick.at, windows):
                self._chance_of_flush(group, tick, end)

    def _goes_now(self, group: GroupBook, at: float, windows: list[tuple[float, float]]) -> bool:
        """Whether a flush at this time takes the group, by the end that the table showed then."""
        shown = next(end for since, end in reversed(windows) if since + _VISIBLE <= at)
        if at >= shown - 600:
            return True
        return bucket_of(at) != group.name[3] and not group.is_held(at) and group.good_sum(at) != 0

    def _chance_of_flush(self, group: GroupBook, tick: Tick, end: float) -> None:
        if tick.reason == "under way":
            return
        if not tick.asked:
            words = f"the look at {moment(tick.at)} found nothing to flush: {tick.reason}"
            raise Violation("e", f"a deprovisioned license's usage was not billed, though {words}", group)
        run = self._undisturbed(tick.run, group)
        if run is not None and run.ended and run.ended <= end:
            words = f"the flush of {moment(run.started or 0)} was undisturbed: {run.failure}"
            raise Violation("e", f"a deprovisioned license's usage was not billed, though {words}", group)

    def _events_are_applied(self, buyer: tuple[str, str], end: float) -> None:
        """What lay in the queue when a run went through it undisturbed stands in the subscriber's row."""
        assert self.daemon is not None
        windows = self.judge.windows.get(buyer, [])
        for arrived, stated in self.market.endings[buyer].told:
            known = min((at for at, shown in windows if shown <= stated + HOUR), default=float("inf"))
            for run in self.daemon.runs:
                if run.job != "apply_marketplace_events" or (run.started or 0.0) < arrived or run.ended is None:
                    continue
                if run.ended >= end:
                    break
                if run.is_undisturbed and run.result == "ok" and run.ended < known and not self._in_hand(run):
                    words = f"the run of {moment(run.started or 0.0)} left the event of {moment(arrived)} unapplied"
                    raise Violation("e", f"a license is deprovisioned, and {words}")

    def _in_hand(self, run: Run) -> bool:
        """Whether a message may have been hidden from this run: another one held it, or its own answer was lost."""
        assert self.daemon is not None
        assert run.errand is not None
        since, until = (run.started or 0.0) - _IN_HAND, run.ended or 0.0
        others = [other for other in self.daemon.runs if other.job == run.job and other is not run and other.started]
        return run.errand.hid_messages or any(
            (other.started or 0.0) < until and (other.ended or until) > since for other in others
        )

    # (b) and (c).

    def _overdue(self) -> None:
        """Nothing is pending a day after its window is over, or after it was written, if that was later."""
        now = self.kernel.now
        for (license, sort_key), row in self.books.rows.items():
            version = row.now
            if version.gone or version.ended_at is not None or version.filed is None:
                continue
            closed = closes_for_good(version.filed) if is_hour(version.filed) else 0.0
            due = max(closed, version.at, version.placed_at)
            if due + _DAY < now:
                group = self.books.groups.get(row.group) if row.group is not None else None
                words = f"row {sort_key[-19:]} of {license[-4:]}, filed under {version.filed},"
                self._had_no_sweep(version.filed, due, words, group)
        for group in self.books.groups.values():
            if group.status is None and group.stands_since is not None:
                due = max(closes_for_good(group.name[3]), group.stands_since)
                if due + _DAY < now:
                    self._had_no_sweep(group.name[3], due, "a record", group)
        self.kernel.schedule(now + HOUR, self._overdue)

    def _had_no_sweep(self, bucket: str, due: float, words: str, group: GroupBook | None) -> None:
        """What is pending a day after it was due: excused if its whole sweep met with a fault, or nobody was there."""
        assert self.daemon is not None
        sweeps = [
            run for run in self.daemon.runs
            if run.whole_sweep is not None and run.asked >= due + _VISIBLE
            and (not is_hour(bucket) or (run.as_of - start_of(bucket)) // HOUR % 7 == run.shard)
        ]  # fmt: skip
        undisturbed = next((run for run in sweeps if run.is_undisturbed), None)
        if undisturbed is not None:
            words += f" is pending though the sweep of {moment(undisturbed.started or 0.0)} was undisturbed"
            raise Violation("b", words, group)
        if not sweeps and not any(until > due and since < due + _DAY + HOUR for since, until in self.plan.away):
            raise Violation("b", f"{words} is pending a day after it was due, and no sweep was asked for", group)

    def at_the_end(self, tables: MemoryDynamoDB) -> dict[str, Decimal]:
        """All is in one final state, and what was used is what became of it; the sums."""
        self._all_final(tables)
        self._ends_were_heard(tables)
        sums: Counter[str] = Counter()
        totals: dict[str, Decimal] = {}
        for group in self.books.groups.values():
            stands = group.commit is None and group.total_at(self.kernel.now) is not None
            found = self._sums_of_direct(group, tables) if stands else self._sums_of(group, tables)
            for name, quantity in found.items():
                totals[name] = totals.get(name, Decimal(0)) + quantity
                sums[name] += 1
        parts = sum((q for name, q in totals.items() if name != "used"), Decimal(0))
        if totals.get("used", Decimal(0)) != parts:
            raise Violation("c", f"what was used is not what became of it: {totals}")
        return totals

    def _ends_were_heard(self, tables: MemoryDynamoDB) -> None:
        """A license that ended had its flush window, or its events lie where somebody finds them.

        So do the messages that are no event.
        """
        for buyer, ending in self.market.endings.items():
            if not self.judge.windows.get(buyer) and not self.market.is_buried(buyer):
                words = f"the events of {moment(ending.at)} opened no flush window, and no dead-letter queue holds one"
                raise Violation("e", f"a license was deprovisioned: {words}")
        for (license, account), agreement in self.market.agreements.items():
            row = tables.item(SUBSCRIBERS, license, account) or {}
            found = row.get("agreementId", {}).get("S"), row.get("agreementStatus", {}).get("S")
            if found != (agreement, "active") and not self.market.is_buried((license, account), UPDATED):
                words = f"a license has agreement {agreement[-10:]} now, and its row says {found}"
                raise Violation("e", f"{words}: the end of the one before is none of it")
        for body in self.market.lost():
            raise Violation("e", f"a message that nobody could read was deleted: {body}")

    def _sums_of(self, group: GroupBook, tables: MemoryDynamoDB) -> dict[str, Decimal]:
        """What was used in a group, by the books; and what became of it, by the tables and the bill."""
        sums: dict[str, Decimal] = {"used": Decimal(0)}

        def add(name: str, quantity: Decimal) -> None:
            sums[name] = sums.get(name, Decimal(0)) + quantity

        commit = group.commit
        if commit is not None:
            sums["used"] += sum((quantity for quantity, _ in commit.counted.values()), Decimal(0))
            item = self._record_of(group, tables)
            if item is None:
                self._was_withdrawn(group)
            status = "withdrawn" if item is None else item.get("meteringStatus", {}).get("S", "pending")
            is_billed = bool(group.billed) and status != "SubmissionExpired"
            has_bill = group.deleted or group.billed or group.is_twins_bill
            if is_billed != (status in ("Success", "DuplicateRecord")) and not has_bill:
                raise Violation("c", f"the record is {status}, and billed is {group.billed}", group)
            self._billed_of(group, commit.quantity, status, add)
        elif group.deleted or group.billed:
            # Neither aggregate nor commit is left, as after a restore: what was called counted waits for a redrive.
            orphans = [row.now for row in group.rows.values() if row.now.status == "Aggregated" and not row.now.gone]
            quantity = sum((version.number or Decimal(0) for version in orphans), Decimal(0))
            sums["used"] += quantity
            self._billed_of(group, quantity, "withdrawn", add)
        for sort_key, row in group.rows.items():
            version = row.now
            if not version.is_good:
                continue
            content = (version.quantity, version.allocations)
            if commit is not None and row.second is not None and commit.counted.get(row.second) == content:
                continue
            stored = tables.item(USAGE, group.name[0], sort_key)
            if stored is None:
                raise Violation("c", f"the row {sort_key[-19:]} is gone, and its seller did not delete it", group)
            status = "pending" if "meteringPending" in stored else stored.get("meteringStatus", {}).get("S", "nothing")
            if status == "Aggregated" and commit is None and group.deleted:
                continue
            sums["used"] += version.quantity
            if status == "Aggregated":
                raise Violation("c", f"the row {sort_key[-19:]} is {status}, and no commit counted it", group)
            add(status, Decimal(stored["quantity"]["N"]))
        return sums

    def _record_of(self, group: GroupBook, tables: MemoryDynamoDB) -> Mapping[str, Any] | None:
        """Its aggregate; None where somebody deleted it, and nobody put it back."""
        license, *parts = group.name
        item = tables.item(AGGREGATED, license, "#".join(parts))
        if (item is None) != (group.stands_since is None):
            raise Violation("c", f"its record stands there: {item}; by the books: {group.stands_since}", group)
        return item

    def _billed_of(self, group: GroupBook, quantity: Decimal, status: str, add: Callable[[str, Decimal], None]) -> None:
        """What a record came to: billed, if anything of it was, and what the bill lacks or has too much."""
        if not group.billed:
            add(status, quantity)
            return
        billed = group.billed[0][1]
        add("billed", billed)
        if billed != quantity:
            add("billed otherwise", quantity - billed)

    def _was_withdrawn(self, group: GroupBook) -> None:
        """A committed group's aggregate was deleted and never put back: had its last visit a chance to do so?"""
        assert self.daemon is not None
        assert group.commit is not None
        bucket, since = group.name[3], group.deleted[-1] + _VISIBLE
        counted = [row for row in group.rows.values() if row.second in group.commit.counted]

        def are_there(at: float) -> bool:
            versions = [row.at(at) for row in counted]
            return any(version is not None and not version.gone for version in versions)

        if not are_there(self.kernel.now):
            return
        for tick in self.daemon.ticks.get(bucket, []):
            if tick.at < since or not is_last_visit(bucket, tick.due) or tick.was_running or not are_there(tick.at):
                continue
            if not tick.asked:
                words = f"the last look, at {moment(tick.at)}, did not ask for it: {tick.reason}"
                raise Violation("d", f"a deleted aggregate was not put back, and {words}", group)
            run = self._undisturbed(tick.run, group)
            if run is not None and run.ended and is_billable(bucket, run.ended):
                words = f"the run of {moment(run.started or 0)} was undisturbed: {run.failure}"
                raise Violation("d", f"a deleted aggregate was not put back, though {words}", group)
        if not group.billed:
            self.lost.append(Loss(group, group.commit.quantity, "its aggregate was deleted, and no visit was left"))

    def _sums_of_direct(self, group: GroupBook, tables: MemoryDynamoDB) -> dict[str, Decimal]:
        """The same of a record that its seller submitted. Raw rows beside it are told of it, and count nowhere."""
        item, total = self._record_of(group, tables), group.direct[-1]
        quantity, fault = total.quantity, total.fault
        if item is None:
            raise Violation("c", "a record that its seller submitted is gone", group)
        if fault is not None:
            return {}
        if Decimal(item["quantity"]["N"]) != quantity:
            raise Violation("c", f"its seller submitted {quantity}, and the record says {item['quantity']}", group)
        status = item.get("meteringStatus", {}).get("S", "pending")
        billed = group.billed[0][1] if group.billed else Decimal(0)
        if status == "Success":
            if billed != quantity:
                raise Violation("c", f"the record of {quantity} is {status}, and billed is {billed}", group)
            return {"used": quantity, "billed": billed}
        # What was billed of a record that its seller wrote over later was used as well.
        found = {"used": quantity + billed, "billed": billed}
        found[status] = quantity
        return found

    def _all_final(self, tables: MemoryDynamoDB) -> None:
        for table in (USAGE, AGGREGATED):
            for item in tables.items(table):
                filed = item.get("meteringPending", {}).get("S")
                closed = closes_for_good(filed) if filed is not None and is_hour(filed) else self.plan.end_of_usage
                if filed is not None and closed + _DAY < self.kernel.now:
                    raise Violation("b", f"still pending a day after {filed} closed: {_shown(item)}", self._of(item))
                if filed is None and "meteringStatus" not in item and not item["licenseArn"]["S"].startswith(OURS):
                    raise Violation("b", f"in no state at all: {_shown(item)}", self._of(item))

    def _of(self, item: Mapping[str, Any]) -> GroupBook | None:
        keys = (item["licenseArn"]["S"], item.get("customerAWSAccountId_dimension_timestamp", {}).get("S", ""))
        row = self.books.rows.get(keys)
        return self.books.groups.get(row.group) if row is not None and row.group is not None else None


def _is_left(version: Version, bucket: str, seen: float) -> bool:
    return (
        version.is_good and version.ended_at is None and version.filed == bucket
        and max(version.at, version.placed_at) <= seen
    )  # fmt: skip


def _is_left_as_it_is(versions: Iterable[Version]) -> bool:
    """Return whether a group without an aggregate, of which another pipeline counted rows, has one that no bill takes.

    Such a row is `Aggregated`, or pending with a number that the contract refuses (domain: a commit whose aggregate is
    gone). A pending row without a number is rejected by itself.
    """
    versions = list(versions)
    counted = [version for version in versions if version.status == "Aggregated"]
    pending = [version for version in versions if version.status is None and version.number is not None]
    return bool(counted) and any(_is_unbillable(version) for version in (*counted, *pending))


def _is_unbillable(version: Version) -> bool:
    return version.fault not in {None, "NonNumericQuantity"} or (version.number or 0) < 0


def _was_held(group: GroupBook, since: float, until: float) -> bool:
    """Whether a row with a fault stood in it at any moment between the two."""
    for row in group.rows.values():
        ends = [*(later.at for later in row.versions[1:]), float("inf")]
        for version, end in zip(row.versions, ends, strict=True):
            if version.fault is not None and not version.gone and version.at <= until and end >= since:
                return True
    return False


def _shown(item: Mapping[str, Any]) -> str:
    names = ("customerAWSAccountId_dimension_timestamp", "account_dimension_hour", "meteringPending", "meteringStatus")
    return ", ".join(f"{name}={item[name]['S']}" for name in names if name in item)
