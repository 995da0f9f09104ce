"""A sandbox at a frozen instant, without a limit on calls, and a client for it."""

from collections.abc import Iterator
from typing import Any

import pytest

from metering_dagster.local.sandbox import Sandbox
from tests.local.sandbox.sandbox_calls import NOW, metering


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(now=NOW) as running:
        running.configure(calls_per_second=None)
        yield running


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[Any]:
    speaking = metering(sandbox.url)
    yield speaking
    speaking.close()
