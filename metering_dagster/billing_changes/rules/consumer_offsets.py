"""What a named consumer has taken, and what is new for it (domain: the billing-changes signal). Pure.

Belongs here: names, tokens, marks, offers, acknowledgements, the answer to a consumer. Does not: where the documents
and the reports lie (day_files), retries (feed).

A consumer has a mark for each day: reports of that day up to it are taken. An answer to it is an offer to move marks,
kept under a token; the acknowledgement of the token moves them, never back. An answer that is never acknowledged
moves nothing, so the next one holds the same again.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any

from metering_dagster.billing_changes.rules.cells import digest
from metering_dagster.billing_changes.rules.day_diff import CellChange, DayReport
from metering_dagster.billing_changes.rules.feed_response import instant_text
from metering_dagster.core.errors import DamagedFileError, FeedRefusedError

KEPT = 20
"""Offers, and acknowledged tokens, that are remembered: the newest ones."""
_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_.-]{0,63}")
_TOKEN = re.compile(r"[0-9a-f]{12}")
_NOTHING_REPORTED = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 80


@dataclass(frozen=True)
class Mark:
    """Up to where a day's reports are taken."""

    reported_at: datetime
    generation: str
    """Of the day's file when it was offered: while it is still the same one, nothing in it is new."""


@dataclass(frozen=True)
class Offer:
    """The marks that a consumer reaches by acknowledging; only those of days that it has something to take of."""

    consumer: str
    marks: Mapping[date, Mark]
    complete_until: datetime | None
    """Up to where what it was given is complete; None if that was not known."""

    @property
    def token(self) -> str:
        """Twelve hexadecimal digits; the same ones for the same consumer and marks."""
        marks = [f"{day}|{instant_text(one.reported_at)}|{one.generation}" for day, one in sorted(self.marks.items())]
        return digest([self.consumer, *marks])


@dataclass(frozen=True)
class ConsumerOffset:
    """The position of a consumer, and what it was offered last."""

    name: str
    marks: Mapping[date, Mark] = field(default_factory=dict)
    complete_until: datetime | None = None
    """The latest one that came with something acknowledged."""
    offers: tuple[Offer, ...] = ()
    """Oldest first; acknowledged ones are left out."""
    acknowledged: tuple[str, ...] = ()
    """Tokens, oldest first."""

    def has_taken(self, day: date, generation: str) -> bool:
        """Return whether the day's file is the one that was taken already."""
        mark = self.marks.get(day)
        return mark is not None and mark.generation == generation

    def new_of(self, report: DayReport) -> list[CellChange]:
        """Return the report's rows that the consumer has not taken.

        A report whose newest row is older than the mark is none that the consumer knows: the files were lost and made
        anew while the database's clock stood behind. Then all of it is new.
        """
        mark = self.marks.get(report.day)
        if mark is None or report.newest is None or report.newest < mark.reported_at:
            return list(report.rows)
        return [row for row in report.rows if row.reported_at > mark.reported_at]

    def offered(self, offer: Offer) -> "ConsumerOffset":
        """With this offer kept; the same standing if it is kept, or was acknowledged, already, or offers nothing."""
        if not offer.marks or offer.token in {*self.acknowledged, *(kept.token for kept in self.offers)}:
            return self
        return replace(self, offers=(*self.offers, offer)[-KEPT:])

    def acknowledging(self, token: str) -> "ConsumerOffset":
        """With the marks that the token stands for; the same standing if it was acknowledged already, or moves none.

        Marks move forward only, also by an offer that is older than what was acknowledged since. Raises
        `FeedRefusedError` for a token that is not known here.
        """
        if token in self.acknowledged or token == Offer(self.name, {}, None).token:
            return self
        offer = next((kept for kept in self.offers if kept.token == token), None)
        if offer is None:
            raise FeedRefusedError(
                f"The consumer {self.name} was never offered anything under the token {token}, or more than {KEPT} "
                "offers ago. Its marks are where they were. Ask for its changes again, and acknowledge the token that "
                "comes with them."
            )
        marks = dict(self.marks)
        for day, mark in offer.marks.items():
            if day not in marks or mark.reported_at >= marks[day].reported_at:
                marks[day] = mark
            elif marks[day].generation != mark.generation:  # files made anew: the file is taken, the mark stays
                marks[day] = Mark(marks[day].reported_at, mark.generation)
        return ConsumerOffset(
            self.name,
            marks,
            max((one for one in (self.complete_until, offer.complete_until) if one is not None), default=None),
            tuple(kept for kept in self.offers if kept.token != token),
            (*self.acknowledged, token)[-KEPT:],
        )


def offer_of(name: str, found: Iterable[tuple[str, DayReport]], complete_until: datetime | None) -> Offer:
    """Return what the consumer reaches by taking these reports, each with the generation of its file."""
    marks = {report.day: Mark(report.newest or _NOTHING_REPORTED, generation) for generation, report in found}
    return Offer(name, marks, complete_until)


def checked_name(name: object) -> str:
    """Return the consumer's name, if it may be one; else `FeedRefusedError`."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise FeedRefusedError(
        f"{_shown(name)} cannot be the name of a consumer. Nothing was read. A name has 1 to 64 of the characters "
        "A-Z a-z 0-9 _ . - and does not begin with a dot or an underscore."
    )


def checked_token(token: object) -> str:
    """Return the token, if it may be one; else `FeedRefusedError`."""
    if isinstance(token, str) and _TOKEN.fullmatch(token):
        return token
    raise FeedRefusedError(
        f"{_shown(token)} is no token. No mark was moved. A token is the twelve hexadecimal digits that came with the "
        "changes that are acknowledged (meta.token)."
    )


def _shown(value: object) -> str:
    if not isinstance(value, str):
        return f"A {type(value).__name__}"
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")


def content_of(standing: ConsumerOffset) -> dict[str, Any]:
    """Return the standing as a JSON object."""
    return {
        "version": _VERSION,
        "name": standing.name,
        "marks": _marks_json(standing.marks),
        "complete_until": _text(standing.complete_until),
        "offers": [
            {"marks": _marks_json(one.marks), "complete_until": _text(one.complete_until)} for one in standing.offers
        ],
        "acknowledged": list(standing.acknowledged),
    }


def standing_of(name: str, content: Mapping[str, Any]) -> ConsumerOffset:
    """Return the standing that such an object holds.

    Raises `DamagedFileError` for one that cannot be understood, and `FeedRefusedError` for one that is another
    consumer's: a file system that does not tell cases apart keeps two names in one file.
    """
    try:
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']!r}")
        standing = ConsumerOffset(
            str(content["name"]),
            _marks(content["marks"]),
            _instant(content["complete_until"]),
            tuple(Offer(name, _marks(one["marks"]), _instant(one["complete_until"])) for one in content["offers"]),
            tuple(str(token) for token in content["acknowledged"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DamagedFileError(
            f"What is kept of the consumer {name} cannot be understood ({type(error).__name__}: {error}). It was left "
            f"as it is. Put _consumers/{name}.json back from a copy, or delete it: then the consumer is given "
            "everything again."
        ) from error
    if standing.name != name:
        raise FeedRefusedError(
            f"What is kept for the consumer {name} is that of {_shown(standing.name)}: this place does not tell the "
            "cases of names apart. It was left as it is. Use the one spelling, or another name."
        )
    return standing


def _marks_json(marks: Mapping[date, Mark]) -> dict[str, list[str]]:
    return {str(day): [instant_text(mark.reported_at), mark.generation] for day, mark in sorted(marks.items())}


def _marks(content: Mapping[str, Any]) -> dict[date, Mark]:
    marks = {}
    for day, (reported_at, generation) in content.items():
        instant = _instant(reported_at)
        if instant is None:
            raise ValueError("a mark without an instant")
        marks[date.fromisoformat(day)] = Mark(instant, str(generation))
    return marks


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant_text(instant)


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"{text} names no zone")
    return instant.astimezone(UTC)
