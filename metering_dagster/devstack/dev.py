"""`metering-dagster dev`: Dagster with all schedules and sensors running, on an embedded stack where usage and billing
data keep arriving.

Belongs here: the order of starting and ending, and the state between two starts. Does not: the arriving rows (arrivals,
billing_arrivals), Dagster's process (dagster_process), the output (cli).

`.metering/dev` keeps tables, bill, ledger, billing data and its reports, logs, and the instant up to which usage has
arrived. A DAGSTER_HOME of its own keeps the runs.
"""

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from metering_dagster.devstack import loading
from metering_dagster.devstack.arrivals import arriving, late_row, missed
from metering_dagster.devstack.billing_arrivals import Collector
from metering_dagster.devstack.dagster_process import (
    end_forgotten_runs,
    end_signals,
    running_dagster,
    url_of,
    usable_port,
)
from metering_dagster.devstack.environment import environment_on
from metering_dagster.devstack.home import HomeName, claimed_home, urls_in_use
from metering_dagster.devstack.sample import cast_of, generate
from metering_dagster.devstack.stack import (
    AGGREGATED_USAGE_TABLE,
    SUBSCRIBERS_TABLE,
    USAGE_TABLE,
    LocalStack,
    StackError,
    create_tables,
    running_stack,
)

COMMAND = "metering-dagster dev"
STATE = Path(".metering", "dev")
ARRIVAL_SECONDS = 2.0
LATE_SECONDS = 90.0
QUIET_SECONDS = "10"
"""The BILLING_QUIET_SECONDS of dev: a day is due after this pause, sooner than in production."""


@dataclass(frozen=True)
class Running:
    """Addresses, folders and schedule of a running dev stack."""

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
    """Run everything until SIGINT, SIGTERM or SIGHUP; call `ready` once the page can be opened.

    Raises `StackError` or `SettingsError` where something cannot be started or ends by itself.
    """
    state = root / STATE
    state.mkdir(parents=True, exist_ok=True)
    with end_signals() as end, claimed_home(root, HomeName.DEV, COMMAND) as home:
        port = usable_port(port, urls_in_use(root))
        home.announce(url_of(port))
        say("Starting tables, marketplace, sample usage and Dagster (about 15 s) ...")
        with running_stack(state, persist=True, now=None) as stack:
            usage = _Usage(stack, state / "arrived.json")
            usage.catch_up()
            collector = Collector(state / "billing.sqlite")
            collector.catch_up()
            end_forgotten_runs(home)
            environment = environment_on(
                stack, home.folder, ours,
                METERING_DEFAULT_STATUS="running",
                METERING_CRON=ours.get("METERING_CRON") or "* * * * *",
                METERING_LEDGER_URI=str(state / "ledger"),
                BILLING_DATABASE_URL=collector.url,
                BILLING_CHANGES_URI=str(state / "billing_changes"),
                BILLING_QUIET_SECONDS=QUIET_SECONDS,
            )  # fmt: skip
            if end.is_set():
                return
            with running_dagster(root, home, state / "dagster.log", environment, port) as dagster:
                if dagster.is_ready(end):
                    ready(Running(dagster.url, stack, state, home.folder, environment["METERING_CRON"]))
                while not end.wait(ARRIVAL_SECONDS):
                    dagster.check()
                    usage.arrive()
                    collector.ingest()
                say("Ending: waiting for runs in progress, saving the tables ...")


class _Usage:
    """Seller that keeps writing usage rows."""

    def __init__(self, stack: LocalStack, memory: Path) -> None:
        self._stack, self._memory = stack, memory
        self._client = stack.dynamodb()
        self._streams = cast_of().streams
        self._until: datetime | None = None
        self._late_at = time.monotonic() + LATE_SECONDS
        self._rng = random.Random()

    def catch_up(self) -> None:
        """Load the sample at the first start; later the usage since the last start that can still be billed."""
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
        """Load the usage since the last call, and now and then a late row of an hour already metered.

        Raises `StackError` if the embedded DynamoDB refuses it.
        """
        now = datetime.now(UTC)
        rows = list(arriving(self._streams, self._until or now, now))
        try:
            if time.monotonic() >= self._late_at:
                self._late_at = time.monotonic() + LATE_SECONDS
                late = late_row(self._client, AGGREGATED_USAGE_TABLE, self._streams, now, self._rng)
                rows += [late] if late else []
            loading.load(self._client, USAGE_TABLE, rows)
        except (BotoCoreError, ClientError) as error:
            raise StackError(f"The embedded DynamoDB no longer accepts usage: {error}") from None
        self._has_arrived(now)

    def _has_arrived(self, until: datetime) -> None:
        self._until = until
        draft = self._memory.with_suffix(".new")
        draft.write_text(json.dumps({"until": until.isoformat()}))
        draft.replace(self._memory)
