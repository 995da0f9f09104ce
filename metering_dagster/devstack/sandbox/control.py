"""The control paths under /_sandbox/.

Belongs here: the paths, and reading their JSON. Does not: their effect on calls (desk.py), HTTP (server.py).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from metering_dagster.devstack.sandbox.desk import Desk, DeskResponse
from metering_dagster.devstack.sandbox.errors import ControlError
from metering_dagster.devstack.sandbox.faults import read_fault
from metering_dagster.devstack.sandbox.world import read_instant

PREFIX = "/_sandbox"


def control(desk: Desk, method: str, path: str, body: bytes) -> DeskResponse:
    """Answer one control request."""
    known = ROUTES.get((method, path.removeprefix(PREFIX)))
    if known is None:
        paths = ", ".join(f"{verb} {PREFIX}{route}" for verb, route in ROUTES)
        return _answer(404, {"message": f"there is no {method} {path}; there are {paths}"})
    try:
        return _answer(200, known(desk, _document(body)))
    except ControlError as error:
        return _answer(400, {"message": str(error)})


def _health(desk: Desk, _: Mapping[str, Any]) -> Any:
    return {"status": "ok", "now": desk.clock.now().isoformat(), "frozen": desk.clock.frozen is not None}


def _bill(desk: Desk, _: Mapping[str, Any]) -> Any:
    return [asdict(record) for record in desk.bill.billed()]


def _calls(desk: Desk, _: Mapping[str, Any]) -> Any:
    return [asdict(call) for call in desk.bill.calls()]


def _world(desk: Desk, _: Mapping[str, Any]) -> Any:
    return desk.world.document()


def _set_clock(desk: Desk, document: Mapping[str, Any]) -> Any:
    if set(document) != {"now"}:
        raise ControlError('the clock takes {"now": an ISO-8601 instant or null}')
    desk.clock.frozen = None if document["now"] is None else read_instant("now", document["now"])
    return _health(desk, document)


def _configure(desk: Desk, document: Mapping[str, Any]) -> Any:
    desk.configure(document)
    return desk.world.document()


def _set_faults(desk: Desk, document: Mapping[str, Any]) -> Any:
    if set(document) != {"faults"} or not isinstance(document["faults"], list):
        raise ControlError('faults are set by {"faults": a list of them}')
    faults = [read_fault(each) for each in document["faults"]]
    desk.faults.set(faults)
    return {"faults": [fault.document() for fault in faults]}


def _reset(desk: Desk, document: Mapping[str, Any]) -> Any:
    if document:
        raise ControlError("reset takes nothing")
    desk.forget()
    return {}


ROUTES: Mapping[tuple[str, str], Callable[[Desk, Mapping[str, Any]], Any]] = {
    ("GET", "/health"): _health,
    ("GET", "/bill"): _bill,
    ("GET", "/calls"): _calls,
    ("GET", "/world"): _world,
    ("POST", "/clock"): _set_clock,
    ("POST", "/configure"): _configure,
    ("POST", "/faults"): _set_faults,
    ("POST", "/reset"): _reset,
}


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ControlError("the body is not JSON") from None
    if not isinstance(document, dict):
        raise ControlError("the body must be a JSON object")
    return document


def _answer(status: int, document: Any) -> DeskResponse:
    return DeskResponse(status, json.dumps(document).encode(), "application/json")
