"""What a message of the queue says: a lifecycle event, or in words why it is none (domain: lifecycle events). Pure.

Belongs here: reading bodies that anybody may have written. Does not: what an event does to a row (lifecycle).

No word about a body quotes what may name a buyer.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from metering_dagster.core.masking import mask_text
from metering_dagster.metering.rules.aggregate_group import ACCOUNT, LICENSE_ARN

MAX_TEXT = 512
"""Characters of any value in a body; the longest that is meant, an ARN, is checked by its own pattern."""
MAX_ARN = 2048
_YEARS = range(2000, 9000)
"""An instant outside of these is no event's, and an hour more would not always be an instant."""
_SHOWN = 80


class EventKind(StrEnum):
    """The events that there are, by the beginning of their detail-type."""

    UPDATED = "License Updated"
    DEPROVISIONED = "License Deprovisioned"
    ENDED = "Purchase Agreement Ended"
    AMENDED = "Purchase Agreement Amended"
    CREATED = "Purchase Agreement Created"


_TELLING_OF_THE_END = frozenset({EventKind.UPDATED, EventKind.AMENDED})
_DETAIL_TYPE = re.compile(rf"({'|'.join(EventKind)})(?: - .+)?", re.DOTALL)
"""Real detail-types go on with who is told: ` - Manufacturer`, ` - Proposer`."""


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """One lifecycle event. None where it does not say; it names a license, an agreement, or both."""

    kind: EventKind
    time: datetime
    """In UTC."""
    license_arn: str | None = None
    account: str | None = None
    agreement_id: str | None = None
    end_time: str | None = None
    """As it was written."""
    product_code: str | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A body that is no event, and why."""

    words: str


def parse_event(body: str) -> LifecycleEvent | Unreadable:
    """Read the body of a message. It never raises, whatever the body is."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return Unreadable("its body is no JSON")
    try:
        return _event(content)
    except _Fault as fault:
        return Unreadable(str(fault))


class _Fault(Exception):  # noqa: N818  # never leaves this module
    """Why a body is no event."""


def _event(content: object) -> LifecycleEvent:
    if not isinstance(content, Mapping):
        raise _Fault("its body is no JSON object")
    detail, kind = _object(content, "detail", "detail"), _kind(content.get("detail-type"))
    event = LifecycleEvent(
        kind=kind,
        time=_instant(content.get("time")),
        license_arn=_license_arn(_leaf(detail, "license", "arn", MAX_ARN)),
        account=_account(_leaf(detail, "acceptor", "accountId")),
        agreement_id=_leaf(detail, "agreement", "id"),
        # Only where the kind of event uses it: a fault in it must not cost a license its flush.
        end_time=_leaf(detail, "agreement", "endTime") if kind in _TELLING_OF_THE_END else None,
        product_code=_leaf(detail, "product", "code"),
    )
    if event.license_arn is None and event.agreement_id is None:
        raise _Fault("it names nobody: neither detail.license.arn nor detail.agreement.id is there")
    return event


def _kind(value: object) -> EventKind:
    if value is None:
        raise _Fault("it has no detail-type")
    if not isinstance(value, str):
        raise _Fault("its detail-type is no text")
    match = _DETAIL_TYPE.fullmatch(value)
    if match is None:
        raise _Fault(f"its detail-type is none that is known: {mask_text(ascii(value))[:_SHOWN]}")
    return EventKind(match[1])


def _instant(value: object) -> datetime:
    try:
        instant = datetime.fromisoformat(value) if isinstance(value, str) else None
        if instant is not None and instant.tzinfo is not None:
            instant = instant.astimezone(UTC)
            if instant.year in _YEARS:
                return instant
    except (ValueError, OverflowError):
        pass
    raise _Fault("its time is no ISO-8601 instant with a zone, such as 2026-11-28T14:20:00Z")


def _license_arn(text: str | None) -> str | None:
    """Some events leave the leading `arn:` out; it is put back."""
    if text is None:
        return None
    arn = text if text.startswith("arn:") else f"arn:{text}"
    if not LICENSE_ARN.fullmatch(arn):
        raise _Fault("its detail.license.arn is no ARN of a license")
    return arn


def _account(text: str | None) -> str | None:
    if text is not None and not ACCOUNT.fullmatch(text):
        raise _Fault("its detail.acceptor.accountId is not all digits")
    return text


def _object(holder: Mapping[str, object], name: str, path: str) -> Mapping[str, object]:
    """Return an object within an object; an empty one where it is absent or null."""
    value = holder.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _Fault(f"its {path} is no JSON object")
    return value


def _leaf(detail: Mapping[str, object], part: str, name: str, longest: int = MAX_TEXT) -> str | None:
    """Return a text of the detail; None where it is absent, null or empty."""
    path = f"detail.{part}.{name}"
    value = _object(detail, part, f"detail.{part}").get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise _Fault(f"its {path} is no text")
    if len(value) > longest:
        raise _Fault(f"its {path} is longer than {longest} characters")
    if not value.isprintable():  # control characters, and surrogates that are no character at all
        raise _Fault(f"its {path} holds characters that no identifier has")
    return value
