"""The public Python API: which cells of cloud-billing data were ingested again (domain §7).

Belongs here: reading changes, from the database or as a named consumer from the reports. Does not: the response's
content (rules/feed_response, rules/consumer_response), SQL, files, layout.

    from metering_dagster.billing_changes import feed

    answer = feed.changes("2026-11-28T06:00:00Z")     # by time: the caller keeps the next one
    for row in answer.rows:
        pull(row.subscription_id, row.day)
    keep(answer.meta.complete_until)

    with feed.consumer("warehouse") as new:           # by name: the feed keeps what was taken
        for row in new.rows:
            pull(row.subscription_id, row.day)

Settings are the environment's (BILLING_DATABASE_URL, BILLING_CHANGES_URI and so on) unless others are given. Every
failure is a `MeteringError` whose message says what to do.
"""

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from metering_dagster.billing_changes.rules import heartbeat
from metering_dagster.billing_changes.rules.cells import Signal
from metering_dagster.billing_changes.rules.consumer_offsets import (
    ConsumerOffset,
    checked_name,
    checked_token,
    offer_of,
    offset_content,
    read_offset,
)
from metering_dagster.billing_changes.rules.consumer_response import ReportedDays, answer_for
from metering_dagster.billing_changes.rules.feed_response import (
    COLUMNS,
    FeedRequest,
    FeedResponse,
    answer_since,
    parsed_since,
    record,
)
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.core.errors import DamagedFileError, FeedRefusedError, ReplacedMeanwhileError, SettingsError
from metering_dagster.settings import Settings, read_settings
from metering_dagster.settings import horizon_days as parsed_horizon

if TYPE_CHECKING:
    import pandas as pd

    from metering_dagster.billing_changes.rules.day_diff import DayReport
    from metering_dagster.billing_changes.stores.day_files import DayFiles, StoredDocument

__all__ = ["COLUMNS", "FeedResponse", "Signal", "acknowledge", "changes", "consumer", "frame", "new_for"]

T = TypeVar("T")
_ATTEMPTS = 50
"""The attempts to replace a consumer's document while others replace it too; each time one of them succeeds."""
_PAUSE_SECONDS = 0.05
_LONGEST_NUMBER = 9
_STALE = timedelta(minutes=10)


def changes(
    since: str | datetime, *, horizon_days: int | str | None = None, settings: Settings | None = None
) -> FeedResponse:
    """Read from the database the cells that were ingested again since an instant, itself included.

    `since` is ISO-8601 text that names its zone, or an aware datetime. `horizon_days` (1 to 92) is the number of days
    to read back, by default that of the settings. Pass the answer's `meta.complete_until` as the next `since`: that
    leaves time for ingests in progress. `meta` also says what the answer does not detect.

    Raises `FeedRefusedError` for an invalid `since` or horizon, `DatabaseError` and `DatabaseAwayError` for the
    database, `SettingsError` if BILLING_DATABASE_URL is not set.
    """
    billing = _billing(settings)
    parsed = parsed_since(since)
    horizon = billing.rules.horizon if horizon_days is None else timedelta(days=_checked_horizon(horizon_days))
    with billing.database.reading() as reading:
        question = FeedRequest(parsed, horizon, reading.now)
        starts = {signal: question.start(reading.precision(signal)) for signal in Signal}
        claims = reading.claims()
        pieces = reading.pieces_since(starts, question.read_from) if claims.subscriptions else []
        far_ahead = reading.now + billing.rules.overlap
        invalid_stamps = reading.days_with_invalid_stamps(question.first_day, far_ahead) if claims.subscriptions else {}
    return answer_since(question, billing.rules.overlap, pieces, claims, invalid_stamps)


def new_for(name: str, *, settings: Settings | None = None) -> FeedResponse:
    """Return the reported cells that are new for the named consumer, with the token that acknowledges them.

    The token is `meta.token`. Until it is acknowledged, further calls return the same rows and any newer ones. A new
    name gets everything. The database is not read: rows come from the reports of `billing_changes` runs.

    A day whose file cannot be understood is left out and stays due: `meta.damaged` names it, and `meta.complete_until`
    is None. A consumer that ignores `meta.damaged` misses the day.

    Raises `FeedRefusedError` for an invalid name. Raises `DamagedFileError` where the consumer's offset or the sensor's
    heartbeat cannot be understood. Raises `UnreachableError` and `CallerError` for the place of the reports.
    """
    billing = _billing(settings)
    files = _files(billing, checked_name(name))
    return _until_not_replaced(lambda: _offer(billing, files, name))


def acknowledge(name: str, token: str, *, settings: Settings | None = None) -> bool:
    """Record that the named consumer has taken the answer that came with this token.

    Return True if that advanced its marks, False if the token was acknowledged before or its answer was empty. Of
    several concurrent calls with one token at most one returns True. None does where S3 loses the response to the write
    and the document is replaced again before the retry. Marks only advance.

    Raises `FeedRefusedError` for a token that this consumer was not offered, besides the errors of `new_for`.
    """
    billing = _billing(settings)
    files = _files(billing, checked_name(name))
    checked_token(token)
    return _until_not_replaced(lambda: _acknowledge(files, name, token))


@contextmanager
def consumer(name: str, *, settings: Settings | None = None) -> Iterator[FeedResponse]:
    """Give a block what is new for the named consumer; acknowledge it when the block ends without an error.

        with feed.consumer("warehouse") as new:
            for row in new.rows:
                pull(row.subscription_id, row.day)

    A block that fails, or is killed, gets the same rows again the next time. Raises the errors of `new_for`. Raises
    `DamagedFileError` after the other days are acknowledged where a day's file could not be understood: the consumer
    must not take the answer for complete.
    """
    answer = new_for(name, settings=settings)
    yield answer
    acknowledge(name, str(answer.meta.token), settings=settings)
    if answer.meta.damaged:
        raise DamagedFileError(
            f"The consumer {name} has taken all other days, but some files are damaged: {' '.join(answer.meta.damaged)}"
        )


def frame(answer: FeedResponse) -> "pd.DataFrame":
    """Return the answer's rows as a pandas DataFrame; signals and amounts as text."""
    import pandas as pd

    return pd.DataFrame([record(row) for row in answer.rows], columns=list(COLUMNS))


def _offer(billing: Billing, files: "DayFiles", name: str) -> FeedResponse:
    # The order matters: each reading is at least as new as the one before it claims.
    stored = files.document(heartbeat.NAME)
    beat = heartbeat.read_heartbeat(stored.content) if stored else None
    document = files.document(_place(name))
    offset = _offset(name, document)
    generations = files.generations()
    due = [day for day, generation in generations.items() if not offset.has_taken(day, generation)]
    there, damaged = _read(files, due)
    offer = offer_of(name, there, beat.complete_until if beat and not damaged else None)
    lost = sorted(offset.marks.keys() - generations.keys())
    reported = ReportedDays([report for _, report in there], lost, beat, damaged)
    answer = answer_for(
        offset, offer, reported,
        now=datetime.now(UTC), horizon=billing.rules.horizon, stale=_stale(billing.settings),
    )  # fmt: skip
    _keep(files, name, document, offset, offset.offered(offer))
    return answer


def _read(files: "DayFiles", days: Iterable[date]) -> tuple[list[tuple[str, "DayReport"]], dict[date, str]]:
    """Read the reports of these days with their files' generations, and the error message of each damaged day."""
    there, damaged = [], {}
    for day in days:
        try:
            found = files.read(day)
        except DamagedFileError as error:
            damaged[day] = str(error)
            continue
        if found is not None:
            there.append((found.generation, found.report))
    return there, damaged


def _acknowledge(files: "DayFiles", name: str, token: str) -> bool:
    document = files.document(_place(name))
    offset = _offset(name, document)
    advanced = offset.acknowledging(token)
    _keep(files, name, document, offset, advanced)
    return advanced is not offset


def _offset(name: str, document: "StoredDocument | None") -> ConsumerOffset:
    return ConsumerOffset(name) if document is None else read_offset(name, document.content)


def _keep(
    files: "DayFiles", name: str, read: "StoredDocument | None", before: ConsumerOffset, after: ConsumerOffset
) -> None:
    """Write the offset if it changed. Raises `ReplacedMeanwhileError` if another call wrote it since the reading."""
    if after is not before:
        files.replace_document(_place(name), offset_content(after), read.generation if read else None)


def _until_not_replaced(attempt: Callable[[], T]) -> T:
    for _ in range(_ATTEMPTS):
        try:
            return attempt()
        except ReplacedMeanwhileError:
            time.sleep(random.uniform(0, _PAUSE_SECONDS))  # so that the same callers do not collide again
    return attempt()


def _place(name: str) -> str:
    return f"_consumers/{name}"


def _stale(settings: Settings) -> timedelta:
    """Return the age at which a heartbeat is old: longer than a few slow or failed polls explain."""
    return max(_STALE, 3 * timedelta(seconds=settings.billing_changes_seconds))


def _checked_horizon(days: object) -> int:
    text = str(days).strip()
    try:
        if len(text) > _LONGEST_NUMBER:
            raise ValueError("must be 1 to 92 days")
        return parsed_horizon(text)
    except ValueError as error:
        shown = text if len(text) <= _LONGEST_NUMBER else f"{text[:_LONGEST_NUMBER]}…"
        raise FeedRefusedError(f"The horizon {shown!r} {error}. Nothing was read.") from None


def _billing(settings: Settings | None) -> Billing:
    return Billing(read_settings(os.environ) if settings is None else settings)


def _files(billing: Billing, name: str) -> "DayFiles":
    if billing.settings.billing_changes_uri is not None:
        return billing.files("")
    return billing.files(_storage_directory(name))


def _storage_directory(name: str) -> str:
    """Return Dagster's storage directory: reports are beside it if BILLING_CHANGES_URI is not set."""
    if not os.environ.get("DAGSTER_HOME"):
        raise SettingsError(
            f"Not set: the place of the reports for the consumer {name}. Nothing was read. Set BILLING_CHANGES_URI to "
            "the folder or s3:// place of billing_changes, or DAGSTER_HOME if the reports are beside Dagster's "
            "storage."
        )
    import dagster as dg

    try:
        with dg.DagsterInstance.get() as instance:
            return instance.storage_directory()
    except Exception as error:  # noqa: BLE001  # what Dagster and its storage raise has no common root
        # Without the error's message: it may quote dagster.yaml.
        raise SettingsError(
            f"DAGSTER_HOME={os.environ['DAGSTER_HOME']!r} has no working Dagster instance ({type(error).__name__}). "
            "Nothing was read. Run `dagster instance info` to see the error, or set BILLING_CHANGES_URI."
        ) from None
