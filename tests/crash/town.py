"""Where the crash test takes place: tables and a queue on the emulator, a marketplace that can be killed, its buyers.

Belongs here: setting all that up, the marketplace's process, looking everything up for the judge. Does not: the plot
(conductor).
"""

import json
import sqlite3
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from metering_dagster.core.aws.dynamodb import create_table
from metering_dagster.devstack.queues import create_queue
from metering_dagster.devstack.stack import LocalStack
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table
from metering_dagster.settings import Mode, Settings
from tests.crash.errands import Place
from tests.crash.journal import entries
from tests.crash.judge import Evidence
from tests.crash.marks import slots_in
from tests.crash.seller import Contract
from tests.e2e.processes import HOST, Process, ask, free_port, launched
from tests.items import plain

BEGIN = datetime(2026, 3, 10, 6, 5, tzinfo=UTC)
"""In the middle of a month: the months' ends are the simulation's."""
LOCK_HOURS = 2
BUYERS, PRODUCTS = 8, ("prod-one", "prod-two")
ISSUER = "arn:aws:license-manager::111122223333:license"
VISIBILITY_SECONDS = 4
"""Of the queue: what a killed worker received comes back soon."""
_SHAPES = {
    "usage": usage_table.SHAPE, "aggregated": aggregated_table.SHAPE, "subscribers": subscribers_table.SHAPE,
}  # fmt: skip


@dataclass(frozen=True)
class Buyer:
    """A license and whose it is."""

    license: str
    account: str
    product: str


class Sandbox:
    """The marketplace as a process of its own. Its bill outlives it."""

    def __init__(self, folder: Path, project: Path) -> None:
        self.folder, self.project, self.port = folder, project, free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.database = folder / "bill.sqlite"
        self.now = BEGIN
        self.kills = 0
        self._process: Process | None = None

    def start(self) -> None:
        """Let it answer at its address."""
        command = [
            "metering_dagster.devstack.sandbox", "--port", str(self.port), "--database", str(self.database),
            "--now", self.now.isoformat(),
        ]  # fmt: skip
        self._process = launched("sandbox", command, self.folder, {"PYTHONPATH": str(self.project)})
        self._process.answers(f"{self.url}/_sandbox/health")

    def kill_and_restart(self) -> None:
        """SIGKILL, whatever it is doing; then as its database has it."""
        assert self._process is not None
        self._process.popen.kill()
        self._process.popen.wait()
        self.kills += 1
        self.start()

    def set_now(self, now: datetime) -> None:
        """Move its clock."""
        self.now = now
        self.control("clock", {"now": now.isoformat()})

    def control(self, path: str, document: Any = None) -> Any:
        """Its control API."""
        return ask(f"{self.url}/_sandbox/{path}", document)

    def outcomes(self) -> dict[str, int]:
        """How the calls ended; those that a kill cut off have no outcome."""
        with closing(sqlite3.connect(self.database)) as connection:
            found = connection.execute("select coalesce(outcome, 'cut off'), count(*) from calls group by 1")
            return dict(found.fetchall())

    def end(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.end()


class Town:
    """Tables of its own on an emulator, and a marketplace."""

    def __init__(self, stack: LocalStack, folder: Path, project: Path) -> None:
        self.stack, self.folder = stack, folder
        self.sandbox = Sandbox(folder, project)
        self.journal = folder / "journal.jsonl"
        self.journal.touch()
        self.slots = folder / "slots"
        self.slots.touch()
        self.home = folder / "dagster"
        self.home.mkdir()
        (self.home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        self.client, self.sqs = stack.dynamodb(), stack.sqs()
        self.name = uuid.uuid4().hex[:12]
        self.buyers = [
            Buyer(f"{ISSUER}{':/'[n % 2]}l-{n:016x}", f"{444400000000 + n}", PRODUCTS[n % 2]) for n in range(BUYERS)
        ]
        self.ended: dict[str, datetime] = {}

    def open(self) -> None:
        """Empty tables, an empty queue, and a marketplace that knows the buyers."""
        for kind, shape in _SHAPES.items():
            create_table(self.client, self.table(kind), shape)
        create_queue(self.stack.sqs, self.queue, self.dead_queue, VisibilityTimeout=str(VISIBILITY_SECONDS))
        self.sandbox.start()
        licenses = {buyer.license: buyer.product for buyer in self.buyers}
        self.sandbox.control(
            "configure", {"products": list(PRODUCTS), "licenses": licenses, "calls_per_second": 10}
        )  # fmt: skip

    def close(self) -> None:
        """End what was started here, and drop the tables."""
        self.sandbox.end()
        for kind in _SHAPES:
            self.client.delete_table(TableName=self.table(kind))
        self.client.close()
        self.sqs.close()

    def table(self, kind: str) -> str:
        """The name of one of the three."""
        return f"{kind}-{self.name}"

    @property
    def queue(self) -> str:
        """The name of the queue of events."""
        return f"events-{self.name}"

    @property
    def dead_queue(self) -> str:
        """And of its dead-letter queue."""
        return f"{self.queue}-dead"

    @cached_property
    def environment(self) -> dict[str, str]:
        """What points a worker here."""
        return self.stack.environment() | {"AWS_ENDPOINT_URL_MARKETPLACE_METERING": self.sandbox.url}

    def place(self, now: datetime) -> Place:
        """Where a worker works, and when."""
        settings = Settings(
            usage_table=self.table("usage"), aggregated_usage_table=self.table("aggregated"),
            subscribers_table=self.table("subscribers"), mode=Mode.LIVE, lock_hours=LOCK_HOURS,
            events_queue_url=self.stack.queue_url(self.queue), frozen_now=now, region=self.stack.region,
        )  # fmt: skip
        return Place(self.environment, settings, self.home, self.slots)

    def deployment(self, now: datetime) -> Deployment:
        """What ticks and sensors look with."""
        return Deployment(self.place(now).settings)

    def contract(self, seed: int) -> Contract:
        """A seller's."""
        buyers = {buyer.license: buyer.account for buyer in self.buyers}
        return Contract(
            self.stack.dynamodb_url, self.table("usage"), self.table("aggregated"), buyers, self.journal, seed
        )

    # What the marketplace tells.

    def tell(self, buyer: Buyer, kind: str, at: datetime) -> None:
        """Send an event."""
        body = {
            "detail-type": f"{kind} - Manufacturer", "time": f"{at:%Y-%m-%dT%H:%M:%SZ}",
            "detail": {
                "acceptor": {"accountId": buyer.account}, "agreement": {"id": f"agmt-{buyer.account}"},
                "license": {"arn": buyer.license}, "product": {"code": buyer.product},
            },
        }  # fmt: skip
        self.sqs.send_message(QueueUrl=self.stack.queue_url(self.queue), MessageBody=json.dumps(body))

    def end_license(self, buyer: Buyer, at: datetime) -> None:
        """From an hour after `at` on, nothing of it is taken any more."""
        self.ended[buyer.license] = at
        ended = {license: end.isoformat() for license, end in self.ended.items()}
        self.sandbox.control("configure", {"deprovisioned": ended})

    def has_open_windows(self, now: datetime) -> bool:
        """Whether somebody's flush window is open, or was a moment ago."""
        return any(end <= now <= end + timedelta(hours=1, minutes=20) for end in self.ended.values())

    def messages(self, name: str) -> int:
        """How many events are in a queue, received ones included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.stack.queue_url(name), AttributeNames=names)
        return sum(int(found["Attributes"][each]) for each in names)

    # What the judge looks at.

    def evidence(self) -> Evidence:
        """Everything as it stands."""
        ended = {license: end.isoformat() for license, end in self.ended.items()}
        return Evidence(
            written=list(entries(self.journal)),
            rows=self._all("usage"),
            records=[item for item in self._all("aggregated") if "#" not in item["licenseArn"]],
            subscribers=self._all("subscribers"),
            bill=self.sandbox.control("bill"),
            calls=self.sandbox.control("calls"),
            slots=slots_in(self.slots),
            buyers={buyer.license: ended.get(buyer.license) for buyer in self.buyers},
            lock_hours=LOCK_HOURS,
            in_queue=self.messages(self.queue),
            buried=self.messages(self.dead_queue),
        )

    def _all(self, kind: str) -> list[Mapping[str, Any]]:
        pages = self.client.get_paginator("scan").paginate(TableName=self.table(kind), ConsistentRead=True)
        return [plain(item) for page in pages for item in page["Items"]]
