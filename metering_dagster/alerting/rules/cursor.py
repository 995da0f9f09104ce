"""What the sensor remembers from tick to tick: its cursor. Pure.

Belongs here: what was seen, what waits for whom, how it is written down. Does not: looking, sending. All of it is
masked: a cursor shows in the UI. Instants are seconds since 1970, by the real clock.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from metering_dagster.alerting.rules.alert_text import Alert
from metering_dagster.core import hours

OVERLAP_SECONDS = 900.0
"""How far before the newest failure is looked again: writers' clocks differ, and one may be slow to store events."""
GIVEN_UP_SECONDS = 86_400.0
"""A channel that takes nothing for a day is not told any more of what is older: the log has it."""
MOST_WAITING = 1_000
"""No more is taken up while so many alerts wait."""
REMEMBERED = 48 * hours.HOUR
"""Longer than an hour can be billed, with what the month's grace brings back."""
_VERSION = 1


@dataclass(frozen=True)
class Waiting:
    """An alert that not everybody has taken yet."""

    since: float
    told: frozenset[str] = frozenset()
    """The channels that have taken it."""
    alert: Alert | None = None
    """None: it is made from its run, whose id is the key."""


@dataclass
class AlertCursor:
    """The cursor's content."""

    start: float
    """Failures from before are no news."""
    newest: float
    """When the newest failure that was taken up happened."""
    seen: dict[str, float] = field(default_factory=dict)
    """The runs taken up, as far back as is looked again, and when they failed."""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """By the alert's key, the oldest first."""
    hours: set[str] = field(default_factory=set)
    """The hours that were reported as not closed."""
    looked: float = 0.0
    """When the hours were looked at."""

    @property
    def look_from(self) -> float:
        """Return the instant after which failures are looked for."""
        return max(self.start, self.newest - OVERLAP_SECONDS)

    @property
    def has_room(self) -> bool:
        """Return whether more may be taken up."""
        return len(self.waiting) < MOST_WAITING

    def take_failure(self, run_id: str, failed: float, now: float) -> None:
        """A failed run is to be told of."""
        self.pass_over(run_id, failed, now)
        self.waiting[run_id] = Waiting(now)

    def pass_over(self, run_id: str, failed: float, now: float) -> None:
        """A failed run has been looked at, and need not be again."""
        self.seen[run_id] = failed
        self.newest = max(self.newest, min(failed, now))  # a writer's clock may be ahead of ours

    def take_hours(self, buckets: list[str], alert: Alert, now: float) -> None:
        """These hours are to be told of, in one alert."""
        self.hours.update(buckets)
        self.waiting[alert.key] = Waiting(now, alert=alert)

    def tell(self, key: str, channel: str) -> None:
        """This channel has taken it."""
        self.waiting[key] = replace(self.waiting[key], told=self.waiting[key].told | {channel})

    def untold(self, channel: str, most: int) -> list[str]:
        """Return what this channel has not taken yet, the oldest first."""
        return [key for key, alert in self.waiting.items() if channel not in alert.told][:most]

    def forget(self, channels: set[str], now: float, hour_now: datetime) -> list[str]:
        """Drop what everybody has been told of, and what is too old to matter; the keys that are given up."""
        done = [key for key, alert in self.waiting.items() if channels <= alert.told]
        given_up = [k for k, a in self.waiting.items() if k not in done and now - a.since > GIVEN_UP_SECONDS]
        for key in (*done, *given_up):
            del self.waiting[key]
        self.seen = {run: failed for run, failed in self.seen.items() if failed > self.look_from}
        self.hours = {bucket for bucket in self.hours if hour_now - hours.parse_bucket(bucket) < REMEMBERED}
        return given_up


def write(memory: AlertCursor) -> str:
    """Return the memory as a cursor; the same text for the same content."""
    return json.dumps({
        "version": _VERSION, "start": memory.start, "newest": memory.newest, "looked": memory.looked,
        "hours": sorted(memory.hours), "seen": memory.seen,
        "waiting": {key: _written(alert) for key, alert in memory.waiting.items()},
    })  # fmt: skip


def read(cursor: str | None, now: float) -> tuple[AlertCursor, str]:
    """Return the memory of a cursor, and what is to be said about it; one that cannot be read starts anew,
    and says so.
    """
    if cursor is None:
        return AlertCursor(now, now), "Watching starts now: what failed before is not reported."
    try:
        return _read(json.loads(cursor), now), ""
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return AlertCursor(now, now), (
            "The sensor's cursor cannot be read, so watching starts anew: what failed before now and was not told yet "
            "is not reported. See the failed runs in the UI."
        )


def _written(waiting: Waiting) -> Mapping[str, Any]:
    alert = {} if waiting.alert is None else {"alert": asdict(waiting.alert)}
    return {"since": waiting.since, "told": sorted(waiting.told)} | alert


def _read(content: Mapping[str, Any], now: float) -> AlertCursor:
    if content["version"] != _VERSION:
        raise ValueError("a cursor of another version")
    waiting = {
        str(key): Waiting(
            _seconds(found["since"]),
            frozenset(_text(channel) for channel in found["told"]),
            _alert(found["alert"]) if "alert" in found else None,
        )
        for key, found in content["waiting"].items()
    }
    return AlertCursor(
        # Where the clock was set back, nothing would be looked at until it is there again.
        start=min(_seconds(content["start"]), now),
        newest=min(_seconds(content["newest"]), now),
        seen={str(run): _seconds(failed) for run, failed in content["seen"].items()},
        waiting=waiting,
        hours={hours.bucket(hours.parse_bucket(bucket)) for bucket in content["hours"]},
        looked=_seconds(content["looked"]),
    )


def _alert(content: Mapping[str, Any]) -> Alert:
    said = {name: _text(value) for name, value in content.items() if value is not None}
    return Alert(**said)


def _seconds(value: object) -> float:
    seconds = float(_number(value))
    datetime.fromtimestamp(seconds, UTC)  # ValueError or OverflowError where it is no instant
    return seconds


def _number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("no number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
