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

SLOT_SECONDS = 0.107
"""A little over a tenth of a second, 9.35 calls a second: eleven calls share no second as long as none is delayed
between its slot and the service by 70 ms more than the tenth one after it."""
MAX_LATE_SECONDS = 0.04
"""A slot that is missed by more than this is given up, or the call would crowd the next ones. The other 30 ms are left
to what comes after the slot: signing the request, connecting, the way to the service."""
SLOTS_AT_ONCE = 2
"""More than one, so that a slow answer of DynamoDB costs no slot; few, for those of a killed process are lost."""
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
        self._turn = threading.Lock()
        self._waiting = 0
        self._counting = threading.Lock()

    def wait(self) -> int:
        """Return when the caller may send one call, at once; the slot that it does so in.

        One caller at a time waits for a slot, the others for their turn: so no more are reserved than come next.
        """
        with self._counting:
            self._waiting += 1
        try:
            with self._turn:
                while True:
                    slot = self._take()
                    ahead = slot * SLOT_SECONDS - self.clock()
                    if ahead > 0:
                        self.sleep(ahead)
                    if self.clock() - slot * SLOT_SECONDS <= MAX_LATE_SECONDS:
                        return slot
        finally:
            with self._counting:
                self._waiting -= 1

    def _take(self) -> int:
        """A slot of our own that has not gone by."""
        now = self._current_slot()
        self._held = [slot for slot in self._held if slot > now]
        if not self._held:
            # Never more than there are callers: a slot that nobody uses is one that all others lack.
            self._held = self._reserve(min(self._waiting, SLOTS_AT_ONCE))
        return self._held.pop(0)

    def _current_slot(self) -> int:
        return int(self.clock() / SLOT_SECONDS)

    def _reserve(self, count: int) -> list[int]:
        """So many slots that nobody else holds, by one atomic addition to the common counter."""
        with Explained(self.client, self.table, SHAPE):
            while True:
                now = self._current_slot()
                end = self._add(now, count) or self._restart(now, count)
                if end is None:
                    continue
                if end - now > FAR_AHEAD_SECONDS / SLOT_SECONDS:
                    self._correct(end, now)
                    continue
                return list(range(end - count, end))

    def _add(self, now: int, count: int) -> int | None:
        """The counter's new end, unless it lies in the past."""
        return self._update("SET nextSlot = nextSlot + :some", "nextSlot > :now",
                            {":some": {"N": str(count)}, ":now": {"N": str(now)}})  # fmt: skip

    def _restart(self, now: int, count: int) -> int | None:
        """Begin behind the current slot, unless somebody else has just done so."""
        return self._update("SET nextSlot = :end", "attribute_not_exists(nextSlot) OR nextSlot <= :now",
                            {":end": {"N": str(now + 1 + count)}, ":now": {"N": str(now)}})  # fmt: skip

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
