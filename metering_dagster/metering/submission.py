"""Submit what is pending for one hour, and write down every answer (no Dagster).

Belongs here: the order of call and record; resending, halving, when to stop. Does not: the cutting of batches
(batches), what an error means (marketplace).
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from metering_dagster import hours
from metering_dagster.chunks import chunked
from metering_dagster.errors import CallerError, TableError, UnreachableError
from metering_dagster.masking import mask, mask_text
from metering_dagster.metering import telling
from metering_dagster.metering.aggregation_report import Tell, ignore
from metering_dagster.metering.batches import Batch, Buyer, Lane, Products, cut_batches
from metering_dagster.metering.group_steps import name_of
from metering_dagster.metering.groups import Aggregate
from metering_dagster.metering.marketplace import OUT_OF_BOUNDS, Answer, CallFailure, Marketplace, Result, Trouble
from metering_dagster.metering.quantities import EXACT, number_text
from metering_dagster.metering.reasons import Reason, RecordStatus
from metering_dagster.metering.records import (
    Identity,
    RecordEnd,
    StoredAggregate,
    api_record,
    identity,
    judge_aggregate,
)
from metering_dagster.metering.tables import Slice, Tables

CALLERS = 8
"""Calls side by side: with answers of up to 0.8 s they use the whole quota."""
ATTEMPTS = 5
"""How often a call is sent in one run while its trouble is transient."""
GIVE_UP_ON_OWNER = 3
"""Batches of one product in a row that all attempts did not get through: its other batches wait for the next run."""
GIVE_UP = 20
"""Batches in a row of whatever product: the service is down, and the run stops."""
PASSES = 5
CLOCKS_APART = timedelta(minutes=5)
"""So far the service's clock may be ahead of ours: beyond that it takes no signature of ours."""
WINDOW = 1_000
"""Records that are held in memory at once."""
_NOTES = 20


@dataclass
class Submission:
    """What a visit submitted, in counts; nothing in it names a buyer in full."""

    records: int = 0
    """Pending records that were found."""
    calls: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    """Records that ended now, by status."""
    by_dimension: dict[str, Decimal] = field(default_factory=dict)
    """Quantity of each dimension that ended as `Success` (or `DryRunSubmitted`)."""
    rejected: Counter[str] = field(default_factory=Counter)
    """`RejectedClientSide` by reason."""
    ended_by_others: int = 0
    """Records that another run wrote while this one sent them: the service took both for one."""
    left: Counter[str] = field(default_factory=Counter)
    """Records that are still pending, by why."""
    unknown_products: int = 0
    """Records of licences whose product nobody knows: one licence a call."""
    notes: list[str] = field(default_factory=list)
    """Records that did not end well, masked, the first few."""
    warnings: list[str] = field(default_factory=list)
    caller: str | None = None
    """Why AWS refused the caller itself, if it did."""
    where: str = ""
    """The Region and endpoint that were called."""


class Submitter:
    """One visit of the submission of one slice."""

    def __init__(
        self,
        tables: Tables,
        marketplace: Marketplace,
        default_product: str | None,
        *,
        sends: bool = True,
        tell: Tell = ignore,
        pause: Callable[[int], float] = lambda attempt: random.uniform(0.5, 1.0) * float(min(0.2 * 2**attempt, 5.0)),
    ) -> None:
        """`sends` is False in dry-run mode: records end as `DryRunSubmitted` and nothing is called. `tell` hears of
        every record that ended.
        """
        self.tables, self.marketplace = tables, marketplace
        self.default_product, self.sends, self.pause, self.tell = default_product, sends, pause, tell
        self.report = Submission(where=marketplace.where)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._stopped_because = ""
        self._failed_owners: dict[tuple[Lane, str], str] = {}
        """Whose product code the service refuses: nothing more of it is sent in this run."""
        self._resting: dict[tuple[Lane, str], str] = {}
        """Who is left alone for now, because call after call failed."""
        self._given_up: Counter[tuple[Lane, str] | None] = Counter()

    def submit(self, part: Slice) -> Submission:
        """Send everything that is pending in the slice, urgent buyers first; what could not be sent stays pending."""
        with ThreadPoolExecutor(CALLERS) as pool:
            # The sparse index lags a little behind the commits: only a pass that finds nothing more is the last.
            for _ in range(PASSES):
                before = self.report.records
                for window in pending_windows(self.tables, part):
                    self._send_window(pool, self._cut(window, part))
                if self.report.records == before or self.report.left:
                    break
        return self.report

    def _send_window(self, pool: ThreadPoolExecutor, batches: Sequence[Batch]) -> None:
        try:
            for done in [pool.submit(self._run, batch) for batch in batches]:
                done.result()
        except BaseException:
            self._stop.set()
            raise

    def _cut(self, window: Sequence[StoredAggregate], part: Slice) -> list[Batch]:
        now = self.tables.clock()
        self.report.records += len(window)
        good = reject_unsendable(self.tables, window, self.report, self.tell)
        codes = self._product_codes(good)
        # Where nobody can be asked, a licence may be of another product than the default one: it goes by itself.
        products = Products({}) if codes is None else Products(codes, self.default_product)
        urgent = frozenset(part.expiries or ())
        batches = cut_batches(good, products, urgent, now, self.tables.quantities)
        patient = [batch for batch in batches if not _is_urgent(batch, urgent)]
        # In another order each time, or the same trouble would stand before the same records in every run.
        random.shuffle(patient)
        batches = [batch for batch in batches if _is_urgent(batch, urgent)] + patient
        self._resting.clear()
        self.report.unknown_products += sum(len(batch.records) for batch in batches if batch.lane is Lane.LICENSE)
        return batches

    def _product_codes(self, aggregates: Iterable[Aggregate]) -> dict[tuple[str, str], str] | None:
        """The products that the subscribers table names; None where it cannot be asked."""
        buyers = {(a.key.license_arn, a.key.account) for a in aggregates if not a.key.is_legacy}
        try:
            return self.tables.subscribers.product_codes(buyers)
        except (UnreachableError, CallerError, TableError) as error:
            # Nothing is lost without the codes, only calls: one licence a call.
            if not self.report.warnings:
                self.report.warnings.append(f"Product codes could not be looked up: one licence a call. {error}")
            return None

    def _run(self, batch: Batch) -> None:
        """See one batch through: send, record, send again, halve."""
        attempt = 0
        while True:
            obstacle = self._why_not(batch)
            if obstacle:
                return self._leave(batch, obstacle)
            if not self.sends:
                return self._record([_end(a, RecordStatus.DRY_RUN) for a in batch.records], batch.records)
            outcome = self.marketplace.send(batch)
            with self._lock:
                self.report.calls += 1
            why = "left unprocessed by the service"
            if isinstance(outcome, Answer):
                self._record_results(batch, outcome.results)
                if not outcome.unprocessed:
                    return None
                batch = Batch(batch.lane, batch.owner, outcome.unprocessed)
            elif outcome.trouble is Trouble.TRANSIENT:
                why = f"{outcome.code}: {outcome.message}"
            else:
                return self._fail(batch, outcome)
            attempt += 1
            if attempt >= ATTEMPTS:
                return self._give_up(batch, f"{why} (after {ATTEMPTS} attempts)")
            self._stop.wait(self.pause(attempt))

    def _why_not(self, batch: Batch) -> str:
        """Why the batch must not be sent now; empty if it may."""
        if self._stop.is_set():
            return self._stopped_because or "the run was stopped by an error"
        owner = (batch.lane, batch.owner)
        failed = self._failed_owners.get(owner) or self._resting.get(owner)
        if failed:
            return failed
        # Looked at before every call: a run may straddle 06:00 on the 1st, and one old record fails its whole call.
        return self._closed(batch, self.tables.clock())

    def _closed(self, batch: Batch, now: datetime) -> str:
        """That the window of some record is closed at `now`, in words; empty if none is."""
        closed = [a.key.hour for a in batch.records if not hours.is_billable(a.key.hour, now)]
        return f"the hour's window closed at {hours.closes_at(closed[0], now):%Y-%m-%dT%H:%MZ}" if closed else ""

    def _fail(self, batch: Batch, failure: CallFailure) -> None:
        """A whole call failed for good."""
        words = f"{failure.code}: {failure.message}"
        if failure.trouble is Trouble.CALLER:
            with self._lock:
                self.report.caller = self.report.caller or words
            self._stopped_because = words
            self._stop.set()
            return self._leave(batch, words)
        if failure.trouble is Trouble.PRODUCT:
            owner = mask_text(batch.owner) if batch.lane is not Lane.LICENSE else f"of licence {mask(batch.owner)}"
            words = f"product {owner}: {words}"
            self._failed_owners[batch.lane, batch.owner] = words
            return self._leave(batch, words)
        if len(batch.records) > 1:
            for half in batch.halves():
                self._run(half)
            return None
        if failure.trouble is Trouble.REFUSED:
            closed = self._closed(batch, self.tables.clock() + CLOCKS_APART) if failure.code == OUT_OF_BOUNDS else ""
            if closed:
                # Its window closed on the way. A call before, whose answer is lost or still to come, may have billed
                # it: it is left to the age-out, over whose word such an answer may be written.
                return self._leave(batch, closed)
            return self._record([_end(batch.records[0], RecordStatus.REJECTED, failure.code)], batch.records)
        self._note(batch.records[0], f"refused alone with {words}; it stays pending")
        return self._leave(batch, words)

    def _give_up(self, batch: Batch, why: str) -> None:
        """All attempts failed. One product's trouble stops no other's; the service's own stops the run."""
        owner = (batch.lane, batch.owner)
        with self._lock:
            self._given_up[owner] += 1
            self._given_up[None] += 1
            if self._given_up[owner] >= GIVE_UP_ON_OWNER:
                self._resting[owner] = f"not tried after {GIVE_UP_ON_OWNER} calls in a row failed: {why}"
            if self._given_up[None] >= GIVE_UP:
                self._stopped_because = f"stopped after {GIVE_UP} calls in a row failed: {why}"
                self._stop.set()
        self._leave(batch, why)

    def _leave(self, batch: Batch, why: str) -> None:
        with self._lock:
            self.report.left[why] += len(batch.records)

    def _record_results(self, batch: Batch, results: Sequence[Result]) -> None:
        ends = [_end(result.aggregate, result.status, record_id=result.record_id) for result in results]
        self._record(ends, [result.aggregate for result in results])
        if results:
            with self._lock:
                del self._given_up[batch.lane, batch.owner], self._given_up[None]

    def _record(self, ends: Sequence[RecordEnd], aggregates: Sequence[Aggregate]) -> None:
        """Write the ends down, then count them."""
        written = self.tables.aggregated.record(ends, self.tables.clock())
        for end, aggregate, ok in zip(ends, aggregates, written, strict=True):
            if end.status not in (RecordStatus.SUCCESS, RecordStatus.DRY_RUN):
                self._note(aggregate, f"{end.status.value} {end.reason}".strip())
            if ok:
                self.tell(telling.of_record(end, aggregate))
            with self._lock:
                _count(self.report, end, aggregate, ok)

    def _note(self, aggregate: Aggregate, words: str) -> None:
        with self._lock:
            if len(self.report.notes) < _NOTES:
                self.report.notes.append(
                    f"{name_of(aggregate.key)}, quantity {number_text(aggregate.quantity)}: {words}"
                )


def reject_unsendable(
    tables: Tables, stored: Iterable[StoredAggregate], report: Submission, tell: Tell = ignore
) -> list[Aggregate]:
    """The records that can be sent; those that break the contract end as `RejectedClientSide`, and are counted."""
    now = tables.clock()
    good: list[Aggregate] = []
    ends: list[RecordEnd] = []
    customers: set[Identity] = set()
    for entry in stored:
        judged = judge_aggregate(entry, now, tables.quantities)
        if isinstance(judged, Aggregate) and judged.key.is_legacy:
            who = identity(api_record(judged, tables.quantities))
            if who in customers:
                # Two accounts under one customer identifier: the service would take the second for the first again.
                judged = Reason.MISSING_LEGACY_IDENTIFIER
            customers.add(who)
        if isinstance(judged, Reason):
            ends.append(
                RecordEnd(
                    entry.license_arn,
                    entry.sort_key,
                    entry.pending,
                    entry.quantity,
                    RecordStatus.REJECTED,
                    judged.value,
                    stored=entry.stored,
                )
            )
        else:
            good.append(judged)
    written = tables.aggregated.record(ends, now) if tables.writes else [True] * len(ends)
    for end, ok in zip(ends, written, strict=True):
        if ok:
            tell(telling.of_unsendable(end))
            report.by_status[end.status.value] += 1
            report.rejected[end.reason] += 1
            if len(report.notes) < _NOTES:
                report.notes.append(
                    f"an aggregate of licence {mask(end.license_arn)} breaks the contract: {end.reason}"
                )
        else:
            report.ended_by_others += 1
    return good


def _end(aggregate: Aggregate, status: RecordStatus, reason: str = "", record_id: str = "") -> RecordEnd:
    key = aggregate.key
    return RecordEnd(key.license_arn, key.prefix, key.bucket, aggregate.quantity, status, reason, record_id)


def _count(report: Submission, end: RecordEnd, aggregate: Aggregate, written: bool) -> None:
    if not written:
        report.ended_by_others += 1
        return
    report.by_status[end.status.value] += 1
    if end.status is RecordStatus.REJECTED:
        report.rejected[end.reason] += 1
    elif end.status in (RecordStatus.SUCCESS, RecordStatus.DRY_RUN):
        dimension = mask_text(aggregate.key.dimension)
        so_far = report.by_dimension.get(dimension, Decimal(0))
        report.by_dimension[dimension] = EXACT.add(so_far, aggregate.quantity)


def _is_urgent(batch: Batch, urgent: Set[Buyer]) -> bool:
    return any((record.key.license_arn, record.key.account) in urgent for record in batch.records)


def pending_windows(tables: Tables, part: Slice) -> Iterator[list[StoredAggregate]]:
    """What is pending in the slice, a bounded number at a time: deprovisioning licences first, each record once."""
    return chunked(_pending(tables, part), WINDOW)


def _pending(tables: Tables, part: Slice) -> Iterator[StoredAggregate]:
    urgent = {buyer for buyer in part.expiries or () if part.holds(buyer)}
    for stored in tables.aggregated.pending(part.bucket, sorted({arn for arn, _ in urgent})):
        if stored.buyer in urgent:
            yield stored
    others = None if part.buyers is None else sorted({arn for arn, _ in part.buyers - urgent})
    for stored in tables.aggregated.pending(part.bucket, others):
        if stored.buyer not in urgent and part.holds(stored.buyer):
            yield stored
