"""Answers that break the API's model, made of the right answer: the call itself is billed. Pure.

Belongs here: the ways in which an answer can be odd. Does not: which answers are (faults.py).
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any


def _without_zone(answer: dict[str, Any]) -> None:
    for result in answer["Results"]:
        instant = datetime.fromtimestamp(result["UsageRecord"]["Timestamp"], UTC)
        result["UsageRecord"]["Timestamp"] = instant.strftime("%Y-%m-%dT%H:%M:%S")


def _without_license(answer: dict[str, Any]) -> None:
    for result in answer["Results"]:
        result["UsageRecord"].pop("LicenseArn", None)


def _without_echo(answer: dict[str, Any]) -> None:
    for result in answer["Results"]:
        del result["UsageRecord"]


def _fewer(answer: dict[str, Any]) -> None:
    answer["Results"] = answer["Results"][:-1]


def _null_results(answer: dict[str, Any]) -> None:
    answer["Results"] = [None for _ in answer["Results"]]


def _changed(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def made(body: bytes) -> bytes:
        answer = json.loads(body)
        change(answer)
        return json.dumps(answer).encode()

    return made


WAYS: Mapping[str, Callable[[bytes], bytes]] = {
    "empty": lambda body: b"",
    "null": lambda body: b"null",
    "list": lambda body: b"[]",
    "no_json": lambda body: b"<html>It works!</html>",
    "null_results": _changed(_null_results),
    "no_zone": _changed(_without_zone),
    "no_license": _changed(_without_license),
    "no_echo": _changed(_without_echo),
    "fewer": _changed(_fewer),
}
"""The odd ways by name, each a function of the right answer's body."""
