"""A demo beside a running dev, and then the UI on what it left: each keeps to its own home, tables, ledger and port."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from metering_dagster.core import hours
from metering_dagster.devstack.demo import rehearsal_instant
from metering_dagster.devstack.endings import departure
from metering_dagster.devstack.sandbox import SandboxClient
from metering_dagster.devstack.stack import SUBSCRIBERS_TABLE, LocalStack
from tests.e2e.instance import Instance
from tests.e2e.processes import Process, free_port, launched, until

pytestmark = pytest.mark.services  # it takes minutes

ROOT = Path(__file__).parents[2]
CLI = "metering_dagster.cli"
PYTHONPATH = {"PYTHONPATH": str(ROOT)}
ENDED_SECONDS = 120.0
JOBS = {"meter_hour": 23, "age_out": 1, "apply_marketplace_events": 1, "flush_deprovisioning": 1,
        "finalize_deprovisioned": 1, "refresh_report": 2, "refresh_billing_changes": 20}  # fmt: skip
"""At least so many runs of each are listed."""


@dataclass(frozen=True)
class Rehearsed:
    """A project in which a demo has run beside dev, which still runs."""

    project: Path
    now: datetime
    told: dict[str, Any]
    dev: "Opened"


class Opened(Instance):
    """A command that has its page open, and what it said of itself."""

    def __init__(self, process: Process) -> None:
        self.process = process
        super().__init__(self.line("Dagster"))

    def line(self, name: str) -> str:
        def look() -> str | None:
            assert self.process.popen.poll() is None, self.process.said()
            lines = [line.split() for line in self.process.said().splitlines()]
            return next((words[1] for words in lines if words[:1] == [name]), None)

        return until(look, f"{self.process.name} to name its {name}")

    def bill(self) -> int:
        return len(SandboxClient(self.line("bill").removesuffix("/_sandbox/bill")).bill())

    def ledger_of_report(self, day: str) -> str:
        """Where its own run of a report finds the ledger: by the settings of whatever launched it."""
        assert self.run_ended(self.materialize(day, ["metering_report"])) == "SUCCESS"
        (latest,) = self.graphql(
            """query ($day: String!) { assetNodeOrError(assetKey: {path: ["metering_report"]}) { ... on AssetNode {
            assetMaterializations(partitions: [$day], limit: 1) { metadataEntries { label
            ... on PathMetadataEntry { path } } } } } }""",
            day=day,
        )["assetNodeOrError"]["assetMaterializations"]  # fmt: skip
        return next(str(entry["path"]) for entry in latest["metadataEntries"] if entry["label"] == "ledger")

    def mode(self, asset: str) -> str:
        """Return the mode that the asset's page shows as a tag."""
        found = self.graphql(
            "query ($key: AssetKeyInput!) "
            "{ assetNodeOrError(assetKey: $key) { ... on AssetNode { tags { key value } } } }",
            key={"path": [asset]},
        )
        return {tag["key"]: tag["value"] for tag in found["assetNodeOrError"]["tags"]}["metering/mode"]

    def runs_on_page(self, job: str) -> int:
        """How many runs the job's page lists."""
        found = self.graphql(
            """query ($p: PipelineSelector!) { pipelineOrError(params: $p) { ... on Pipeline {
            runs(limit: 100) { runId } } } }""",
            p={"repositoryName": "__repository__", "repositoryLocationName": "metering_dagster", "pipelineName": job},
        )
        return len(found["pipelineOrError"]["runs"])

    def run_ids(self) -> set[str]:
        found = self.graphql("{ runsOrError { ... on Runs { results { runId } } } }")
        return {run["runId"] for run in found["runsOrError"]["results"]}


def command(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", CLI, *arguments],
        cwd=project, env=kept | PYTHONPATH | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@contextmanager
def opened(project: Path, name: str, *arguments: str) -> Iterator[Opened]:
    # Hourly, so that runs of dev's schedules do not make the machine slow for the demo.
    process = launched(name, [CLI, *arguments], project, PYTHONPATH | {"METERING_CRON": "0 * * * *"})
    try:
        yield Opened(process)
    finally:
        # In order, so that nothing of it is left; a killed one is none of our business here.
        process.popen.terminate()
        process.popen.wait(ENDED_SECONDS)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsed]:
    project = tmp_path_factory.mktemp("project")
    for name in ("dagster.yaml", "workspace.yaml"):
        (project / name).write_text((ROOT / name).read_text())
    with opened(project, "dev", "dev", "--port", str(free_port())) as dev:  # other tests have one on the first port
        # Half past an hour: earlier than ten past, the buyer who leaves has not used the current hour yet.
        half_past = (datetime.now(UTC) - timedelta(hours=1)).replace(minute=30, second=0, microsecond=0)
        now = rehearsal_instant(half_past)
        done = command(project, "demo", "--json", METERING_NOW=now.isoformat())
        assert done.returncode == 0, done.stderr
        yield Rehearsed(project, now, json.loads(done.stdout), dev)


def test_the_demo_accounts_for_every_unit(rehearsed: Rehearsed) -> None:
    told = rehearsed.told
    assert told["good"]
    assert len(told["hours"]) == 26, "offsets 23 to 1, two that are past their window, and the current one"
    assert told["departure"] == {"status": "inactive", "finalized": True}
    assert told["total"]["rows"] >= 6000
    for hour in told["hours"].values():
        parts = sum(Decimal(hour[name]) for name in ("billed", "held", "rejected", "late", "expired"))
        assert Decimal(hour["used"]) == parts
    assert all(Decimal(told["total"][name]) > 0 for name in ("billed", "held", "rejected", "expired"))
    assert Decimal(told["total"]["late"]) != 0  # less than nothing where more was billed than is stated now
    assert told["total"]["waiting"] > 0
    billing = told["billing"]
    assert billing["good"]
    assert (billing["wrong"], billing["failures"]) == ([], [])
    assert billing["cells"] > 30 * billing["days"] > 550
    assert {cell["move"] for cell in billing["moved"]} == {"touched", "changed", "vanished"}
    assert len(billing["moved"]) == 10
    assert all((cell["before"] == cell["now"]) == (cell["move"] == "touched") for cell in billing["moved"])


def test_a_demo_beside_dev_leaves_its_runs_and_tables_alone(rehearsed: Rehearsed) -> None:
    dev, home = rehearsed.dev, rehearsed.project / ".dagster_home" / "demo"
    with dg.DagsterInstance.from_config(str(home)) as instance:
        of_the_demo = {run.run_id for run in instance.get_runs()}
    assert len(of_the_demo) >= sum(JOBS.values())
    assert not of_the_demo & dev.run_ids()
    leaving = departure(rehearsed.now).subscriber
    key = {name: {"S": str(leaving[name])} for name in ("licenseArn", "customerAWSAccountId")}
    with closing(LocalStack(dev.line("tables").removeprefix("AWS_ENDPOINT_URL="), "").dynamodb()) as client:
        assert client.scan(TableName=SUBSCRIBERS_TABLE, Select="COUNT")["Count"] > 0
        assert "Item" not in client.get_item(TableName=SUBSCRIBERS_TABLE, Key=key)


def test_the_ui_shows_what_the_demo_did_and_keeps_to_it_beside_dev(rehearsed: Rehearsed) -> None:
    project, now, dev = rehearsed.project, rehearsed.now, rehearsed.dev
    green = {hours.bucket(hours.hour_at_offset(now, offset)) for offset in range(1, 24)}
    with opened(project, "ui", "demo", "--ui") as ui:
        assert ui.url != dev.url
        until(lambda: ui.loaded() == {"metering_dagster": "RepositoryLocation"} or None, "the code location to load")
        assert {job: min(ui.runs_on_page(job), least) for job, least in JOBS.items()} == JOBS
        assert {ui.mode(asset) for asset in ("metered_usage", "metering_report")} == {"live"}
        assert ui.materialized("metered_usage") == green
        reported = {bucket[:10] for bucket in green}
        assert ui.materialized("metering_report") >= reported
        billed, days = ui.bill(), sorted(reported)
        assert billed > 0
        (first, *_) = ui.told("metering_report", days[-1])
        assert first["records_Success"] > 0

        # What either launches runs with its own settings, on its own tables, and is recorded in its own home alone.
        assert ui.ledger_of_report(days[0]) == str(project / ".metering" / "demo" / "ledger")
        assert dev.ledger_of_report(f"{datetime.now(UTC):%Y-%m-%d}") == str(project / ".metering" / "dev" / "ledger")
        assert ui.run_ended(ui.materialize(min(green))) == "SUCCESS", "its clock stands where the demo's stood"
        assert ui.bill() == billed, "metered again, billed once"
        assert not ui.run_ids() & dev.run_ids()

        for arguments, first_url in ((("demo", "--ui"), ui.url), (("demo",), ui.url), (("dev",), dev.url)):
            refused = command(project, *arguments)
            assert refused.returncode == 2
            assert f"is running already, at {first_url}" in refused.stderr
            assert "Traceback" not in refused.stderr
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(dev.url, timeout=60) as page:
            assert page.status == 200

        ui.process.popen.send_signal(signal.SIGKILL)
        ui.process.popen.wait()
    with opened(project, "ui-again", "demo", "--ui") as again:
        assert again.runs_on_page("meter_hour") >= JOBS["meter_hour"]
