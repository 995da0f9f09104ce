"""A world to meter in: three tables on the emulator, a marketplace that bills, a clock that stands until it is moved.

`world.meter(hour)` runs the job through a Dagster instance; `world.visit(hour)` calls the same use cases without it.
Only waiting is left out (quota slots pass at once, back-off is 0); all that is read, written and sent is real.
"""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.execution.plan.objects import StepFailureData
from dagster._serdes import serialize_value

from metering_dagster.core import hours
from metering_dagster.core.aws.dynamodb import create_table, pages
from metering_dagster.definitions import build_defs
from metering_dagster.devstack.sandbox import BilledRecord, Call, Sandbox
from metering_dagster.devstack.stack import LocalStack
from metering_dagster.metering.rules.hour_guard import refuse_open_hour
from metering_dagster.metering.services.aggregation import aggregate
from metering_dagster.metering.services.aggregation_report import Aggregation, Tell
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.metering.services.discovery import Discovery, discover
from metering_dagster.metering.services.submission import Submitter
from metering_dagster.metering.services.submission_report import Submission
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table
from metering_dagster.metering.stores.rate_limiter import Quota
from metering_dagster.settings import Mode, Settings
from tests.items import ACCOUNT, DIMENSION, HOUR, LICENSE, Item, a_usage, an_aggregate, plain
from tests.memory_stack import MemoryClients, MemoryStack
from tests.simulation.memory import MemoryMarketplace

NOW = "2026-11-28T12:20:00Z"
"""HOUR lies two hours back: its lock is over, its last call far."""
LAST_CALL = "2026-11-29T08:20:00Z"
"""HOUR lies 22 hours back."""
_SHAPES = {
    "usage": usage_table.SHAPE,
    "aggregated": aggregated_table.SHAPE,
    "subscribers": subscribers_table.SHAPE,
}


@dataclass
class Clock:
    """Stands still until it is moved."""

    now: datetime


@dataclass(frozen=True)
class ClockedSettings(Settings):
    """Settings whose frozen clock can be moved."""

    clock: Clock = field(default_factory=lambda: Clock(datetime.fromisoformat(NOW)))

    def now(self) -> datetime:
        """The instant that the hour policy goes by."""
        return self.clock.now


class HurriedTime:
    """A real clock that a sleep moves on at once: slots of the quota are reserved as ever, and nobody waits."""

    def __init__(self) -> None:
        self._skipped, self._lock = 0.0, threading.Lock()

    def time(self) -> float:
        """Seconds since 1970, and what was slept away."""
        return time.time() + self._skipped

    def sleep(self, seconds: float) -> None:
        """Be there already."""
        with self._lock:
            self._skipped += seconds


class HurriedDeployment(Deployment):
    """A deployment that waits for nothing."""

    def __init__(self, settings: Settings, pace: HurriedTime, stack: LocalStack | None = None) -> None:
        super().__init__(settings)
        self.pace = pace
        if isinstance(stack, MemoryStack):
            self.__dict__["clients"] = MemoryClients(settings, stack)

    @cached_property
    def quota(self) -> Quota:
        """The common quota on hurried time."""
        aggregated, pace = self.tables.aggregated, self.pace
        return Quota(aggregated.client, aggregated.name, self.marketplace.region, clock=pace.time, sleep=pace.sleep)

    def submitter(self, tell: Tell | None = None, *, urgent: bool = False) -> Submitter:
        """A submission without pauses between its attempts."""
        usual = super().submitter(tell, urgent=urgent)
        usual.pause = lambda attempt: 0.0
        return usual

    def close(self) -> None:
        """End the connections."""
        if "tables" in self.__dict__:
            self.tables.usage.client.close()
            self.tables.subscribers.client.close()
        if "marketplace" in self.__dict__:
            self.marketplace.client.close()
        if "clients" in self.__dict__ and "_sqs" in self.clients.__dict__:
            self.clients.sqs().close()


@dataclass(frozen=True)
class Visit:
    """What the use cases of an hour reported."""

    discovery: Discovery
    aggregation: Aggregation
    submission: Submission


@dataclass(frozen=True)
class Outcome:
    """What became of one run."""

    success: bool
    message: str
    """The run's first failure in its own words; empty if it succeeded."""
    messages: tuple[str, ...]
    """All of them."""
    allows_retries: bool
    """Whether the error says so; of a run that goes on after its failures nobody knows."""
    failed_with: Mapping[str, Any]
    """The metadata of the failure."""
    metadata: Mapping[str, Mapping[str, Any]]
    """Of each asset that was materialized, by its name."""
    observed: Mapping[str, Mapping[str, Any]]
    """Of each hour that was observed and not materialized, by its bucket."""
    shown: Mapping[str, Mapping[str, Any]]
    """Of each output that a step handed on, by its name; the last of those that share one."""
    tags: Mapping[str, str]
    checks: Mapping[str, dg.AssetCheckEvaluation]
    """The answers of the checks of this run's partition, by name."""
    evaluations: tuple[dg.AssetCheckEvaluation, ...]
    """All answers of checks, in order."""

    @property
    def elsewhere(self) -> Mapping[str, dg.AssetCheckEvaluation]:
        """What it answered for other partitions than its own."""
        return {e.check_name: e for e in self.evaluations if e.partition != self.tags.get("dagster/partition")}

    said: str
    """The whole event log, the run with its tags, and what its steps handed on, as it is all stored."""


class World:
    """Tables of its own, a sandbox, a clock, and whoever meters."""

    def __init__(self, emulator: LocalStack, sandbox: Sandbox | MemoryMarketplace, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        self.emulator = emulator
        self.client = emulator.dynamodb()
        name = uuid.uuid4().hex[:12]
        self.names = {kind: f"{kind}-{name}" for kind in _SHAPES}
        for kind, shape in _SHAPES.items():
            create_table(self.client, self.names[kind], shape)
        self.clock = Clock(datetime.fromisoformat(NOW))
        self.pace = HurriedTime()
        self.settings: Settings = ClockedSettings(
            usage_table=self.names["usage"],
            aggregated_usage_table=self.names["aggregated"],
            subscribers_table=self.names["subscribers"],
            mode=Mode.LIVE,
            ledger_uri=str(folder / "ledger"),
            frozen_now=self.clock.now,
            clock=self.clock,
        )
        self.secrets: set[str] = set()
        self._closing = ExitStack()
        self._closing.callback(self.client.close)
        self.at(NOW)

    def close(self) -> None:
        """End all connections."""
        self._closing.close()

    # What differs from the ordinary.

    def at(self, instant: str) -> None:
        """Move the clock, the marketplace's too."""
        self.clock.now = datetime.fromisoformat(instant).astimezone(UTC)
        self.sandbox.set_now(self.clock.now)

    def configure(self, **settings: Any) -> None:
        """Change settings of the pipeline."""
        self.settings = replace(self.settings, **settings)
        self.__dict__.pop("deployment", None)

    def put(self, *items: Item) -> None:
        """Write items as the seller does, whatever stood there."""
        by_table: dict[str, list[Item]] = {}
        for item in items:
            by_table.setdefault(self.names[item.table], []).append(item)
            self.secrets |= item.secrets
        for table, these in by_table.items():
            for start in range(0, len(these), 25):
                requests: Any = [{"PutRequest": {"Item": item.values}} for item in these[start : start + 25]]
                assert not self.client.batch_write_item(RequestItems={table: requests})["UnprocessedItems"]

    def delete(self, item: Item) -> None:
        """Delete an item as the seller, or TTL, does."""
        shape = _SHAPES[item.table]
        key: Any = {name: item.values[name] for name in (shape.hash_key, shape.range_key)}
        self.client.delete_item(TableName=self.names[item.table], Key=key)

    def meanwhile(
        self, action: Callable[[], object], operation: str = "TransactWriteItems", at: int = 1, table: str = "usage"
    ) -> None:
        """Do this once, just before the pipeline's so-many-th request of this kind leaves by this table's client."""
        count = 0

        def hook(**_: Any) -> None:
            nonlocal count
            count += 1
            if count == at:
                action()

        client = getattr(self.deployment.tables, table).client
        client.meta.events.register(f"before-call.dynamodb.{operation}", hook)

    def with_pages_of(self, limit: int) -> None:
        """Let every Query of the pipeline return so few items a page."""

        def hook(params: dict[str, Any], **_: Any) -> dict[str, Any]:
            return {**params, "Limit": limit}

        events = self.deployment.tables.usage.client.meta.events
        events.register("provide-client-params.dynamodb.Query", hook)

    # Metering.

    @cached_property
    def deployment(self) -> HurriedDeployment:
        """Whoever meters, with the settings as they are now."""
        deployment = HurriedDeployment(self.settings, self.pace, self.emulator)
        self._closing.callback(deployment.close)
        return deployment

    def visit(self, hour: str = HOUR) -> Visit:
        """Meter one hour without Dagster: find, fold, commit, submit."""
        start, deployment = hours.parse_bucket(hour), self.deployment
        refuse_open_hour(start, self.settings.now(), self.settings.lock_hours)
        assert hours.is_billable(start, self.settings.now())
        part, unknown = deployment.slice_of(start)
        assert unknown is None
        found = discover(deployment.tables, part)
        folded = aggregate(deployment.tables, part)
        return Visit(found, folded, deployment.submitter().submit(part))

    def meter(
        self,
        hour: str = HOUR,
        *,
        ignore_lock: bool = False,
        partitions_until: str | None = None,
        instance: dg.DagsterInstance | None = None,
    ) -> Outcome:
        """Meter one hour by the job `meter_hour`. Whatever it says, it never names a buyer in full.

        Partitions end with the current hour, unless they are to go on for longer.
        """
        today = datetime.fromisoformat(partitions_until) if partitions_until else self.clock.now
        config = {"config": {"ignore_lock": ignore_lock}}
        ops = {
            "pending_usage": {"ops": {"discover_pending": config}},
            "aggregated_usage": {"ops": {"aggregate_groups": config}},
            "metered_usage": {"ops": {"submit_batches": config}},
        }
        outcome = self._run("meter_hour", instance, {"ops": ops}, today=today, stops_at_once=True, partition_key=hour)
        assert {evaluation.partition for evaluation in outcome.checks.values()} <= {hour}
        return outcome

    def flush(self, instance: dg.DagsterInstance | None = None) -> Outcome:
        """Flush what deprovisioning licenses used, by the job `flush_deprovisioning`."""
        return self._run("flush_deprovisioning", instance)

    def finalize(self, instance: dg.DagsterInstance | None = None) -> Outcome:
        """Close the flush windows that are over, by the job `finalize_deprovisioned`."""
        return self._run("finalize_deprovisioned", instance)

    def _run(
        self,
        name: str,
        instance: dg.DagsterInstance | None,
        run_config: Mapping[str, Any] | None = None,
        *,
        today: datetime | None = None,
        stops_at_once: bool = False,
        **run: Any,
    ) -> Outcome:
        """One run of a job, to the end of all its steps unless it stops at the first failure.

        No secret is anywhere in what is stored of it.
        """
        config = {**(run_config or {}), "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        with ExitStack() as stack, dg.partition_loading_context(effective_dt=today or self.clock.now):
            instance = instance or stack.enter_context(dg.DagsterInstance.ephemeral())
            job = build_defs(settings=self.settings, resources={"metering": self.deployment}).resolve_job_def(name)
            failure: Exception | None = None
            try:
                job.execute_in_process(run_config=config, instance=instance, raise_on_error=stops_at_once, **run)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is the run's outcome
                failure = error
            run_of_it, log, said = last_run(instance)
        assert not [secret for secret in self.secrets if secret in said]
        return _outcome(run_of_it, failure, [entry.dagster_event for entry in log if entry.dagster_event], said)

    # What became of it.

    def bill(self) -> list[BilledRecord]:
        """What the marketplace billed."""
        return self.sandbox.bill()

    def billed(self) -> dict[str, str]:
        """The bill's quantities by dimension; of a dimension there must be one record."""
        billed = {record.dimension: record.quantity for record in self.bill()}
        assert len(billed) == len(self.bill())
        return billed

    def calls(self) -> list[Call]:
        """The calls that reached the marketplace."""
        return self.sandbox.calls()

    def row(self, second: int = 0, **where: Any) -> dict[str, Any]:
        """A raw row as it stands now; empty if there is none."""
        return self.item(a_usage(second, **where))

    def aggregate(self, **where: Any) -> dict[str, Any]:
        """An aggregate as it stands now; empty if there is none."""
        return self.item(an_aggregate(**where))

    def item(self, like: Item) -> dict[str, Any]:
        """What stands now at the key of this item."""
        shape = _SHAPES[like.table]
        key: Any = {name: like.values[name] for name in (shape.hash_key, shape.range_key)}
        found = self.client.get_item(TableName=self.names[like.table], Key=key, ConsistentRead=True)
        return plain(found.get("Item", {}))

    def rows(self) -> list[dict[str, Any]]:
        """All raw rows."""
        return self._all("usage")

    def aggregates(self) -> list[dict[str, Any]]:
        """All aggregates, without the items of our own beside them."""
        return [item for item in self._all("aggregated") if "#" not in item["licenseArn"]]

    def row_statuses(self) -> Counter[str]:
        """How many raw rows are in which state; `pending` whatever their status says."""
        return self._states("usage")

    def record_statuses(self) -> Counter[str]:
        """How many aggregates are in which state."""
        return self._states("aggregated")

    def dump(self) -> dict[str, list[dict[str, Any]]]:
        """Everything in all tables."""
        return {kind: self._all(kind) for kind in _SHAPES}

    def judge(self) -> None:
        """Every row and record has come to its end, and the bill is what was aggregated, no more and no less."""
        assert "pending" not in self.row_statuses() + self.record_statuses()
        succeeded = [
            item
            for item in self._all(
                "aggregated", ProjectionExpression="licenseArn, account_dimension_hour, quantity, meteringStatus"
            )
            if item.get("meteringStatus") == "Success"
        ]
        assert sorted((i["licenseArn"], i["account_dimension_hour"], i["quantity"]) for i in succeeded) == sorted(
            (r.license_arn, f"{r.customer_aws_account_id}#{r.dimension}#{r.hour}", Decimal(r.quantity))
            for r in self.bill()
        )

    def _all(self, kind: str, **reading: Any) -> list[dict[str, Any]]:
        shape = _SHAPES[kind]
        request: Any = {"TableName": self.names[kind], **reading}
        found = [plain(item) for page in pages(self.client.scan, **request) for item in page]
        return sorted(found, key=lambda item: (item[shape.hash_key], item[shape.range_key]))

    def _states(self, kind: str) -> Counter[str]:
        keys = f"{_SHAPES[kind].hash_key}, {_SHAPES[kind].range_key}"
        items = self._all(kind, ProjectionExpression=f"{keys}, meteringPending, meteringStatus")
        return Counter(
            "pending" if "meteringPending" in item else item["meteringStatus"]
            for item in items
            if "#" not in item["licenseArn"]
        )


def _values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in metadata.items()}


def _value(value: Any) -> Any:
    """A table, of what and how much, as a mapping (what of it was in this run is another matter); of more, as it is."""
    if not isinstance(value, dg.TableMetadataValue):
        return value.value
    amounts = {name for record in value.records for name in record.data} & {"rows", "records", "quantity"}
    if len(amounts) != 1:
        return [dict(record.data) for record in value.records]
    (amount,) = amounts
    beside = {amount, "in this run"}
    return {next(v for n, v in r.data.items() if n not in beside): r.data[amount] for r in value.records}


def last_run(instance: dg.DagsterInstance) -> tuple[dg.DagsterRun, list[dg.EventLogEntry], str]:
    """The run that was started last, its event log, and all that is stored of it, as it is stored."""
    run = instance.get_runs(limit=1)[0]
    log = list(instance.all_logs(run.run_id))
    kept = [file for file in Path(instance.storage_directory()).rglob("*") if file.is_file()]
    said = [
        serialize_value(run),
        *(serialize_value(entry) for entry in log),
        *(file.read_bytes().decode("latin-1") for file in kept),
    ]
    return run, log, "\n".join(said)


def _outcome(run: dg.DagsterRun, failure: Exception | None, events: Sequence[dg.DagsterEvent], said: str) -> Outcome:
    failures = [event.step_failure_data for event in events if event.event_type is dg.DagsterEventType.STEP_FAILURE]
    own = failures[0].user_failure_data if failures else None
    materialized = [
        event.step_materialization_data.materialization for event in events if event.is_step_materialization
    ]
    observed = [
        event.asset_observation_data.asset_observation
        for event in events
        if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION
    ]
    checks = [
        event.asset_check_evaluation_data
        for event in events
        if event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ]
    own_partition = run.tags.get("dagster/partition")
    outputs = [event.step_output_data for event in events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    return Outcome(
        success=run.is_success,
        message=_words(failures[0]) if failures else "",
        messages=tuple(_words(failure) for failure in failures),
        allows_retries=failure.allow_retries if isinstance(failure, dg.Failure) else failure is not None,
        failed_with=_values(own.metadata) if own else {},
        metadata={each.asset_key.path[-1]: _values(each.metadata) for each in materialized},
        observed={str(each.partition): _values(each.metadata) for each in observed},
        shown={each.output_name: _values(each.metadata) for each in outputs},
        tags=run.tags,
        checks={each.check_name: each for each in checks if each.partition == own_partition},
        evaluations=tuple(checks),
        said=said,
    )


def _words(failure: StepFailureData) -> str:
    """The failure's own words, or the error that it was."""
    if failure.user_failure_data is not None:
        return failure.user_failure_data.description or ""
    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message.strip() if error else ""


__all__ = ["ACCOUNT", "DIMENSION", "HOUR", "LAST_CALL", "LICENSE", "NOW", "Outcome", "Visit", "World"]
