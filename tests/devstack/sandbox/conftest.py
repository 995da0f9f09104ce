"""A sandbox at a frozen instant, without a limit on calls, and a client for it.

What the service does with a call is the same over HTTP and in memory, and so are its tests. How it is steered, and that
it is a process, is shown over HTTP alone.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from metering_dagster.devstack.sandbox import Sandbox
from tests.devstack.sandbox.sandbox_calls import NOW, client_of
from tests.simulation.memory import MemoryMarketplace

HTTP, MEMORY = "http", "memory"
_ABOUT_HTTP = ("test_sandbox_control", "test_sandbox_process")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let what is said of the service be shown of both."""
    about_http = metafunc.definition.path.stem in _ABOUT_HTTP or "over_http" in metafunc.fixturenames
    if "sandbox" in metafunc.fixturenames and not about_http:
        metafunc.parametrize("sandbox", [HTTP, MEMORY], indirect=True)


@pytest.fixture
def over_http() -> None:
    """For tests of what only a server has: bodies, connections, threads."""


@pytest.fixture
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox | MemoryMarketplace]:
    """The service, over HTTP unless the test is parametrized otherwise."""
    if getattr(request, "param", HTTP) == MEMORY:
        held = MemoryMarketplace(now=NOW)
        held.configure(calls_per_second=None)
        yield held
        return
    with Sandbox(now=NOW) as running:
        running.configure(calls_per_second=None)
        yield running


@pytest.fixture
def client(sandbox: Sandbox | MemoryMarketplace) -> Iterator[Any]:
    """A client of it."""
    speaking = client_of(sandbox)
    yield speaking
    speaking.close()
