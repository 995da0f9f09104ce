"""Amazon's DynamoDB Local as a process, where it and a Java are there: the stores' second judge.

`scripts/fetch_dynamodb_local.sh` fetches it. It listens on all addresses of the machine and cannot be told otherwise;
it holds nothing but the tests' made-up rows, in memory, for as long as the tests of one session take.
"""

import http.client
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / ".cache" / "dynamodb-local"
JAR = FOLDER / "DynamoDBLocal.jar"
HOST = "127.0.0.1"
PORT_ATTEMPTS = 5
START_SECONDS, END_SECONDS, POLL_SECONDS = 60.0, 10.0, 0.05


def java_or_skip() -> str:
    """The Java to run it with. Where something is missing the test is skipped with the reason; on CI it fails."""
    java = shutil.which("java")
    if java is not None and JAR.exists():
        return java
    lacking = "scripts/fetch_dynamodb_local.sh has not been run" if java else "there is no java (17 or newer) here"
    reason = f"DynamoDB Local is not to be had: {lacking}."
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def running_dynamodb_local(folder: Path) -> Iterator[str]:
    """Its URL, for as long as the context is open; its log is `dynamodb-local.log` in the folder."""
    java, log = java_or_skip(), folder / "dynamodb-local.log"
    for _ in range(PORT_ATTEMPTS):
        port = _free_port()  # another may take it before Java does: then Java ends, and the next one is tried
        with log.open("wb") as sink:
            process = subprocess.Popen(_command(java, port), cwd=FOLDER, stdout=sink, stderr=subprocess.STDOUT)
        try:
            if _ready(process, port):
                yield f"http://{HOST}:{port}"
                return
        finally:
            _end(process)
    pytest.fail(f"DynamoDB Local did not start:\n{log.read_text(errors='replace')[-2000:]}")


def _command(java: str, port: int) -> list[str]:
    options = ["-Xmx768m", "-XX:+UseSerialGC", f"-Djava.library.path={FOLDER / 'DynamoDBLocal_lib'}"]
    own = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port)]
    return [java, *options, "-jar", str(JAR), *own]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _ready(process: subprocess.Popen[bytes], port: int) -> bool:
    """Whether it came to answer; False where it ended, or took too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            process.wait(timeout=POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if _answers(port) and process.poll() is None:
                return True
        else:
            return False
    return False


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/")
        return "x-amzn-requestid" in {name.lower() for name, _ in connection.getresponse().getheaders()}
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
