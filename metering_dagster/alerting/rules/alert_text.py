"""What an alert says: of one failed run, or of hours that are not closed. Pure.

Belongs here: its parts, its forms (text, JSON), how long they may be. Does not: who hears of it (delivery), when there
is one (watch). Every form is masked here, whatever the parts carry.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from metering_dagster.core.masking import mask_lines, mask_text

CAUSE_CHARACTERS = 6_000
"""A message of SNS holds 256 KB; what a person reads is shorter."""
SUBJECT_CHARACTERS = 100
"""SNS takes no longer one, and ASCII only."""
_CUT = " … (cut; the link has all of it)"


@dataclass(frozen=True)
class Alert:
    """One message to the people who run this."""

    key: str
    """Which alert it is: the same however often it is sent."""
    subject: str
    cause: str
    link: str
    """Where to look: a URL, or a path where the UI's address is not known."""
    hour: str | None = None
    """The hour bucket, or whatever else the run was about."""
    lane: str | None = None
    job: str | None = None
    license: str | None = None
    """Masked; None where the cause names none."""
    run_id: str | None = None


def parts(alert: Alert) -> Mapping[str, str]:
    """Return what the alert says, by name, in the order in which it is read; nothing that it does not know."""
    said = {
        "subject": mask_text(alert.subject),
        "hour": mask_text(alert.hour or ""),
        "lane": mask_text(alert.lane or ""),
        "job": mask_text(alert.job or ""),
        "license": mask_text(alert.license or ""),
        "cause": _shortened(mask_lines(alert.cause.split("\n"))),
        "run": alert.run_id or "",  # an id of a run may end in twelve digits, which are no account
        "link": alert.link,
    }
    return {name: value for name, value in said.items() if value}


def text(alert: Alert) -> str:
    """Return the alert as a person reads it: the subject, then a line for each part."""
    said = dict(parts(alert))
    return "\n".join([said.pop("subject"), "", *(f"{name}: {value}" for name, value in said.items())])


def as_json(alert: Alert) -> Mapping[str, str]:
    """Return the alert for a program: its text, as chat systems want it, and each part by name."""
    return {"text": text(alert), **parts(alert)}


def subject_line(alert: Alert) -> str:
    """Return the subject as SNS takes it: printable ASCII in one line, at most 100 characters."""
    return re.sub(r"[^ -~]+", "?", mask_text(alert.subject)).strip()[:SUBJECT_CHARACTERS]


def _shortened(cause: str) -> str:
    return cause if len(cause) <= CAUSE_CHARACTERS else cause[: CAUSE_CHARACTERS - len(_CUT)] + _CUT
