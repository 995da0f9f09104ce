"""The DAGSTER_HOMEs of the embedded stack: one for the demo and one for dev, in one ignored folder of the project.

Belongs here: their paths, the link to the project's dagster.yaml, the lock of the command that has one open. Does not:
their runs. The environment's own DAGSTER_HOME is left alone: a rehearsal must not turn a real instance's partitions
green.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from metering_dagster.devstack.stack import StackError

HOMES = ".dagster_home"
HANDOVER_SECONDS = 60.0
"""The time to wait for Dagster's processes, which outlive a killed parent until their runs have ended."""
POLL_SECONDS = 0.1


class HomeName(StrEnum):
    """Homes by the command that opens each."""

    DEMO = "demo"
    DEV = "dev"


@dataclass(frozen=True)
class OpenHome:
    """Home that only this process has open."""

    folder: Path
    command: str
    lock: int
    """The descriptor of its lock. Children that inherit it keep the home claimed until the last of them has ended."""

    def announce(self, url: str | None) -> None:
        """Write the UI's URL into the lock, for the message to commands that are refused."""
        text = json.dumps({"command": self.command, "pid": os.getpid(), "url": url}).encode()
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, text, 0)

    def begin_anew(self, root: Path) -> None:
        """Delete all runs and events of this home."""
        shutil.rmtree(self.folder)
        _link_settings(root, self.folder)


def project_root() -> Path:
    """Find the folder with dagster.yaml: the working directory, else the one that holds this package."""
    here = Path.cwd()
    return here if (here / "dagster.yaml").is_file() else Path(__file__).resolve().parents[2]


@contextmanager
def claimed_home(root: Path, name: HomeName, command: str) -> Iterator[OpenHome]:
    """Claim a home for this process while the block runs.

    The kernel frees the lock with its last holder, so a killed process leaves none. Where only children of a killed
    process are left, wait for their end. Raises `StackError` with the URL of the command that has the home open.
    """
    folder = root / HOMES / name
    _link_settings(root, folder)
    lock = os.open(_lock_file(root, name), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(lock, folder)
        home = OpenHome(folder, command, lock)
        home.announce(None)
        yield home
        os.ftruncate(lock, 0)
    finally:
        os.close(lock)


def urls_in_use(root: Path) -> set[str]:
    """Return the URLs of this project's open homes, even of those that are not ready yet."""
    urls = set()
    for name in HomeName:
        try:
            lock = os.open(_lock_file(root, name), os.O_RDONLY)
        except FileNotFoundError:
            continue
        holder = _holder(lock)
        os.close(lock)
        if holder.get("url") and _is_alive(holder.get("pid")):
            urls.add(str(holder["url"]))
    return urls


def _lock_file(root: Path, name: HomeName) -> Path:
    """Return the lock's path, beside the home: the home may be deleted and made anew while its lock is held."""
    return root / HOMES / f"{name}.lock"


def _link_settings(root: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    link, target = folder / "dagster.yaml", root / "dagster.yaml"
    if target.is_file() and not link.exists():
        link.unlink(missing_ok=True)  # a link that points nowhere
        link.symlink_to(target)


def _take(lock: int, folder: Path) -> None:
    deadline = time.monotonic() + HANDOVER_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(lock)
            if _is_alive(holder.get("pid")) or time.monotonic() > deadline:
                raise StackError(_refusal(holder, folder)) from None
            time.sleep(POLL_SECONDS)
        else:
            return


def _holder(lock: int) -> dict[str, Any]:
    """Return what the holder wrote; empty in the moment between its claim and its first write."""
    text = os.pread(lock, 1000, 0).decode(errors="replace")
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_alive(pid: int | None) -> bool:
    """Judge whether the process lives; an unknown one counts as living."""
    if pid is None:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _refusal(holder: dict[str, Any], folder: Path) -> str:
    what = f"`{holder.get('command', 'Another command')}` (process {holder.get('pid', 'unknown')})"
    if holder.get("url"):
        return (
            f"{what} is running already, at {holder['url']}, on the Dagster instance in {folder}. Nothing was "
            "started. Open that URL, or end that process first."
        )
    return (
        f"{what} is running already, without a page yet, on the Dagster instance in {folder}. Nothing was started. "
        "Wait for it, or end that process first."
    )
