"""A world in memory, made anew for each example: three tables, a queue, a marketplace, a clock that stands still.

Belongs here: the wiring, one visit of an hour by the product's own functions, all that is said of it. Does not: what is
written into the tables, what must hold (the tests).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from metering_dagster.core import hours
from metering_dagster.core.aws.clients import Clients
from metering_dagster.core.aws.dynamodb import create_table
from metering_dagster.core.errors import MeteringError
from metering_dagster.expiry.services.sweep import sweep
from metering_dagster.expiry.services.sweep_report import Sweep
from metering_dagster.ledger.rules.entries import Entry, HourSummary
from metering_dagster.metering.defs import checks, metadata
from metering_dagster.metering.rules.flush_window import LicenseScope
from metering_dagster.metering.services import hour_run
from metering_dagster.metering.services.aggregation import aggregate
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.metering.services.discovery import discover
from metering_dagster.metering.services.submission import Submitter
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table
from metering_dagster.metering.stores.rate_limiter import Quota
from metering_dagster.settings import Mode, Settings
from tests.items import Item, plain
from tests.simulation.memory import Around, MemoryDynamoDB, MemoryMarketplace, MemoryQueues
from tests.simulation.memory.queues import url_of
from tests.world import NOW, Clock, ClockedSettings, HurriedTime

SHAPES = {"usage": usage_table.SHAPE, "aggregated": aggregated_table.SHAPE, "subscribers": subscribers_table.SHAPE}


class _Clients(Clients):
    """Clients of services in memory."""

    def __init__(self, settings: Settings, world: "TinyWorld") -> None:
        super().__init__(settings)
        self.world = world

    def dynamodb(self, region: str | None = None) -> Any:
        return self.world.tables.client(self.world.around.get("dynamodb"))

    def probe(self, region: str | None = None) -> Any:
        return self.dynamodb()

    def metering(self) -> Any:
        return self.world.marketplace.client(self.world.around.get("metering"))

    def sqs(self) -> Any:
        return self.world.queues.client(self.world.around.get("sqs"))


class TinyDeployment(Deployment):
    """A deployment that waits for nothing."""

    def __init__(self, settings: Settings, world: "TinyWorld") -> None:
        super().__init__(settings)
        self.__dict__["clients"] = _Clients(settings, world)

    @cached_property
    def quota(self) -> Quota:
        """The common quota on hurried time."""
        aggregated, pace = self.tables.aggregated, HurriedTime()
        return Quota(aggregated.client, aggregated.name, self.marketplace.region, clock=pace.time, sleep=pace.sleep)

    def submitter(self, tell: Any = None, *, urgent: bool = False) -> Submitter:
        """A submission without pauses between its attempts."""
        usual = super().submitter(tell, urgent=urgent)
        usual.pause = lambda attempt: 0.0
        return usual


@dataclass
class TinyWorld:
    """One world; `around` stands between the clients and their services, by the service's name."""

    around: dict[str, Around] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    """Every word that would be stored or shown somewhere."""
    told: list[Entry] = field(default_factory=list)
    """What the ledger would be told; it may name buyers in full."""

    def __post_init__(self) -> None:
        self.clock = Clock(datetime.fromisoformat(NOW))
        self.tables = MemoryDynamoDB(self._seconds)
        self.queues = MemoryQueues(self._seconds)
        self.marketplace = MemoryMarketplace(self._seconds)
        self.marketplace.configure(calls_per_second=None)
        for name, shape in SHAPES.items():
            create_table(self.tables.client(), name, shape)
        self.queues.create("events")
        self.settings = ClockedSettings(
            usage_table="usage", aggregated_usage_table="aggregated", subscribers_table="subscribers", mode=Mode.LIVE,
            events_queue_url=url_of("events"), frozen_now=self.clock.now, clock=self.clock,
        )  # fmt: skip

    def _seconds(self) -> float:
        return self.clock.now.timestamp()

    @cached_property
    def deployment(self) -> TinyDeployment:
        """Whoever meters."""
        return TinyDeployment(self.settings, self)

    def put(self, *items: Item) -> None:
        """Write items as the seller does."""
        client = self.tables.client()
        for item in items:
            client.put_item(TableName=item.table, Item=item.values)

    def meter(self, hour: str) -> str:
        """Visit the hour as a run does, step by step; in the end's words, empty if it is through.

        Anything but the project's own errors comes out.
        """
        try:
            return self._meter(hour)
        except MeteringError as error:
            return self.say(str(error))

    def _meter(self, hour: str) -> str:
        deployment, mode = self.deployment, Mode.LIVE
        start = hour_run.begin(deployment, hour, LicenseScope.ALL)
        assert start.closed is None
        found = discover(deployment.tables, start.part, self.told.append)
        self._show(metadata.of_discovery(mode, found))
        done = aggregate(deployment.tables, start.part, self.told.append)
        self._show(metadata.of_aggregation(mode, done))
        self._check(checks.of_aggregation(done, HourSummary(), 0))
        for words in [*done.notes, *done.unsettled, *done.hidden]:
            self.say(words)
        unfinished = hour_run.not_folded(hour, done)
        submission = deployment.submitter(self.told.append).submit(start.part)
        for words in [*submission.notes, *submission.warnings, *submission.left]:
            self.say(words)
        tables, now = deployment.tables, deployment.settings.now()
        pending = tables.usage.count_pending(hour), hour_run.still_pending(tables, hour)
        self._show(metadata.of_submission(mode, submission, HourSummary(), pending, None))
        self._check(checks.of_submission(hours.closes_at(start.part.hour, now), submission, HourSummary(), pending))
        failure = (
            unfinished or hour_run.left_pending(hour, submission, now) or hour_run.arrived_meanwhile(hour, pending[1])
        )
        return self.say(str(failure)) if failure else ""

    def age_out(self, hour: str) -> Sweep:
        """End what is left in an hour that can no longer be billed."""
        report = Sweep()
        sweep(self.deployment.tables, [hours.parse_bucket(hour)], lambda _, entry: self.told.append(entry),
              whole=True, report=report)  # fmt: skip
        for words in [*report.notes, *report.faults]:
            self.say(str(words))
        return report

    def say(self, words: str) -> str:
        """Remember what was said."""
        self.said.append(words)
        return words

    def _show(self, shown: Mapping[str, Any]) -> None:
        self.say(repr(shown))

    def _check(self, results: Any) -> None:
        for result in results:
            self.say(repr(result))

    def billed(self) -> dict[tuple[str, str], str]:
        """Quantities on the bill, by license (or product) and dimension."""
        return {
            (line.license_arn or line.product_code or "", line.dimension): line.quantity
            for line in self.marketplace.bill()
        }

    def items(self, table: str) -> list[dict[str, Any]]:
        """The table's items, without those of our own."""
        found = [plain(item) for item in self.tables.items(table)]
        return [item for item in found if not str(item["licenseArn"]).startswith("metering-dagster#")]

    def document(self) -> str:
        """All tables as text, to compare."""
        return json.dumps({name: sorted(map(repr, self.tables.items(name))) for name in SHAPES})
