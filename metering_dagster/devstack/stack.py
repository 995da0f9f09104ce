"""The processes of the embedded stack: an AWS emulator and the marketplace sandbox, both on loopback.

Belongs here: starting, awaiting and ending the two, the settings that point the pipeline at them, its empty tables.
Does not: the tables' rows (sample), the sandbox's bill (sandbox/).

Each child is on a leash: it runs below this module (`python -m metering_dagster.devstack.stack MODULE ...`) and reads a
pipe that only its parent holds. However the parent ends, even by SIGKILL, the pipe closes and the child ends in order.
"""

import fcntl
import http.client
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from metering_dagster.core.errors import MeteringError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")

HOST = "127.0.0.1"
REGION = "us-east-1"
USAGE_TABLE = "usage"
AGGREGATED_USAGE_TABLE = "aggregated-usage"
SUBSCRIBERS_TABLE = "subscribers"
EVENTS_QUEUE, DEAD_EVENTS_QUEUE = "marketplace-events", "marketplace-events-dead"
ACCOUNT = "000000000000"
"""The emulator's account for credentials that name none."""
DUMMY_CREDENTIAL = "local"
SANDBOX_DATABASE, EMULATOR_FILES = "sandbox.sqlite", "emulator"

START_SECONDS = 60.0
END_SECONDS = 20.0
"""The time after which a child is killed: saving the state of some 100,000 items takes seconds."""
CLAIM_SECONDS = 5.0
ANSWER_SECONDS = 1.0
"""The time-out of one health check: another program on the emulator's port may accept and never answer."""
POLL_SECONDS = 0.02
PORT_ATTEMPTS = 5
LOG_TAIL_LINES = 30

_KEPT_FROM_OUR_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
"""The variables that a child inherits. The emulator reads dozens of others, with common names such as SERVICES."""


class StackError(MeteringError):
    """Failure to start the embedded stack; the message has the end of the failed process's log."""

    has_lines = True


class _ChildExitedError(StackError):
    """Child that ended before it was ready."""


@dataclass(frozen=True)
class LocalStack:
    """Running stack, with the addresses of its parts."""

    dynamodb_url: str
    """The emulator's address: DynamoDB, SQS, S3 and SNS share it."""
    sandbox_url: str
    region: str = REGION

    def environment(self) -> dict[str, str]:
        """Return the variables that point the pipeline, and its AWS SDK, at this stack."""
        return {
            "USAGE_TABLE": USAGE_TABLE,
            "AGGREGATED_USAGE_TABLE": AGGREGATED_USAGE_TABLE,
            "SUBSCRIBERS_TABLE": SUBSCRIBERS_TABLE,
            "SUBSCRIBERS_TABLE_REGION": self.region,
            "MARKETPLACE_EVENTS_QUEUE_URL": self.queue_url(EVENTS_QUEUE),
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL_DYNAMODB": self.dynamodb_url,
            "AWS_ENDPOINT_URL_SQS": self.dynamodb_url,
            "AWS_ENDPOINT_URL_S3": self.dynamodb_url,
            "AWS_ENDPOINT_URL_SNS": self.dynamodb_url,
            "AWS_ENDPOINT_URL_MARKETPLACE_METERING": self.sandbox_url,
            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",  # "true" would send all of it to AWS itself
            "AWS_ACCESS_KEY_ID": DUMMY_CREDENTIAL,
            "AWS_SECRET_ACCESS_KEY": DUMMY_CREDENTIAL,
            "AWS_EC2_METADATA_DISABLED": "true",
            **_without_proxy(),
        }

    def queue_url(self, name: str) -> str:
        """Return the URL of the queue of this name."""
        return f"{self.dynamodb_url}/{ACCOUNT}/{name}"

    def dynamodb(self) -> "DynamoDBClient":
        """Return a client of DynamoDB for this stack, whatever the environment says."""
        client: DynamoDBClient = self._client("dynamodb")
        return client

    def sqs(self) -> Any:
        """Return a client of SQS for this stack, whatever the environment says."""
        return self._client("sqs")

    def _client(self, service: str) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(  # type: ignore[call-overload]
            service,
            endpoint_url=self.dynamodb_url,
            region_name=self.region,
            aws_access_key_id=DUMMY_CREDENTIAL,
            aws_secret_access_key=DUMMY_CREDENTIAL,
            config=Config(proxies={}, max_pool_connections=16),
        )


def _without_proxy() -> dict[str, str]:
    """Return variables that keep the machine's proxy away from loopback; both spellings are in use."""
    kept = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    hosts = ",".join([kept, HOST] if kept else [HOST])
    return {"NO_PROXY": hosts, "no_proxy": hosts}


@contextmanager
def running_stack(state_dir: Path, *, persist: bool, now: datetime | None, anew: bool = False) -> Iterator[LocalStack]:
    """Run both children, ready to answer, while the block runs. Raises `StackError` where one does not start.

    With `persist`, tables and bill are loaded from `state_dir` and saved there at the end; without, both start empty.
    `anew` deletes the state of earlier starts. `now` freezes the sandbox's clock. The children's logs are
    `ministack.log` and `sandbox.log` in `state_dir`.
    """
    state_dir = state_dir.resolve()
    state_dir.mkdir(parents=True, exist_ok=True)
    with _claimed(state_dir) as home, ExitStack() as children:
        if anew or not persist:
            _forget(home)
        sandbox = children.enter_context(_sandbox(home, now))
        emulator_url = children.enter_context(_emulator(home, persist))
        yield LocalStack(emulator_url, _ready(sandbox, lambda: _announced_url(sandbox)))


def create_tables(stack: LocalStack) -> None:
    """Create the three tables with their indexes, and the queue of lifecycle events; existing ones are left alone."""
    from metering_dagster.core.aws.dynamodb import create_table
    from metering_dagster.devstack.queues import create_queue
    from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table

    client = stack.dynamodb()
    for name, shape in (
        (USAGE_TABLE, usage_table.SHAPE),
        (AGGREGATED_USAGE_TABLE, aggregated_table.SHAPE),
        (SUBSCRIBERS_TABLE, subscribers_table.SHAPE),
    ):
        try:
            create_table(client, name, shape)
        except client.exceptions.ResourceInUseException:
            continue
        client.get_waiter("table_exists").wait(TableName=name)
    create_queue(stack.sqs, EVENTS_QUEUE, DEAD_EVENTS_QUEUE)


@dataclass(frozen=True)
class _Home:
    """Folder of one stack, and the open lock on it."""

    folder: Path
    lock: int


@contextmanager
def _claimed(state_dir: Path) -> Iterator[_Home]:
    """Claim a folder for one stack: two would overwrite each other's state.

    The children inherit the lock, so it is free once the last of them has ended, even if their parent was killed. A
    stack about to end gets `CLAIM_SECONDS`; then `StackError` is raised.
    """
    deadline = time.monotonic() + CLAIM_SECONDS
    with (state_dir / "lock").open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StackError(
                        f"Another embedded stack is running in {state_dir}. Nothing was started. "
                        "End the other stack, or name another folder."
                    ) from None
                time.sleep(POLL_SECONDS)
        yield _Home(state_dir, lock.fileno())


def _forget(home: _Home) -> None:
    """Delete tables and bill, with the journals of the bill's database."""
    for leftover in home.folder.glob(f"{SANDBOX_DATABASE}*"):
        leftover.unlink()
    if (home.folder / EMULATOR_FILES).exists():
        shutil.rmtree(home.folder / EMULATOR_FILES)


@dataclass(frozen=True)
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def tail(self) -> str:
        return "\n".join(self.said().splitlines()[-LOG_TAIL_LINES:])


@contextmanager
def _sandbox(home: _Home, now: datetime | None) -> Iterator[_Child]:
    database = home.folder / SANDBOX_DATABASE
    frozen = [] if now is None else ["--now", now.isoformat()]
    args = ["--port", "0", "--database", str(database), *frozen]
    with _child("sandbox", "metering_dagster.devstack.sandbox", args, {}, home) as child:
        yield child


def _announced_url(sandbox: _Child) -> str | None:
    """Return the URL in the JSON line that the sandbox prints once it listens; it chooses its own port."""
    for line in sandbox.said().splitlines(keepends=True):
        if line.startswith("{") and line.endswith("\n"):
            return str(json.loads(line)["url"])
    return None


@contextmanager
def _emulator(home: _Home, persist: bool) -> Iterator[str]:
    """Run the emulator and give its URL.

    The emulator needs its port as a setting. Another program may take a free port before the emulator binds it: then
    start it again on another one.
    """
    with ExitStack() as running:
        for attempt in range(1, PORT_ATTEMPTS + 1):
            port, token = _free_port(), uuid.uuid4().hex
            environment = _emulator_environment(home.folder, persist, port, token)
            with ExitStack() as trial:
                child = trial.enter_context(_child("ministack", "ministack", [], environment, home))
                try:
                    _ready(child, partial(_is_ours, port, token))
                except _ChildExitedError:
                    if attempt == PORT_ATTEMPTS or "already in use" not in child.said():
                        raise
                    continue
                running.push(trial.pop_all())
                break
        yield f"http://{HOST}:{port}"


def _emulator_environment(folder: Path, persist: bool, port: int, token: str) -> dict[str, str]:
    files = folder / EMULATOR_FILES
    files.mkdir(exist_ok=True)
    return {
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(port),
        "SERVICES": "dynamodb,sqs,s3,sns",
        "SFTP_ENABLED": "0",  # these two would listen on all addresses, whatever SERVICES says
        "IOT_MTLS_ENABLED": "0",
        "MINISTACK_EDITION": token,  # its health response repeats it: only our own child has this token
        "TMPDIR": str(files),  # for the file with its pid
        "PERSIST_STATE": "1" if persist else "0",
        "STATE_DIR": str(files / "state"),
        "S3_PERSIST": "1" if persist else "0",
        "S3_DATA_DIR": str(files / "s3"),
    }


def _is_ours(port: int, token: str) -> bool | None:
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/_ministack/health")
        return json.loads(connection.getresponse().read()).get("edition") == token or None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def _child(
    name: str, module: str, args: Sequence[str], environment: Mapping[str, str], home: _Home
) -> Iterator[_Child]:
    """Run `python -m module` on a leash, in a process group of its own: Ctrl-C reaches only this process."""
    log = home.folder / f"{name}.log"
    kept = {key: os.environ[key] for key in _KEPT_FROM_OUR_ENVIRONMENT if key in os.environ}
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name if __spec__ else __name__, module, *args],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=home.folder,
            pass_fds=(home.lock,),
            env={**kept, "PYTHONPATH": _our_path(), "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,
        )
    try:
        yield _Child(name, process, log)
    finally:
        _end(process)


def _our_path() -> str:
    """Return this process's import path, valid in any working directory."""
    return os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a child by SIGTERM, or by SIGKILL after `END_SECONDS`. Even an interrupted wait releases the leash."""
    try:
        process.terminate()
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        if process.stdin:
            process.stdin.close()


def _ready(child: _Child, poll: Callable[[], T | None]) -> T:
    """Poll until there is a result, and return it. Raises `StackError` where the child exits, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        result = poll()
        if result is not None:
            return result
        try:
            status = child.process.wait(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise StackError(_obituary(child, f"was not ready after {START_SECONDS:.0f} s")) from None
        else:
            raise _ChildExitedError(_obituary(child, f"ended with status {status} before it was ready"))


def _obituary(child: _Child, what: str) -> str:
    return f"The embedded stack did not start: {child.name} {what}. The end of its log {child.log}:\n{child.tail()}"


def _run_leashed(module: str, args: Sequence[str]) -> None:
    """Become `module`, with the signal handlers of a fresh shell, and end when the parent is gone.

    A parent started in the background of a script ignores SIGINT, and its children would inherit that.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_follow_parent, daemon=True, name="leash").start()
    sys.argv = [module, *args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _follow_parent() -> None:
    while os.read(0, 1):  # the parent never writes: this returns at the end of the pipe
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    _run_leashed(sys.argv[1], sys.argv[2:])
