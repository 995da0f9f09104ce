"""Demo and dev have a home each; one process opens it, the second hears where the first one answers."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from metering_dagster.core.errors import SettingsError
from metering_dagster.devstack import home as homes
from metering_dagster.devstack.dagster_process import FIRST_PORT, PORTS, url_of, usable_port
from metering_dagster.devstack.demo_state import DemoState
from metering_dagster.devstack.home import HomeName, claimed_home, urls_in_use
from metering_dagster.devstack.stack import StackError

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:3456"
HOLDER = """
import subprocess, sys
from pathlib import Path
from metering_dagster.devstack.home import HomeName, claimed_home
root, child = Path(sys.argv[1]), sys.argv[2] == "child"
with claimed_home(root, HomeName.DEMO, "metering-dagster demo --ui") as home:
    home.announce("http://127.0.0.1:3456")
    if child:  # as Dagster's processes do, it inherits the lock; it ends with our test's end of the pipe
        subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=(home.lock,))
    print("claimed", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
    return tmp_path


@contextmanager
def a_holder(project: Path, *, child: bool = False) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has the demo's home open, with a child that shares the lock where asked."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(project), "child" if child else "alone"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "claimed\n"
        yield holder
    finally:
        holder.stdin.close()
        holder.kill()
        holder.wait()
        holder.stdout.read()  # its end comes once the child has ended as well
        holder.stdout.close()


def test_demo_and_dev_have_homes_apart_with_the_settings_of_the_project(project: Path) -> None:
    with claimed_home(project, HomeName.DEMO, "a") as demo, claimed_home(project, HomeName.DEV, "b") as dev:
        assert demo.folder != dev.folder
        for each in (demo, dev):
            assert (each.folder / "dagster.yaml").resolve() == project / "dagster.yaml"
            with dg.DagsterInstance.from_config(str(each.folder)) as instance:
                assert not instance.telemetry_enabled
                assert Path(instance.storage_directory()).is_relative_to(each.folder)


def test_the_second_is_refused_with_the_first_ones_url(project: Path) -> None:
    with a_holder(project) as first:
        with pytest.raises(StackError) as refused, claimed_home(project, HomeName.DEMO, "metering-dagster demo"):
            pass
        said = str(refused.value)
        assert f"`metering-dagster demo --ui` (process {first.pid}) is running already, at {URL}" in said
        assert "Nothing was started" in said
        assert urls_in_use(project) == {URL}
        with claimed_home(project, HomeName.DEV, "metering-dagster dev"):
            assert urls_in_use(project) == {URL}, "the other home is free"


def test_one_that_has_no_page_yet_is_named_without_it(project: Path) -> None:
    with (
        claimed_home(project, HomeName.DEMO, "metering-dagster demo"),
        pytest.raises(StackError, match=r"`metering-dagster demo` \(process \d+\) is running already, without a page"),
        claimed_home(project, HomeName.DEMO, "metering-dagster demo"),
    ):
        pass


def test_a_lock_left_by_a_killed_process_is_no_obstacle(project: Path) -> None:
    with a_holder(project) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert json.loads((project / homes.HOMES / "demo.lock").read_text())["url"] == URL, "it left its words"
        assert urls_in_use(project) == set()
        with claimed_home(project, HomeName.DEMO, "metering-dagster demo"):
            pass


def test_children_of_a_killed_process_are_awaited(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_holder(project, child=True) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
        with monkeypatch.context() as impatient:
            impatient.setattr(homes, "HANDOVER_SECONDS", 0.0)
            with pytest.raises(StackError, match="running already"), claimed_home(project, HomeName.DEMO, "second"):
                pass
        assert first.stdin is not None
        end_of_child = first.stdin
        waits: list[float] = []
        pause = homes.time.sleep

        def end_the_child(seconds: float) -> None:
            waits.append(seconds)
            end_of_child.close()
            pause(seconds)

        monkeypatch.setattr(homes.time, "sleep", end_the_child)
        with claimed_home(project, HomeName.DEMO, "second"):
            assert waits, "it was locked until the child had ended"


def test_a_home_begun_anew_has_no_runs_and_stays_claimed(project: Path) -> None:
    with claimed_home(project, HomeName.DEMO, "demo") as home:
        (home.folder / "storage").mkdir()
        home.begin_anew(project)
        assert [each.name for each in home.folder.iterdir()] == ["dagster.yaml"]
        with pytest.raises(StackError), claimed_home(project, HomeName.DEMO, "demo"):
            pass


def test_a_port_is_taken_by_whoever_will_listen_there_soon() -> None:
    free = usable_port(None, [])
    assert FIRST_PORT <= free < FIRST_PORT + PORTS
    assert usable_port(None, [url_of(free)]) > free
    with pytest.raises(SettingsError, match=f"Port {free} is taken"):
        usable_port(free, [url_of(free)])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SettingsError, match="is taken"):
            usable_port(taken.getsockname()[1], [])


def test_without_a_demo_there_is_nothing_to_look_at(project: Path) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "metering_dagster.cli", "demo", "--ui"],
        cwd=project, env=kept | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Run `make demo` first" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_demo_that_begins_forgets_the_last_one(project: Path) -> None:
    state, now = DemoState(project), datetime(2026, 11, 28, 10, 30, tzinfo=UTC)
    state.ledger.mkdir(parents=True)
    state.remember(now)
    assert state.instant() == now
    state.forget()
    assert list(state.folder.iterdir()) == []
    with pytest.raises(SettingsError, match="No demo has run to its end"):
        state.instant()
