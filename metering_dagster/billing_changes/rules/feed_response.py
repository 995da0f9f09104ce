"""The feed's response: rows, and a meta block that says what they do and do not cover (domain §7). Pure: the database's
clock is an argument.

Belongs here: valid requests, the response's shape, the response to "ingested since". Does not: reading the tables
(stores/queries), what a named consumer has taken already (consumer_offsets), layout (cli).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

from metering_dagster.billing_changes.rules.cells import (
    EARLIEST_STAMP,
    Amounts,
    Cell,
    Claims,
    Piece,
    Signal,
    StampFault,
    cells_of,
)
from metering_dagster.core.errors import FeedRefusedError

LONGEST_HORIZON = timedelta(days=92)
"""Days older than that are never read (domain §7)."""
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 60
_MOST_DECIMALS = 6
_UNTOUCHED = "Nothing was read."

ALWAYS_UNSEEN = (
    "a row whose amount was changed without a new stamp",
    "rows that no enabled subscription claims",
)
"""Changes that no request detects."""


@dataclass(frozen=True)
class AnswerRow:
    """Cell that was ingested again: re-pull this subscription for this day."""

    day: date
    subscription_id: str
    external_id: str
    name: str
    provider: str
    last_ingested_at: datetime | None
    """The later one of both signals, in UTC; None where no row has a stamp, or none is left."""
    signals: tuple[Signal, ...]
    """The columns that advanced."""
    reported_at: datetime | None = None
    """When this state of the cell was first materialized. None, like the two below, in a response to `since`, which
    reads stamps alone."""
    amounts: Amounts | None = None
    """The cell's cost by currency."""
    vanished: bool | None = None
    """True where the cell was reported once and is in neither table now: drop it."""


@dataclass(frozen=True)
class Repull:
    """Days that the rows do not cover, and why: re-pull them by hand, both ends included."""

    first_day: date
    last_day: date
    why: str


@dataclass(frozen=True)
class Meta:
    """Meta block of a response: what the rows cover, and what they do not."""

    since: datetime | None
    """In UTC. For a named consumer: up to when its acknowledged rows were complete; None if unknown."""
    horizon: int
    """In days."""
    first_day: date
    """The oldest day that is read."""
    changed_cells: int
    signals: tuple[Signal, ...]
    """Those that contributed."""
    detects: tuple[str, ...]
    does_not_detect: tuple[str, ...]
    complete_until: datetime | None
    """Nothing stamped before that is missing; in a response to `since`, it is the next `since`. None: unknown."""
    repull_by_hand: tuple[Repull, ...]
    read_at: datetime
    """When it was read: by the database's clock, or for a named consumer by this machine's."""
    consumer: str | None = None
    token: str | None = None
    """For a named consumer: what it acknowledges once it has taken these rows."""
    looked_at: datetime | None = None
    """For a named consumer: when the sensor last polled; None if it never did."""
    pending: tuple[date, ...] = ()
    """For a named consumer: changed days that are not materialized yet."""
    damaged: tuple[str, ...] = ()
    """For a named consumer: which days' files cannot be understood, and what to do. Those days are not in the rows."""


@dataclass(frozen=True)
class FeedResponse:
    """Rows ordered by date, external id and id, with a meta block."""

    rows: tuple[AnswerRow, ...]
    meta: Meta


COLUMNS = (
    "date", "subscription_id", "external_id", "name", "provider", "last_ingested_at", "signals", "reported_at",
    "amounts", "vanished",
)  # fmt: skip
"""The names of a row's fields, in this order."""


def record(row: AnswerRow) -> dict[str, object]:
    """Return the row as a record of a table: values by column name, signals and amounts as text."""
    values = (
        row.day, row.subscription_id, row.external_id, row.name, row.provider, row.last_ingested_at,
        ", ".join(row.signals), row.reported_at, amounts_text(row.amounts), row.vanished,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def amounts_text(amounts: Amounts | None) -> str | None:
    """Return amounts as text, such as `12.500000 EUR, 3.000000 USD`; None where they are unknown."""
    return None if amounts is None else ", ".join(f"{amount:f} {currency}" for currency, amount in amounts)


def instant_text(instant: datetime) -> str:
    """Return ISO-8601 text in UTC, to the microsecond: `2026-11-28T10:00:00.148758Z`. It sorts by time."""
    return f"{instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def parsed_since(since: object) -> datetime:
    """Parse the `since` of a request into UTC: ISO-8601 text that names its zone, or an aware datetime.

    Raises `FeedRefusedError` where it is neither, or lies before 1970.
    """
    if isinstance(since, str):
        try:
            instant = datetime.fromisoformat(since.strip())
        except ValueError:
            raise FeedRefusedError(
                f"since={_shown(since)} is an invalid ISO-8601 instant. {_UNTOUCHED} Write it like "
                "2026-11-28T10:30:00Z or 2026-11-28T18:30:00+08:00."
            ) from None
    elif isinstance(since, datetime):
        instant = since
    else:
        raise FeedRefusedError(
            f"since must be ISO-8601 text or a datetime with a zone, not {type(since).__name__}. {_UNTOUCHED}"
        )
    if instant.tzinfo is None or instant.utcoffset() is None:
        raise FeedRefusedError(
            f"since={_shown(str(since))} names no zone, and without one it may be hours off. {_UNTOUCHED} Add Z for "
            "UTC, or the offset, such as +08:00."
        )
    try:
        # By its parts: subclasses of datetime, such as pandas', count finer than the databases do.
        utc = instant.astimezone(UTC)
        exact = datetime(utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond, UTC)
    except (OverflowError, ValueError):
        exact = datetime.min.replace(tzinfo=UTC)
    if exact < _EARLIEST:
        raise FeedRefusedError(
            f"since={_shown(str(since))} lies before 1970, or too far off for an instant in UTC. {_UNTOUCHED} "
            "Use 1970-01-01T00:00:00Z for everything within the horizon."
        )
    return exact


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


@dataclass(frozen=True)
class FeedRequest:
    """Request for the cells that were ingested since an instant, of days within a horizon.

    Raises `FeedRefusedError` where `since` is later than `now`.
    """

    since: datetime
    horizon: timedelta
    now: datetime
    """The database's clock."""

    def __post_init__(self) -> None:
        if self.since > self.now:
            raise FeedRefusedError(
                f"since={instant_text(self.since)} is in the future: the database's clock says "
                f"{instant_text(self.now)}. Nothing but that clock was read. Use an instant that has passed."
            )

    @property
    def first_day(self) -> date:
        """Return the oldest day within the horizon (domain §7: today in UTC less the horizon)."""
        return self.now.date() - self.horizon

    @property
    def first_day_then(self) -> date:
        """Return the oldest day that was within the horizon at `since`."""
        return min(self.since.date() - self.horizon, self.first_day)

    @property
    def read_from(self) -> date:
        """Return the oldest day to read.

        Days that left the horizon since `since` are read too, but not reported as rows: the response lists those that
        changed as days to re-pull. They cost nothing, for the query reads a range of stamps, not of days.
        """
        return max(self.first_day_then, min(self.first_day, self.now.date() - LONGEST_HORIZON))

    def start(self, decimals: int) -> datetime:
        """Return the first stamp to read, itself included, in a column that keeps so many decimals of a second.

        Such a column may hold less than the ingest's stamp: .123 where that was .123100.
        """
        tick = 10 ** (_MOST_DECIMALS - decimals)
        return self.since.replace(microsecond=self.since.microsecond // tick * tick)


def answer_since(
    question: FeedRequest,
    overlap: timedelta,
    pieces: Iterable[Piece],
    claims: Claims,
    invalid_stamps: Mapping[StampFault, Mapping[date, int]],
) -> FeedResponse:
    """Build the response: the cells with a stamp from `since` on, itself included (domain §7).

    `pieces`: the rows with such stamps, of days from `question.read_from` on. `overlap`: how long an ingest's
    transaction may stay open. `invalid_stamps`: the number of rows within the horizon, by day, whose stamp is invalid
    or ahead of the clock by more than the overlap.
    """
    cells = cells_of(pieces, claims)
    inside = [cell for cell in cells.values() if cell.day >= question.first_day]
    rows = tuple(sorted((_row(cell) for cell in inside), key=order))
    complete_until = question.now - overlap
    return FeedResponse(rows, Meta(
        since=question.since,
        horizon=question.horizon.days,
        first_day=question.first_day,
        changed_cells=len(rows),
        signals=signals_of(rows),
        detects=_detects(question),
        does_not_detect=_does_not_detect(question, overlap, complete_until, claims),
        complete_until=complete_until,
        repull_by_hand=_repulls(question, {day for day, _ in cells if day < question.first_day}, invalid_stamps),
        read_at=question.now,
    ))  # fmt: skip


def order(row: AnswerRow) -> tuple[date, str, str]:
    """Return the sort key of a row: date, then external id (domain §7), then id."""
    return row.day, row.external_id, row.subscription_id


def signals_of(rows: Iterable[AnswerRow]) -> tuple[Signal, ...]:
    """Return the signals that contributed, always in the same order."""
    found = {signal for row in rows for signal in row.signals}
    return tuple(signal for signal in Signal if signal in found)


def _row(cell: Cell) -> AnswerRow:
    one = cell.subscription
    return AnswerRow(
        cell.day, one.id, one.external_id, one.name, one.provider, cell.last_ingested_at, tuple(cell.sides)
    )


def _detects(question: FeedRequest) -> tuple[str, ...]:
    since = instant_text(question.since)
    return (
        f"cells with a row whose {' or '.join(Signal)} is {since} or later, for days from {question.first_day} on",
        "cells that were ingested again with the same amount",
    )


def _does_not_detect(
    question: FeedRequest, overlap: timedelta, complete_until: datetime, claims: Claims
) -> tuple[str, ...]:
    minutes = int(overlap / timedelta(minutes=1))
    unclaimed = () if claims.subscriptions else ("anything at all: no subscription is enabled",)
    return (
        *unclaimed,
        f"days before {question.first_day}, which are older than the horizon of {question.horizon.days} days",
        f"rows stamped before {instant_text(question.since)}, even if they were committed later: pass the "
        f"complete_until of an answer as the next since, which leaves {minutes} minutes for that",
        f"ingests that are not committed yet: ask again with since={instant_text(complete_until)}",
        f"a transaction that stays open for longer than {minutes} minutes after its stamp, or reaches a replica later",
        f"ingests of a writer whose stamps are behind UTC by more than {minutes} minutes, such as local time west of "
        "Greenwich or a slow clock: stamps must be in UTC",
        "cells that were deleted",
        "rows without a stamp (NULL, or a zero date)",
        "cells of a subscription that was added or changed since, if their rows were ingested before",
        *ALWAYS_UNSEEN,
    )


_STAMP_FAULTS = {
    StampFault.MISSING: "no stamp: a new ingest is not detected",
    StampFault.EARLY: f"a stamp before {EARLIEST_STAMP:%Y}, which no ingest writes: a new ingest is not detected",
    StampFault.AHEAD: "a stamp far ahead of the database's clock: until the clock passes it, every answer has their "
    "cells, ingested again or not",
}
"""The reason to re-pull rows with such stamps by hand."""


def _repulls(
    question: FeedRequest, changed: Collection[date], invalid_stamps: Mapping[StampFault, Mapping[date, int]]
) -> tuple[Repull, ...]:
    """Return the days that a careful consumer re-pulls beside the rows."""
    found = []
    if question.first_day_then < question.read_from:
        found.append(Repull(
            question.first_day_then, question.read_from - timedelta(days=1),
            "they have left the horizon since then, and days as old as that are not read",
        ))  # fmt: skip
    found += [Repull(first, last, "they were ingested again, and have left the horizon since then")
              for first, last in day_ranges(changed)]  # fmt: skip
    for kind, counts in invalid_stamps.items():
        for first, last in day_ranges(counts):
            rows = sum(count for day, count in counts.items() if first <= day <= last)
            have = "1 row has" if rows == 1 else f"{rows} rows have"
            found.append(Repull(first, last, f"{have} {_STAMP_FAULTS[kind]}"))
    return tuple(found)


def day_ranges(days: Collection[date]) -> list[tuple[date, date]]:
    """Return the first and the last day of each run of days without a gap."""
    ordered = sorted(days)
    if not ordered:
        return []
    breaks = [(before, after) for before, after in pairwise(ordered) if after - before > timedelta(days=1)]
    firsts = [ordered[0], *(after for _, after in breaks)]
    lasts = [*(before for before, _ in breaks), ordered[-1]]
    return list(zip(firsts, lasts, strict=True))
