"""The embedded stack starts, is reached through its environment, keeps what it must, and leaves no process."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import boto3
import pytest

from metering_dagster.core.aws.dynamodb import shape_faults
from metering_dagster.devstack import loading, sample, stack
from metering_dagster.devstack.queues import MAX_RECEIVE_COUNT
from metering_dagster.devstack.sandbox.client import SandboxClient
from metering_dagster.devstack.stack import LocalStack, StackError, create_tables, running_stack
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table

NOW = datetime(2026, 11, 28, 10, 20, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
CLIENT_SECONDS = 30


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    with running_stack(tmp_path_factory.mktemp("stack"), persist=False, now=NOW) as local:
        create_tables(local)
        yield local


def nothing_runs_in(folder: Path) -> bool:
    """The children hold the lock for as long as they live."""
    with (folder / "lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def usage_keys(local: LocalStack) -> list[str]:
    with closing(local.dynamodb()) as client:
        return [item["licenseArn"]["S"] for item in client.scan(TableName=stack.USAGE_TABLE)["Items"]]


def put_usage(local: LocalStack, key: str) -> None:
    item = {usage_table.SHAPE.hash_key: {"S": key}, usage_table.SHAPE.range_key: {"S": "1#d#2026-11-28T09:00:00"}}
    with closing(local.dynamodb()) as client:
        client.put_item(TableName=stack.USAGE_TABLE, Item=item)


def send_event(local: LocalStack, body: str) -> None:
    with closing(local.sqs()) as client:
        client.send_message(QueueUrl=local.queue_url(stack.EVENTS_QUEUE), MessageBody=body)


def received_event(local: LocalStack) -> str:
    with closing(local.sqs()) as client:
        (message,) = client.receive_message(QueueUrl=local.queue_url(stack.EVENTS_QUEUE))["Messages"]
        return message["Body"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (stack.USAGE_TABLE, usage_table.SHAPE),
        (stack.AGGREGATED_USAGE_TABLE, aggregated_table.SHAPE),
        (stack.SUBSCRIBERS_TABLE, subscribers_table.SHAPE),
    ],
)
def test_tables_have_their_keys_and_indexes(running, name, shape):
    with closing(running.dynamodb()) as client:
        assert shape_faults(client, name, shape) == []


def test_tables_that_exist_are_left_alone(running):
    put_usage(running, "kept")
    create_tables(running)
    assert "kept" in usage_keys(running)


def test_sdk_reaches_the_stack_through_the_environment_alone(running, monkeypatch):
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    for name, value in running.environment().items():
        monkeypatch.setenv(name, value)
    with closing(boto3.Session().client("dynamodb")) as client:
        assert os.environ["USAGE_TABLE"] in client.list_tables()["TableNames"]
    with closing(boto3.Session().client("sqs")) as client:
        queue = os.environ["MARKETPLACE_EVENTS_QUEUE_URL"]
        client.send_message(QueueUrl=queue, MessageBody="{}")
        (message,) = client.receive_message(QueueUrl=queue)["Messages"]
        assert message["Body"] == "{}"
        client.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    with closing(boto3.Session().client("meteringmarketplace")) as client:
        assert client.meta.endpoint_url == running.sandbox_url


def test_what_is_received_too_often_goes_to_the_dead_letter_queue(running):
    with closing(running.sqs()) as client:
        url, dead = running.queue_url(stack.EVENTS_QUEUE), running.queue_url(stack.DEAD_EVENTS_QUEUE)
        client.send_message(QueueUrl=url, MessageBody="unreadable")
        for _ in range(MAX_RECEIVE_COUNT):
            (received,) = client.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"]
            assert received["Body"] == "unreadable"
        assert "Messages" not in client.receive_message(QueueUrl=url)
        assert client.receive_message(QueueUrl=dead)["Messages"][0]["Body"] == "unreadable"


def test_sandbox_runs_on_the_clock_it_was_given(running):
    assert SandboxClient(running.sandbox_url).health()["now"] == NOW.isoformat()


def test_everything_listens_on_loopback_only(running):
    for url in (running.dynamodb_url, running.sandbox_url):
        host, _, port = url.removeprefix("http://").partition(":")
        socket.create_connection((host, int(port)), timeout=CLIENT_SECONDS).close()
        with pytest.raises(OSError):  # noqa: PT011  # refused, or no such address: what matters is that nobody is there
            socket.create_connection(("127.0.0.2", int(port)), timeout=CLIENT_SECONDS)


def test_sample_arrives_whole_and_the_sandbox_learns_of_it(running):
    told = sample.generate(NOW)
    with closing(running.dynamodb()) as client:
        before = client.scan(TableName=stack.USAGE_TABLE, Select="COUNT")["Count"]
        assert loading.load(client, stack.USAGE_TABLE, told.rows) == len(told.rows)
        assert client.scan(TableName=stack.USAGE_TABLE, Select="COUNT")["Count"] - before == len(told.rows)
        loading.load_subscribers(client, stack.SUBSCRIBERS_TABLE, told.subscribers)
        assert client.scan(TableName=stack.SUBSCRIBERS_TABLE, Select="COUNT")["Count"] == len(told.subscribers)
    loading.configure_sandbox(running, told)
    world = SandboxClient(running.sandbox_url).configure()
    assert world["licenses"] == told.licenses
    assert set(world["products"]) == set(told.products)
    assert set(world["dimensions"]) == set(told.dimensions)
    assert set(world["customers"]) == set(told.legacy_customers)


def test_state_is_taken_up_again_where_asked(tmp_path):
    with running_stack(tmp_path, persist=True, now=NOW) as local:
        create_tables(local)
        put_usage(local, "kept")
        send_event(local, "kept")
        SandboxClient(local.sandbox_url).configure(dimensions=["kept"])
    assert nothing_runs_in(tmp_path)
    with running_stack(tmp_path, persist=True, now=NOW) as local:
        create_tables(local)
        assert usage_keys(local) == ["kept"]
        assert received_event(local) == "kept"
        assert SandboxClient(local.sandbox_url).configure()["dimensions"] == ["kept"]


def test_without_persistence_every_start_is_empty(tmp_path):
    for _ in range(2):
        with running_stack(tmp_path, persist=False, now=NOW) as local:
            with closing(local.dynamodb()) as client:
                assert client.list_tables()["TableNames"] == []
            create_tables(local)
            assert SandboxClient(local.sandbox_url).configure()["dimensions"] is None
            SandboxClient(local.sandbox_url).configure(dimensions=["forgotten"])


def test_children_end_when_ctrl_c_ends_the_parents_work(tmp_path):
    def work():
        with running_stack(tmp_path, persist=False, now=None):
            assert not nothing_runs_in(tmp_path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert nothing_runs_in(tmp_path)


def test_child_that_dies_at_its_start_is_reported_with_its_log(tmp_path):
    (tmp_path / "sandbox.sqlite").mkdir()  # no database can be opened there
    with (
        pytest.raises(StackError, match=r"(?s)sandbox ended with status 1 .*unable to open database file"),
        running_stack(tmp_path, persist=True, now=None),
    ):
        pass
    assert nothing_runs_in(tmp_path)


@contextmanager
def taken_port(listening: bool) -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind((stack.HOST, 0))
        if listening:
            taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize("listening", [True, False])
def test_port_that_was_taken_meanwhile_is_exchanged_for_another(tmp_path, monkeypatch, listening):
    free = stack._free_port
    with taken_port(listening) as port:
        ports = iter([port])
        monkeypatch.setattr(stack, "_free_port", lambda: next(ports, None) or free())
        with running_stack(tmp_path, persist=False, now=None) as local:
            assert not local.dynamodb_url.endswith(f":{port}")
            create_tables(local)


def test_no_port_at_all_is_reported(tmp_path, monkeypatch):
    with taken_port(listening=False) as port:
        monkeypatch.setattr(stack, "_free_port", lambda: port)
        monkeypatch.setattr(stack, "PORT_ATTEMPTS", 2)
        with pytest.raises(StackError, match="already in use"), running_stack(tmp_path, persist=False, now=None):
            pass
    assert nothing_runs_in(tmp_path)


def test_second_stack_in_the_same_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(stack, "CLAIM_SECONDS", 0)
    with (
        running_stack(tmp_path, persist=False, now=None),
        pytest.raises(StackError, match="Another embedded stack is running"),
        running_stack(tmp_path, persist=False, now=None),
    ):
        pass


PARENT = """
import json, signal, sys
from pathlib import Path
from metering_dagster.devstack.stack import create_tables, running_stack

for name in ("SIGINT", "SIGTERM"):
    signal.signal(getattr(signal, name), signal.SIG_IGN if name in sys.argv[2:] else signal.SIG_DFL)
with running_stack(Path(sys.argv[1]), persist=True, now=None) as local:
    create_tables(local)
    print(json.dumps({"url": local.dynamodb_url}), flush=True)
    sys.stdin.read()
"""


@contextmanager
def parent(folder: Path, *ignored_signals: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that runs a stack until its input ends."""
    command = [sys.executable, "-c", PARENT, str(folder), *ignored_signals]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["url"]
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("deadly", [signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_a_parent_that_is_killed_and_nothing_is_lost(tmp_path, deadly):
    with parent(tmp_path) as process:
        process.send_signal(deadly)
        process.wait(CLIENT_SECONDS)
        with (tmp_path / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # returns when the last child has ended
    with running_stack(tmp_path, persist=True, now=None) as local:
        assert usage_keys(local) == []  # the table is there: its state was saved


def test_children_heed_term_though_their_parent_ignores_it(tmp_path):
    with parent(tmp_path, "SIGINT", "SIGTERM") as process:
        process.communicate(timeout=CLIENT_SECONDS)
    assert "MiniStack shutting down" in (tmp_path / "ministack.log").read_text()  # it was not killed
    assert nothing_runs_in(tmp_path)
