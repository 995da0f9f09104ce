"""The marketplace sandbox: an HTTP server that offers BatchMeterUsage and keeps a bill.

Belongs here: the public face. The package imports nothing of the rest of the project: a wrong rule there must not be
wrong here as well.

    with Sandbox(now=datetime(2026, 11, 20, 10, 30, tzinfo=UTC)) as sandbox:
        sandbox.inject(faults.lost_answer(calls=1))
        ...  # boto3.client("meteringmarketplace", endpoint_url=sandbox.url, ...)
        assert len(sandbox.bill()) == 1
"""

import threading
import time
from collections.abc import Callable
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import Self

from metering_dagster.devstack.sandbox import faults
from metering_dagster.devstack.sandbox.bill import Bill, BilledRecord, Call
from metering_dagster.devstack.sandbox.client import SandboxClient
from metering_dagster.devstack.sandbox.desk import Desk
from metering_dagster.devstack.sandbox.errors import ControlError
from metering_dagster.devstack.sandbox.faults import Fault
from metering_dagster.devstack.sandbox.server import Server

__all__ = ["BilledRecord", "Call", "ControlError", "Fault", "Sandbox", "SandboxClient", "faults"]

POLL_SECONDS = 0.02
"""The time in which the server notices a shutdown."""


class Sandbox(SandboxClient):
    """Sandbox in a thread of this process, on a free port of loopback, while the context is open.

    The bill, the calls and the configuration are in the database and survive a restart; the clock and the faults do
    not. An error of the sandbox itself is raised at the end of the context.
    """

    def __init__(
        self,
        database: str | PathLike[str] = ":memory:",
        *,
        now: datetime | None = None,
        port: int = 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bill = Bill(database)
        self._server = Server(port, Desk(self._bill, now, monotonic))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_SECONDS,), name="sandbox")
        super().__init__(self._server.url)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.close()
        self._bill.close()
        if self._server.failure is not None:
            raise RuntimeError("the sandbox failed at one of its calls") from self._server.failure
