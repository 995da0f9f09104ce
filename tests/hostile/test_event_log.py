"""Anything in Dagster's event log, and any tags of runs: a tick takes what it cannot read for unknown, and asks for the
run rather than not.

Belongs here: what others than our runs report or tag. Does not: cursors (test_cursors), what our own runs report
(tests/metering/test_schedules.py, tests/billing_changes/test_billing_sensor.py).
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent, EngineEventData, JobFailureData, StepSuccessData
from dagster._core.events.log import EventLogEntry
from hypothesis import example, given
from hypothesis import strategies as st

from metering_dagster.alerting.defs.run_failures import FailedRun, alert_of_run, is_settled
from metering_dagster.alerting.rules import unclosed_hours
from metering_dagster.alerting.rules.alert_text import subject_line, text
from metering_dagster.billing_changes.defs.metadata import READ_AT, STATE
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.core import hours
from metering_dagster.core.dagster_history import MOST_COUNTED, count_of, text_of
from metering_dagster.definitions import build_defs
from metering_dagster.metering.defs.hour_status import AGGREGATED, METERED, HourEvidence
from metering_dagster.metering.defs.metadata import PENDING_AGGREGATES
from metering_dagster.metering.rules.run_decision import decide
from metering_dagster.reporting.defs.assets import REPORT, _last_digest
from metering_dagster.settings import Settings
from tests.billing_changes.conftest import filled_by_hand
from tests.billing_changes.filling import tenant
from tests.hostile.broken import JSON, ODD
from tests.hostile.effort import examples
from tests.hostile.tiny_world import TinyWorld
from tests.items import HOUR, a_usage

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = f"{NOW - timedelta(days=5):%Y-%m-%d}"
TYPED: list[dg.MetadataValue[Any]] = [
    dg.IntMetadataValue(None), dg.TextMetadataValue(None), dg.FloatMetadataValue(2.5), dg.MetadataValue.int(10**40),
    dg.MetadataValue.int(-3), dg.MetadataValue.int(MOST_COUNTED + 1), dg.MetadataValue.text("two"),
    dg.MetadataValue.text("9" * 5000), dg.MetadataValue.md("2"), dg.MetadataValue.url("2"), dg.MetadataValue.path("2"),
    dg.MetadataValue.bool(True), dg.MetadataValue.null(), dg.MetadataValue.json({"a": [2]}),
    dg.MetadataValue.timestamp(2.0), dg.MetadataValue.asset(AGGREGATED), dg.MetadataValue.dagster_run("run"),
    dg.MetadataValue.python_artifact(dict), dg.MetadataValue.table([dg.TableRecord({"a": 1})]),
]  # fmt: skip
STORABLE = st.sampled_from([odd for odd in ODD if odd != "\ud800"]) | JSON
"""A lone surrogate: whoever reports it fails, for no storage takes it."""
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES = (
    st.sampled_from(TYPED) | STORABLE.map(lambda odd: dg.MetadataValue.json([odd])) | TEXTS.map(dg.MetadataValue.text)
)
TAGS = TEXTS | st.sampled_from(
    ["not-a-day", "", "2026-02-30", "20261128", "2026-W48-6", "9" * 5000, f"{DAY} ", HOUR, "\x00", "a\nb", "0001-01-01"]
)


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    """One for all examples: the last report counts."""
    with dg.DagsterInstance.ephemeral() as ours:
        yield ours


@pytest.fixture(scope="module")
def world() -> TinyWorld:
    """A world in which two rows of the hour are pending."""
    ours = TinyWorld()
    ours.put(a_usage(0, "1"), a_usage(1, "1"))
    return ours


@pytest.fixture(scope="module")
def billing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Billing]:
    """A billing database with a day that has a file, whoever wrote it."""
    folder: Path = tmp_path_factory.mktemp("event-log")
    file = folder / "changes" / f"day={DAY}" / "cells.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    with filled_by_hand(f"sqlite:///{folder / 'billing.db'}") as tables:
        tables.subscribe(tenant("t1"))
        tables.daily("t1", datetime.fromisoformat(DAY).date(), tables.now() - timedelta(days=2))
        settings = Settings(
            billing_database_url=tables.url, billing_changes_uri=str(folder / "changes"), billing_quiet_seconds=0
        )
        yield Billing(settings)


def report(
    instance: dg.DagsterInstance, asset: dg.AssetKey | str, partition: str, shown: Mapping[str, dg.MetadataValue[Any]]
) -> None:
    instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=partition, metadata=dict(shown)))


def a_run(instance: dg.DagsterInstance, job: str, tags: Mapping[str, str]) -> dg.DagsterRun:
    """A run that is under way, as whoever reaches the instance may write it down."""
    return instance.add_run(dg.DagsterRun(job_name=job, tags=tags, status=dg.DagsterRunStatus.STARTED))


def report_metered(instance: dg.DagsterInstance, **shown: dg.MetadataValue[Any]) -> None:
    report(instance, METERED, HOUR, {"mode": dg.MetadataValue.text("live"), **shown})


def is_a_small_count(value: dg.MetadataValue[Any]) -> bool:
    return 0 < (count_of({"": value}, "") or 0) < 10


@examples(150, shrink=False)
@given(held=VALUES, zero=VALUES, aggregates=VALUES)
@example(dg.FloatMetadataValue(2.5), dg.MetadataValue.int(0), dg.MetadataValue.int(0))
@example(dg.MetadataValue.text("two"), dg.MetadataValue.int(2), dg.MetadataValue.int(0))
@example(dg.MetadataValue.int(-1), dg.MetadataValue.int(2), dg.MetadataValue.int(0))
@example(dg.MetadataValue.int(0), dg.MetadataValue.int(0), dg.MetadataValue.int(10**40))
def test_counts_that_are_none_leave_no_pending_hour_unasked(instance, world, held, zero, aggregates):
    report_metered(instance, **{PENDING_AGGREGATES: aggregates})
    report(instance, AGGREGATED, HOUR, {"held_rows": held, "zero_rows": zero})
    hour, now = hours.parse_bucket(HOUR), world.clock.now
    evidence = HourEvidence(instance, world.deployment, HOUR)
    asked = decide(hour, now, 1, evidence)
    seen = unclosed_hours.look(hour, now, 1, HourEvidence(instance, world.deployment, HOUR))
    assert evidence.doubts or None not in [count_of({"": value}, "") for value in (held, zero, aggregates)]
    if any(is_a_small_count(value) for value in (held, zero)) and not evidence.doubts:
        return  # it may say by chance what is there
    assert asked.run
    assert isinstance(seen, unclosed_hours.Unclosed)


@examples(60, shrink=False)
@given(mode=VALUES)
def test_a_mode_that_is_none_closes_no_hour(instance, world, mode):
    report_metered(instance, mode=mode)
    last = HourEvidence(instance, world.deployment, HOUR).last_run()
    assert (last is None) == (text_of({"mode": mode}, "mode") != "live")


@examples(60, shrink=False)
@given(digest=VALUES)
def test_a_digest_that_is_none_counts_as_no_report(instance, digest):
    report(instance, REPORT, DAY, {"ledger_digest": digest})
    assert _last_digest(instance, DAY) == (text_of({"": digest}, "") or "")


@pytest.fixture(scope="module")
def look(instance: dg.DagsterInstance, billing: Billing) -> Callable[[], Any]:
    """The sensor's first look."""
    sensor = build_defs(settings=Settings()).resolve_sensor_def("billing_changes")

    def look() -> Any:
        with dg.build_sensor_context(instance=instance, resources={"billing": billing}) as context:
            return sensor(context)

    return look


@examples(60, shrink=False)
@given(read_at=VALUES, state=VALUES | st.just(None), tag=TAGS)
@example(dg.MetadataValue.text("yesterday"), dg.MetadataValue.text(""), "not-a-day")
@example(dg.MetadataValue.text("2026-11-28T10:00:00"), dg.MetadataValue.text(""), DAY.replace("-", ""))
@example(dg.MetadataValue.text("0001-01-01T00:00:00+14:00"), dg.MetadataValue.text(""), "")
@example(dg.MetadataValue.text("9999-12-31T00:00:00+00:00"), dg.MetadataValue.text(""), "")
def test_a_day_is_asked_for_whatever_is_reported_of_it_and_whatever_runs_are_tagged(
    instance, look, read_at, state, tag
):
    shown = {READ_AT: read_at} | ({} if state is None else {STATE: state})
    report(instance, "billing_changes", DAY, shown)
    run = a_run(instance, "refresh_billing_changes", {"dagster/partition": tag})
    answer = look()
    instance.delete_run(run.run_id)
    assert isinstance(answer, dg.SensorResult)
    assert [request.partition_key for request in answer.run_requests or ()] == ([] if tag == DAY else [DAY])


def test_a_failure_that_is_stamped_far_ahead_is_told(instance):
    run = a_run(instance, "meter_hour", {})
    assert is_settled(FailedRun(run, NOW.timestamp() + 1e9), NOW.timestamp(), retries_enabled=True)


NAMED_TAGS = st.dictionaries(
    st.sampled_from([
        "dagster/partition", "dagster/will_retry", "dagster/backfill", "dagster/asset_partition_range_start",
        "dagster/asset_partition_range_end", "metering/shard", "metering/lane",
    ]),
    TAGS,
)  # fmt: skip


@examples(80, shrink=False)
@given(
    tags=NAMED_TAGS, data=st.sampled_from([None, EngineEventData(), JobFailureData(None, None), StepSuccessData(1.0)])
)
def test_a_failure_is_told_whatever_its_run_is_tagged_with_and_whoever_ended_it(instance, tags, data):
    run = a_run(instance, "meter_hour", tags)
    event = DagsterEvent(
        dg.DagsterEventType.RUN_FAILURE.value, run.job_name, event_specific_data=data, message="It was ended."
    )
    at = NOW.timestamp()
    instance.store_event(EventLogEntry(None, "debug", "", run.run_id, at, dagster_event=event))
    alert = alert_of_run(instance, run, None)
    assert alert.cause == "It was ended."
    assert "It was ended." in text(alert)
    assert subject_line(alert).isprintable()
    retried = tags.get("dagster/will_retry", "").lower() == "true"
    assert is_settled(FailedRun(run, at), at + 61, retries_enabled=True) != retried
