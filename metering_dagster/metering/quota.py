"""The quota of BatchMeterUsage: 10 calls a second for each account and Region, whoever calls (domain: account quota).

Belongs here: reserving call slots in one item of the aggregated table, which every process, machine and deployment
shares, and waiting for a reserved slot. Does not: calling.

A slot is a span of real time. Reserving is one atomic addition, so no two callers ever hold the same slot. Machines
need clocks that agree to some tens of milliseconds, as any time service keeps them.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from metering_dagster.dynamodb import Explained
from metering_dagster.metering.aggregated_table import SHAPE

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

SLOT_SECONDS = 0.105
"""A little over a tenth of a second: eleven calls never share a second, though one may leave late by half a slot."""
MAX_LATE_SECONDS = 0.04
"""A slot that is missed by more than this is given up, or the call would crowd the next ones."""
SLOTS_AT_ONCE = 4
FAR_AHEAD_SECONDS = 120.0
"""More than any real queue: a clock was wrong, and the item is set right."""


class Quota:
    """The share that one process takes of the common quota. Used by many threads at once."""

    def __init__(
        self,
        client: "DynamoDBClient",
        aggregated_table: str,
        region: str,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client, self.table = client, aggregated_table
        self.clock, self.sleep = clock, sleep
        self._key = {"licenseArn": {"S": "metering-dagster#quota"},
                     "account_dimension_hour": {"S": f"BatchMeterUsage#{region}"}}  # fmt: skip
        self._held: list[int] = []
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Return when the caller may send one call, at once."""
        while True:
            begins = self._take() * SLOT_SECONDS
            ahead = begins - self.clock()
            if ahead > 0:
                self.sleep(ahead)
            if self.clock() - begins <= MAX_LATE_SECONDS:
                return

    def _take(self) -> int:
        """A slot of our own that has not gone by."""
        with self._lock:
            now = self._current_slot()
            self._held = [slot for slot in self._held if slot > now]
            if not self._held:
                self._held = self._reserve()
            return self._held.pop(0)

    def _current_slot(self) -> int:
        return int(self.clock() / SLOT_SECONDS)

    def _reserve(self) -> list[int]:
        """Slots that nobody else holds, by one atomic addition to the common counter."""
        with Explained(self.client, self.table, SHAPE):
            while True:
                now = self._current_slot()
                end = self._add(now) or self._restart(now)
                if end is None:
                    continue
                if end - now > FAR_AHEAD_SECONDS / SLOT_SECONDS:
                    self._correct(end, now)
                    continue
                return list(range(end - SLOTS_AT_ONCE, end))

    def _add(self, now: int) -> int | None:
        """The counter's new end, unless it lies in the past."""
        return self._update("SET nextSlot = nextSlot + :some", "nextSlot > :now",
                            {":some": {"N": str(SLOTS_AT_ONCE)}, ":now": {"N": str(now)}})  # fmt: skip

    def _restart(self, now: int) -> int | None:
        """Begin behind the current slot, unless somebody else has just done so."""
        return self._update("SET nextSlot = :end", "attribute_not_exists(nextSlot) OR nextSlot <= :now",
                            {":end": {"N": str(now + 1 + SLOTS_AT_ONCE)}, ":now": {"N": str(now)}})  # fmt: skip

    def _correct(self, end: int, now: int) -> None:
        """Bring a counter that a wrong clock sent far ahead back to the present."""
        self._update("SET nextSlot = :soon", "nextSlot >= :end",
                     {":soon": {"N": str(now + 1)}, ":end": {"N": str(end)}})  # fmt: skip

    def _update(self, update: str, condition: str, values: dict[str, dict[str, str]]) -> int | None:
        try:
            answer = self.client.update_item(
                TableName=self.table,
                Key=self._key,
                UpdateExpression=update,
                ConditionExpression=condition,
                ExpressionAttributeValues=values,
                ReturnValues="UPDATED_NEW",
            )
        except self.client.exceptions.ConditionalCheckFailedException:
            return None
        return int(answer["Attributes"]["nextSlot"]["N"])
