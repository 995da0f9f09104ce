"""Answers of the Metering API that are not what its model says, as the SDK hands them on.

Belongs here: what botocore makes of each such body. Does not: when an answer is odd (wire), what a caller makes of it.
"""

import random
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

Answer = Mapping[str, Any]
_META = {"HTTPStatusCode": 200, "RequestId": ""}


def _empty(answer: Answer, chance: random.Random) -> Any:
    """An empty body, and one that is no JSON: the SDK reads neither, and says nothing of it."""
    return {"ResponseMetadata": _META}


def _null(answer: Answer, chance: random.Random) -> Any:
    """The body `null`."""
    return None


def _list(answer: Answer, chance: random.Random) -> Any:
    """The body `[]`: the SDK's own parser fails at it."""
    raise AttributeError("'list' object has no attribute 'get'")


def _null_result(answer: Answer, chance: random.Random) -> Any:
    """A result that is null."""
    return {**answer, "Results": [None, *answer["Results"][1:]]}


def _no_zone(answer: Answer, chance: random.Random) -> Any:
    """Echoes whose time has no zone."""

    def naive(stamp: datetime) -> datetime:
        return stamp.replace(tzinfo=None)

    return _echoed(answer, lambda record: {**record, "Timestamp": naive(record["Timestamp"])})


def _no_license(answer: Answer, chance: random.Random) -> Any:
    """Echoes without the license, in another order."""
    found = _echoed(answer, lambda record: {name: v for name, v in record.items() if name != "LicenseArn"})
    results = list(found["Results"])
    chance.shuffle(results)
    return {**found, "Results": results}


def _no_echo(answer: Answer, chance: random.Random) -> Any:
    """Results that name no record."""
    results = [{name: v for name, v in result.items() if name != "UsageRecord"} for result in answer["Results"]]
    return {**answer, "Results": results}


def _fewer(answer: Answer, chance: random.Random) -> Any:
    """A result is missing, and its record is not among the unprocessed."""
    results = list(answer["Results"])
    if results:
        del results[chance.randrange(len(results))]
    return {**answer, "Results": results}


def _fewer_without_echo(answer: Answer, chance: random.Random) -> Any:
    """Both at once: nobody can say which record is which."""
    return _no_echo(_fewer(answer, chance), chance)


def _echoed(answer: Answer, change: Callable[[Answer], Answer]) -> dict[str, Any]:
    results = [{**result, "UsageRecord": change(result["UsageRecord"])} for result in answer["Results"]]
    return {**answer, "Results": results}


ODD: tuple[Callable[[Answer, random.Random], Any], ...] = (
    _empty, _null, _list, _null_result, _no_zone, _no_license, _no_echo, _fewer, _fewer_without_echo,
)  # fmt: skip


def odd(answer: Answer, chance: random.Random) -> Any:
    """One of them in the place of this answer; it may raise what the SDK raises."""
    return chance.choice(ODD)(answer, chance)
