"""One visit of an hour: may it begin, and what has it left undone (no Dagster).

Belongs here: the guards before the steps of a visit, in words why one is not through, and what is done all the same.
Does not: the steps (discovery, aggregation, submission), what a person sees of them (ops).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from metering_dagster.core import hours
from metering_dagster.core.errors import LeftPendingError, MeteringError
from metering_dagster.ledger.rules.entries import Entry
from metering_dagster.metering.rules.flush_window import LicenseScope
from metering_dagster.metering.rules.hour_guard import refuse_open_hour
from metering_dagster.metering.rules.isolation import Failures

if TYPE_CHECKING:
    from metering_dagster.metering.rules.isolation import Failures
    from metering_dagster.metering.services.aggregation_report import Aggregation
    from metering_dagster.metering.services.deployment import Deployment
    from metering_dagster.metering.services.discovery import Discovery
    from metering_dagster.metering.services.submission_report import Submission
    from metering_dagster.metering.services.tables import Slice, Tables

RESTORED_LATELY = timedelta(hours=30)
"""As long as an hour can be billed: for so long a restored table may lack commits that count."""


@dataclass(frozen=True)
class Beginning:
    """The start of a step: its slice, or the reason why there is nothing to do."""

    part: "Slice"
    unknown: str | None
    """Why it is not known which licenses are deprovisioning, if it is not."""
    closed: str | None
    """Of an hour that is past its window: why nothing is to be done."""


def begin(deployment: "Deployment", bucket: str, whose: LicenseScope, *, ignore_lock: bool = False) -> Beginning:
    """Return the slice of this hour; `HourRefusedError` where it must not be metered yet. A flush knows no lock."""
    settings, hour = deployment.settings, hours.parse_bucket(bucket)
    if whose is LicenseScope.ALL:
        refuse_open_hour(hour, settings.now(), settings.lock_hours, ignore_lock=ignore_lock)
    part, unknown = deployment.slice_of(hour, whose)
    return Beginning(part, unknown, closed_hour(deployment.tables, part, settings.now()))


def closed_hour(tables: "Tables", part: "Slice", now: datetime) -> str | None:
    """Return why an hour past its window is left alone, in words; None for a billable one.

    Where something is still pending in it, that is a failure: only the age-out may end it, or, on a month's last day,
    the coming grace may bill it.
    """
    if hours.is_billable(part.hour, now):
        return None
    rows, aggregates = tables.usage.count_pending(part.bucket), tables.aggregated.count_pending(part.bucket)
    closed = f"{hours.closes_at(part.hour, now):%Y-%m-%dT%H:%MZ}"
    reopens = hours.reopens_at(part.hour, now)
    if reopens is None:
        words = f"{part.bucket} can no longer be billed: its window closed at {closed}."
        then = "the age-out ends them, nothing can bill them."
    else:
        until = f"{hours.closes_for_good(part.hour):%Y-%m-%dT%H:%MZ}"
        words = (
            f"The window of {part.bucket} closed at {closed}; it opens again at {reopens:%Y-%m-%dT%H:%MZ}, "
            f"until {until}."
        )
        then = "they wait for that, the ticks of the 1st bill them, and nothing expires them before."
    if rows or aggregates:
        raise LeftPendingError(
            f"{words} {rows} raw rows and {aggregates} aggregates are still pending in it and were left alone: {then}"
        )
    return f"{words} Nothing is pending in it, and nothing was touched."


def not_discovered(bucket: str, found: "Discovery") -> LeftPendingError | None:
    """Return the error of a discovery that had to leave rows or groups as they are, or None."""
    return _failed(bucket, found.failures)


def _failed(bucket: str, failures: "Failures") -> LeftPendingError | None:
    """Return the error of a visit in which something was raised for single groups, or None."""
    if not failures.total:
        return None
    reasons = "; ".join(f"{count} {why}" for why, count in failures.by_why.most_common(5))
    return LeftPendingError(
        f"{failures.total} groups or rows of {bucket} were left as they are: {reasons}. The first: "
        f"{failures.notes[0] if failures.notes else 'none was tried'}. Everything else went on; mend the cause, then "
        "run the hour again."
    )


def not_folded(bucket: str, done: "Aggregation") -> LeftPendingError | None:
    """Return the error of an incomplete aggregation, so that its run must fail, or None."""
    if done.failures.total:
        return _failed(bucket, done.failures)
    if done.unsettled:
        return LeftPendingError(
            f"{len(done.unsettled)} groups of {bucket} are still pending: their rows changed each time they were "
            f"read, or DynamoDB refuses an item of theirs. The first: {done.unsettled[0]}. Everything else was "
            "committed; run the hour again."
        )
    if done.closed:
        return LeftPendingError(
            f"The window of {bucket} closed during the aggregation. What was not committed by then was left alone: "
            "the age-out ends it, nothing can bill it."
        )
    if done.hidden:
        return LeftPendingError(
            f"{len(done.hidden)} groups of {bucket} were committed, but the index metering_pending of the aggregated "
            f"table does not show them yet, the first: {done.hidden[0]}. A submission now misses them: run the hour "
            "again."
        )
    return None


def send_the_rest(
    deployment: "Deployment", bucket: str, whose: LicenseScope, done: "Aggregation", tell: Callable[[Entry], None]
) -> str:
    """Send what of the hour is committed although its fold is not through: what is wrong with one group must not cost
    the others their bill. In words, what came of it, as a sentence behind those of `not_folded`.
    """
    if done.closed or not deployment.tables.writes:
        return ""
    part, _ = deployment.slice_of(hours.parse_bucket(bucket), whose)
    try:
        sent = deployment.submitter(tell, urgent=whose is LicenseScope.DEPROVISIONING).submit(part)
    except MeteringError as error:
        return f" Sending the others failed as well: {error}"
    left = left_pending(bucket, sent, deployment.settings.now())
    billed = sent.by_status.get("Success", 0)
    return f" {left or f'Of the others, {billed} records were billed in this run.'}"


def aggregate_and_send(
    deployment: "Deployment", bucket: str, whose: LicenseScope, part: "Slice", tell: Callable[[Entry], None]
) -> str:
    """Take the hour through although its discovery is not; what came of it, as a sentence behind `not_discovered`."""
    from metering_dagster.metering.services.aggregation import aggregate

    try:
        done = aggregate(deployment.tables, part, tell)
    except MeteringError as error:
        return f" Aggregating the others failed as well: {error}"
    unfinished = not_folded(bucket, done)
    words = f" {unfinished}" if unfinished is not None else ""
    return words + send_the_rest(deployment, bucket, whose, done, tell)


def restored_lately(tables: "Tables", now: datetime) -> str | None:
    """Return a warning where the aggregated table was created less than 30 hours ago, or None.

    A restore creates a table (domain: a commit whose aggregate is gone).
    """
    created = tables.aggregated.created_at()
    if created is None or not timedelta(0) <= now - created < RESTORED_LATELY:
        return None
    return (
        f"The table AGGREGATED_USAGE_TABLE was created at {created:%Y-%m-%dT%H:%MZ}, less than 30 hours ago. If it was "
        "restored from a backup, commits are missing in it. Groups with a new row are aggregated again with what was "
        "Aggregated before; the service answers DuplicateRecord where another quantity was billed. Groups without a "
        "new row are not found by this run. If the table is new, nothing is to be done."
    )


def still_pending(tables: "Tables", bucket: str) -> int:
    """Aggregates of the hour that are pending by the table itself: the index may still show what has just ended."""
    if not tables.aggregated.count_pending(bucket):
        return 0
    unreadable = Failures()
    return sum(1 for _ in tables.aggregated.pending(bucket, None, unreadable)) + unreadable.total


def arrived_meanwhile(bucket: str, aggregates: int) -> LeftPendingError | None:
    """In words, that aggregates are pending though everything that was found was sent; None if none are."""
    if not aggregates:
        return None
    return LeftPendingError(
        f"{aggregates} aggregates of {bucket} are pending though everything found was sent: they arrived, or were "
        "written again, during the run. Of one written again the first quantity is billed. The next tick sends them."
    )


def left_pending(bucket: str, submission: "Submission", now: datetime) -> LeftPendingError | None:
    """In words, what a submission left undone; None if nothing."""
    if not submission.left:
        return None
    reasons = "; ".join(f"{count} because {why}" for why, count in submission.left.most_common(5))
    billed = submission.by_status.get("Success", 0)
    done = f"{billed} records were billed in this run, and nothing was rejected for this."
    if submission.caller is not None:
        what = (
            f"AWS refuses the caller of aws-marketplace:BatchMeterUsage in {submission.where}. Allow the action, renew "
            "the credentials, or run in a Region that offers the API; then run the hour again."
        )
    elif submission.other_region:
        until = hours.closes_at(hours.parse_bucket(bucket), now)
        what = (
            f"Set AWS_REGION back to {submission.other_region} until {until:%Y-%m-%dT%H:%MZ} and run the hour again. "
            "Hours whose first call goes out after the change belong to the new Region."
        )
    elif any("InvalidProductCodeException" in why for why in submission.left):
        what = "They stay pending: set the product's code right in the subscribers table, then run the hour again."
    else:
        what = "They stay pending; the next tick sends them again."
    return LeftPendingError(
        f"{submission.left.total()} records of {bucket} are left: {reasons}. {done} {what} "
        f"The hour's window closes at {hours.closes_at(hours.parse_bucket(bucket), now):%Y-%m-%dT%H:%MZ}."
    )
