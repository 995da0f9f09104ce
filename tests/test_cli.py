"""The command line as a person meets it: real processes, their output and exit codes."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from metering_dagster.core import hours
from metering_dagster.devstack.demo import check_instant, rehearsal_instant
from metering_dagster.devstack.sandbox import SandboxClient
from metering_dagster.devstack.stack import USAGE_TABLE, create_tables, running_stack

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TZ") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=cwd, env=kept | environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of its own with the project's instance settings, so that no test meets another one's runs."""
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("instant", "words"),
    [
        ("yesterday", "ISO-8601"),
        ("2026-11-20T10:30:00", "zone"),
        ("2999-01-01T00:00:00Z", "later than the real time"),
        ("2026-11-01T10:30:00Z", "past their window"),
    ],
)
def test_the_demo_refuses_an_instant_that_it_cannot_rehearse(project: Path, instant: str, words: str) -> None:
    done = run("metering_dagster.cli", "demo", cwd=project, METERING_NOW=instant)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_every_real_instant_has_one_to_rehearse() -> None:
    instant = datetime(2026, 1, 2, 0, 30, tzinfo=UTC)
    while instant.year == 2026:
        now = rehearsal_instant(instant)
        assert instant - timedelta(days=2) < now <= instant
        check_instant(now)
        instant += timedelta(minutes=45)


def test_materialize_works_against_named_endpoints_and_twice_bills_once(project: Path, tmp_path: Path) -> None:
    now = datetime(2026, 11, 20, 10, 30, tzinfo=UTC)
    hour = hours.bucket(hours.hour_at_offset(now, 2))
    with running_stack(tmp_path / "stack", persist=False, now=now) as stack:
        create_tables(stack)
        stack.dynamodb().put_item(TableName=USAGE_TABLE, Item={
            "licenseArn": {"S": "arn:aws:license-manager::111122223333:license:l-0123456789abcdef"},
            "customerAWSAccountId_dimension_timestamp": {"S": f"444455556666#api-calls#{hour}:59:07"},
            "customerAWSAccountId": {"S": "444455556666"},
            "dimension": {"S": "api-calls"},
            "timestamp": {"S": f"{hour}:59:07"},
            "quantity": {"N": "4.25"},
            "meteringPending": {"S": hour},
        })  # fmt: skip
        for _ in range(2):
            done = run(
                "dagster", "asset", "materialize", "-m", "metering_dagster.definitions",
                "--select", "pending_usage,aggregated_usage,metered_usage", "--partition", hour,
                cwd=project, METERING_MODE="live", METERING_NOW=now.isoformat(), PYTHONPATH=str(ROOT),
                **stack.environment(),
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            (billed,) = SandboxClient(stack.sandbox_url).bill()
            assert (billed.hour, billed.quantity) == (hour, "4.25")


def test_the_definitions_load_with_an_empty_environment(project: Path) -> None:
    done = run(
        "dagster", "definitions", "validate", "-m", "metering_dagster.definitions", cwd=project, PYTHONPATH=str(ROOT)
    )
    assert done.returncode == 0, done.stderr
    # The command itself is superseded by dg's, which is Dagster's notice and not ours.
    warned = [line for line in done.stderr.splitlines() if "Warning" in line and "SupersessionWarning" not in line]
    assert not [line for line in warned if "PreviewWarning" not in line and "BetaWarning" not in line]


def test_help_names_the_commands(project: Path) -> None:
    done = run("metering_dagster.cli", "--help", cwd=project)
    assert done.returncode == 0
    assert "demo" in done.stdout
