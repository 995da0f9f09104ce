"""Faults on request: which calls they strike, and what they do to them.

Belongs here: the kinds of fault, a function that makes each, their JSON form, which call is struck. Does not: carrying
them out (desk.py).
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypedDict, Unpack

from metering_dagster.devstack.sandbox.content import Content
from metering_dagster.devstack.sandbox.errors import ControlError, http_status
from metering_dagster.devstack.sandbox.odd import WAYS
from metering_dagster.devstack.sandbox.world import read_texts

LONGEST_LATENCY = 3600.0


class FaultKind(StrEnum):
    """Kind of fault."""

    LATENCY = "latency"
    DROP = "drop"
    HTTP_503 = "http_503"
    ERROR = "error"
    UNPROCESSED = "unprocessed"
    LOST_ANSWER = "lost_answer"
    ODD_ANSWER = "odd_answer"


@dataclass(frozen=True)
class Fault:
    """Fault to inject. `calls` are numbers, "from N" or "all"; only calls with its content count, from 1."""

    kind: FaultKind
    calls: tuple[int, ...] | str = "all"
    dimension: str | None = None
    product_code: str | None = None
    license_arn: str | None = None
    code: str | None = None
    """For an error: its code."""
    status: int | None = None
    """For an error: its HTTP status; None: the usual one of its code."""
    count: int | None = None
    """For unprocessed: the number of records, the first ones; None without dimensions: all of them."""
    dimensions: tuple[str, ...] | None = None
    """For unprocessed: the records of these dimensions."""
    seconds: float | None = None
    """For latency: how long the call waits."""
    way: str | None = None
    """For an odd answer: its way (odd.py)."""

    def looks_at(self, content: Content) -> bool:
        """Judge whether the call has the content of this fault."""
        return (
            (self.dimension is None or self.dimension in content.dimensions)
            and (self.license_arn is None or self.license_arn in content.licenses)
            and (self.product_code is None or self.product_code == content.product_code)
        )

    def falls_on(self, number: int) -> bool:
        """Judge whether the fault strikes the call of this number."""
        if isinstance(self.calls, str):
            return self.calls == "all" or number >= int(self.calls.removeprefix("from "))
        return number in self.calls

    def leaves_out(self, records: Sequence[Mapping[str, Any]]) -> frozenset[int]:
        """Return the positions of the records that come back unprocessed."""
        if self.dimensions is not None:
            wanted = self.dimensions
            return frozenset(place for place, record in enumerate(records) if record["Dimension"] in wanted)
        return frozenset(range(len(records) if self.count is None else min(self.count, len(records))))

    def document(self) -> dict[str, Any]:
        """Return the JSON form, which `read_fault` reads."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Disturbance:
    """Faults that strike one call."""

    faults: tuple[Fault, ...] = ()

    def first(self, kind: FaultKind) -> Fault | None:
        """Return the first fault of a kind, if any."""
        return next((fault for fault in self.faults if fault.kind is kind), None)

    def seconds(self) -> float:
        """Return how many seconds the call waits."""
        return sum(fault.seconds or 0.0 for fault in self.faults if fault.kind is FaultKind.LATENCY)

    def leaves_out(self, records: Sequence[Mapping[str, Any]]) -> frozenset[int]:
        """Return the positions of all records that come back unprocessed."""
        leaving = (fault.leaves_out(records) for fault in self.faults if fault.kind is FaultKind.UNPROCESSED)
        return frozenset().union(*leaving)


class FaultPlan:
    """Faults in force, each with the number of calls with its content since it was set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: tuple[Fault, ...] = ()
        self._looked_at: list[int] = []

    def set(self, faults: Sequence[Fault]) -> None:
        """Set these faults and no others, counting from the next call."""
        with self._lock:
            self._faults, self._looked_at = tuple(faults), [0] * len(faults)

    def next_call(self, content: Content) -> Disturbance:
        """Count this call, and return the faults that strike it."""
        with self._lock:
            striking = [fault for place, fault in enumerate(self._faults) if self._strikes(place, content)]
            return Disturbance(tuple(striking))

    def _strikes(self, place: int, content: Content) -> bool:
        fault = self._faults[place]
        if not fault.looks_at(content):
            return False
        self._looked_at[place] += 1
        return fault.falls_on(self._looked_at[place])


class Carrying(TypedDict, total=False):
    """Content that a call must have for a fault to count it."""

    dimension: str
    product_code: str
    license_arn: str


Calls = int | Iterable[int] | str


def error(code: str, *, status: int | None = None, calls: Calls = "all", **content: Unpack[Carrying]) -> Fault:
    """Make a fault by which the call fails with this code."""
    return Fault(FaultKind.ERROR, _numbers(calls), code=code, status=status, **content)


def unprocessed(
    count: int | None = None,
    *,
    dimensions: Iterable[str] | None = None,
    calls: Calls = "all",
    **content: Unpack[Carrying],
) -> Fault:
    """Make a fault by which the first `count` records, those of some dimensions, or all come back unprocessed."""
    named = None if dimensions is None else tuple(dimensions)
    return Fault(FaultKind.UNPROCESSED, _numbers(calls), count=count, dimensions=named, **content)


def lost_answer(*, calls: Calls = "all", **content: Unpack[Carrying]) -> Fault:
    """Make a fault by which the call is billed, and the connection ends without an answer."""
    return Fault(FaultKind.LOST_ANSWER, _numbers(calls), **content)


def odd_answer(way: str, *, calls: Calls = "all", **content: Unpack[Carrying]) -> Fault:
    """Make a fault by which the call is billed, and its answer breaks the API's model."""
    return Fault(FaultKind.ODD_ANSWER, _numbers(calls), way=way, **content)


def drop(*, calls: Calls = "all", **content: Unpack[Carrying]) -> Fault:
    """Make a fault by which the connection ends, and nothing is billed."""
    return Fault(FaultKind.DROP, _numbers(calls), **content)


def latency(seconds: float, *, calls: Calls = "all", **content: Unpack[Carrying]) -> Fault:
    """Make a fault by which the call waits before it is handled."""
    return Fault(FaultKind.LATENCY, _numbers(calls), seconds=seconds, **content)


def http_503(*, calls: Calls = "all", **content: Unpack[Carrying]) -> Fault:
    """Make a fault by which a load balancer answers instead of the service, in plain text."""
    return Fault(FaultKind.HTTP_503, _numbers(calls), **content)


def _numbers(calls: Calls) -> tuple[int, ...] | str:
    if isinstance(calls, str):
        return calls
    return (calls,) if isinstance(calls, int) else tuple(calls)


OWN_SETTINGS = {
    FaultKind.ERROR: {"code", "status"},
    FaultKind.UNPROCESSED: {"count", "dimensions"},
    FaultKind.LATENCY: {"seconds"},
    FaultKind.ODD_ANSWER: {"way"},
}
COMMON_SETTINGS = {"kind", "calls", "dimension", "product_code", "license_arn"}


def read_fault(document: Any) -> Fault:
    """Read a fault from its JSON form. Raises `ControlError` for missing, unknown or invalid settings."""
    if not isinstance(document, dict):
        raise ControlError("a fault must be an object")
    try:
        kind = FaultKind(document.get("kind", ""))
    except ValueError:
        raise ControlError(f"kind must be one of {', '.join(FaultKind)}") from None
    unknown = sorted(set(document) - COMMON_SETTINGS - OWN_SETTINGS.get(kind, set()))
    if unknown:
        raise ControlError(f"a fault of kind {kind} has no {', '.join(unknown)}")
    fault = Fault(kind, **{name: READERS[name](name, value) for name, value in document.items() if name != "kind"})
    if kind is FaultKind.ERROR and fault.code is None:
        raise ControlError("an error needs its code")
    if kind is FaultKind.ODD_ANSWER and fault.way is None:
        raise ControlError("an odd answer needs its way")
    if kind is FaultKind.LATENCY and fault.seconds is None:
        raise ControlError("latency needs its seconds")
    return fault


def status_of(fault: Fault) -> int:
    """Return the HTTP status of an injected error."""
    return fault.status if fault.status is not None else http_status(fault.code or "")


def _calls(name: str, value: Any) -> tuple[int, ...] | str:
    if isinstance(value, str):
        start = value.removeprefix("from ")
        if value == "all" or (value != start and start.isdecimal() and start.isascii()):
            return value
        raise ControlError(f'{name} must be numbers from 1, "from N" or "all"')
    numbers = value if isinstance(value, list) else [value]
    return tuple(_whole(name, number, 1) for number in numbers)


def _whole(name: str, value: Any, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ControlError(f"{name} must be a whole number from {least}")
    return value


def _status(name: str, value: Any) -> int:
    if not 400 <= _whole(name, value) <= 599:
        raise ControlError(f"{name} must be an HTTP status from 400 to 599")
    return int(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ControlError(f"{name} must be a string that says something")
    return value


def _dimensions(name: str, value: Any) -> tuple[str, ...]:
    return tuple(sorted(read_texts(name, value)))


def _way(name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in WAYS:
        raise ControlError(f"{name} must be one of {', '.join(WAYS)}")
    return value


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_LATENCY:
        raise ControlError(f"{name} must be a number from 0 to {LONGEST_LATENCY:.0f}")
    return float(value)


READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "calls": _calls,
    "dimension": _text,
    "product_code": _text,
    "license_arn": _text,
    "code": _text,
    "status": _status,
    "count": _whole,
    "dimensions": _dimensions,
    "seconds": _seconds,
    "way": _way,
}
