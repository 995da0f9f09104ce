"""How far this machine's clock is off the one that answered: what a refused signature may hang on. Pure.

Belongs here: the codes that a wrong clock brings about, and the words about it. Does not: reading a clock.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

CODES = frozenset({
    "InvalidSignatureException", "SignatureDoesNotMatch", "RequestExpired", "RequestTimeTooSkewed",
})  # fmt: skip
"""AWS refuses a signature: of other credentials, or of a clock that is off by over five minutes."""


def words(response: Mapping[str, Any], now: datetime) -> str:
    """Return a sentence about this machine's clock, `now`, beside the Date header of a refusal; empty for other codes.

    `response` is a `ClientError`'s.
    """
    if response.get("Error", {}).get("Code", "") not in CODES:
        return ""
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    ours = f"This machine's clock says {now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    try:
        theirs = parsedate_to_datetime(str(headers.get("date", "")))
    except ValueError:
        return f"{ours}; the answer has no Date header to compare it with. Check the clock."
    theirs = theirs.replace(tzinfo=UTC) if theirs.tzinfo is None else theirs.astimezone(UTC)
    off = round((now - theirs).total_seconds())
    place = f"{abs(off)} s {'ahead of' if off > 0 else 'behind'}" if off else "the same as"
    return f"{ours}, {place} the answer's Date header ({theirs:%Y-%m-%dT%H:%M:%SZ}). Set the clock right if it is off."
