"""The response to a named consumer: the reported cells new for it, and how complete they are (domain §7). Pure.

Belongs here: rows of reports, the meta block of such a response. Does not: marks and tokens (consumer_offsets), reading
reports and heartbeat (feed).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

from metering_dagster.billing_changes.rules.consumer_offsets import ConsumerOffset, Offer
from metering_dagster.billing_changes.rules.day_diff import CellChange, DayReport
from metering_dagster.billing_changes.rules.feed_response import (
    ALWAYS_UNSEEN,
    AnswerRow,
    FeedResponse,
    Meta,
    Repull,
    day_ranges,
    instant_text,
    order,
    signals_of,
)
from metering_dagster.billing_changes.rules.heartbeat import Heartbeat

_DETECTS = (
    "cells that a run of billing_changes found ingested again, by either signal, with the same amount too",
    "changes that a late commit, a deletion or a wrong clock hid at first, once the sensor has compared the day: "
    "within about an hour for the last 3 days, a day for the others",
)

_LOST = "its report is gone: a run of billing_changes reports it again"
_DAMAGED = "its report cannot be understood (damaged says what to do), so none of it is in the rows"


@dataclass(frozen=True)
class ReportedDays:
    """Reports that are stored for a consumer."""

    reports: Sequence[DayReport]
    """Those of days with something that the consumer has not taken."""
    lost: Collection[date]
    """Days that the consumer has taken before, and whose report is gone."""
    heartbeat: Heartbeat | None
    """Read before the reports, so that they are at least as new as it says."""
    damaged: Mapping[date, str] = field(default_factory=dict)
    """Days whose report cannot be understood, with the error message of each. They stay due."""


def answer_for(
    offset: ConsumerOffset,
    offer: Offer,
    reported: ReportedDays,
    *,
    now: datetime,
    horizon: timedelta,
    stale: timedelta,
) -> FeedResponse:
    """Build the response: the rows that are new for the consumer, and the token of the offer that covers them.

    `now` is this machine's clock. `horizon` applies where there is no heartbeat. The response warns of a heartbeat
    older than `stale`.
    """
    beat = reported.heartbeat
    rows = tuple(sorted((_row(row) for report in reported.reports for row in offset.new_of(report)), key=order))
    first_day = beat.first_day if beat else now.date() - horizon
    return FeedResponse(rows, Meta(
        since=offset.complete_until,
        horizon=(beat.polled_at.date() - first_day if beat else horizon).days,
        first_day=first_day,
        changed_cells=len(rows),
        signals=signals_of(rows),
        detects=_DETECTS,
        does_not_detect=(*_damage(reported.damaged), *_does_not_detect(first_day, beat, now, stale)),
        complete_until=offer.complete_until,
        repull_by_hand=tuple(
            Repull(first, last, why)
            for days, why in ((reported.lost, _LOST), (reported.damaged, _DAMAGED))
            for first, last in day_ranges(days)
        ),
        read_at=now,
        consumer=offset.name,
        token=offer.token,
        looked_at=beat.polled_at if beat else None,
        pending=beat.pending if beat else (),
        damaged=tuple(reported.damaged.values()),
    ))  # fmt: skip


def _row(row: CellChange) -> AnswerRow:
    """Leave out what compares two runs (changed, amounts before): a consumer may have missed runs in between."""
    one = row.cell.subscription
    return AnswerRow(
        row.cell.day, one.id, one.external_id, one.name, one.provider, row.last_ingested_at, row.signals,
        row.reported_at, row.amounts, row.vanished,
    )  # fmt: skip


def _damage(days: Collection[date]) -> list[str]:
    named = [str(first) if first == last else f"{first} to {last}" for first, last in day_ranges(days)]
    return [f"anything of days whose files are damaged: {', '.join(named)}. They stay due"] if named else []


def _does_not_detect(first_day: date, beat: Heartbeat | None, now: datetime, stale: timedelta) -> tuple[str, ...]:
    return (
        f"days before {first_day}, which are older than the horizon, unless an operator materializes them",
        "days that have not begun in UTC",
        *_freshness(beat, now, stale),
        "cells whose deletion, or whose write with an old stamp, the sensor has not compared yet",
        *ALWAYS_UNSEEN,
    )


def _freshness(beat: Heartbeat | None, now: datetime, stale: timedelta) -> list[str]:
    if beat is None:
        return ["how complete this is: the sensor billing_changes has recorded no poll. Is it switched on?"]
    if beat.complete_until is None:
        limits = ["how complete this is: some days of the horizon have never been materialized"]
    else:
        limits = [f"everything stamped at {instant_text(beat.complete_until)} or later: some may still be missing"]
    if beat.pending:
        limits.append("the latest changes of days that are not materialized yet (pending)")
    if now - beat.polled_at > stale:
        minutes = int((now - beat.polled_at) / timedelta(minutes=1))
        limits.append(
            f"anything ingested since {instant_text(beat.polled_at)}: the sensor billing_changes has not polled for "
            f"{minutes} minutes. Is it switched on, and the database reachable?"
        )
    return limits
