"""A crew for each test; one DAGSTER_HOME for all of them."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tests.crash.crew import Crew, a_crew
from tests.world import World


@pytest.fixture(scope="session")
def _dagster_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An instance as a person has it: SQLite below a folder. Its databases are there before rivals come to it."""
    home = tmp_path_factory.mktemp("dagster-home")
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert instance.get_runs(limit=1) == []
        assert instance.all_asset_keys() == []
        assert instance.all_instigator_state() == []
    return home


@pytest.fixture
def crew(world: World, _dagster_home: Path) -> Iterator[Crew]:
    """Nobody works yet."""
    with a_crew(world, _dagster_home) as ours:
        yield ours
