"""The Metering API in memory: the sandbox's own desk and rules, without HTTP and SQLite.

Belongs here: a bill that is a dict, a clock that is an argument, a client as boto3 has it. Does not: what may be billed
(the sandbox's rules).
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import botocore.session
from botocore import exceptions
from botocore.parsers import create_parser

from metering_dagster.devstack.sandbox.bill import Bill, BilledRecord, BillStatus, RecordOutcome
from metering_dagster.devstack.sandbox.bill import Call as LoggedCall
from metering_dagster.devstack.sandbox.desk import TARGET, Arrival, Desk
from metering_dagster.devstack.sandbox.faults import Fault
from metering_dagster.devstack.sandbox.rules import AcceptedRecord, Identity
from metering_dagster.devstack.sandbox.world import World
from tests.simulation.memory.calls import Answer, Around, MemoryClient, Request

REGION = "us-east-1"


class MemoryBill(Bill):
    """What was billed and which calls came, in dicts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.first: dict[Identity, tuple[Decimal, str]] = {}
        self.lines: list[BilledRecord] = []
        """The bill, in the order it was written. Not to be changed."""
        self.log: list[LoggedCall] = []
        """The calls, in the order they arrived. Not to be changed."""
        self._world = World()

    def close(self) -> None:
        """There is nothing to close."""

    def settle(self, usages: Sequence[AcceptedRecord]) -> list[RecordOutcome]:
        """Bill what is new, in order."""
        return [self._settle(usage) for usage in usages]

    def _settle(self, usage: AcceptedRecord) -> RecordOutcome:
        first = self.first.get(usage.identity)
        if first is not None:
            same = first[0] == usage.quantity
            return RecordOutcome(BillStatus.SUCCESS, first[1]) if same else RecordOutcome(BillStatus.DUPLICATE_RECORD)
        if not usage.subscribed:
            return RecordOutcome(BillStatus.CUSTOMER_NOT_SUBSCRIBED)
        record_id = f"record-{len(self.lines) + 1:06d}"
        self.first[usage.identity] = (usage.quantity, record_id)
        identity = {name: getattr(usage.identity, name) or None for name in _IDENTITY}
        allocations = usage.record.get("UsageAllocations")
        quantity = format(usage.quantity.normalize(), "f")
        line: Any = {
            **identity,
            "quantity": quantity,
            "allocations": allocations,
            "metering_record_id": record_id,
        }
        self.lines.append(BilledRecord(**line))
        return RecordOutcome(BillStatus.SUCCESS, record_id)

    def billed(self) -> list[BilledRecord]:
        """The bill, in the order it was written."""
        return list(self.lines)

    def open_call(self, call: LoggedCall) -> int:
        """Log a call that has arrived; its time is that of the clock."""
        at = datetime.fromtimestamp(self.clock(), UTC).isoformat(timespec="microseconds")
        sequence = len(self.log) + 1
        self.log.append(replace(call, sequence=sequence, at=at, product_code=call.product_code or None))
        return sequence

    def close_call(self, sequence: int, outcome: str) -> None:
        """Log how it ended."""
        self.log[sequence - 1] = replace(self.log[sequence - 1], outcome=str(outcome))

    def calls(self) -> list[LoggedCall]:
        """All calls in the order they arrived."""
        return list(self.log)

    def world(self) -> World:
        """What the sandbox was told last."""
        return self._world

    def keep_world(self, world: World) -> None:
        """Remember it."""
        self._world = world

    def forget(self) -> None:
        """As new."""
        self.first.clear()
        self.lines.clear()
        self.log.clear()
        self._world = World()


_IDENTITY = (
    "region", "product_code", "license_arn", "customer_aws_account_id", "customer_identifier", "dimension", "hour",
)  # fmt: skip


class _Clock:
    """The desk's idea of now: the clock's, unless it was frozen at an instant."""

    def __init__(self, clock: Callable[[], float], frozen: datetime | None) -> None:
        self.clock, self.frozen = clock, frozen

    def now(self) -> datetime:
        """In UTC."""
        return self.frozen or datetime.fromtimestamp(self.clock(), UTC)


class MemoryMarketplace:
    """The service, steered as the sandbox is."""

    def __init__(self, clock: Callable[[], float] = time.time, now: datetime | None = None) -> None:
        """`clock`: seconds since 1970; hours, months and the quota all go by it, the first two unless `now` is said."""
        self.books = MemoryBill(clock)
        self.desk = Desk(self.books, now, clock)
        self.desk.clock = _Clock(clock, now)  # type: ignore[assignment]
        self.url = f"memory://{MeteringClient.service}"

    def client(self, around: Around | None = None, region: str = REGION) -> "MeteringClient":
        """A client of its own, as one process has it."""
        return MeteringClient(self, around, region)

    def bill(self) -> list[BilledRecord]:
        """What was billed so far, in order."""
        return self.books.billed()

    def calls(self) -> list[LoggedCall]:
        """The calls so far, in order."""
        return self.books.calls()

    def set_now(self, now: datetime | None) -> None:
        """Freeze the clock of hours and months at an instant; None: the clock's time."""
        self.desk.clock.frozen = now

    def configure(self, **settings: Any) -> dict[str, Any]:
        """Change the named settings of the World, and leave the others; returns them all."""
        self.desk.configure({name: _document(value) for name, value in settings.items()})
        return self.desk.world.document()

    def inject(self, *faults: Fault) -> None:
        """These faults and no others, counting calls from now on."""
        self.desk.faults.set(faults)

    def reset(self) -> None:
        """As new."""
        self.desk.forget()


class MeteringClient(MemoryClient):
    """boto3's method names and answers."""

    service = "meteringmarketplace"

    def __init__(self, service: MemoryMarketplace, around: Around | None, region: str) -> None:
        super().__init__(around, region)
        self.marketplace = service

    def batch_meter_usage(self, **request: Any) -> Answer:
        """One call."""
        return self._invoke("BatchMeterUsage", request, self._batch_meter_usage)

    def _batch_meter_usage(self, request: Request) -> Answer:
        body = json.dumps(request, default=_epoch).encode()
        answer = self.marketplace.desk.take(Arrival(TARGET, True, self.meta.region_name, body, len(body)))
        if answer is None:
            raise exceptions.ConnectionClosedError(endpoint_url=self.meta.endpoint_url)
        if answer.status != 200:
            raise self._error(answer.status, answer.body)
        parser, shape = _answers()
        found: Answer = parser.parse({"body": answer.body, "headers": {}, "status_code": 200}, shape)
        return found

    def _error(self, status: int, body: bytes) -> Exception:
        try:
            said = json.loads(body)
        except ValueError:
            said = {"__type": str(status), "message": body.decode()}
        failure: Exception = self.error("BatchMeterUsage", said["__type"], said["message"], status=status)
        return failure


def _document(value: Any) -> Any:
    """As it would have come over HTTP."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, dict):
        return {name: _document(each) for name, each in value.items()}
    return value


def _epoch(value: Any) -> int:
    """A time-stamp as the SDK sends it: whole seconds."""
    assert isinstance(value, datetime)
    return int(value.timestamp())


@cache
def _answers() -> tuple[Any, Any]:
    """The SDK's own parser of this service's answers, and the shape of the one that there is."""
    model = botocore.session.get_session().get_service_model("meteringmarketplace")
    return create_parser(model.metadata["protocol"]), model.operation_model("BatchMeterUsage").output_shape
