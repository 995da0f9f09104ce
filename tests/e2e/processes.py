"""The project's parts as processes: started in groups of their own, awaited by looking, ended by their group."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

HOST = "127.0.0.1"
PATIENCE_SECONDS = 180.0
"""For anything, on the busiest of machines."""
END_SECONDS = 60.0
POLL_SECONDS = 0.2
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def until(look: Callable[[], T | None], what: str, patience: float = PATIENCE_SECONDS) -> T:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + patience
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"after {patience:.0f} s still waiting for {what}"
        time.sleep(POLL_SECONDS)
    return found


def ask(url: str, document: Any = None) -> Any:
    """GET, or POST of a document; JSON either way."""
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with DIRECT.open(request, timeout=60) as answer:
        return json.load(answer)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@dataclass
class Process:
    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def answers(self, url: str) -> None:
        """Wait until a GET of this address is answered."""

        def look() -> bool | None:
            assert self.popen.poll() is None, f"{self.name} has ended:\n{self.said()[-3000:]}"
            try:
                with DIRECT.open(url, timeout=5):
                    return True
            except OSError:
                return None

        until(look, f"{self.name} to answer at {url}")

    def end(self) -> None:
        """TERM for the process, then KILL for whatever is left of its group."""
        self.popen.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(END_SECONDS)
        with suppress(ProcessLookupError):  # it ended with all its children
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


def launched(
    name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str], cwd: Path | None = None
) -> Process:
    """A Python module and its arguments, with nothing of our environment; whoever starts it ends it."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TZ") if key in os.environ}
    log = folder / f"{name}.log"
    with log.open("wb") as sink:
        popen = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=cwd or folder,
            env=kept | {"PYTHONUNBUFFERED": "1", "NO_PROXY": HOST, "no_proxy": HOST} | dict(environment),
            start_new_session=True,
        )
    return Process(name, popen, log)


@contextmanager
def started(
    name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str], cwd: Path | None = None
) -> Iterator[Process]:
    """The same, for as long as the context is open."""
    process = launched(name, command, folder, environment, cwd)
    try:
        yield process
    finally:
        process.end()
