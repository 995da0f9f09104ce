"""One world for each test; one emulator for all of them."""

import functools
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import pytest

from metering_dagster.local.sandbox import Sandbox
from metering_dagster.local.stack import LocalStack, running_stack
from tests.world import World


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """The embedded stack, started once; tests keep apart by the names of their tables."""
    with running_stack(tmp_path_factory.mktemp("stack"), persist=False, now=None) as local:
        yield local


@pytest.fixture(scope="session")
def _models_read_once() -> Iterator[None]:
    """The SDK's models are read once, and not for each of hundreds of clients (0.4 s of CPU each time)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(botocore.session.create_loader))
        yield


@pytest.fixture
def world(
    emulator: LocalStack, _models_read_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A world with nothing in it yet."""
    with Sandbox() as sandbox:
        sandbox.configure(calls_per_second=None)
        for name, value in emulator.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL_MARKETPLACE_METERING", sandbox.url)
        ours = World(emulator, sandbox, tmp_path)
        yield ours
        ours.close()
