"""DynamoDB transactions, as every write here uses them.

Belongs here: units that stand or fall together, packing them, telling a refusal from a conflict and from an invalid
request. Does not: any table's expressions (the stores), what a refusal means (the use cases).
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from metering_dagster.core.aws.dynamodb import CONFLICT_ATTEMPTS, pause
from metering_dagster.core.errors import ItemRefusedError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Action = Mapping[str, Any]
"""One action of a transaction, `{"Update": {...}}`."""

MAX_ACTIONS = 100
MAX_BYTES = 3_500_000
"""A transaction takes 100 actions and 4 MB; half a megabyte is left for what an estimate misses."""

_AGAIN = frozenset({"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"})
_INVALID = frozenset({"ValidationError", "ItemCollectionSizeLimitExceeded"})


@dataclass(frozen=True)
class Unit:
    """Actions that stand or fall together, and how many bytes they send (an estimate from above)."""

    actions: tuple[Action, ...]
    size: int


class Fate(Enum):
    """The result of one unit of writes."""

    WRITTEN = "written"
    REFUSED = "a condition did not hold"
    INVALID = "DynamoDB does not take it: an item would pass 400 KB, or the unit 4 MB"


def bytes_of(values: Mapping[str, Any]) -> int:
    """Return how many bytes typed values take, from above; quick for the short ones that most are."""
    size = 0
    for typed in values.values():
        text = typed.get("S") or typed.get("N")
        size += 16 + (4 * len(text) if isinstance(text, str) else len(json.dumps(typed, default=repr)))
    return size


def transact(client: "DynamoDBClient", units: Sequence[Unit]) -> list[Fate]:
    """Write the units, as many as fit together in one transaction; what became of each.

    A unit that is refused or invalid is written in no part, and keeps no neighbor from being written. A conflict with
    another writer is tried again. Where every single unit is invalid, or anything else goes wrong, the error is raised
    as the client raises it, with the units before it written.
    """
    fates, invalid = transact_each(client, units)
    if invalid is not None and all(fate is Fate.INVALID for fate in fates):
        raise invalid
    return fates


def transact_each(client: "DynamoDBClient", units: Sequence[Unit]) -> tuple[list[Fate], ClientError | None]:
    """Write the units like `transact`, but raise nothing where all are invalid.

    Returns what became of each, and the first error of an invalid one.
    """
    fates = [Fate.REFUSED] * len(units)
    invalid: list[ClientError] = []
    for parcel in _parcels(units):
        _write_parcel(client, units, parcel, fates, invalid)
    return fates, invalid[0] if invalid else None


def _parcels(units: Sequence[Unit]) -> Iterator[list[int]]:
    parcel: list[int] = []
    actions = size = 0
    for position, unit in enumerate(units):
        if parcel and (actions + len(unit.actions) > MAX_ACTIONS or size + unit.size > MAX_BYTES):
            yield parcel
            parcel, actions, size = [], 0, 0
        parcel.append(position)
        actions += len(unit.actions)
        size += unit.size
    if parcel:
        yield parcel


def _write_parcel(
    client: "DynamoDBClient", units: Sequence[Unit], parcel: list[int], fates: list[Fate], invalid: list[ClientError]
) -> None:
    """Write what can be written of the parcel; a parcel that is invalid as a whole is written in halves."""
    attempt = 0
    while parcel:
        actions: Any = [action for position in parcel for action in units[position].actions]
        try:
            client.transact_write_items(TransactItems=actions)
        except client.exceptions.TransactionCanceledException as canceled:
            verdicts = _verdicts(units, parcel, canceled.response["CancellationReasons"])
            if not verdicts:
                attempt = _wait(attempt, canceled)
            for position, fate in verdicts.items():
                fates[position] = fate
            parcel = [position for position in parcel if position not in verdicts]
        except client.exceptions.TransactionInProgressException as busy:
            attempt = _wait(attempt, busy)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ValidationException":
                raise
            if len(parcel) == 1:
                fates[parcel[0]] = Fate.INVALID
                invalid.append(error)
                return
            middle = len(parcel) // 2
            for half in (parcel[:middle], parcel[middle:]):
                _write_parcel(client, units, half, fates, invalid)
            return
        else:
            for position in parcel:
                fates[position] = Fate.WRITTEN
            return


def _wait(attempt: int, error: ClientError) -> int:
    if attempt + 1 > CONFLICT_ATTEMPTS:
        raise error
    time.sleep(pause(attempt + 1))
    return attempt + 1


def _verdicts(units: Sequence[Unit], parcel: list[int], reasons: Sequence[Any]) -> dict[int, Fate]:
    """Return the units of a canceled transaction that were at fault; none where it met another writer."""
    found: dict[int, Fate] = {}
    cursor = iter(reasons)
    for position in parcel:
        for _ in units[position].actions:
            code = next(cursor).get("Code", "None")
            if code == "ConditionalCheckFailed":
                found[position] = Fate.REFUSED
            elif code in _INVALID:
                found.setdefault(position, Fate.INVALID)
            elif code not in _AGAIN and code != "None":
                raise ItemRefusedError(f"DynamoDB canceled a transaction with {code}; none of its writes happened.")
    return found
