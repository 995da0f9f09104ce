"""A named consumer's offset: what it has taken, and what is new for it (domain §7). Pure.

Belongs here: names, tokens, marks, offers, acknowledgements. Does not: the response to a consumer (consumer_response),
where documents and reports are stored (stores/day_files), retries (feed).

A consumer has a mark for each day: it has taken the reports of that day up to the mark. A response offers to advance
marks and is kept under a token. Acknowledging the token advances them; marks never go back. A response that is never
acknowledged advances nothing, so the next one repeats it.
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
"""The number of offers, and of acknowledged tokens, that are kept: the newest ones."""
_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_.-]{0,63}")
_TOKEN = re.compile(r"[0-9a-f]{12}")
_NOTHING_REPORTED = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 80


@dataclass(frozen=True)
class Mark:
    """Instant up to which a day's reports are taken."""

    reported_at: datetime
    generation: str
    """The generation of the day's file when it was offered: as long as the file has it, nothing in it is new."""


@dataclass(frozen=True)
class Offer:
    """Marks that a consumer reaches by acknowledging; only days with something new have one."""

    consumer: str
    marks: Mapping[date, Mark]
    complete_until: datetime | None
    """The instant up to which the response was complete; None if unknown."""

    @property
    def token(self) -> str:
        """Return twelve hexadecimal digits, equal for equal consumer and marks."""
        marks = [f"{day}|{instant_text(one.reported_at)}|{one.generation}" for day, one in sorted(self.marks.items())]
        return digest([self.consumer, *marks])


@dataclass(frozen=True)
class ConsumerOffset:
    """Marks of a consumer, and the offers it has not acknowledged."""

    name: str
    marks: Mapping[date, Mark] = field(default_factory=dict)
    complete_until: datetime | None = None
    """The latest `complete_until` of an acknowledged offer."""
    offers: tuple[Offer, ...] = ()
    """Oldest first; acknowledged ones are left out."""
    acknowledged: tuple[str, ...] = ()
    """Tokens, oldest first."""

    def has_taken(self, day: date, generation: str) -> bool:
        """Judge whether the consumer has taken this generation of the day's file."""
        mark = self.marks.get(day)
        return mark is not None and mark.generation == generation

    def new_of(self, report: DayReport) -> list[CellChange]:
        """Return the report's rows that the consumer has not taken.

        All rows are new where the newest is older than the mark: the files were lost, and made anew while the
        database's clock was behind.
        """
        mark = self.marks.get(report.day)
        if mark is None or report.newest is None or report.newest < mark.reported_at:
            return list(report.rows)
        return [row for row in report.rows if row.reported_at > mark.reported_at]

    def offered(self, offer: Offer) -> "ConsumerOffset":
        """Return the offset with this offer added; itself if the offer is empty, kept already or acknowledged."""
        if not offer.marks or offer.token in {*self.acknowledged, *(kept.token for kept in self.offers)}:
            return self
        return replace(self, offers=(*self.offers, offer)[-KEPT:])

    def acknowledging(self, token: str) -> "ConsumerOffset":
        """Return the offset advanced to the token's marks; itself if the token was acknowledged or offers nothing.

        Marks only advance, even if newer offers were acknowledged before. Raises `FeedRefusedError` for an unknown
        token.
        """
        if token in self.acknowledged or token == Offer(self.name, {}, None).token:
            return self
        offer = next((kept for kept in self.offers if kept.token == token), None)
        if offer is None:
            raise FeedRefusedError(
                f"The token {token} is unknown for the consumer {self.name}: it was never offered, or more than {KEPT} "
                "offers ago. The consumer's marks are unchanged. Read its changes again, and acknowledge the token "
                "that comes with them."
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
    """Return the offer of these reports, each given with the generation of its file."""
    marks = {report.day: Mark(report.newest or _NOTHING_REPORTED, generation) for generation, report in found}
    return Offer(name, marks, complete_until)


def checked_name(name: object) -> str:
    """Return a valid consumer name; raise `FeedRefusedError` for any other value."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise FeedRefusedError(
        f"{_shown(name)} is an invalid consumer name. Nothing was read. A name has 1 to 64 of the characters "
        "A-Z a-z 0-9 _ . - and does not begin with a dot or an underscore."
    )


def checked_token(token: object) -> str:
    """Return a valid token; raise `FeedRefusedError` for any other value."""
    if isinstance(token, str) and _TOKEN.fullmatch(token):
        return token
    raise FeedRefusedError(
        f"{_shown(token)} is an invalid token. The consumer's marks are unchanged. A token has twelve hexadecimal "
        "digits: acknowledge the one that came with the changes (meta.token)."
    )


def _shown(value: object) -> str:
    if not isinstance(value, str):
        return f"A {type(value).__name__}"
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")


def offset_content(offset: ConsumerOffset) -> dict[str, Any]:
    """Return the offset as a JSON object."""
    return {
        "version": _VERSION,
        "name": offset.name,
        "marks": _marks_json(offset.marks),
        "complete_until": _text(offset.complete_until),
        "offers": [
            {"marks": _marks_json(one.marks), "complete_until": _text(one.complete_until)} for one in offset.offers
        ],
        "acknowledged": list(offset.acknowledged),
    }


def read_offset(name: str, content: Mapping[str, Any]) -> ConsumerOffset:
    """Read the offset of a JSON object that `offset_content` made.

    Raises `DamagedFileError` where the object cannot be understood. Raises `FeedRefusedError` where it is another
    consumer's: a file system that ignores case keeps two names in one file.
    """
    try:
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']!r}")
        offset = ConsumerOffset(
            str(content["name"]),
            _marks(content["marks"]),
            _instant(content["complete_until"]),
            tuple(Offer(name, _marks(one["marks"]), _instant(one["complete_until"])) for one in content["offers"]),
            tuple(str(token) for token in content["acknowledged"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DamagedFileError(
            f"The stored offset of the consumer {name} cannot be understood ({type(error).__name__}: {error}). It was "
            f"left as it is. Restore _consumers/{name}.json from a copy, or delete it: the consumer then gets "
            "everything again."
        ) from error
    if offset.name != name:
        raise FeedRefusedError(
            f"The stored offset of the consumer {name} is that of {_shown(offset.name)}: this place ignores the "
            "case of names. It was left as it is. Use that spelling, or another name."
        )
    return offset


def _marks_json(marks: Mapping[date, Mark]) -> dict[str, list[str]]:
    return {str(day): [instant_text(mark.reported_at), mark.generation] for day, mark in sorted(marks.items())}


def _marks(content: Mapping[str, Any]) -> dict[date, Mark]:
    marks = {}
    for day, (reported_at, generation) in content.items():
        instant = _instant(reported_at)
        if instant is None:
            raise ValueError(f"the mark of {day} has no instant")
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
