"""The handling of one BatchMeterUsage call, from its arrival to its response.

Belongs here: the order of the steps (log, throttle, disturb, examine, bill, answer). Does not: each step's rules.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from metering_dagster.devstack.sandbox.bill import Bill, Call, RecordOutcome
from metering_dagster.devstack.sandbox.content import Content, content_of
from metering_dagster.devstack.sandbox.errors import Code, RefusedError, http_status
from metering_dagster.devstack.sandbox.faults import Disturbance, FaultKind, FaultPlan, status_of
from metering_dagster.devstack.sandbox.limiter import Limiter
from metering_dagster.devstack.sandbox.odd import WAYS
from metering_dagster.devstack.sandbox.rules import AcceptedRecord, examine
from metering_dagster.devstack.sandbox.world import World

TARGET = "AWSMPMeteringService.BatchMeterUsage"
BODY_LIMIT = 1_000_000
OK = "ok"
AWS_JSON = "application/x-amz-json-1.1"


@dataclass(frozen=True)
class Arrival:
    """Request as it arrived. `size` may exceed the body's length: the end of a too long body is not kept."""

    target: str
    signed: bool
    region: str
    body: bytes
    size: int


@dataclass(frozen=True)
class DeskResponse:
    """Response to send."""

    status: int
    body: bytes
    content_type: str = AWS_JSON


class Clock:
    """Clock of the sandbox: real time, or frozen at an instant."""

    def __init__(self, frozen: datetime | None) -> None:
        self.frozen = frozen

    def now(self) -> datetime:
        """Return the present instant, in UTC."""
        return self.frozen or datetime.now(UTC)


class Desk:
    """Desk that answers calls from any number of threads."""

    def __init__(self, bill: Bill, now: datetime | None, monotonic: Callable[[], float]) -> None:
        self.bill = bill
        self.clock = Clock(now)
        self.faults = FaultPlan()
        self.world = bill.world()
        self.closing = threading.Event()
        self._configuring = threading.Lock()
        self._limiter = Limiter(monotonic)
        self._started_at = now

    def take(self, arrival: Arrival) -> DeskResponse | None:
        """Handle a call; return its response, or None where the caller gets none."""
        request = _parsed(arrival.body)
        content = Content() if isinstance(request, RefusedError) else content_of(request)
        stamp, refusal = self._let_in(arrival)
        sequence = self.bill.open_call(_arrived(arrival, content, stamp))
        outcome, answer = self._refused(refusal) if refusal else self._serve(arrival.region, request, content)
        self.bill.close_call(sequence, outcome)
        return answer

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Change the configuration, and store it so that it survives a restart."""
        with self._configuring:
            world = self.world.changed(changes)
            self.bill.keep_world(world)
            self.world = world

    def forget(self) -> None:
        """Reset everything to the start on an empty database."""
        self.bill.forget()
        self.faults.set([])
        self.world = World()
        self.clock.frozen = self._started_at
        self._limiter.forget()

    def _let_in(self, arrival: Arrival) -> tuple[float, RefusedError | None]:
        """Return the call's time, and its refusal if any. Only signed calls of the operation use up the quota."""
        if not arrival.signed:
            return self._limiter.stamp(), RefusedError(Code.MISSING_TOKEN, "The request has no Authorization.")
        if arrival.target != TARGET:
            return self._limiter.stamp(), RefusedError(Code.UNKNOWN_OPERATION, "Only BatchMeterUsage is offered.")
        stamp, admitted = self._limiter.admit(arrival.region, self.world.calls_per_second)
        if not admitted:
            return stamp, RefusedError(Code.THROTTLING, "The calls to the API are throttled.")
        if arrival.size >= BODY_LIMIT:
            return stamp, RefusedError(Code.VALIDATION, f"The request must stay under {BODY_LIMIT} bytes.")
        return stamp, None

    def _serve(self, region: str, request: Any, content: Content) -> tuple[str, DeskResponse | None]:
        disturbance = self.faults.next_call(content)
        if self.closing.wait(disturbance.seconds()) or disturbance.first(FaultKind.DROP):
            return FaultKind.DROP, None
        if disturbance.first(FaultKind.HTTP_503):
            return FaultKind.HTTP_503, DeskResponse(503, b"Service Unavailable", "text/plain")
        if error := disturbance.first(FaultKind.ERROR):
            code = str(error.code)
            return code, _error(status_of(error), code, "An error on request.")
        try:
            outcome, answer = self._bill(region, request, disturbance)
        except RefusedError as refusal:
            outcome, answer = self._refused(refusal)
        return (FaultKind.LOST_ANSWER, None) if disturbance.first(FaultKind.LOST_ANSWER) else (outcome, answer)

    def _bill(self, region: str, request: Any, disturbance: Disturbance) -> tuple[str, DeskResponse]:
        if isinstance(request, RefusedError):
            raise request
        usages = examine(request, region, self.clock.now(), self.world)
        left_out = disturbance.leaves_out([usage.record for usage in usages])
        taken = [usage for place, usage in enumerate(usages) if place not in left_out]
        unprocessed = [usage.record for place, usage in enumerate(usages) if place in left_out]
        outcomes = self.bill.settle(taken)
        body = _json({"Results": _results(taken, outcomes), "UnprocessedRecords": unprocessed})
        odd = disturbance.first(FaultKind.ODD_ANSWER)
        return OK, DeskResponse(200, WAYS[str(odd.way)](body) if odd else body)

    def _refused(self, refusal: RefusedError) -> tuple[str, DeskResponse]:
        return refusal.code, _error(http_status(refusal.code), refusal.code, refusal.message)


def _parsed(body: bytes) -> Any:
    """Parse the body as JSON, or return its refusal. Text that SQLite cannot hold (half a character) is invalid."""
    try:
        request = json.loads(body, parse_constant=_no_number)
        json.dumps(request, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return RefusedError(Code.SERIALIZATION, "The body is not JSON.")
    return request


def _no_number(name: str) -> None:
    raise ValueError(name)


def _arrived(arrival: Arrival, content: Content, stamp: float) -> Call:
    return Call(
        sequence=0,
        monotonic=stamp,
        at=datetime.now(UTC).isoformat(timespec="microseconds"),
        records=content.records,
        bytes=arrival.size,
        region=arrival.region,
        product_code=content.product_code,
        hours=list(content.hours),
        licenses=len(content.licenses),
        outcome=None,
    )


def _results(usages: Sequence[AcceptedRecord], outcomes: Sequence[RecordOutcome]) -> list[dict[str, Any]]:
    return [_result(usage, outcome) for usage, outcome in zip(usages, outcomes, strict=True)]


def _result(usage: AcceptedRecord, outcome: RecordOutcome) -> dict[str, Any]:
    result = {"UsageRecord": usage.record, "Status": outcome.status}
    return result if outcome.metering_record_id is None else {**result, "MeteringRecordId": outcome.metering_record_id}


def _error(status: int, code: str, message: str) -> DeskResponse:
    return DeskResponse(status, _json({"__type": code, "message": message}))


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()
