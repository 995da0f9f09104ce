"""`metering-dagster demo --ui`: Dagster on the last demo's tables, runs, settings and clock.

Belongs here: the order of starting and ending. Does not: the demo's files (demo_state), Dagster's process
(dagster_process), the output (cli).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from metering_dagster.devstack.dagster_process import (
    end_forgotten_runs,
    end_signals,
    running_dagster,
    url_of,
    usable_port,
)
from metering_dagster.devstack.demo_state import DemoState
from metering_dagster.devstack.environment import environment_on
from metering_dagster.devstack.home import HomeName, claimed_home, urls_in_use
from metering_dagster.devstack.stack import LocalStack, create_tables, running_stack

COMMAND = "metering-dagster demo --ui"
CHECK_SECONDS = 1.0


@dataclass(frozen=True)
class Showing:
    """Addresses and folders of the demo's UI."""

    url: str
    stack: LocalStack
    state: Path
    home: Path
    now: datetime


def show(
    root: Path,
    ours: Mapping[str, str],
    port: int | None,
    ready: Callable[[Showing], None],
    say: Callable[[str], None],
) -> None:
    """Run the stack and Dagster until SIGINT, SIGTERM or SIGHUP; call `ready` once the page can be opened.

    Schedules and sensors are stopped. The clock stands at the demo's instant, so its hours can be run again on any
    later day. Raises `StackError` or `SettingsError` where something cannot be started or ends by itself.
    """
    with end_signals() as end, claimed_home(root, HomeName.DEMO, COMMAND) as home:
        state = DemoState(root)
        now = state.instant()
        port = usable_port(port, urls_in_use(root))
        home.announce(url_of(port))
        say("Starting the demo's tables and marketplace, and Dagster (about 15 s) ...")
        with running_stack(state.folder, persist=True, now=now) as stack:
            create_tables(stack)
            end_forgotten_runs(home)
            environment = environment_on(
                stack, home.folder, ours, METERING_DEFAULT_STATUS="stopped",
                **state.settings(now), **state.billing_settings(),
            )  # fmt: skip
            if end.is_set():
                return
            with running_dagster(root, home, state.folder / "dagster.log", environment, port) as dagster:
                if dagster.is_ready(end):
                    ready(Showing(dagster.url, stack, state.folder, home.folder, now))
                while not end.wait(CHECK_SECONDS):
                    dagster.check()
                say("Ending: waiting for runs in progress, saving the tables ...")
