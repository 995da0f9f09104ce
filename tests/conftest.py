"""One world for each test; one emulator for all of them, and Amazon's own for the tests of the stores."""

import functools
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import botocore.session
import dagster as dg
import hypothesis
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from metering_dagster.devstack.sandbox import Sandbox
from metering_dagster.devstack.stack import LocalStack, running_stack
from tests.dynamodb_local import running_dynamodb_local
from tests.memory_stack import MemoryStack
from tests.world import World

hypothesis.settings.register_profile("machines are noisy", deadline=None)
hypothesis.settings.register_profile(
    "mutants", deadline=None, derandomize=True, database=None, report_multiple_bugs=False,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)  # fmt: skip  # of `make mutate`: which example shows a fault does not matter there, and the same ones count each time
hypothesis.settings.load_profile("machines are noisy")
MEMORY, MINISTACK, DYNAMODB_LOCAL = "memory", "ministack", "dynamodb_local"
CASES = "test_cases_"
ON_EACH_ENGINE = ("test_stores_", "test_contract_", CASES)
"""Modules whose names begin so run on each engine: what they show hangs on how DynamoDB answers."""


LONGEST = ("tests/simulation/test_worlds.py", "tests/e2e/", "tests/devstack/test_de", "tests/test_month_end.py")
"""Begun first, or at the end one process works on them while the others have nothing left."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the order within a file stays."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let the tests of the stores run in memory and on ministack in `make test`, on DynamoDB Local with the services.

    The cases, which go through whole runs, and what takes long are left to memory in `make test`, and run on ministack
    with the services as well.
    """
    name = metafunc.definition.path.name
    if "engine" in metafunc.fixturenames and name.startswith(ON_EACH_ENGINE):
        marked = {mark.name for mark in metafunc.definition.iter_markers()}
        in_memory = "other_processes" not in marked
        seldom = in_memory and (name.startswith(CASES) or "lengthy" in marked)
        services = pytest.mark.services
        engines = [MEMORY] if in_memory else []
        engines += [pytest.param(MINISTACK, marks=services if seldom else ())]
        engines += [pytest.param(DYNAMODB_LOCAL, marks=services)]
        metafunc.parametrize("engine", engines, indirect=True, scope="session")


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """The embedded stack, started once; tests keep apart by the names of their tables."""
    with running_stack(tmp_path_factory.mktemp("stack"), persist=False, now=None) as local:
        yield local


@pytest.fixture(scope="session")
def _dynamodb_local_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Amazon's DynamoDB Local, started once."""
    with running_dynamodb_local(tmp_path_factory.mktemp("dynamodb-local")) as url:
        yield url


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> LocalStack | None:
    """The stack with the DynamoDB that the test runs on: ministack's, unless the test is parametrized otherwise.

    None for memory: there each world has its own.
    """
    asked = getattr(request, "param", MINISTACK)
    if asked == MEMORY:
        return None
    emulator: LocalStack = request.getfixturevalue("emulator")
    if asked == MINISTACK:
        return emulator
    return replace(emulator, dynamodb_url=request.getfixturevalue("_dynamodb_local_url"))


@pytest.fixture(scope="session")
def _models_read_once() -> Iterator[None]:
    """The SDK's models are read once, and not for each of hundreds of clients (0.4 s of CPU each time)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(botocore.session.create_loader))
        yield


@pytest.fixture(scope="session", autouse=True)
def _migrations_read_once() -> Iterator[None]:
    """Dagster's storages stamp each new database with their newest migration, and Alembic compiles all of them, a
    hundred files, to find it: 70 ms of CPU for each instance. What they stamp stays the same.
    """
    read, known = ScriptDirectory.from_config, dict[str | None, ScriptDirectory]()

    def from_config(config: Config) -> ScriptDirectory:
        place = config.get_main_option("script_location")
        if place not in known:
            known[place] = read(config)
        return known[place]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", staticmethod(from_config))
        yield


@pytest.fixture
def world(
    engine: LocalStack | None, _models_read_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A world with nothing in it yet."""
    stack = engine or MemoryStack()
    with nullcontext(stack.marketplace) if isinstance(stack, MemoryStack) else Sandbox() as sandbox:
        sandbox.configure(calls_per_second=None)
        for name, value in stack.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL_MARKETPLACE_METERING", sandbox.url)
        ours = World(stack, sandbox, tmp_path)
        yield ours
        ours.close()


@pytest.fixture(scope="session")
def new_dagster_home(tmp_path_factory: pytest.TempPathFactory, _migrations_read_once: None) -> Path:
    """The folder of an instance on disk in which nothing has run yet. A copy opens ten times faster than a new one."""
    home = tmp_path_factory.mktemp("new-dagster-home")
    with dg.DagsterInstance.local_temp(str(home)):
        return home


@pytest.fixture
def instance(tmp_path: Path, new_dagster_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """A Dagster instance on disk, for ticks. Opened once: each tick would open it anew, which takes longer than it."""
    home = shutil.copytree(new_dagster_home, tmp_path / "dagster")
    with dg.DagsterInstance.local_temp(str(home)) as ours:
        monkeypatch.setattr(dg.DagsterInstance, "from_ref", lambda ref: nullcontext(ours))
        yield ours
