"""The sensor's cursor: what it remembers from poll to poll. Pure.

Belongs here: the cursor's content, and its text. Does not: polling (services/poll), when a pending day is due
(pending_day). Instants are the database's; in the text they are microseconds since 1970. No subscription is named.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Any

from metering_dagster.billing_changes.rules.cells import Signal, instant_of, microseconds_of
from metering_dagster.billing_changes.rules.pending_day import DueReason, PendingDay
from metering_dagster.billing_changes.rules.watermark import Narrowed, PollRules, halved, start_of

_VERSION = 1
_SECOND = 1_000_000
"""In microseconds."""
_YEARS = range(1900, 9000)
"""Valid years of a clock. Beyond them, subtracting a horizon or adding a pause could overflow. Stamps of rows may be of
any year."""
_LONGEST_SPAN = timedelta(days=900 * 365)
_MICROSECOND = timedelta(microseconds=1)
_SHORT = {Signal.DAILY: "daily", Signal.FACTS: "facts"}
_REASONS = list(DueReason)


@dataclass(frozen=True)
class PollGap:
    """Time without a poll, longer than the overlap."""

    since: datetime
    until: datetime
    left: tuple[date, date] | None
    """The first and last day that left the horizon in that time; None if none did."""

    @property
    def message(self) -> str:
        """Return the message about it for operators."""
        text = f"The sensor did not poll from {self.since:%Y-%m-%dT%H:%M:%SZ} until {self.until:%Y-%m-%dT%H:%M:%SZ}."
        if self.left is None:
            return text
        first, last = self.left
        which = f"{first} has" if first == last else f"{first} to {last} have"
        return f"{text} {which} left the horizon in that time and will not be reconciled: materialize by hand."


@dataclass(frozen=True)
class PollCursor:
    """Content of the sensor's cursor."""

    polled_at: datetime
    """When the last poll began."""
    claims: str
    """A digest of what the subscriptions claimed then; empty before the first poll."""
    starts: Mapping[Signal, datetime]
    """The stamp from which each table was read."""
    marks: Mapping[Signal, datetime] = field(default_factory=dict)
    """The stamp up to which each table was read; none for a table of which no row was read yet."""
    states: Mapping[date, str] = field(default_factory=dict)
    """A digest of each day's rows in that range."""
    summed: datetime | None = None
    """When the checksums of the whole horizon were read."""
    sums: Mapping[date, str] = field(default_factory=dict)
    """The checksum of each day then."""
    suspects: frozenset[date] = frozenset()
    """Days whose checksum changed, and that were not compared since."""
    compared: Mapping[date, datetime] = field(default_factory=dict)
    """When a day was last compared exactly with its report, or was materialized; to the second."""
    pending: Mapping[date, PendingDay] = field(default_factory=dict)
    gap: PollGap | None = None
    """Kept until a run has reported it."""
    narrowed: Mapping[Signal, Narrowed] = field(default_factory=dict)
    """The tables that are read in pieces, since one reading took too long."""

    @property
    def seen(self) -> datetime:
        """Return the instant up to which the last poll read everything that was stamped and committed by then."""
        return min([self.polled_at, *(one.read_until for one in self.narrowed.values())])

    def narrower(self, signal: Signal, now: datetime, rules: PollRules) -> "PollCursor | None":
        """Return the cursor after reading this table took too long; None if it cannot be narrower."""
        one = halved(self.starts[signal], self.narrowed.get(signal), self.polled_at, now, rules)
        return None if one is None else replace(self, narrowed={**self.narrowed, signal: one})

    def rewound(self, now: datetime) -> "PollCursor":
        """Move all times back to `now` after the database's clock was set back; marks stay.

        A time in the future would be waited for.
        """
        return replace(
            self,
            polled_at=min(self.polled_at, now),
            summed=None if self.summed is None or self.summed > now else self.summed,
            compared={day: at for day, at in self.compared.items() if at <= now},
            pending={day: one.rewound(now) for day, one in self.pending.items()},
        )


def beginning(now: datetime, rules: PollRules) -> PollCursor:
    """Return the cursor before the first poll."""
    return PollCursor(now, "", {signal: start_of(None, now, rules) for signal in Signal})


def write(cursor: PollCursor) -> str:
    """Return the cursor's text, equal for equal content."""
    days = sorted({*cursor.states, *cursor.sums, *cursor.compared, *cursor.suspects})
    content: dict[str, Any] = {
        "version": _VERSION,
        "looked": _number(cursor.polled_at),
        "claims": cursor.claims,
        "starts": {_SHORT[signal]: _number(at) for signal, at in cursor.starts.items()},
        "marks": {_SHORT[signal]: _number(at) for signal, at in cursor.marks.items()},
        "summed": _number(cursor.summed),
        "days": {day.isoformat(): _day(cursor, day) for day in days},
        "pending": {day.isoformat(): _pending(one) for day, one in sorted(cursor.pending.items())},
    }
    if cursor.narrowed:
        content["narrowed"] = {
            _SHORT[signal]: [one.span // _MICROSECOND, _number(one.read_until)]
            for signal, one in cursor.narrowed.items()
        }
    if cursor.gap is not None:
        left = cursor.gap.left and [day.isoformat() for day in cursor.gap.left]
        content["gap"] = [_number(cursor.gap.since), _number(cursor.gap.until), left]
    return json.dumps(content, separators=(",", ":"))


def read(text: str | None) -> tuple[PollCursor | None, str]:
    """Read a cursor's text. Return None and a message where there is none, or it cannot be understood."""
    if text is None:
        return None, "First poll: a run is requested for every day of the horizon that has rows."
    try:
        return _read(json.loads(text)), ""
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        return None, (
            "The sensor's cursor cannot be understood, so polling starts anew: a run is requested for every day of the "
            "horizon that has rows. Days that left the horizon since the last poll are not requested."
        )


def _day(cursor: PollCursor, day: date) -> list[Any]:
    compared = cursor.compared.get(day)
    return [
        cursor.states.get(day, ""),
        cursor.sums.get(day, ""),
        None if compared is None else microseconds_of(compared) // _SECOND,
        int(day in cursor.suspects),
    ]


def _pending(one: PendingDay) -> list[Any]:
    return [
        _number(one.first), _number(one.since), _number(one.changed_at), _number(one.newest), _REASONS.index(one.why),
        _number(one.requested_at), one.attempt, int(one.reports_gap),
    ]  # fmt: skip


def _read(content: Mapping[str, Any]) -> PollCursor:
    if content["version"] != _VERSION:
        raise ValueError("a cursor of another version")
    days = {date.fromisoformat(day): found for day, found in content["days"].items()}
    starts = {signal: _needed(content["starts"][short]) for signal, short in _SHORT.items()}
    return PollCursor(
        polled_at=_needed(content["looked"]),
        claims=_text(content["claims"]),
        starts=starts,
        marks={signal: _needed(content["marks"][short]) for signal, short in _SHORT.items()
               if short in content["marks"]},
        states={day: _text(found[0]) for day, found in days.items() if found[0]},
        summed=_instant(content["summed"]),
        sums={day: _text(found[1]) for day, found in days.items() if found[1]},
        suspects=frozenset(day for day, found in days.items() if found[3]),
        compared={day: _needed(int(found[2]) * _SECOND) for day, found in days.items() if found[2] is not None},
        pending={date.fromisoformat(day): _read_pending(found) for day, found in content["pending"].items()},
        gap=_read_gap(content["gap"]) if "gap" in content else None,
        narrowed=_read_narrowed(content.get("narrowed", {})),
    )  # fmt: skip


def _read_pending(found: list[Any]) -> PendingDay:
    first, since, changed_at, newest, why, requested_at, attempt, reports_gap = found
    return PendingDay(
        _instant(first),
        _needed(since),
        _needed(changed_at),
        None if newest is None else instant_of(int(newest)),
        _REASONS[int(why)],
        _instant(requested_at),
        int(attempt),
        bool(reports_gap),
    )


def _read_narrowed(found: Mapping[str, list[Any]]) -> dict[Signal, Narrowed]:
    narrowed = {}
    for signal, short in _SHORT.items():
        if short in found:
            span, read_until = found[short]
            one = Narrowed(timedelta(microseconds=int(span)), _needed(read_until))
            if not timedelta(0) < one.span <= _LONGEST_SPAN:
                raise ValueError("invalid span of a piece")
            narrowed[signal] = one
    return narrowed


def _read_gap(found: list[Any]) -> PollGap:
    since, until, left = found
    days = None if left is None else (date.fromisoformat(left[0]), date.fromisoformat(left[1]))
    return PollGap(_needed(since), _needed(until), days)


def _number(instant: datetime | None) -> int | None:
    return None if instant is None else microseconds_of(instant)


def _instant(number: int | None) -> datetime | None:
    return None if number is None else _needed(number)


def _needed(number: int) -> datetime:
    instant = instant_of(int(number))
    if instant.year not in _YEARS:
        raise ValueError("invalid instant of a poll")
    return instant


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("invalid text")
    return value
