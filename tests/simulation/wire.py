"""Between a process and AWS: time passes, calls fail, processes die.

Belongs here: what can happen to a single call, and the SDK's own retries. Does not: what calls do (memory), when the
service as a whole is away (plan), what it means (judge).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from tests.simulation.kernel import Kernel, Process
from tests.simulation.memory import failures
from tests.simulation.memory.odd_answers import odd
from tests.simulation.plan import HOUR, Plan, within

ATTEMPTS = {"tables": 3, "probe": 2, "queue": 2, "metering": 1}
"""How often the product's clients let the SDK try (aws.py)."""
_PATIENCE = {"tables": 10.0, "probe": 3.0, "queue": 5.0, "metering": 20.0}
"""After how many seconds they give up on an answer."""
FEW, FEW_CALLS = 2, 3
"""So many conflicts of a run, and so many calls of the Metering API in a row, may be more than it can mend."""
_RUSH_SECONDS = 60.0
_SERVICES = {"tables": "dynamodb", "probe": "dynamodb", "queue": "sqs", "metering": "meteringmarketplace"}


@dataclass
class Errand:
    """What a process is about, and what stood in its way. `process` is None of what takes no time."""

    name: str
    is_run: bool
    started: float
    mode: str = "live"
    region: str = "us-east-1"
    troubles: list[str] = field(default_factory=list)
    """What may have kept it from its work: faults that nothing less than another run mends."""
    conflicts: int = 0
    """Transactions that met another one; a single one is nothing that a run may fail at."""
    failed_in_a_row: int = 0
    """Calls of the Metering API of which something was left, one after the other; two are nothing either."""
    hid_messages: bool = False
    """An answer of the queue was lost on its way: what it brought is shown to nobody for a while."""
    process: Process | None = None
    reads: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """When it last read a group (license, prefix) from the table itself: its first page, and its last."""


class Observer(Protocol):
    """Who sees each effect, at once."""

    def carried_out(self, errand: Errand, kind: str, operation: str, request: Any, answer: Any, error: Any) -> None:
        """A call took effect, or was refused by the service."""


class JudgeBrokeError(BaseException):
    """The judge itself has a fault; no `Exception`, for the product goes on with others where a group raises one."""


Call = Callable[..., Any]


class Wire:
    """What all calls of all processes go through."""

    def __init__(self, kernel: Kernel, plan: Plan, chance: random.Random, observer: Observer) -> None:
        self.kernel, self.plan, self.chance, self.observer = kernel, plan, chance, observer
        self.calls = self.faults = self.kills = self.stalls = 0

    def around(self, errand: Errand, kind: str) -> Any:
        """The hook of one process' client."""

        def hook(operation: str, request: Any, call: Call) -> Any:
            return self._carry(errand, kind, operation, request, call)

        return hook

    def _carry(self, errand: Errand, kind: str, operation: str, request: Any, call: Call) -> Any:
        kernel, chance = self.kernel, self.chance
        self.calls += 1
        if self.plan.page and operation == "Query" and "Limit" not in request:
            request = {**request, "Limit": self.plan.page}
        fault = self._fault(kind, operation)
        if fault is not None:
            self.faults += 1
        stubborn = fault is not None and chance.random() < self._stubborn()
        done: Any = None
        attempt = 0
        while True:
            attempt += 1
            kernel.sleep(chance.uniform(0.001, 0.008))
            self._perils(errand)
            if fault is None or (attempt > 1 and not stubborn):
                if done is not None and operation == "TransactWriteItems":
                    return done  # the SDK's token: DynamoDB answers for what it has done already
                return self._effect(errand, kind, operation, request, call)
            error, answer = self._fail(errand, kind, operation, request, call, fault)
            if error is None:
                return answer
            done = done or answer
            if attempt >= ATTEMPTS[kind] or fault in ("conflict", "refused"):
                self._trouble(errand, kind, fault, operation)
                raise error
            kernel.sleep(chance.uniform(0.05, 0.5))

    def _trouble(self, errand: Errand, kind: str, fault: str, operation: str) -> None:
        """The caller sees this fault: does it excuse what is left undone, or has the product to see to it itself?"""
        if fault == "conflict":
            errand.conflicts += 1
        if kind == "metering":
            errand.failed_in_a_row += 1
        passes = fault == "conflict" and errand.conflicts < FEW
        passes = passes or (kind == "metering" and fault != "refused" and errand.failed_in_a_row < FEW_CALLS)
        if not passes:
            errand.troubles.append(f"{fault} of {operation}")

    def _effect(self, errand: Errand, kind: str, operation: str, request: Any, call: Call) -> Any:
        if operation == "TransactWriteItems":
            self.kernel.sleep(self._waits())
        if operation == "BatchGetItem" and self.plan.partial_reads and self.chance.random() < self.plan.partial_reads:
            answer = self._in_part(errand, kind, operation, request, call)
        else:
            answer = self._once(errand, kind, operation, request, call)
        self._perils(errand)
        self.kernel.sleep(self._answers_after(kind, operation))
        self._perils(errand)
        is_odd = kind == "metering" and self.plan.odd_answers and self.kernel.now < self.plan.calm_from
        if is_odd and self.chance.random() < self.plan.odd_answers:
            self.faults += 1
            errand.troubles.append("an odd answer")
            return odd(answer, self.chance)
        return answer

    def _in_part(self, errand: Errand, kind: str, operation: str, request: Any, call: Call) -> Any:
        """DynamoDB reads some of the keys, perhaps none, and leaves the others: whoever asks again gets them."""
        self.faults += 1
        read: dict[str, Any] = {}
        left: dict[str, Any] = {}
        for name, each in request["RequestItems"].items():
            for key in each["Keys"]:
                part = left if self.chance.random() < 0.5 else read
                part.setdefault(name, {**each, "Keys": []})["Keys"].append(key)
        if not read:
            return {"Responses": {}, "UnprocessedKeys": left}
        answer = self._once(errand, kind, operation, {**request, "RequestItems": read}, call)
        return {**answer, "UnprocessedKeys": left}

    def _answers_after(self, kind: str, operation: str) -> float:
        """How long an answer takes: at times seconds, in which an hour may close or somebody else write."""
        if kind == "metering":
            is_slow = self.chance.random() < self.plan.slow and self.kernel.now < self.plan.calm_from
            return self.chance.uniform(1, _PATIENCE["metering"] - 1) if is_slow else self.chance.uniform(0.05, 0.8)
        return self.chance.uniform(0.001, 0.008) + (self._waits() if operation == "BatchGetItem" else 0.0)

    def _waits(self) -> float:
        """How long a large request waits in the rush: a transaction before it takes effect, what was read after."""
        in_rush = self.kernel.now % HOUR < _RUSH_SECONDS and self.kernel.now < self.plan.calm_from
        return self.chance.uniform(0.2, 4) if in_rush and self.chance.random() < self.plan.rush else 0.0

    def _once(self, errand: Errand, kind: str, operation: str, request: Any, call: Call) -> Any:
        try:
            answer = call(request)
        except (ClientError, BotoCoreError) as error:
            self._tell(errand, kind, operation, request, None, error)
            self.kernel.sleep(self.chance.uniform(0.001, 0.008))
            raise
        self._tell(errand, kind, operation, request, answer, None)
        if kind == "metering" and not answer["UnprocessedRecords"]:
            errand.failed_in_a_row = 0
        return answer

    def _tell(self, errand: Errand, *told: Any) -> None:
        try:
            self.observer.carried_out(errand, *told)
        except Exception as error:
            raise JudgeBrokeError(f"{type(error).__name__}: {error}") from error

    def _stubborn(self) -> float:
        if self.kernel.now >= self.plan.calm_from:
            return 0.0
        return 0.6 if within(self.plan.storms, self.kernel.now) else self.plan.stubborn

    def _fault(self, kind: str, operation: str) -> str | None:
        """What will befall this call, if anything."""
        now, chance = self.kernel.now, self.chance
        calm = now >= self.plan.calm_from
        if calm and kind == "metering":
            return None
        if kind == "metering":
            if self.plan.is_down(now):
                return chance.choice(("broken", "unreachable", "throttled", "lost before"))
            if within(self.plan.locked_out, now):
                return "refused"
        elif within(self.plan.shut_out, now):
            return "refused"
        rate = self.plan.fault_rate
        if kind in ("tables", "probe") and within(self.plan.storms, now):
            rate = 0.33
        if chance.random() >= rate:
            return None
        kinds = ["throttled", "broken", "unreachable", "lost before", "lost after"]
        if operation == "TransactWriteItems" and not calm:
            kinds += ["conflict"]
        if kind == "metering":
            kinds += ["lost after", "unprocessed", "unprocessed"]
        return chance.choice(kinds)

    def _fail(
        self, errand: Errand, kind: str, operation: str, request: Any, call: Call, fault: str
    ) -> tuple[Exception | None, Any]:
        """Let one attempt fail so; its error, and the answer that got lost, if it took effect."""
        service, patience = _SERVICES[kind], _PATIENCE[kind]
        if fault == "throttled":
            return failures.throttled(service, operation), None
        if fault == "broken":
            return failures.broken(service, operation), None
        if fault == "refused":
            return failures.refused(service, operation), None
        if fault == "conflict":
            return failures.conflict(len(request["TransactItems"])), None
        if fault == "unreachable":
            return failures.unreachable(f"memory://{service}"), None
        if fault == "unprocessed":
            return None, self._unprocessed(errand, kind, operation, request, call)
        answer = None
        if fault == "lost after":
            errand.hid_messages = errand.hid_messages or kind == "queue"
            try:
                answer = self._once(errand, kind, operation, request, call)
            except (ClientError, BotoCoreError):
                answer = None  # refused, which the caller does not hear either
        self.kernel.sleep(patience)
        self._perils(errand)
        return failures.timed_out(f"memory://{service}"), answer

    def _unprocessed(self, errand: Errand, kind: str, operation: str, request: Any, call: Call) -> Any:
        """The service takes some of the records, and leaves the others."""
        records = request["UsageRecords"]
        left = [record for record in records if self.chance.random() < 0.5]
        self._trouble(errand, kind, "unprocessed records", operation)
        if len(left) == len(records):
            return {"Results": [], "UnprocessedRecords": left}
        taken = [record for record in records if record not in left]
        answer = self._effect(errand, kind, operation, {**request, "UsageRecords": taken}, call)
        return {**answer, "UnprocessedRecords": [*answer["UnprocessedRecords"], *left]}

    def _perils(self, errand: Errand) -> None:
        """Between any two calls a process may be killed, or stand still for long."""
        if errand.process is None or not errand.is_run or self.kernel.now >= self.plan.calm_from:
            return
        drawn = self.chance.random()
        if drawn < self.plan.kill_rate / 3:
            self.kills += 1
            errand.troubles.append("killed")
            errand.process.kill()
        elif drawn < (self.plan.kill_rate + self.plan.stall_rate) / 3:
            self.stalls += 1
            errand.troubles.append("stood still")
            self.kernel.sleep(self.chance.choice((5.0, 30.0, 120.0, 600.0, 3000.0)) * self.chance.random())
