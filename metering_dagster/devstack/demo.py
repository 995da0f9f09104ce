"""The rehearsal behind `metering-dagster demo`: a day of usage through the real pipeline, and its balance.

Belongs here: the order of stack, sample, runs and balance. Does not: the sums (balance), the part of billing data
(billing_demo), what is left for the UI (demo_state), how anything is shown (words).
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
from metering_dagster.devstack.environment import being, environment_on
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
"""Oldest first: what is about to leave its window goes first."""


@dataclass(frozen=True)
class Rehearsal:
    """The result of the rehearsal."""

    now: datetime
    balance: Balance
    departure: Mapping[str, str]
    """The subscribers table's row of the license that was deprovisioned, as it stands at the end."""
    runs: int
    failures: tuple[str, ...]
    """Runs that failed, in their own words."""
    billing: BillingRehearsal

    @property
    def is_good(self) -> bool:
        """Return whether both parts are."""
        return self.is_metered and self.billing.is_good

    @property
    def is_metered(self) -> bool:
        """Return whether every run was green, everything used is accounted for, and the license that ended is
        finalized.
        """
        return not self.failures and self.balance.is_even and self.is_finalized

    @property
    def is_finalized(self) -> bool:
        """Return whether the deprovisioned license is inactive, without markers."""
        row = self.departure
        return row.get("subscriptionStatus") == "inactive" and not {"deprovisioningPendingFlag",
                                                                      "deprovisioningExpiry"} & set(row)  # fmt: skip


def rehearsal_instant(real_now: datetime) -> datetime:
    """Return the latest instant, up to now, whose offsets 1 to 23 are all billable and none is a month's last hour."""
    first = hours.month_start(real_now)
    return real_now if real_now >= first + timedelta(days=1) else first - timedelta(minutes=30)


def check_instant(now: datetime) -> None:
    """Refuse an instant that cannot be rehearsed."""
    closed = [
        hours.bucket(hour)
        for offset in OFFSETS
        if not hours.is_billable(hour := hours.hour_at_offset(now, offset), now)
    ]
    if closed:
        raise SettingsError(
            f"METERING_NOW={now.isoformat()} cannot be rehearsed: {len(closed)} of its last 23 hours are past their "
            f"window ({closed[0]} and on). Nothing was started. Choose an instant after the 1st of a month."
        )


def rehearse(root: Path, now: datetime, progress: Progress) -> Rehearsal:
    """Start the stack, load a sample, let a buyer leave, meter offsets 23 to 1, let late usage arrive, meter again, end
    what is past its window and the license that was left, strike the balance, report the days.

    A rehearsal begins with an empty home and empty tables, and leaves them for `metering-dagster demo --ui`. One at a
    time, and none while that UI is open: a second one is refused (`StackError`).
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
            with being(during):
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
    """A run with the instant at which it is done."""

    before_now: bool = False
    """While the buyer leaves, some minutes before the rehearsal's instant."""
    after_late_usage: bool = False


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
        *(_Run("age_out", f"ending what is past its window, shard {shard}", shard, only_recent) for shard in shards),
        _Run("finalize_deprovisioned", "the license is finalized"),
        *(_Run("refresh_report", f"the report of {day}", day) for day in _days(now)),
    ]  # fmt: skip


def _days(now: datetime) -> list[str]:
    """Return the days with usage of the sample that have a report, oldest first."""
    first = max(hours.hour_at_offset(now, max(STALE_OFFSETS)), FIRST_HOUR)
    return sorted({f"{first + hour * hours.HOUR:%Y-%m-%d}" for hour in range(max(STALE_OFFSETS) + 1)
                   if first + hour * hours.HOUR <= now})  # fmt: skip


def _send(leaving: Departure) -> None:
    """Put the event of the leaving into the queue of the environment."""
    settings = read_settings(os.environ)
    Clients(settings).sqs().send_message(QueueUrl=str(settings.events_queue_url), MessageBody=leaving.event())


def _perform(
    runs: Sequence[_Run], is_now: bool, sample: Sample, client: "DynamoDBClient", progress: Progress
) -> list[str]:
    """Do the runs that belong to this instant; the words of those that failed."""
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
    """Return where usage arrives later, and where a group is only found under another hour, which moves it to
    its own.
    """
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
