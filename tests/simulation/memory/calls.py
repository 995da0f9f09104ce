"""A client as boto3's are from outside: names, events, and one hook around every call.

Belongs here: what the clients of all services share. Does not: any operation.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from botocore.hooks import EventAliaser, HierarchicalEmitter

from tests.simulation.memory.failures import error, error_classes, service_model

Request = Mapping[str, Any]
Answer = dict[str, Any]


class Call(Protocol):
    """Carries the call out: at once and in one piece. With another request, that one."""

    def __call__(self, request: Request | None = None) -> Answer:
        """The service's answer, or its error."""


class Around(Protocol):
    """Stands between a client and its service. It may raise instead, before or after, or alter the answer."""

    def __call__(self, operation: str, request: Request, call: Call) -> Answer:
        """What the caller gets. `operation` is the API's name, such as `TransactWriteItems`."""


class Events(HierarchicalEmitter):
    """The SDK's own event system, which knows whether anybody ever registered: most clients need none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def _register_section(self, *args: Any, **kwargs: Any) -> None:
        self.used = True
        super()._register_section(*args, **kwargs)


class Meta:
    """What a client says of itself."""

    def __init__(self, service: str, region: str, endpoint_url: str) -> None:
        self.service = service
        self.region_name, self.endpoint_url = region, endpoint_url
        self.emitter = Events()
        self.events = EventAliaser(self.emitter)  # so that a service answers to each of its names

    @property
    def service_model(self) -> Any:
        """The SDK's own."""
        return service_model(self.service)


class _Wire(dict[str, Any]):
    """A request as an event shows it; the body is only written where somebody looks."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request

    def __missing__(self, key: str) -> Any:
        if key != "body":
            raise KeyError(key)
        return json.dumps(self.request, default=str).encode()


class MemoryClient:
    """One caller's client of one service."""

    service = ""

    def __init__(self, around: Around | None, region: str) -> None:
        self.around = around
        self.meta = Meta(self.service, region, f"memory://{self.service}.{region}")

    @property
    def exceptions(self) -> Any:
        """The SDK's own classes."""
        return error_classes(self.service)

    def close(self) -> None:
        """There is no connection."""

    def error(self, operation: str, code: str, message: str = "", **more: Any) -> Any:
        """An error of this service."""
        return error(self.service, operation, code, message, **more)

    def _invoke(self, operation: str, request: Request, answer: Callable[[Request], Answer]) -> Answer:
        """Carry a call out, with all that stands around it."""
        if self.meta.emitter.used:
            return self._told(operation, request, answer)
        return self._plain(operation, request, answer)

    def _plain(self, operation: str, request: Request, answer: Callable[[Request], Answer]) -> Answer:
        if self.around is None:
            return answer(request)

        def call(changed: Request | None = None) -> Answer:
            return answer(request if changed is None else changed)

        return self.around(operation, request, call)

    def _told(self, operation: str, request: Request, answer: Callable[[Request], Answer]) -> Answer:
        """The same, with the SDK's events in the SDK's order."""
        events, model = self.meta.events, self.meta.service_model.operation_model(operation)
        name = f"{self.service}.{operation}"
        changed = events.emit(f"provide-client-params.{name}", params=request, model=model, context={})
        request = next((given for _, given in changed if given is not None), request)
        events.emit(f"before-parameter-build.{name}", params=request, model=model, context={})
        wire = _Wire(request)
        told = events.emit_until_response(f"before-call.{name}", params=wire, model=model, context={})
        if told[1] is not None:
            return self._answered(operation, *told[1])
        events.emit(f"before-send.{name}", request=wire)
        try:
            found = self._plain(operation, request, answer)
        except Exception as failure:
            said = getattr(failure, "response", None)
            if said is not None:
                events.emit(f"after-call.{name}", parsed=said, model=model, http_response=None, context={})
            raise
        events.emit(f"after-call.{name}", parsed=found, model=model, http_response=None, context={})
        return found

    def _answered(self, operation: str, http: Any, parsed: Answer) -> Answer:
        """What a handler answered in the service's place."""
        if getattr(http, "status_code", 200) >= 300:
            raise self.exceptions.from_code(parsed.get("Error", {}).get("Code"))(parsed, operation)
        return parsed
