"""Submit what is pending for one hour, and write down every answer (no Dagster).

Belongs here: the order of call and record; resending, halving, when to stop. Does not: the cutting of batches
(batching), what an error means (metering_api), which record an answer is about (metering_response).

What goes wrong with one record or batch leaves that pending and stops no other; only the caller's own troubles do.
"""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from metering_dagster.core import hours
from metering_dagster.core.errors import MeteringError
from metering_dagster.core.masking import mask, mask_text
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.batching import Batch, Buyer, Lane, Products, cut_batches
from metering_dagster.metering.rules.group_steps import name_of
from metering_dagster.metering.rules.isolation import Failures, stops_the_rest, words_of
from metering_dagster.metering.rules.metering_response import MeteringResponse, Result
from metering_dagster.metering.rules.quantities import EXACT, number_text
from metering_dagster.metering.rules.statuses import RecordStatus
from metering_dagster.metering.rules.usage_record import RecordEnd, StoredAggregate
from metering_dagster.metering.services import ledger_entries
from metering_dagster.metering.services.aggregation_report import Tell, ignore
from metering_dagster.metering.services.sendable import PUT_BACK, SHORT, pending_windows, reject_unsendable, write_ends
from metering_dagster.metering.services.submission_report import Submission
from metering_dagster.metering.services.tables import Slice, Tables
from metering_dagster.metering.stores.hour_regions import HourRegions
from metering_dagster.metering.stores.metering_api import OUT_OF_BOUNDS, CallFailure, Marketplace, Trouble
from metering_dagster.metering.stores.record_ends import Written

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
_UNBILLED = frozenset({RecordStatus.REJECTED, RecordStatus.NOT_SUBSCRIBED})


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
        regions: HourRegions | None = None,
        pause: Callable[[int], float] = lambda attempt: random.uniform(0.5, 1.0) * float(min(0.2 * 2**attempt, 5.0)),
    ) -> None:
        """`sends` is False in dry-run mode: records end as `DryRunSubmitted` and nothing is called. `tell` hears of
        every record that ended. `regions` knows to which Region an hour belongs; without it nobody asks.
        """
        self.tables, self.marketplace = tables, marketplace
        self.default_product, self.sends, self.pause, self.tell = default_product, sends, pause, tell
        self.regions = regions
        self.report = Submission(where=marketplace.where)
        self.failures = Failures()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._stopped_because = ""
        self._failed_owners: dict[tuple[Lane, str], str] = {}
        """Whose product code the service refuses: nothing more of it is sent in this run."""
        self._resting: dict[tuple[Lane, str], str] = {}
        """Who is left alone for now, because call after call failed."""
        self._given_up: Counter[tuple[Lane, str] | None] = Counter()
        self._failed_licenses: dict[str, str] = {}
        """Which licenses the service does not take under the default product: they are left out of later calls."""
        self._wrong_guesses: Counter[str] = Counter()
        """Such licenses in a row, by default product."""
        self._may_have_billed = False
        """Whether a call was answered, or failed in another way than that AWS refused the caller."""

    def submit(self, part: Slice) -> Submission:
        """Send everything that is pending in the slice, urgent buyers first; what could not be sent stays pending."""
        with ThreadPoolExecutor(CALLERS) as pool:
            # The sparse index lags a little behind the commits: only a pass that finds nothing more is the last.
            for _ in range(PASSES):
                before = self.report.records
                for window in pending_windows(self.tables, part, self.failures):
                    self._send_window(pool, self._cut(window, part))
                if self.report.records == before or self.report.left or self.failures.total:
                    break
        self.report.add_failures(self.failures)
        if self.report.caller is not None and self.regions is not None and not self._may_have_billed:
            # Refused as it was, no call has billed: another Region may still take the hour.
            self.regions.release(part.hour)
        return self.report

    def _send_window(self, pool: ThreadPoolExecutor, batches: Sequence[Batch]) -> None:
        try:
            for done in [pool.submit(self._see_through, batch) for batch in batches]:
                done.result()
        except BaseException:
            self._stop.set()
            raise

    def _cut(self, window: Sequence[StoredAggregate], part: Slice) -> list[Batch]:
        now = self.tables.clock()
        self.report.records += len(window)
        good = reject_unsendable(self.tables, window, self.report, self.tell, self.failures)
        foreign = self._belongs_elsewhere(part, now) if good else ""
        if foreign:
            self.report.left[foreign] += len(good)
            return []
        codes = self._product_codes(good)
        # Where nobody can be asked, a license may be of another product than the default one: it goes by itself.
        products = Products({}) if codes is None else Products(codes, self.default_product)
        urgent = frozenset(part.expiries or ())
        batches = self._batches(good, products, urgent, now)
        patient = [batch for batch in batches if not _is_urgent(batch, urgent)]
        # In another order each time, or the same trouble would stand before the same records in every run.
        random.shuffle(patient)
        batches = [batch for batch in batches if _is_urgent(batch, urgent)] + patient
        self._resting.clear()
        self.report.unknown_products += sum(len(batch.records) for batch in batches if batch.lane is Lane.LICENSE)
        return batches

    def _belongs_elsewhere(self, part: Slice, now: datetime) -> str:
        """Return why nothing of the hour may be sent from this Region; empty where its first call went, or
        goes, here.
        """
        if self.regions is None or not self.sends:
            return ""
        here = self.marketplace.region
        owner = self.regions.claim(part.hour, here, now)
        if owner == here:
            return ""
        self.report.other_region = owner
        return f"the first call of {part.bucket} went to {owner}, and this run would call {here}, where it bills again"

    def _batches(self, good: Sequence[Aggregate], products: Products, urgent: Set[Buyer], now: datetime) -> list[Batch]:
        """Return the calls of these records; a record of which none can be made is left alone, and counted."""

        def cut(these: Sequence[Aggregate]) -> list[Batch]:
            return cut_batches(these, products, urgent, now, self.tables.quantities)

        try:
            return cut(good)
        except Exception as error:
            if stops_the_rest(error):
                raise
        sound = []
        for aggregate in good:
            try:
                cut([aggregate])
                sound.append(aggregate)
            except Exception as error:
                if stops_the_rest(error):
                    raise
                self._failed("judged", [aggregate], error)
        return cut(sound)

    def _product_codes(self, aggregates: Iterable[Aggregate]) -> dict[tuple[str, str], str] | None:
        """Return the products that the subscribers table names; None where it cannot be asked."""
        buyers = {(a.key.license_arn, a.key.account) for a in aggregates if not a.key.is_legacy}
        try:
            return self.tables.subscribers.product_codes(buyers)
        except Exception as error:  # noqa: BLE001  # nothing is lost without the codes, only calls
            if not self.report.warnings:
                said = str(error) if isinstance(error, MeteringError) else words_of(error)
                self.report.warnings.append(f"Product codes could not be looked up: one license a call. {said}")
            return None

    def _see_through(self, batch: Batch) -> None:
        """Do all that can be done for one batch. What is raised for it leaves it pending and stops no other."""
        try:
            self._run(batch)
        except Exception as error:
            if stops_the_rest(error):
                raise
            self._failed("sent", batch.records, error)

    def _run(self, batch: Batch) -> None:
        """Send, record, send again, halve."""
        attempt = 0
        while True:
            batch = self._without_failed_licenses(batch)
            obstacle = self._why_not(batch)
            if obstacle or not batch.records:
                return self._leave(batch, obstacle)
            if not self.sends:
                return self._record([_end(a, RecordStatus.DRY_RUN) for a in batch.records], batch.records)
            outcome = self.marketplace.send(batch)
            if isinstance(outcome, MeteringResponse) or outcome.trouble is not Trouble.CALLER:
                self._may_have_billed = True
            self.failures.went_well("sent")
            with self._lock:
                self.report.calls += 1
            why = "left unprocessed by the service"
            if isinstance(outcome, MeteringResponse):
                self._record_results(batch, outcome.results)
                if not outcome.unprocessed:
                    return None
                why = outcome.fault or why
                batch = batch.of(outcome.unprocessed)
            elif outcome.trouble is Trouble.TRANSIENT:
                why = f"{outcome.code}: {outcome.message}"
            else:
                return self._fail(batch, outcome)
            attempt += 1
            if attempt >= ATTEMPTS:
                return self._give_up(batch, f"{why} (after {ATTEMPTS} attempts)")
            self._stop.wait(self.pause(attempt))

    def _without_failed_licenses(self, batch: Batch) -> Batch:
        """Return the batch without licenses that were found to be of another product; those are left."""
        if batch.lane is not Lane.DEFAULT or self._failed_licenses.keys().isdisjoint(batch.licenses):
            return batch
        for record in batch.records:
            why = self._failed_licenses.get(record.key.license_arn)
            if why:
                self._leave(batch.of([record]), why)
        return batch.of([r for r in batch.records if r.key.license_arn not in self._failed_licenses])

    def _why_not(self, batch: Batch) -> str:
        """Return why the batch must not be sent now; empty if it may."""
        if self._stop.is_set():
            return self._stopped_because or "the run was stopped by an error"
        owner = (batch.lane, batch.owner)
        failed = self._failed_owners.get(owner) or self._resting.get(owner)
        # What cannot be written down is not sent either: it would only be sent again.
        failed = failed or self.failures.resting("sent") or self.failures.resting("recorded")
        if failed:
            return failed
        # Looked at before every call: a run may straddle 06:00 on the 1st, and one old record fails its whole call.
        return self._closed(batch, self.tables.clock())

    def _closed(self, batch: Batch, now: datetime) -> str:
        """Say that the window of some record is closed at `now`, in words; empty if none is."""
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
        if failure.trouble is Trouble.PRODUCT and batch.lane is Lane.DEFAULT:
            return self._narrow_down(batch, words)
        if failure.trouble is Trouble.PRODUCT:
            owner = mask_text(batch.owner) if batch.lane is not Lane.LICENSE else f"of license {mask(batch.owner)}"
            words = f"product {owner}: {words}"
            self._failed_owners[batch.lane, batch.owner] = words
            return self._leave(batch, words)
        if len(batch.records) > 1:
            for half in batch.halves():
                self._see_through(half)
            return None
        if failure.trouble is Trouble.REFUSED:
            closed = self._closed(batch, self.tables.clock() + CLOCKS_APART) if failure.code == OUT_OF_BOUNDS else ""
            if closed:
                # Its window closed on the way. A call before, whose answer is lost or still to come, may have billed
                # it: it is left to the age-out, over whose word such an answer may be written.
                return self._leave(batch, closed)
            if failure.code == OUT_OF_BOUNDS and batch.instant is None:
                # Its buyer may have subscribed in this hour. The hour is the identity, whatever the instant.
                return self._see_through(replace(batch, instant=_last_instant(batch.records[0], self.tables.clock())))
            return self._record([_end(batch.records[0], RecordStatus.REJECTED, failure.code)], batch.records)
        self._note(batch.records[0], f"refused alone with {words}; it stays pending")
        return self._leave(batch, words)

    def _narrow_down(self, batch: Batch, words: str) -> None:
        """Find the license that is of another product than the default one, by halves; it alone is left."""
        if len(batch.licenses) > 1:
            for half in batch.halves_by_license():
                self._see_through(half)
            return
        (license_arn,) = batch.licenses
        why = f"license {mask(license_arn)} is not of the default product {mask_text(batch.owner)}: {words}"
        with self._lock:
            self._failed_licenses[license_arn] = why
            self._wrong_guesses[batch.owner] += 1
            if self._wrong_guesses[batch.owner] >= GIVE_UP:
                self._failed_owners[batch.lane, batch.owner] = (
                    f"not tried after {GIVE_UP} licenses in a row were refused under the default product "
                    f"{mask_text(batch.owner)}: {words}"
                )
        self._note(batch.records[0], f"stays pending: {why}")
        self._leave(batch, why)

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
        self._note(batch.records[0], f"stays pending: {why}")
        self._leave(batch, why)

    def _leave(self, batch: Batch, why: str) -> None:
        if batch.records:
            with self._lock:
                self.report.left[why] += len(batch.records)

    def _failed(self, step: str, aggregates: Sequence[Aggregate], error: Exception) -> None:
        """Count records for which something was raised that nobody foresaw: they stay pending."""
        secrets = [name for a in aggregates for name in (a.key.license_arn, a.key.account, a.customer_identifier or "")]
        more = f" and {len(aggregates) - 1} more" if len(aggregates) > 1 else ""
        self.failures.add(step, f"{name_of(aggregates[0].key)}{more}", error, secrets, len(aggregates))

    def _record_results(self, batch: Batch, results: Sequence[Result]) -> None:
        ends = [_end(result.aggregate, result.status, record_id=result.record_id) for result in results]
        self._record(ends, [result.aggregate for result in results])
        if results:
            with self._lock:
                del self._given_up[batch.lane, batch.owner], self._given_up[None]
                del self._wrong_guesses[batch.owner]

    def _record(self, ends: Sequence[RecordEnd], aggregates: Sequence[Aggregate]) -> None:
        """Write the ends down, then count them."""
        if not ends:
            return
        names = [name_of(aggregate.key) for aggregate in aggregates]
        written = write_ends(self.tables, ends, names, self.failures)
        for end, aggregate, how in zip(ends, aggregates, written, strict=True):
            if how is None:
                continue
            if end.status not in (RecordStatus.SUCCESS, RecordStatus.DRY_RUN):
                self._note(aggregate, f"{end.status.value} {end.reason}".strip())
            if how in SHORT:
                self._note(aggregate, f"{end.status.value}, {SHORT[how]}")
            if how is not Written.REFUSED:
                self._tell(end, aggregate)
            with self._lock:
                _count(self.report, end, aggregate, how is not Written.REFUSED)

    def _tell(self, end: RecordEnd, aggregate: Aggregate) -> None:
        try:
            self.tell(ledger_entries.of_record(end, aggregate))
        except Exception as error:
            if stops_the_rest(error):
                raise
            self._failed("told to the ledger", [aggregate], error)

    def _note(self, aggregate: Aggregate, words: str) -> None:
        with self._lock:
            self.report.note(f"{name_of(aggregate.key)}, quantity {number_text(aggregate.quantity)}: {words}")


def _last_instant(aggregate: Aggregate, now: datetime) -> datetime:
    """Return the last second of the record's hour; of the current hour, now."""
    return min(aggregate.key.hour + timedelta(minutes=59, seconds=59), now.replace(microsecond=0))


def _end(aggregate: Aggregate, status: RecordStatus, reason: str = "", record_id: str = "") -> RecordEnd:
    key = aggregate.key
    if aggregate.put_back and status in _UNBILLED:
        reason = f"{reason}; {PUT_BACK}" if reason else PUT_BACK
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
