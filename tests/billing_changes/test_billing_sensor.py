"""The sensor `billing_changes` through Dagster: what it asks for, what becomes of its cursor, what it says."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from metering_dagster.billing_changes.feed import new_for
from metering_dagster.billing_changes.rules import cursor
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.core.errors import DatabaseAwayError, DatabaseError
from metering_dagster.definitions import build_defs
from metering_dagster.settings import Settings
from tests.billing_changes.filling import BillingTables, tenant

TODAY = datetime.now(UTC).date()
DAY = TODAY - timedelta(days=5)
JOB = "refresh_billing_changes"


class Watch:
    """The sensor and its runs, on an instance and a billing database."""

    def __init__(self, instance: dg.DagsterInstance, tables: BillingTables | None, folder: Path) -> None:
        self.instance, self.tables = instance, tables
        self.settings = Settings(
            billing_database_url=tables.url if tables else None,
            billing_changes_uri=str(folder / "changes"),
            billing_quiet_seconds=0,
        )
        self.cursor: str | None = None
        self.defs = build_defs(settings=self.settings)
        self.billing = Billing(self.settings)

    def look(self) -> list[dg.RunRequest]:
        """What a tick asks for; its cursor is kept, as the daemon does."""
        answer = self.answer()
        assert isinstance(answer, dg.SensorResult)
        self.cursor = answer.cursor
        return list(answer.run_requests or [])

    def answer(self) -> dg.SensorResult | dg.SkipReason:
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor, resources={"billing": self.billing}
        ) as context:
            return self.defs.resolve_sensor_def("billing_changes")(context)

    def run(self, *asked: dg.RunRequest) -> None:
        for one in asked:
            done = self.defs.resolve_job_def(JOB).execute_in_process(
                instance=self.instance, partition_key=one.partition_key, run_config=one.run_config, tags=one.tags
            )
            assert done.success

    def metadata(self, day: date) -> dict[str, object]:
        found = self.instance.fetch_materializations(
            dg.AssetRecordsFilter(dg.AssetKey("billing_changes"), asset_partitions=[day.isoformat()]), limit=1
        ).records[0]
        assert found.asset_materialization is not None
        return {name: value.value for name, value in found.asset_materialization.metadata.items()}


@pytest.fixture
def watch(instance: dg.DagsterInstance, billing: BillingTables, tmp_path: Path) -> Watch:
    """A tenant with a row of five days ago."""
    billing.subscribe(tenant("t1"))
    billing.daily("t1", DAY, billing.now() - timedelta(days=2))
    return Watch(instance, billing, tmp_path)


def test_the_first_look_asks_for_every_day_with_rows_and_the_next_for_none(watch):
    asked = watch.look()
    assert [one.partition_key for one in asked] == [DAY.isoformat()]
    assert asked[0].tags["metering/lane"] == "billing"
    watch.run(*asked)
    assert watch.metadata(DAY)["why"] == "first poll"
    answer = watch.answer()
    assert isinstance(answer, dg.SensorResult)
    assert not answer.run_requests
    assert "Every changed day is materialized" in str(answer.skip_reason.skip_message)


@pytest.mark.case("reingested_twice")
def test_a_day_that_is_ingested_twice_is_run_twice(watch):
    watch.run(*watch.look())
    keys = set()
    for _ in range(2):
        watch.tables.daily("t1", DAY, watch.tables.now())
        (asked,) = watch.look()
        assert asked.partition_key == DAY.isoformat()
        keys.add(asked.run_key)
        watch.run(asked)
        assert watch.metadata(DAY)["changed_cells"] == 1
    assert len(keys) == 2


def test_the_same_tick_evaluated_again_asks_for_the_same_run(watch):
    (first,) = watch.look()
    watch.cursor = None
    (again,) = watch.look()
    assert first.partition_key == again.partition_key
    assert watch.look() == [], "it was asked for, and its run may still come"


def test_what_a_person_reports_of_a_day_is_unknown_and_the_day_is_asked_for(watch):
    watch.run(*watch.look())
    shown = {"read_at": "yesterday", "state": ""}
    watch.instance.report_runless_asset_event(
        dg.AssetMaterialization("billing_changes", partition=DAY.isoformat(), metadata=shown)
    )
    watch.tables.daily("t1", DAY, watch.tables.now())
    (asked,) = watch.look()
    assert asked.partition_key == DAY.isoformat()
    watch.run(asked)
    assert watch.metadata(DAY)["changed_cells"] == 1


def test_a_run_of_no_day_keeps_no_day_waiting(watch):
    watch.instance.add_run(
        dg.DagsterRun(job_name=JOB, status=dg.DagsterRunStatus.STARTED, tags={"dagster/partition": "not-a-day"})
    )
    assert [one.partition_key for one in watch.look()] == [DAY.isoformat()]


def test_a_run_that_is_under_way_is_waited_for(watch):
    (asked,) = watch.look()
    job = watch.defs.resolve_job_def(JOB)
    run = watch.instance.create_run_for_job(
        job, status=dg.DagsterRunStatus.STARTED, tags={"dagster/partition": DAY.isoformat()}
    )
    remembered, _ = cursor.read(watch.cursor)
    assert remembered is not None
    watch.cursor = cursor.write(_long_ago(remembered))
    assert watch.look() == []
    watch.instance.report_run_failed(watch.instance.get_run_by_id(run.run_id))
    (again,) = watch.look()
    assert again.run_key != asked.run_key, "a key that was used is never run again"


def _long_ago(remembered: cursor.PollCursor) -> cursor.PollCursor:
    """As if it had been asked for an hour earlier."""
    hour = timedelta(hours=1)
    pending = {day: replace(one, requested_at=one.requested_at - hour, changed_at=one.changed_at - hour,
                            since=one.since - hour) for day, one in remembered.pending.items()}  # fmt: skip
    return replace(remembered, pending=pending)


def test_a_day_whose_file_is_gone_is_reported_anew(watch, tmp_path):
    watch.run(*watch.look())
    assert watch.look() == []
    (tmp_path / "changes" / f"day={DAY}" / "cells.parquet").unlink()
    remembered, _ = cursor.read(watch.cursor)
    assert remembered is not None
    others = {day: at for day, at in remembered.compared.items() if day != DAY}
    assert others.keys() != remembered.compared.keys()
    watch.cursor = cursor.write(replace(remembered, compared=others, suspects=frozenset({DAY})))
    assert [one.partition_key for one in watch.look()] == [DAY.isoformat()]


@pytest.mark.case("deleted_cell")
def test_a_cell_that_is_gone_is_found_by_comparing_and_reported_as_vanished(watch):
    watch.run(*watch.look())
    watch.look()
    watch.tables.run("DELETE FROM cmdb_cloud_billing_daily")
    remembered, _ = cursor.read(watch.cursor)
    assert remembered is not None
    watch.cursor = cursor.write(replace(remembered, summed=None))  # an hour has passed
    (asked,) = watch.look()
    watch.run(asked)
    assert watch.metadata(DAY)["vanished"] == 1


def test_consumers_are_told_how_far_the_reports_go(watch):
    asked = watch.look()
    waiting = new_for("warehouse", settings=watch.settings)
    assert waiting.meta.pending == (DAY,)
    watch.run(*asked)
    watch.look()
    done = new_for("warehouse", settings=watch.settings)
    assert done.meta.pending == ()
    assert done.meta.complete_until is not None
    assert done.meta.complete_until <= watch.tables.now() - timedelta(minutes=60)


def test_without_a_database_it_says_so(instance, tmp_path):
    answer = Watch(instance, None, tmp_path).answer()
    assert isinstance(answer, dg.SkipReason)
    assert "BILLING_DATABASE_URL" in str(answer.skip_message)


def test_a_look_that_fails_fails_the_tick_and_leaves_the_cursor(watch):
    watch.run(*watch.look())
    before = watch.cursor
    watch.tables.run("ALTER TABLE cmdb_cost_facts RENAME TO elsewhere")
    with pytest.raises((DatabaseError, DatabaseAwayError), match="cmdb_cost_facts"):
        watch.answer()
    watch.tables.run("ALTER TABLE elsewhere RENAME TO cmdb_cost_facts")
    assert watch.cursor == before
    assert watch.look() == []


@pytest.mark.case("no_subscriptions")
def test_without_subscriptions_nothing_is_asked_for_and_that_is_said(instance, billing, tmp_path):
    billing.daily("t1", DAY, billing.now())
    answer = Watch(instance, billing, tmp_path).answer()
    assert isinstance(answer, dg.SensorResult)
    assert not answer.run_requests
    assert answer.skip_reason is not None
    assert "No subscription is enabled" in str(answer.skip_reason.skip_message)
