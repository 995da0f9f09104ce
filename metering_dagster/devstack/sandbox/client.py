"""The HTTP client that controls a sandbox, from its own process or another.

Belongs here: one method for each control path. Does not: the faults (faults.py), metering (boto3 does that).
"""

import json
import urllib.error
import urllib.request
from collections.abc import Set
from datetime import datetime
from typing import Any

from metering_dagster.devstack.sandbox.bill import BilledRecord, Call
from metering_dagster.devstack.sandbox.control import PREFIX
from metering_dagster.devstack.sandbox.errors import ControlError
from metering_dagster.devstack.sandbox.faults import Fault

TIMEOUT_SECONDS = 30.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""An opener without a proxy: loopback is never reached through one."""


class SandboxClient:
    """Client of the sandbox at this URL. Its methods raise `ControlError` for a refused request."""

    def __init__(self, url: str) -> None:
        self.url = url

    def health(self) -> dict[str, Any]:
        """Return the sandbox's status and clock."""
        answer: dict[str, Any] = self._ask("GET", "/health")
        return answer

    def bill(self) -> list[BilledRecord]:
        """Return the bill so far, in order."""
        return [BilledRecord(**each) for each in self._ask("GET", "/bill")]

    def calls(self) -> list[Call]:
        """Return the calls so far, in order."""
        return [Call(**each) for each in self._ask("GET", "/calls")]

    def set_now(self, now: datetime | None) -> None:
        """Freeze the clock at an instant, or return to real time (None)."""
        self._ask("POST", "/clock", {"now": now})

    def configure(self, **settings: object) -> dict[str, Any]:
        """Change the named settings of the `World`, and leave the others; return all settings."""
        answer: dict[str, Any] = self._ask("POST", "/configure", settings)
        return answer

    def inject(self, *faults: Fault) -> None:
        """Set these faults and no others (none at all: no faults), counting calls from now on."""
        self._ask("POST", "/faults", {"faults": [fault.document() for fault in faults]})

    def reset(self) -> None:
        """Reset the sandbox to its start on an empty database."""
        self._ask("POST", "/reset")

    def _ask(self, method: str, path: str, document: Any = None) -> Any:
        body = None if method == "GET" else json.dumps(document or {}, default=_plain).encode()
        request = urllib.request.Request(f"{self.url}{PREFIX}{path}", data=body, method=method)
        try:
            with DIRECT.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise ControlError(json.load(error)["message"]) from None


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Set):
        return sorted(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")
