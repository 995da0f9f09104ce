"""A real instance, the sensor's ticks over it, and somebody who hears."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import dagster as dg
import pytest

from metering_dagster.core.dagster_partitions import FIRST_HOUR
from metering_dagster.definitions import build_defs
from metering_dagster.settings import Settings
from tests.webhook import Webhook
from tests.world import World


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """Somebody who hears of alerts over HTTP."""
    with Webhook() as ours:
        yield ours


@functools.cache
def _repository(first_hour: datetime = FIRST_HOUR) -> dg.RepositoryDefinition:
    """The definitions; each tick gets its world's resource."""
    return build_defs(settings=Settings(), first_hour=first_hour).get_repository_def()


@dataclass
class Watch:
    """The sensor `run_failures`, tick after tick, as the daemon evaluates it."""

    world: World
    instance: dg.DagsterInstance
    cursor: str | None = None
    first_hour: datetime = FIRST_HOUR

    def tick(self) -> str:
        """One tick; what it says. One that fails leaves the cursor as it was, and raises."""
        sensor = _repository(self.first_hour).get_sensor_def("run_failures")
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, sensor_name="run_failures",
            resources={"metering": self.world.deployment},
        ) as context:  # fmt: skip
            answer = sensor.evaluate_tick(context)
        assert not answer.run_requests
        self.cursor = answer.cursor
        return answer.skip_message or ""

    def begins_with(self, hour: datetime) -> None:
        """Let the partitions begin with this hour, and the watch anew: at the beginning it looks at the hours too."""
        self.first_hour, self.cursor = hour, None

    def look_at_hours_again(self, instant: str | None = None) -> None:
        """As if the last look at the hours were long ago; at this instant, if one is named."""
        if instant:
            self.world.at(instant)
        self.cursor = json.dumps(json.loads(self.cursor or "") | {"looked": 0.0})

    def a_failed_run(self, message: str = "Exceeded maximum runtime of 3000 seconds.", **tags: str) -> dg.DagsterRun:
        """A run that something from outside has ended."""
        job = _repository().get_job("meter_hour")
        named = {f"metering/{name}": value for name, value in tags.items() if name != "partition"}
        partition = {"dagster/partition": tags["partition"]} if "partition" in tags else {}
        run = self.instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=named | partition)
        self.instance.report_run_failed(run, message)
        return run

    def a_failed_hour(self, hour: str) -> None:
        """A run of `meter_hour` that really fails: its table is gone."""
        table = self.world.names["usage"]
        self.world.configure(usage_table="no-such-table")
        assert not self.world.meter(hour, instance=self.instance).success
        self.world.configure(usage_table=table)


@pytest.fixture
def watch(world: World, webhook: Webhook, instance: dg.DagsterInstance) -> Watch:
    """A watch that has begun, and posts to the webhook; what it says of hours at the beginning is forgotten."""
    world.configure(alerts_webhook_url=webhook.url, ui_url="https://dagster.example.com")
    ours = Watch(world, instance)
    ours.tick()
    webhook.taken.clear()
    return ours
