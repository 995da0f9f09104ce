"""The quota of BatchMeterUsage: 10 calls a second for each account and Region, whoever calls (domain: account quota).

Belongs here: reserving call slots in one item of the aggregated table, which every process, machine and deployment
shares, and waiting for a reserved slot; who goes first. Does not: calling.

A slot is a span of real time. Reserving is one atomic addition, so no two callers ever hold the same slot. Machines
need clocks that agree to some tens of milliseconds, as any time service keeps them.

A flush is urgent: it reserves whenever it likes. All others reserve a short way ahead only, together and not each, so
that few of their calls go out between an urgent caller's reservation and its call, however many processes there are.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from metering_dagster.core.aws.dynamodb import Explained
from metering_dagster.metering.stores.aggregated_table import SHAPE

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
URGENT_SLOTS_AT_ONCE = 8
"""As many as there are callers in a process: side by side with others a flush gets nearly half of the quota."""
AHEAD_SLOTS = 8
"""How far ahead of now the common counter may be for a patient caller to reserve. With the slots that it takes then, 10
at most, which is how many patient calls go before an urgent one, and 20 should that miss its slots once. It is three
quarters of a second, many times what a reservation takes: no slot goes by for want of takers."""
FAR_AHEAD_SECONDS = 120.0
"""More than any real queue: a clock was wrong, and the item is set right."""
_COME_BACK_SLOTS = (0.0, 4.0)
"""How long a patient caller waits beyond the moment when there is room again, in slots."""


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

    def wait(self, *, urgent: bool = False) -> int:
        """Return when the caller may send one call, at once; the slot that it does so in.

        One caller at a time waits for a slot, the others for their turn: so no more are reserved than come next.
        """
        with self._counting:
            self._waiting += 1
        try:
            with self._turn:
                while True:
                    slot = self._take(urgent)
                    ahead = slot * SLOT_SECONDS - self.clock()
                    if ahead > 0:
                        self.sleep(ahead)
                    if self.clock() - slot * SLOT_SECONDS <= MAX_LATE_SECONDS:
                        return slot
        finally:
            with self._counting:
                self._waiting -= 1

    def _take(self, urgent: bool) -> int:
        """Return a slot of our own that has not gone by."""
        now = self._current_slot()
        self._held = [slot for slot in self._held if slot > now]
        if not self._held:
            # Never more than there are callers: a slot that nobody uses is one that all others lack.
            most = URGENT_SLOTS_AT_ONCE if urgent else SLOTS_AT_ONCE
            self._held = self._reserve(min(self._waiting, most), urgent)
        return self._held.pop(0)

    def _current_slot(self) -> int:
        return int(self.clock() / SLOT_SECONDS)

    def _reserve(self, count: int, urgent: bool) -> list[int]:
        """So many slots that nobody else holds, by one atomic addition to the common counter."""
        with Explained(self.client, self.table, SHAPE):
            while True:
                now = self._current_slot()
                end, stands = self._add(now, count, urgent)
                if end is None and (stands is None or stands <= now):
                    end = self._restart(now, count)
                    if end is None:
                        continue
                far = end if end is not None else stands
                if far is not None and far - now > FAR_AHEAD_SECONDS / SLOT_SECONDS:
                    self._correct(far, now)
                elif end is not None:
                    return list(range(end - count, end))
                elif stands is not None:
                    # Others hold what comes next. Not all of them come back at once, for one of them will do.
                    ahead = max(stands - now - AHEAD_SLOTS, 0)
                    self.sleep((ahead + random.uniform(*_COME_BACK_SLOTS)) * SLOT_SECONDS)

    def _add(self, now: int, count: int, urgent: bool) -> tuple[int | None, int | None]:
        """Return the counter's new end; or None, and where it stands, if it lies in the past or too far ahead."""
        condition = "nextSlot > :now"
        values = {":some": {"N": str(count)}, ":now": {"N": str(now)}}
        if not urgent:
            condition += " AND nextSlot <= :ahead"
            values[":ahead"] = {"N": str(now + AHEAD_SLOTS)}
        return self._update("SET nextSlot = nextSlot + :some", condition, values)

    def _restart(self, now: int, count: int) -> int | None:
        """Begin behind the current slot, unless somebody else has just done so."""
        end, _ = self._update("SET nextSlot = :end", "attribute_not_exists(nextSlot) OR nextSlot <= :now",
                              {":end": {"N": str(now + 1 + count)}, ":now": {"N": str(now)}})  # fmt: skip
        return end

    def _correct(self, end: int, now: int) -> None:
        """Bring a counter that a wrong clock sent far ahead back to the present."""
        self._update("SET nextSlot = :soon", "nextSlot >= :end",
                     {":soon": {"N": str(now + 1)}, ":end": {"N": str(end)}})  # fmt: skip

    def _update(self, update: str, condition: str, values: dict[str, dict[str, str]]) -> tuple[int | None, int | None]:
        """Return where the counter ends after the update; or None, and where it stands, if the condition did
        not hold.
        """
        try:
            answer = self.client.update_item(
                TableName=self.table,
                Key=self._key,
                UpdateExpression=update,
                ConditionExpression=condition,
                ExpressionAttributeValues=values,
                ReturnValues="UPDATED_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except self.client.exceptions.ConditionalCheckFailedException as refused:
            item: Any = refused.response.get("Item", {})
            return None, int(item["nextSlot"]["N"]) if "nextSlot" in item else None
        return int(answer["Attributes"]["nextSlot"]["N"]), None
