"""What runs in a worker process: it meters, says on a pipe where it is, and stands still where it was told to.

The points are hooked from here, on the SDK's events and around functions of the pipeline, which knows nothing of them.
"""

import functools
import importlib
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import botocore.session
import dagster as dg

from metering_dagster.core import hours
from metering_dagster.definitions import build_defs
from metering_dagster.expiry.services.sweep import hours_of_sweep, sweep
from metering_dagster.ledger.stores import files
from metering_dagster.licenses.services import flush_search
from metering_dagster.metering.services import aggregation, discovery
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.metering.stores import usage_table
from metering_dagster.settings import Settings
from tests.crash.marks import follow_slots

READY, ENDED, FAILED = "ready", "ended", "failed"
DISCOVERED, ROWS_READ = "discovered", "rows read"
TRANSACTION_LEAVES, TRANSACTION_ANSWERED = "transaction leaves", "transaction answered"
CALL_LEAVES, CALL_ANSWERED = "call leaves", "call answered"
LEDGER_UNFINISHED, LEDGER_WRITTEN_IN_PART = "ledger unfinished", "ledger written in part"
FLUSH_PLANNED = "flush planned"
CLOSING_LEAVES, CLOSING_ANSWERED = "closing leaves", "closing answered"
SLOT = "slot"
RESERVES, FLUSH_CALLS = "reserves", "flush calls"
"""With the time, on the clock that stamps the sandbox's calls."""

# Done once, in the process that workers are forked from: each of them would pay seconds for it.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)
for _service in ("dynamodb", "meteringmarketplace"):
    botocore.session.get_session().create_client(
        _service, "us-east-1", aws_access_key_id="nobody", aws_secret_access_key="nothing"
    )
for _module in (
    "dagster._core.launcher.default_run_launcher", "dagster._core.run_coordinator",
    "dagster._core.storage.base_storage", "dagster._core.storage.fs_io_manager",
    "dagster._core.storage.local_compute_log_manager",
    "dagster._core.storage.root", "dagster._core.storage.sqlite_storage",
    "metering_dagster.metering.services.submission",
    "pandas", "pyarrow.fs", "pyarrow.parquet",
):  # fmt: skip
    importlib.import_module(_module)


@dataclass(frozen=True)
class Order:
    """What a worker is to do. Its environment and settings are the world's; `home` makes it a run of Dagster's."""

    environment: Mapping[str, str]
    settings: Settings
    hour: str
    log: Path
    home: Path | None = None
    job: str = "meter_hour"
    """Which run it is; only `meter_hour` has a partition."""
    waits: bool = False
    """Whether it stands still once it is ready, before it touches anything."""
    stops_at: tuple[str, int] | None = None
    """The point, and its how-manieth announcement (from 1), where it stands still."""
    stops_at_any: int | None = None
    """The how-manieth announcement of whatever point (from 1), where it stands still."""
    shard: int | None = None
    """The shard that it sweeps, instead of metering the hour."""
    tells_times: bool = False
    """Whether it tells when it reserves slots of the quota and when its calls leave."""
    only_submits: bool = False
    """Whether it just submits, and tells of each slot of the quota."""


class Teller:
    """Announces points, and stands still where the order says so, until it is told to go on (or killed)."""

    def __init__(self, pipe: Connection, order: Order) -> None:
        self.pipe, self.order = pipe, order
        self.counts: dict[str, int] = {}

    def announce(self, point: str) -> None:
        """Say that this point is reached."""
        number = self.counts[point] = self.counts.get(point, 0) + 1
        stops = self.order.stops_at == (point, number) or self.order.stops_at_any == sum(self.counts.values())
        self.pipe.send((point, number, stops))
        if stops:
            self.pipe.recv()

    def tell_time(self, point: str) -> None:
        """Say when this happens."""
        self.pipe.send((point, time.monotonic(), False))

    def after(self, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with this point after it."""

        def wrapped(*args: Any, **named: Any) -> Any:
            result = function(*args, **named)
            self.announce(point)
            return result

        return wrapped

    def before(self, point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with this point before it."""

        def wrapped(*args: Any, **named: Any) -> Any:
            self.announce(point)
            return function(*args, **named)

        return wrapped


def work(pipe: Connection, order: Order) -> None:
    """The whole life of a worker."""
    with order.log.open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(order.environment)
    random.seed()  # a fork inherits its parent's: rivals would pause for equally long
    try:
        deployment = Deployment(order.settings)
        teller = Teller(pipe, order)
        _hook(deployment, teller)
        if order.waits:
            pipe.send((READY, 1, True))
            pipe.recv()
        if order.only_submits:
            _submit(deployment, order)
        elif order.shard is not None:
            _sweep(deployment, order, order.shard)
        elif order.home is not None:
            _run(deployment, order)
        else:
            _visit(deployment, order)
    except Exception as error:
        pipe.send((FAILED, 1, f"{type(error).__name__}: {error}"))
        raise
    pipe.send((ENDED, 1, False))


def _hook(deployment: Deployment, teller: Teller) -> None:
    if teller.order.only_submits:
        follow_slots(lambda slot, now: teller.pipe.send((SLOT, slot, now)))
        return
    tables = deployment.tables.usage.client.meta.events
    metering = deployment.marketplace.client.meta.events
    tables.register("before-call.dynamodb.TransactWriteItems", lambda **_: teller.announce(TRANSACTION_LEAVES))
    tables.register("after-call.dynamodb.TransactWriteItems", lambda **_: teller.announce(TRANSACTION_ANSWERED))
    metering.register("before-call.meteringmarketplace.BatchMeterUsage", lambda **_: teller.announce(CALL_LEAVES))
    metering.register("after-call.meteringmarketplace.BatchMeterUsage", lambda **_: teller.announce(CALL_ANSWERED))
    if teller.order.shard is not None:
        rows: Any = usage_table.UsageTable
        rows.rows = teller.after(ROWS_READ, rows.rows)
    if teller.order.tells_times:
        # Nothing else of a run is an UpdateItem by this client.
        tables.register("before-call.dynamodb.UpdateItem", lambda **_: teller.tell_time(RESERVES))
        metering.register("before-send.meteringmarketplace.BatchMeterUsage", lambda **_: teller.tell_time(FLUSH_CALLS))
    subscribers = deployment.tables.subscribers.client.meta.events
    subscribers.register("before-call.dynamodb.UpdateItem", lambda **_: teller.announce(CLOSING_LEAVES))
    subscribers.register("after-call.dynamodb.UpdateItem", lambda **_: teller.announce(CLOSING_ANSWERED))
    flush_search.pending_hours = teller.after(FLUSH_PLANNED, flush_search.pending_hours)
    discovery.discover = teller.after(DISCOVERED, discovery.discover)
    ledger: Any = files.LedgerFile
    ledger._finish = teller.before(LEDGER_UNFINISHED, ledger._finish)
    ledger._flush = teller.after(LEDGER_WRITTEN_IN_PART, ledger._flush)


def _visit(deployment: Deployment, order: Order) -> None:
    """The use cases of the hour."""
    part, _ = deployment.slice_of(hours.parse_bucket(order.hour))
    discovery.discover(deployment.tables, part)
    aggregation.aggregate(deployment.tables, part)
    deployment.submitter().submit(part)


def _run(deployment: Deployment, order: Order) -> None:
    """The job, against the instance of this DAGSTER_HOME."""
    os.environ["DAGSTER_HOME"] = str(order.home)
    job = build_defs(settings=order.settings, resources={"metering": deployment}).resolve_job_def(order.job)
    with dg.DagsterInstance.get() as instance, dg.partition_loading_context(effective_dt=order.settings.now()):
        partition = {"partition_key": order.hour} if order.job == "meter_hour" else {}
        job.execute_in_process(instance=instance, **partition)


def _sweep(deployment: Deployment, order: Order, shard: int) -> None:
    """The hourly sweep of a shard: by the job `age_out` where there is a DAGSTER_HOME, else without Dagster."""
    if order.home is None:
        sweep(deployment.tables, hours_of_sweep(shard, order.settings.now()), whole=False)
        return
    os.environ["DAGSTER_HOME"] = str(order.home)
    job = build_defs(settings=order.settings, resources={"metering": deployment}).resolve_job_def("age_out")
    config = {"ops": {"expired_usage": {"config": {"whole": False}}}}
    with dg.DagsterInstance.get() as instance:
        job.execute_in_process(run_config=config, partition_key=str(shard), instance=instance)


def _submit(deployment: Deployment, order: Order) -> None:
    """The submission alone."""
    part, _ = deployment.slice_of(hours.parse_bucket(order.hour))
    report = deployment.submitter().submit(part)
    assert not report.left, report.left
