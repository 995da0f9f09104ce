"""Instants as others write them into the tables (domain: the usage table). Pure.

Belongs here: reading a `timestamp` or a stamp in any form that sellers and other pipelines use. Does not: the key's own
timestamp, whose form is fixed (raw_row); what an instant means.
"""

import re
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from decimal import Decimal

_TO_THE_SECOND = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}[T ][0-9]{2}:?[0-9]{2}:?[0-9]{2}")
"""A date alone, or an hour and minute, leave open which second is meant."""
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND = Decimal(10) ** 11
"""Epoch seconds below it, up to the year 5138; milliseconds from it on, so from March 1973."""
_LAST_MILLISECOND = Decimal(10) ** 14


def instant_of_any_form(stated: object) -> datetime | None:
    """Return the instant in UTC; None for what is no instant.

    Text is ISO-8601 to the second or finer, without a zone in UTC. A number, also as text, is epoch seconds or
    milliseconds.
    """
    if isinstance(stated, str):
        return _of_number(Decimal(stated)) if _NUMBER.fullmatch(stated) else _of_text(stated)
    return _of_number(stated) if isinstance(stated, Decimal) else None


def instant_of(text: object) -> datetime | None:
    """Return the instant that the tables state, in UTC; None for what is none, has no zone, or lies at the calendar's
    end.
    """
    try:
        stated = datetime.fromisoformat(text) if isinstance(text, str) else None
        if stated is None or stated.tzinfo is None:
            return None
        instant = stated.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return instant if MINYEAR < instant.year < MAXYEAR else None


def _of_text(text: str) -> datetime | None:
    if not _TO_THE_SECOND.match(text):
        return None
    try:
        instant = datetime.fromisoformat(text)
        return instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _of_number(number: Decimal) -> datetime | None:
    if not number.is_finite() or not 0 <= number < _LAST_MILLISECOND:
        return None
    microseconds = number.scaleb(6 if number < _LAST_SECOND else 3)
    return _EPOCH + timedelta(microseconds=int(microseconds))
