"""`metering-dagster dev`: usage arrives, hours are metered, nothing is left running, and the next start goes on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from metering_dagster.core import hours
from metering_dagster.devstack.arrivals import arriving, late_row, missed
from metering_dagster.devstack.environment import environment_on
from metering_dagster.devstack.sample import cast_of, generate
from metering_dagster.devstack.sandbox import SandboxClient
from metering_dagster.devstack.stack import LocalStack

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240.0
NOW = datetime(2026, 11, 28, 10, 20, 30, tzinfo=UTC)
STREAMS = cast_of().streams
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def seconds_of(rows: Any) -> list[str]:
    return [row.item["timestamp"] for row in rows]


def test_a_second_has_the_same_usage_whenever_it_is_asked_for() -> None:
    whole = list(arriving(STREAMS, NOW, NOW + timedelta(minutes=10)))
    parts = [NOW + timedelta(seconds=cut) for cut in (0, 7, 130, 131, 600)]
    pieces = [row for a, b in pairwise(parts) for row in arriving(STREAMS, a, b)]
    keys = ["licenseArn", "customerAWSAccountId_dimension_timestamp", "quantity"]
    assert [[row.item[key] for key in keys] for row in pieces] == [[row.item[key] for key in keys] for row in whole]
    assert 150 < len(whole) < 330
    assert all("2026-11-28T10:20:30" < second <= "2026-11-28T10:30:30" for second in seconds_of(whole))


def test_the_first_start_has_the_sample_and_the_running_hour() -> None:
    rows = list(missed(STREAMS, None, NOW))
    sample = list(generate(NOW).rows)
    assert rows[: len(sample)] == sample
    assert {second[:13] for second in seconds_of(rows[len(sample) :])} == {"2026-11-28T10"}


def test_a_pause_is_made_up_for_hour_by_hour() -> None:
    found = seconds_of(missed(STREAMS, datetime(2026, 11, 28, 7, 50, tzinfo=UTC), NOW))
    assert {second[:13] for second in found} == {f"2026-11-28T{hour:02d}" for hour in (7, 8, 9, 10)}
    assert min(second for second in found if second.startswith("2026-11-28T07")) > "2026-11-28T07:50:00"
    assert max(found) <= "2026-11-28T10:20:30"
    soon = seconds_of(missed(STREAMS, NOW - timedelta(minutes=2), NOW))
    assert soon
    assert min(soon) > "2026-11-28T10:18:30"


@pytest.mark.parametrize("since", [None, datetime(2026, 10, 20, 3, 4, 5, tzinfo=UTC)])
@pytest.mark.parametrize(
    "now", ["2026-11-01T05:59:59+00:00", "2026-11-01T06:00:00+00:00", "2026-11-01T00:00:00+00:00", NOW.isoformat()]
)
def test_on_any_date_only_hours_that_can_be_billed_get_usage(since: datetime | None, now: str) -> None:
    instant = datetime.fromisoformat(now)
    rows = list(missed(STREAMS, since, instant))
    for row in rows:
        hour = hours.parse_bucket(row.group[3])
        assert hour == hours.floor_hour(instant) or hours.is_billable(hour, instant)
    whole = {row.group[3] for row in rows} - {hours.bucket(hours.floor_hour(instant))}
    assert len(whole) == (6 if "T06" in now else 23)


def test_late_usage_is_of_committed_groups_alone() -> None:
    class Table:
        committed = True

        def get_item(self, Key: Any, **_: Any) -> Any:  # noqa: N803 (as boto3 has it)
            return {"Item": Key} if self.committed else {}

    table: Any = Table()
    row = late_row(table, "aggregated", STREAMS, NOW, random.Random(1))
    assert row is not None
    assert row.group[3] < "2026-11-28T10"
    table.committed = False
    assert late_row(table, "aggregated", STREAMS, NOW, random.Random(1)) is None


def test_the_environment_holds_nothing_of_another_deployment() -> None:
    ours = {
        "PATH": "/bin", "METERING_NOW": "2026-01-01T00:00:00Z", "METERING_MODE": "shadow", "AWS_PROFILE": "production",
        "PRODUCT_CODE": "theirs", "USAGE_TABLE": "theirs", "DAGSTER_HOME": "/theirs", "BILLING_DATABASE_URL": "theirs",
    }  # fmt: skip
    made = environment_on(
        LocalStack("http://127.0.0.1:1", "http://127.0.0.1:2"), Path("/ours"), ours, METERING_CRON="x"
    )
    assert not [name for name, value in made.items() if "theirs" in value or "production" in value]
    assert "METERING_NOW" not in made
    assert (made["METERING_MODE"], made["DAGSTER_HOME"], made["METERING_CRON"]) == ("live", "/ours", "x")


# The command itself.


def until(look: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"still waiting for {what}"
        time.sleep(0.2)
    return found


class Dev:
    """A running one, as it told about itself."""

    def __init__(self, process: "subprocess.Popen[bytes]", told: Path, complained: Path) -> None:
        self.process, self.told, self.complained = process, told, complained

    def line(self, name: str) -> str:
        def look() -> str | None:
            assert self.process.poll() is None, self.complained.read_text()
            lines = [line.split() for line in self.told.read_text().splitlines()]
            return next((words[1] for words in lines if words[:1] == [name]), None)

        return until(look, f"{name} to be told")

    def graphql(self, query: str) -> Any:
        body = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"{self.line('Dagster')}/graphql", body, {"Content-Type": "application/json"})
        with DIRECT.open(request, timeout=30) as answer:
            return json.load(answer)["data"]

    def bill(self) -> int:
        return len(SandboxClient(self.line("bill").removesuffix("/_sandbox/bill")).bill())


@contextmanager
def running(project: Path, *, ignoring: bool = False) -> Iterator[Dev]:
    told, complained = project / "told", project / "complained"
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}
    command = [sys.executable, "-m", "metering_dagster.cli", "dev"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignoring else None
    try:
        with told.open("wb") as out, complained.open("wb") as err:
            process = subprocess.Popen(
                command, cwd=project, env=kept, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True
            )
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    try:
        yield Dev(process, told, complained)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


def of_the_project(project: Path) -> list[str]:
    """The processes that work in this project or on its state."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            command = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            place = (each / "cwd").readlink()
        except OSError:
            continue  # it has ended, or is not ours to look at
        if command and (str(project) in command or place.is_relative_to(project)):
            found.append(f"{each.name} {command[:200]}")
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("dagster.yaml", "workspace.yaml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    return tmp_path


def _lanes(dev: Dev) -> set[str]:
    """The lanes of all runs so far."""
    found = dev.graphql("{ runsOrError { ... on Runs { results { tags { key value } } } } }")["runsOrError"]
    return {tag["value"] for run in found["results"] for tag in run["tags"] if tag["key"] == "metering/lane"}


@pytest.mark.services
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for processes left over in /proc")
def test_dev_meters_ends_without_a_trace_and_goes_on(project: Path) -> None:
    with running(project, ignoring=True) as dev:
        with DIRECT.open(dev.line("Dagster"), timeout=30) as page:
            assert b"<!DOCTYPE html>" in page.read()
        second = subprocess.run(
            [sys.executable, "-m", "metering_dagster.cli", "dev"],
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 2
        assert f"running already, at {dev.line('Dagster')}" in second.stderr
        billed = until(lambda: dev.bill() or None, "the first bill")
        assert (project / ".metering" / "dev" / "billing.sqlite").stat().st_size > 1_000_000, "billing data is there"
        until(lambda: "regular" in _lanes(dev) or None, "a run in the lane of the schedules")  # a flush may come first
        dev.process.terminate()
        assert dev.process.wait(PATIENCE_SECONDS) == 0
        assert dev.complained.read_text().count("\n") <= 3, "it ends without complaint"
    assert of_the_project(project) == []
    arrived = (project / ".metering" / "dev" / "arrived.json").read_text()

    with running(project) as dev:
        assert dev.bill() >= billed, "the bill is kept"
        with closing(LocalStack(_url(dev), "").dynamodb()) as client:
            counted = client.scan(TableName="aggregated-usage", Select="COUNT")["Count"]
            assert counted >= billed, "the tables are kept"
        later = until(lambda: _changed(project / ".metering" / "dev" / "arrived.json", arrived), "usage to arrive")
        assert later > arrived
        os.killpg(dev.process.pid, signal.SIGINT)  # as a terminal's Ctrl-C, to the whole foreground group
        assert dev.process.wait(PATIENCE_SECONDS) == 0
    assert of_the_project(project) == []


def _url(dev: Dev) -> str:
    return dev.line("tables").removeprefix("AWS_ENDPOINT_URL=")


def _changed(path: Path, before: str) -> str | None:
    now = path.read_text()
    return now if now != before else None


@pytest.mark.services
def test_a_port_that_is_taken_is_refused(project: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "-m", "metering_dagster.cli", "dev", "--port", port],
            cwd=project, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert f"Port {port} is taken" in ended.stderr
    assert "Traceback" not in ended.stderr
