"""`dagster dev` as a child process: webserver, daemon, code servers and runs, on a home that this process has claimed.

Belongs here: its port, starting, awaiting and ending it, runs that a killed one left. Does not: its stack and settings
(dev, demo_ui).
"""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from metering_dagster.core.errors import SettingsError
from metering_dagster.devstack.home import OpenHome
from metering_dagster.devstack.stack import HOST, LOG_TAIL_LINES, StackError

FIRST_PORT, PORTS = 3000, 100
READY_SECONDS = 180.0
POLL_SECONDS = 0.1
END_SECONDS = 45.0
"""Dagster waits for its runs. Processes that live longer than this get SIGTERM, and then SIGKILL."""
TERM_SECONDS = 10.0


@contextmanager
def end_signals() -> Iterator[threading.Event]:
    """Give a block an event that SIGINT, SIGTERM and SIGHUP set.

    It works even where a script started this process in its background, and so with SIGINT ignored.
    """
    end = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, lambda *_: end.set()) for each in signals}
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    try:
        yield end
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for each, handler in before.items():
            signal.signal(each, handler)


def url_of(port: int) -> str:
    """Return the address of the UI on this port."""
    return f"http://{HOST}:{port}"


def usable_port(wanted: int | None, in_use: Collection[str]) -> int:
    """Return the wanted port, else the first free one of no URL in use. Raises `SettingsError` if there is none.

    A URL is in use from the start of its command, some seconds before a server listens there.
    """
    candidates = [wanted] if wanted is not None else range(FIRST_PORT, FIRST_PORT + PORTS)
    for port in candidates:
        if url_of(port) not in in_use and _is_free(port):
            return port
    taken = f"Port {wanted} is taken" if wanted else f"The ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all taken"
    raise SettingsError(f"{taken}. Nothing was started. Name a free port with --port, or leave --port out.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port closed a moment ago is free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def end_forgotten_runs(home: OpenHome) -> None:
    """Fail the runs whose process was killed with the last instance: they would block their hours for ever."""
    import dagster as dg

    going = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    with dg.DagsterInstance.from_config(str(home.folder)) as instance:
        for run in instance.get_runs(dg.RunsFilter(statuses=going)):
            instance.report_run_failed(run, f"Its process ended with the `{home.command}` that it belonged to.")


class DagsterProcess:
    """Child process of `dagster dev`, on a leash and in a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.process, self.log = process, log
        self.url = url_of(port)

    def is_ready(self, end: threading.Event) -> bool:
        """Wait until its page can be opened; return False if `end` is set before.

        Raises `StackError` if the process ends, or takes too long.
        """
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + READY_SECONDS
        while not end.wait(POLL_SECONDS):
            self.check()
            try:
                with direct.open(f"{self.url}/server_info", timeout=POLL_SECONDS * 20):
                    return True
            except (OSError, urllib.error.URLError):
                if time.monotonic() > deadline:
                    raise StackError(self._obituary(f"was not ready after {READY_SECONDS:.0f} s")) from None
        return False

    def check(self) -> None:
        """Raise `StackError` if the process has ended by itself."""
        status = self.process.poll()
        if status is not None:
            raise StackError(self._obituary(f"ended by itself, with status {status}"))

    def _obituary(self, what: str) -> str:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        return f"Dagster {what}. The end of its log {self.log}:\n{tail}"

    def end(self) -> None:
        """End all of its processes, in order or else by force. They read the leash for as long as they live."""
        assert self.process.stdin is not None
        gone = select.poll()
        gone.register(self.process.stdin, 0)
        self.process.terminate()
        if not gone.poll(1000 * END_SECONDS):
            self._signal(signal.SIGTERM)
            gone.poll(1000 * TERM_SECONDS)
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()

    def _signal(self, kind: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, kind)
        except (ProcessLookupError, PermissionError):
            return  # the group has no process left


@contextmanager
def running_dagster(
    root: Path, home: OpenHome, log: Path, environment: Mapping[str, str], port: int
) -> Iterator[DagsterProcess]:
    """Run all of Dagster while the block runs; it may not be ready when the block begins."""
    workspace = root / "workspace.yaml"
    what = ["-w", str(workspace)] if workspace.is_file() else ["-m", "metering_dagster.definitions"]
    leashed = [sys.executable, "-P", "-m", "metering_dagster.devstack.stack", "dagster"]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*leashed, "dev", "-h", HOST, "-p", str(port), *what],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=root,
            env=dict(environment),
            pass_fds=(home.lock,),
            start_new_session=True,
        )
    dagster = DagsterProcess(process, log, port)
    try:
        yield dagster
    finally:
        dagster.end()
