"""The reading of rows stamped since the watermark, compared with the last poll's reading of the same stamps.

Belongs here: one reading of both tables from their starts on, and where the next one begins. Does not: the arithmetic
(rules/watermark), what happens to a changed day (poll), SQL (stores/queries).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING

from metering_dagster.billing_changes.rules.cells import Claims, Piece, Signal, cells_of, newest_of_days, states_of_days
from metering_dagster.billing_changes.rules.cursor import PollCursor
from metering_dagster.billing_changes.rules.reconcile import Days, changed_days
from metering_dagster.billing_changes.rules.watermark import (
    Narrowed,
    PollRules,
    advanced,
    end_of_piece,
    grown,
    lowered,
    mark_of_piece,
    start_after_piece,
    stepped,
)

if TYPE_CHECKING:
    from metering_dagster.billing_changes.stores.queries import BillingSnapshot


@dataclass(frozen=True)
class FreshStamps:
    """Result of one reading of both tables."""

    changed: frozenset[date]
    """The days that changed since the last poll."""
    newest: Mapping[date, datetime]
    """The latest stamp of each day."""
    states: Mapping[date, str]
    """A digest of each day, read from the next poll's starts, for it to compare with."""
    starts: Mapping[Signal, datetime]
    """The stamps where the next poll begins."""
    marks: Mapping[Signal, datetime]
    narrowed: Mapping[Signal, Narrowed]
    """The tables that the next poll reads in pieces."""
    ahead: frozenset[date]
    """Future days that have rows already; they are polled once they begin."""


def read_fresh(
    reading: "BillingSnapshot", before: PollCursor, claims: Claims, rules: PollRules, days: Days
) -> FreshStamps:
    """Read both tables from their starts on; a narrowed table is read up to an end.

    `days` include those of the last poll's horizon: an ingest just before a day left the horizon is still found.
    """
    now, narrowed = reading.now, before.narrowed
    starts = {signal: lowered(start, None if signal in narrowed else before.marks.get(signal), now, rules)
              for signal, start in before.starts.items()}  # fmt: skip
    found = {signal: end_of_piece(start, narrowed.get(signal), now) for signal, start in starts.items()}
    ends = {signal: end for signal, end in found.items() if end is not None}
    pieces = reading.pieces_since(starts, days.first, ends)
    cells = cells_of(pieces, claims)
    states = _within(days, states_of_days(cells.values()))
    marks = _marks(pieces, before, ends, now, rules)
    next_starts = {
        signal: start_after_piece(start, ends.get(signal), now, rules)
        if signal in narrowed
        else stepped(start, marks.get(signal), now, rules)
        for signal, start in starts.items()
    }
    next_states = states
    if next_starts != starts:  # in the same snapshot, so nothing comes in between
        again = cells_of(reading.pieces_since(next_starts, days.first, ends), claims)
        next_states = _within(days, states_of_days(again.values()))
    return FreshStamps(
        changed=frozenset(changed_days(_within(days, before.states), states)),
        newest=newest_of_days(cells),
        states=next_states,
        starts=next_starts,
        marks=marks,
        narrowed={signal: one for signal, each in narrowed.items() if (one := grown(each, ends.get(signal)))},
        ahead=frozenset(piece.day for piece in pieces if piece.day > days.last),
    )


def _marks(
    pieces: Iterable[Piece], before: PollCursor, ends: Mapping[Signal, datetime], now: datetime, rules: PollRules
) -> dict[Signal, datetime]:
    marks = {}
    for signal in Signal:
        mark = before.marks.get(signal)
        if signal in before.narrowed:
            mark = mark_of_piece(mark, ends.get(signal), now, rules)
        else:
            stamps = [p.side.newest for p in pieces if p.signal is signal and p.side.newest is not None]
            mark = advanced(mark, stamps, now, rules)
        if mark is not None:
            marks[signal] = mark
    return marks


def _within(days: Days, states: Mapping[date, str]) -> dict[date, str]:
    return {day: state for day, state in states.items() if day in days}
