"""A sandbox in a process of its own: how it starts, how it ends, what outlives it."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from botocore.exceptions import ConnectionClosedError

from metering_dagster.devstack.sandbox import Sandbox, SandboxClient, faults
from tests.devstack.sandbox.sandbox_calls import ACCOUNT, NOW, a_record, metering, refusal, send, statuses

ROOT = Path(__file__).parents[3]
ENDS_WITHIN_SECONDS = 60


@contextmanager
def started(database: Path, *options: str) -> Iterator[tuple["subprocess.Popen[str]", SandboxClient]]:
    command = [sys.executable, "-m", "metering_dagster.devstack.sandbox", "--database", str(database)]
    with subprocess.Popen(
        [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, SandboxClient(json.loads(process.stdout.readline())["url"])
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_ends_cleanly_when_told(tmp_path: Path, ending: signal.Signals) -> None:
    with started(tmp_path / "bill.sqlite", "--port", "0", "--now", NOW.isoformat()) as (process, sandbox):
        client = metering(sandbox.url)
        assert statuses(send(client, a_record())) == ["Success"]
        assert sandbox.health()["now"] == NOW.isoformat()
        process.send_signal(ending)
        assert process.wait(ENDS_WITHIN_SECONDS) == 0
        client.close()
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_it_ends_while_a_call_waits(tmp_path: Path) -> None:
    with (
        started(tmp_path / "bill.sqlite", "--now", NOW.isoformat()) as (process, sandbox),
        ThreadPoolExecutor(1) as pool,
    ):
        sandbox.inject(faults.latency(600))
        client = metering(sandbox.url)
        waiting = pool.submit(send, client, a_record())
        while not sandbox.calls():
            assert not waiting.done()
        process.terminate()
        assert process.wait(ENDS_WITHIN_SECONDS) == 0
        assert isinstance(waiting.exception(), ConnectionClosedError)
        client.close()


def test_a_killed_sandbox_remembers_what_it_billed_and_was_told(tmp_path: Path) -> None:
    database = tmp_path / "bill.sqlite"
    with started(database, "--now", NOW.isoformat()) as (process, sandbox):
        client = metering(sandbox.url)
        first = send(client, a_record())
        sandbox.configure(unsubscribed=["444455556666"])
        process.kill()
        process.wait(ENDS_WITHIN_SECONDS)
        client.close()
    with started(database, "--now", NOW.isoformat()) as (process, sandbox):
        client = metering(sandbox.url)
        again = send(client, a_record(), a_record(CustomerAWSAccountId="444455556666"))
        assert statuses(again) == ["Success", "CustomerNotSubscribed"]
        assert again["Results"][0]["MeteringRecordId"] == first["Results"][0]["MeteringRecordId"]
        assert statuses(send(client, a_record(QuantityAsDecimal="18"))) == ["DuplicateRecord"]
        assert [call.sequence for call in sandbox.calls()] == [1, 2, 3]
        client.close()


def test_the_bill_in_a_file_outlives_the_sandbox_in_this_process(tmp_path: Path) -> None:
    database = tmp_path / "bill.sqlite"
    with Sandbox(database, now=NOW) as sandbox:
        sandbox.configure(dimensions=["api_calls"])
        send(metering(sandbox.url), a_record())
        before = sandbox.bill(), sandbox.calls()
    with Sandbox(database, now=NOW) as sandbox:
        assert (sandbox.bill(), sandbox.calls()) == before
        assert refusal(metering(sandbox.url), a_record(Dimension="other")) == "InvalidUsageDimensionException"


@pytest.mark.parametrize("now", ["noon", "2026-11-20T10:30:00"])
def test_a_start_that_makes_no_sense_is_refused(tmp_path: Path, now: str) -> None:
    command = [sys.executable, "-m", "metering_dagster.devstack.sandbox", "--now", now]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ENDS_WITHIN_SECONDS, check=False)
    assert ended.returncode == 2
    assert "--now must" in ended.stderr


def test_it_keeps_buyers_data_off_the_terminal(tmp_path: Path) -> None:
    with started(tmp_path / "bill.sqlite", "--now", NOW.isoformat()) as (process, sandbox):
        client = metering(sandbox.url)
        send(client, a_record())
        refusal(client, a_record(Dimension=""))
        client.close()
        process.terminate()
        output, errors = process.communicate(timeout=ENDS_WITHIN_SECONDS)
        assert ACCOUNT not in output + errors
