"""What one run of an hour costs Dagster: steps, CPU, event log. Ten groups, all checks; and the same hour run again.

Run it with `make bench`. The run is a process of its own, as the daemon would start it.
"""

import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from metering_dagster.devstack.loading import load
from metering_dagster.devstack.sample import SORT_KEY, SampleRow
from metering_dagster.devstack.stack import USAGE_TABLE, LocalStack, create_tables, running_stack

NOW = datetime(2026, 3, 10, 12, 30, tzinfo=UTC)
HOUR = "2026-03-10T10"
GROUPS, ROWS = 10, 12
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Cost:
    """Of one run."""

    cpu: float
    steps: int
    events: int
    payload: int
    """Bytes of the serialized events."""
    on_disk: int
    """Bytes of the run's event database and its growth of the index."""


def main() -> None:
    """Print a table of costs."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        (state / "home").mkdir()
        (state / "home" / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
        with running_stack(state / "stack", persist=False, now=NOW) as stack:
            create_tables(stack)
            _run(stack, state, "2026-03-10T09")  # creates Dagster's databases
            load(
                stack.dynamodb(),
                USAGE_TABLE,
                [_row(group, second) for group in range(GROUPS) for second in range(ROWS)],
            )
            print(f"{'':34} {'CPU s':>6} {'steps':>5} {'events':>6} {'payload':>8} {'on disk':>8}")
            _print("import dagster, nothing else", Cost(_cpu([sys.executable, "-c", "import dagster"], {}), 0, 0, 0, 0))
            _print(f"a run of {GROUPS} groups, {GROUPS * ROWS} rows", _run(stack, state, HOUR))
            _print("the same hour run again", _run(stack, state, HOUR))


def _print(what: str, cost: Cost) -> None:
    print(f"{what:34} {cost.cpu:>6.2f} {cost.steps:>5} {cost.events:>6} {cost.payload:>8} {cost.on_disk:>8}")


def _run(stack: LocalStack, state: Path, hour: str) -> Cost:
    home = state / "home"
    known, before = set(_databases(home)), _index_bytes(home)
    environment = {
        **stack.environment(),
        "METERING_MODE": "live",
        "METERING_NOW": NOW.isoformat(),
        "DAGSTER_HOME": str(home),
    }
    cpu = _cpu(
        [sys.executable, "-m", "dagster", "job", "execute", "-m", "metering_dagster.definitions", "-j", "meter_hour",
         "--tags", f'{{"dagster/partition": "{hour}"}}'], environment,
    )  # fmt: skip
    (database,) = set(_databases(home)) - known
    with sqlite3.connect(database) as connection:
        events = connection.execute("select event, dagster_event_type from event_logs").fetchall()
    steps = sum(kind == "STEP_START" for _, kind in events)
    payload = sum(len(event) for event, _ in events)
    return Cost(cpu, steps, len(events), payload, database.stat().st_size + _index_bytes(home) - before)


def _databases(home: Path) -> list[Path]:
    return [path for path in home.glob("history/runs/*.db") if path.stem != "index"]


def _index_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in home.glob("history/runs/index.db"))


def _cpu(command: list[str], environment: dict[str, str]) -> float:
    """CPU seconds of a process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _row(group: int, second: int) -> SampleRow:
    account, timestamp = f"{group:012d}", f"{HOUR}:00:{second:02d}"
    return SampleRow({
        "licenseArn": "arn:aws:license-manager::294406891311:license:l-00000001",
        SORT_KEY: f"{account}#api-calls#{timestamp}",
        "customerAWSAccountId": account,
        "dimension": "api-calls",
        "timestamp": timestamp,
        "quantity": Decimal("1.25"),
        "meteringPending": HOUR,
    }, Decimal("1.25"))  # fmt: skip


if __name__ == "__main__":
    main()
