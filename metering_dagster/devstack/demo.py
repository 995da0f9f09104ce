"""The rehearsal behind `metering-dagster demo`: a day of usage through the real pipeline, and its balance.

Belongs here: the order of stack, sample, runs and balance. Does not: the sums (balance), the billing part
(billing_demo), the files for the UI (demo_state), the output (cli).
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from metering_dagster.core import hours
from metering_dagster.core.aws import dynamodb
from metering_dagster.core.aws.clients import Clients
from metering_dagster.core.dagster_partitions import FIRST_HOUR
from metering_dagster.core.errors import SettingsError
from metering_dagster.devstack import loading
from metering_dagster.devstack.balance import Balance, GroupKey, RowKey, row_key, strike_balance
from metering_dagster.devstack.billing_demo import BillingRehearsal, rehearse_billing
from metering_dagster.devstack.demo_state import DemoState
from metering_dagster.devstack.endings import STALE_OFFSETS, Departure, departure, stale_rows
from metering_dagster.devstack.environment import environment_on, using_environment
from metering_dagster.devstack.home import HomeName, OpenHome, claimed_home
from metering_dagster.devstack.runs import Progress, Run, perform
from metering_dagster.devstack.sample import SORT_KEY, Sample, SampleKind, SampleRow, generate
from metering_dagster.devstack.sandbox.client import SandboxClient
from metering_dagster.devstack.stack import (
    AGGREGATED_USAGE_TABLE,
    SUBSCRIBERS_TABLE,
    USAGE_TABLE,
    LocalStack,
    create_tables,
    running_stack,
)
from metering_dagster.settings import read_settings

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

COMMAND = "metering-dagster demo"
OFFSETS = range(hours.LAST_OFFSET, hours.FIRST_OFFSET - 1, -1)
"""Oldest first: those hours leave their window first."""


@dataclass(frozen=True)
class Rehearsal:
    """Result of a rehearsal."""

    now: datetime
    balance: Balance
    departure: Mapping[str, str]
    """The deprovisioned license's row in the subscribers table, at the end."""
    runs: int
    failures: tuple[str, ...]
    """The error messages of failed runs."""
    billing: BillingRehearsal

    @property
    def is_good(self) -> bool:
        """Judge whether the metering and the billing part succeeded."""
        return self.is_metered and self.billing.is_good

    @property
    def is_metered(self) -> bool:
        """Judge whether all runs succeeded, all usage is accounted for, and the ended license is finalized."""
        return not self.failures and self.balance.is_even and self.is_finalized

    @property
    def is_finalized(self) -> bool:
        """Judge whether the deprovisioned license is inactive, without markers."""
        row = self.departure
        return row.get("subscriptionStatus") == "inactive" and not {"deprovisioningPendingFlag",
                                                                      "deprovisioningExpiry"} & set(row)  # fmt: skip


def rehearsal_instant(real_now: datetime) -> datetime:
    """Return the latest instant, up to now, whose offsets 1 to 23 are all billable, and none a month's last hour."""
    first = hours.month_start(real_now)
    return real_now if real_now >= first + timedelta(days=1) else first - timedelta(minutes=30)


def check_instant(now: datetime) -> None:
    """Raise `SettingsError` for an instant that cannot be rehearsed."""
    closed = [
        hours.bucket(hour)
        for offset in OFFSETS
        if not hours.is_billable(hour := hours.hour_at_offset(now, offset), now)
    ]
    if closed:
        raise SettingsError(
            f"METERING_NOW={now.isoformat()} cannot be rehearsed: {len(closed)} of its last 23 hours are past their "
            f"window, from {closed[0]} on. Nothing was started. Choose an instant after the 1st of a month."
        )


def rehearse(root: Path, now: datetime, progress: Progress) -> Rehearsal:
    """Rehearse a day: meter a sample on a new stack, and strike its balance.

    A buyer leaves; offsets 23 to 1 are metered; late usage arrives and is metered again. Then old usage expires, the
    buyer's license is finalized, the days are reported, and the billing part follows.

    A rehearsal begins with an empty home and empty tables, and leaves them for `metering-dagster demo --ui`. Raises
    `StackError` while another rehearsal runs or that UI is open.
    """
    check_instant(now)
    with claimed_home(root, HomeName.DEMO, COMMAND) as home:
        home.begin_anew(root)
        left = DemoState(root)
        left.forget()
        done = _rehearse(home, left, now, progress)
        left.remember(now)
    return done


def _rehearse(home: OpenHome, state: DemoState, now: datetime, progress: Progress) -> Rehearsal:
    sample, leaving, stale = generate(now), departure(now), stale_rows(now)
    progress("starting the stack", 0, 1)
    with running_stack(state.folder, persist=True, anew=True, now=now) as stack:
        create_tables(stack)
        client = stack.dynamodb()
        loading.configure_sandbox(stack, sample, leaving)
        loading.load_subscribers(client, SUBSCRIBERS_TABLE, [*sample.subscribers, leaving.subscriber])
        loading.load(client, USAGE_TABLE, (*sample.rows, *stale, *leaving.rows))
        runs = _runs(sample)
        failures: list[str] = []
        for instant in (leaving.flushed_at, now):
            SandboxClient(stack.sandbox_url).set_now(instant)
            during = environment_on(stack, home.folder, os.environ, **state.settings(instant))
            with using_environment(during):
                if instant == leaving.flushed_at:
                    _send(leaving)
                failures += _perform(runs, instant == now, sample, client, progress)
        progress("balance", len(runs), len(runs))
        balance = _balance(stack, client, sample, (*stale, *leaving.rows))
        buyer = (leaving.license_arn, str(leaving.subscriber["customerAWSAccountId"]))
        left: dict[str, Any] = dict(*_items(client, SUBSCRIBERS_TABLE, "customerAWSAccountId", [buyer]))
    billing = rehearse_billing(home.folder, state, progress)
    return Rehearsal(now, balance, left, len(runs), tuple(failures), billing)


@dataclass(frozen=True)
class _Run(Run):
    """Run with its time in the rehearsal."""

    before_now: bool = False
    """True for a run while the buyer leaves, some minutes before the rehearsal's instant."""
    after_late_usage: bool = False
    """True for a run after the late usage has arrived."""


def _runs(sample: Sample) -> list[_Run]:
    """Return all runs of a rehearsal, in their order."""
    now = sample.now
    buckets = [hours.bucket(hours.hour_at_offset(now, offset)) for offset in OFFSETS]
    only_recent = {"ops": {"expired_usage": {"config": {"whole": False}}}}
    shards = sorted({str(offset % hours.SHARDS) for offset in STALE_OFFSETS})
    return [
        _Run("apply_marketplace_events", "a license is deprovisioned", before_now=True),
        _Run("flush_deprovisioning", "its last usage is flushed", before_now=True),
        *(_Run("meter_hour", f"metering {bucket}", bucket) for bucket in buckets),
        *(_Run("meter_hour", f"metering {bucket} again", bucket, after_late_usage=True)
          for bucket in _hours_to_meter_again(sample)),
        *(_Run("age_out", f"expiring old usage, shard {shard}", shard, only_recent) for shard in shards),
        _Run("finalize_deprovisioned", "the license is finalized"),
        *(_Run("refresh_report", f"the report of {day}", day) for day in _days(now)),
    ]  # fmt: skip


def _days(now: datetime) -> list[str]:
    """Return the days of the sample's usage that have a report, oldest first."""
    first = max(hours.hour_at_offset(now, max(STALE_OFFSETS)), FIRST_HOUR)
    return sorted({f"{first + hour * hours.HOUR:%Y-%m-%d}" for hour in range(max(STALE_OFFSETS) + 1)
                   if first + hour * hours.HOUR <= now})  # fmt: skip


def _send(leaving: Departure) -> None:
    """Send the lifecycle event of the leaving buyer to the environment's queue."""
    settings = read_settings(os.environ)
    Clients(settings).sqs().send_message(QueueUrl=str(settings.events_queue_url), MessageBody=leaving.event())


def _perform(
    runs: Sequence[_Run], is_now: bool, sample: Sample, client: "DynamoDBClient", progress: Progress
) -> list[str]:
    """Do the runs of this instant; return the error messages of failed ones."""
    from metering_dagster.definitions import build_defs

    defs, failures, late_usage_is_there = build_defs(), list[str](), False
    with dg.DagsterInstance.get() as instance:
        for done, run in enumerate(runs):
            if run.before_now == is_now:
                continue
            if run.after_late_usage and not late_usage_is_there:
                loading.load(client, USAGE_TABLE, sample.later)
                late_usage_is_there = True
            progress(run.what, done, len(runs))
            failures += perform(run, defs, instance)
    return failures


def _hours_to_meter_again(sample: Sample) -> list[str]:
    """Return the hours to meter again: those with late usage, and those whose group was refiled from another hour."""
    kinds: dict[GroupKey, set[SampleKind]] = {}
    for row in sample.rows:
        kinds.setdefault(row.group, set()).add(row.kind)
    strayed = {group[3] for group, found in kinds.items() if found == {SampleKind.MISFILED}}
    return sorted(strayed | {row.group[3] for row in sample.later})


def _balance(stack: LocalStack, client: "DynamoDBClient", sample: Sample, ending: Sequence[SampleRow]) -> Balance:
    first: list[SampleRow] = [*sample.rows, *ending]
    everything = [*first, *sample.later]
    ends: dict[RowKey, Mapping[str, Any]] = {}
    for item in _items(client, USAGE_TABLE, SORT_KEY, {row_key(row) for row in everything}):
        ends[item["licenseArn"], item[SORT_KEY]] = item
    groups = {row.group for row in everything}
    aggregates: dict[GroupKey, Mapping[str, Any]] = {}
    keys = {(license, f"{account}#{dimension}#{hour}") for license, account, dimension, hour in groups}
    for item in _items(client, AGGREGATED_USAGE_TABLE, "account_dimension_hour", keys):
        group = (item["licenseArn"], item["customerAWSAccountId"], item["dimension"], item["hourBucket"])
        aggregates[group] = item
    return strike_balance(first, sample.later, ends, aggregates, SandboxClient(stack.sandbox_url).bill())


def _items(
    client: "DynamoDBClient", table: str, range_key: str, keys: Iterable[tuple[str, str]]
) -> Iterator[Mapping[str, Any]]:
    typed: Sequence[dynamodb.Item] = [{"licenseArn": {"S": arn}, range_key: {"S": key}} for arn, key in sorted(keys)]
    for item in dynamodb.batch_get(client, table, typed):
        yield {name: dynamodb.value(item, name) for name in item}
