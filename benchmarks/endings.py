"""What it takes when many licenses end at once: requests and seconds of the look, the flush and the closing.

`python -m benchmarks.endings [licenses] [rows of others]`: 5,000 licenses with three pending hours each; then one such
license beside 500,000 pending rows of others. The tables are the simulation's, in memory, and each request waits 4 ms.
So figures hold the product's own CPU and the tables', but not the SDK's: count about 1 ms of CPU a request for that.
The quota is the real one, 10 calls a second.
"""

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from metering_dagster.core import hours
from metering_dagster.core.aws.dynamodb import create_table
from metering_dagster.definitions import build_defs
from metering_dagster.licenses.rules.flush_plan import hours_to_flush
from metering_dagster.licenses.services.finalization import close_windows
from metering_dagster.licenses.services.flush_search import need_of_flush, pending_hours
from metering_dagster.licenses.stores.open_windows import ClosingStore
from metering_dagster.metering.rules.flush_window import LicenseScope
from metering_dagster.metering.services.aggregation import aggregate
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.metering.services.discovery import discover, pending_of
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table
from metering_dagster.settings import Mode, Settings
from tests.memory_stack import MemoryClients, MemoryStack

NOW = datetime(2026, 3, 10, 12, 30, tzinfo=UTC)
HOURS = ("2026-03-10T09", "2026-03-10T10", "2026-03-10T11")
EXPIRY = NOW + timedelta(minutes=45)
LATENCY = 0.004
LICENSES, OTHERS = 5_000, 500_000
_SHAPES = {"usage": usage_table.SHAPE, "aggregated": aggregated_table.SHAPE, "subscribers": subscribers_table.SHAPE}


@dataclass(frozen=True)
class _ClockedSettings(Settings):
    """Settings whose clock stands until it is moved."""

    at: list[datetime] = field(default_factory=lambda: [NOW])

    def now(self) -> datetime:
        return self.at[0]


class _SlowClients(MemoryClients):
    """Clients whose every request is counted and waits."""

    def __init__(self, settings: Settings, stack: MemoryStack, counted: Counter[str]) -> None:
        super().__init__(settings, stack)
        self.counted = counted

    def _around(self, operation: str, request: Any, call: Callable[[], Any]) -> Any:
        self.counted[operation] += 1
        time.sleep(LATENCY)
        return call()

    def dynamodb(self, region: str | None = None) -> Any:
        return self.stack.tables.client(self._around)

    def probe(self, region: str | None = None) -> Any:
        return self.stack.tables.client(self._around)

    def metering(self) -> Any:
        return self.stack.marketplace.client(self._around)


class _Endings:
    """A deployment in whose tables licenses have just ended."""

    def __init__(self, folder: Path, licenses: int, others: int = 0) -> None:
        self.stack, self.counted = MemoryStack(), Counter[str]()
        self.stack.marketplace.set_now(NOW)
        self.settings = _ClockedSettings(
            **{f"{kind}_table": kind for kind in ("usage", "subscribers")}, aggregated_usage_table="aggregated",
            mode=Mode.LIVE, ledger_uri=str(folder / "ledger"),
        )  # fmt: skip
        self._client: Any = self.stack.tables.client()
        for kind, shape in _SHAPES.items():
            create_table(self._client, kind, shape)
        self.deployment = self.new_deployment()
        self._put("usage", (_row(number + 0.5, HOURS[-1]) for number in range(others)))
        apart = max(others // licenses, 1)  # as far as the others' rows let them be
        mine = [n * apart + apart // 2 for n in range(licenses)]
        self._put("subscribers", map(_deprovisioning, mine))
        self._put("usage", (_row(number, hour) for hour in HOURS for number in mine))

    def new_deployment(self) -> Deployment:
        deployment = Deployment(self.settings)
        deployment.__dict__["clients"] = _SlowClients(self.settings, self.stack, self.counted)
        return deployment

    def _put(self, table: str, items: Iterator[dict[str, Any]]) -> None:
        while chunk := [item for _, item in zip(range(25), items, strict=False)]:
            self._client.batch_write_item(RequestItems={table: [{"PutRequest": {"Item": item}} for item in chunk]})

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        """Print what a block took."""
        self.counted.clear()
        started = time.monotonic()
        yield
        seconds = time.monotonic() - started
        parts = ", ".join(f"{count} {name}" for name, count in sorted(self.counted.items()))
        print(f"  {what:44} {self.counted.total():>7} requests {seconds:>7.1f} s   {parts}", flush=True)

    def look(self) -> None:
        """As the sensor of the flush does."""
        need_of_flush(self.deployment.probe, NOW, 3_600.0)

    def flush(self) -> None:
        """As the job does, without Dagster: all steps of all hours."""
        deployment = self.deployment
        windows = deployment.tables.subscribers.deprovisioning()
        for each in pending_hours(deployment.indexes, hours_to_flush(NOW, windows)):
            hour = hours.parse_bucket(each.bucket)
            discover(deployment.tables, deployment.slice_of(hour, LicenseScope.DEPROVISIONING)[0])
            aggregate(deployment.tables, deployment.slice_of(hour, LicenseScope.DEPROVISIONING)[0])
            part, _ = deployment.slice_of(hour, LicenseScope.DEPROVISIONING)
            deployment.submitter(urgent=True).submit(part)
            pending_of(deployment.tables, part)

    def flush_as_job(self) -> None:
        """As Dagster does, in this process."""
        resources = {"metering": self.new_deployment()}
        job = build_defs(settings=self.settings, resources=resources).resolve_job_def("flush_deprovisioning")
        config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        with dg.DagsterInstance.ephemeral() as instance:
            assert job.execute_in_process(run_config=config, instance=instance).success

    def close(self) -> None:
        """As the job of the finalizer does, at the expiry."""
        self.settings.at[0] = EXPIRY
        subscribers = self.deployment.tables.subscribers
        store = ClosingStore(subscribers.client, subscribers.name)
        done = close_windows(store, self.deployment.tables, lambda bucket, losses: None)
        print(f"    {len(done.closed)} closed, {sum(loss.quantity for loss in done.losses)} lost")

    def billed(self) -> None:
        """Print what was billed."""
        print(f"    {len(self.stack.marketplace.bill())} records billed by {len(self.stack.marketplace.calls())} calls")


def _key(number: float) -> dict[str, Any]:
    return {"licenseArn": {"S": f"arn:aws:license-manager::111122223333:license:l-{number:015.1f}"},
            "customerAWSAccountId": {"S": "444455556666"}}  # fmt: skip


def _deprovisioning(number: float) -> dict[str, Any]:
    return {**_key(number), "productCode": {"S": "product"}, "subscriptionStatus": {"S": "deprovisioning"},
            "deprovisioningPendingFlag": {"S": "1"},
            "deprovisioningExpiry": {"S": f"{EXPIRY:%Y-%m-%dT%H:%M:%SZ}"}}  # fmt: skip


def _row(number: float, bucket: str) -> dict[str, Any]:
    at = f"{bucket}:00:00"
    return {**_key(number), "customerAWSAccountId_dimension_timestamp": {"S": f"444455556666#api-calls#{at}"},
            "dimension": {"S": "api-calls"}, "timestamp": {"S": at}, "quantity": {"N": "1"},
            "meteringPending": {"S": bucket}}  # fmt: skip


def main(licenses: int, others: int) -> None:
    """Print a table of costs."""
    with tempfile.TemporaryDirectory() as folder:
        print(f"{licenses} licenses end at once, {len(HOURS)} pending hours each")
        world = _Endings(Path(folder), licenses)
        with world.measured("a look that finds something"):
            world.look()
        with world.measured("the flush without Dagster"):
            world.flush()
        world.billed()
        with world.measured("a look that finds nothing any more"):
            world.look()
        with world.measured("the closing, nothing lost"):
            world.close()
        world = _Endings(Path(folder), licenses)
        with world.measured("the flush as the job"):
            world.flush_as_job()
        world.billed()
        world = _Endings(Path(folder), licenses)
        with world.measured("the closing, everything lost"):
            world.close()
        if not others:
            return
        print(f"1 license ends beside {others} pending rows of others")
        world = _Endings(Path(folder), 1, others)
        with world.measured("a look that finds something"):
            world.look()
        with world.measured("the flush without Dagster"):
            world.flush()
        world.billed()
        with world.measured("a look that finds nothing any more"):
            world.look()
        with world.measured("the closing, nothing lost"):
            world.close()
        few = 20
        print(f"{few} licenses, far apart, end beside {others} pending rows of others")
        world = _Endings(Path(folder), few, others)
        with world.measured("the flush without Dagster"):
            world.flush()
        world.billed()
        with world.measured("the closing, nothing lost"):
            world.close()


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    main(*(given + [LICENSES, OTHERS][len(given) :]))
