"""`metering-dagster dev`: Dagster with all its schedules running, on an embedded stack where usage and billing data
keep arriving.

Belongs here: what is started and ended, in which order, and what is kept between two runs. Does not: what arrives
(arrivals), what is printed (cli).

What is kept lies in `.metering/dev`: tables, bill, ledger, billing data and what was reported of it, logs, and up to
when usage has arrived. Runs are kept in the DAGSTER_HOME that all our commands share.
"""

import fcntl
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from metering_dagster.errors import SettingsError
from metering_dagster.local import loading
from metering_dagster.local.arrivals import arriving, late_row, missed
from metering_dagster.local.billing_arrivals import Collector
from metering_dagster.local.environment import environment_on
from metering_dagster.local.home import dagster_home
from metering_dagster.local.sample import cast_of, generate
from metering_dagster.local.stack import (
    AGGREGATED_USAGE_TABLE,
    HOST,
    LOG_TAIL_LINES,
    SUBSCRIBERS_TABLE,
    USAGE_TABLE,
    LocalStack,
    StackError,
    create_tables,
    running_stack,
)

STATE = Path(".metering", "dev")
FIRST_PORT, PORTS = 3000, 100
ARRIVAL_SECONDS = 2.0
LATE_SECONDS = 90.0
READY_SECONDS = 180.0
QUIET_SECONDS = "10"
"""After so long without a further row, a day of billing data is looked at: sooner than in production."""
POLL_SECONDS = 0.1
END_SECONDS = 45.0
"""Runs under way are waited for by Dagster; what is not gone after this long is told to end, and then killed."""
TERM_SECONDS = 10.0


@dataclass(frozen=True)
class Running:
    """What there is to look at."""

    url: str
    stack: LocalStack
    state: Path
    home: Path
    cron: str


def develop(
    root: Path,
    ours: Mapping[str, str],
    port: int | None,
    ready: Callable[[Running], None],
    say: Callable[[str], None],
) -> None:
    """Run everything until SIGINT, SIGTERM or SIGHUP; `ready` is told as soon as the page can be opened.

    Raises `StackError` or `SettingsError`, in words, where it cannot be started or does not stay up.
    """
    state, home = root / STATE, dagster_home(root)
    state.mkdir(parents=True, exist_ok=True)
    with _asked_to_end() as end, _alone(state) as lock:
        port = _usable_port(port)
        lock.write_text(f"http://{HOST}:{port}\n")
        say("Starting: tables and marketplace, usage, Dagster (about 15 s) ...")
        with running_stack(state, persist=True, now=None) as stack:
            usage = _Usage(stack, state / "arrived.json")
            usage.make_up()
            collector = Collector(state / "billing.sqlite")
            collector.make_up()
            _end_forgotten_runs(home)
            environment = environment_on(
                stack, home, ours,
                METERING_DEFAULT_STATUS="running",
                METERING_CRON=ours.get("METERING_CRON") or "* * * * *",
                METERING_LEDGER_URI=str(state / "ledger"),
                BILLING_DATABASE_URL=collector.url,
                BILLING_CHANGES_URI=str(state / "billing_changes"),
                BILLING_QUIET_SECONDS=QUIET_SECONDS,
            )  # fmt: skip
            if end.is_set():
                return
            with _dagster(root, state / "dagster.log", environment, port, lock) as dagster:
                if dagster.is_ready(end):
                    ready(Running(dagster.url, stack, state, home, environment["METERING_CRON"]))
                while not end.wait(ARRIVAL_SECONDS):
                    dagster.check()
                    usage.arrive()
                    collector.ingest()
                say("Ending: runs under way are waited for, the tables are saved ...")


@contextmanager
def _asked_to_end() -> Iterator[threading.Event]:
    """Set by a signal, even where a script started us in its background, which means with SIGINT ignored."""
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


class _Lock:
    """The file that says where this folder's instance answers, for as long as it is locked."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def read_text(self) -> str:
        return os.pread(self.descriptor, 1000, 0).decode()

    def write_text(self, text: str) -> None:
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode(), 0)


@contextmanager
def _alone(state: Path) -> Iterator[_Lock]:
    """One at a time. Dagster's process holds the lock as well: where we are killed, the next one waits its end out."""
    descriptor = os.open(state / "dev.lock", os.O_RDWR | os.O_CREAT, 0o644)
    lock = _Lock(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"It is running already, at {lock.read_text().strip() or 'an address not known yet'}, with its state "
                f"in {state}. Nothing was started. Open that one, or end it first."
            ) from None
        yield lock
    finally:
        os.close(descriptor)


def _usable_port(wanted: int | None) -> int:
    candidates = [wanted] if wanted is not None else range(FIRST_PORT, FIRST_PORT + PORTS)
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was left a moment ago is free
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    taken = f"Port {wanted} is taken" if wanted else f"The ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all taken"
    raise SettingsError(f"{taken}. Nothing was started. Name a free one with --port, or none.")


class _Usage:
    """The seller's part: rows keep coming in."""

    def __init__(self, stack: LocalStack, memory: Path) -> None:
        self._stack, self._memory = stack, memory
        self._client = stack.dynamodb()
        self._streams = cast_of().streams
        self._until: datetime | None = None
        self._late_at = time.monotonic() + LATE_SECONDS
        self._rng = random.Random()

    def make_up(self) -> None:
        """The sample at the first start; later what was missed since, as far as it can be billed."""
        now = datetime.now(UTC)
        since = datetime.fromisoformat(json.loads(self._memory.read_text())["until"]) if self._memory.exists() else None
        create_tables(self._stack)
        if since is None:
            sample = generate(now)
            loading.configure_sandbox(self._stack, sample)
            loading.load_subscribers(self._client, SUBSCRIBERS_TABLE, sample.subscribers)
        loading.load(self._client, USAGE_TABLE, missed(self._streams, since, now))
        self._has_arrived(now)

    def arrive(self) -> None:
        """What was used since the last time; now and then something of an hour that has been metered already."""
        now = datetime.now(UTC)
        rows = list(arriving(self._streams, self._until or now, now))
        try:
            if time.monotonic() >= self._late_at:
                self._late_at = time.monotonic() + LATE_SECONDS
                late = late_row(self._client, AGGREGATED_USAGE_TABLE, self._streams, now, self._rng)
                rows += [late] if late else []
            loading.load(self._client, USAGE_TABLE, rows)
        except (BotoCoreError, ClientError) as error:
            raise StackError(f"The embedded DynamoDB no longer takes usage: {error}") from None
        self._has_arrived(now)

    def _has_arrived(self, until: datetime) -> None:
        self._until = until
        draft = self._memory.with_suffix(".new")
        draft.write_text(json.dumps({"until": until.isoformat()}))
        draft.replace(self._memory)


def _end_forgotten_runs(home: Path) -> None:
    """Runs whose process was killed with the last instance would keep their hours occupied for ever."""
    import dagster as dg

    going = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for run in instance.get_runs(dg.RunsFilter(statuses=going)):
            if "metering/rehearsal" not in run.tags:  # a demo that goes on beside us ends by itself
                instance.report_run_failed(run, "Its process ended with the `metering-dagster dev` it belonged to.")


class _Dagster:
    """`dagster dev` below a leash: webserver, daemon, code servers and runs, in a process group of their own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.process, self.log = process, log
        self.url = f"http://{HOST}:{port}"

    def is_ready(self, end: threading.Event) -> bool:
        """Whether its page can be opened; False if we are to end before that."""
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
        """`StackError` where it has ended by itself."""
        status = self.process.poll()
        if status is not None:
            raise StackError(self._obituary(f"ended by itself, with status {status}"))

    def _obituary(self, what: str) -> str:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        return f"Dagster {what}. The end of its log {self.log}:\n{tail}"

    def end(self) -> None:
        """All of it: in order, else by force. Its parts read the leash for as long as they live."""
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
            return  # nobody is left in the group


@contextmanager
def _dagster(root: Path, log: Path, environment: Mapping[str, str], port: int, lock: _Lock) -> Iterator[_Dagster]:
    workspace = root / "workspace.yaml"
    what = ["-w", str(workspace)] if workspace.is_file() else ["-m", "metering_dagster.definitions"]
    leashed = [sys.executable, "-P", "-m", "metering_dagster.local.stack", "dagster"]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*leashed, "dev", "-h", HOST, "-p", str(port), *what],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=root,
            env=dict(environment),
            pass_fds=(lock.descriptor,),
            start_new_session=True,
        )
    dagster = _Dagster(process, log, port)
    try:
        yield dagster
    finally:
        dagster.end()
