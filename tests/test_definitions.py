"""The project as Dagster sees it: what is there, by name."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import dagster as dg
import pytest

from metering_dagster.core.errors import SettingsError
from metering_dagster.definitions import build_defs
from metering_dagster.metering.defs.ops import aggregate_groups, discover_pending, submit_batches
from metering_dagster.settings import Mode, Settings

HOURLY = ["pending_usage", "aggregated_usage", "metered_usage"]
EXTERNAL = ["raw_usage", "subscribers"]
NOON = datetime(2026, 11, 28, 12, 20, tzinfo=UTC)


def spec(name: str, mode: Mode | None = None) -> dg.AssetSpec:
    return build_defs(settings=Settings(mode=mode)).resolve_asset_graph().get(dg.AssetKey(name))


def test_definitions_load_with_an_empty_environment():
    dg.Definitions.validate_loadable(build_defs(settings=Settings()))


def test_the_module_loads_where_nothing_is_set():
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "METERING_", "BILLING_"))
    }
    for name in (
        "USAGE_TABLE",
        "AGGREGATED_USAGE_TABLE",
        "SUBSCRIBERS_TABLE",
        "PRODUCT_CODE",
        "MARKETPLACE_EVENTS_QUEUE_URL",
    ):
        environment.pop(name, None)
    loading = (
        "import metering_dagster.definitions as d, sys; assert d.defs; "
        "print({'boto3', 'sqlalchemy', 'pandas'} & {*sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", loading], env=environment, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "set()"  # the UI needs neither AWS nor the billing database


def test_the_module_loads_without_a_word():
    loading = "import metering_dagster.definitions"
    loaded = subprocess.run([sys.executable, "-c", loading], capture_output=True, text=True, check=True)
    assert (loaded.stdout, loaded.stderr) == ("", "")


@pytest.mark.parametrize(("name", "value"), [
    ("METERING_MODE", "lively"), ("METERING_LOCK_HOURS", "one"), ("METERING_QUANTITIES", "roman"),
    ("METERING_NOW", "yesterday"),
])  # fmt: skip
def test_a_malformed_environment_fails_the_loading(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"{name}='{value}'"):
        build_defs()


def test_all_that_is_malformed_is_named_at_once(monkeypatch):
    monkeypatch.setenv("METERING_MODE", "lively")
    monkeypatch.setenv("METERING_LOCK_HOURS", "one")
    with pytest.raises(SettingsError, match=r"METERING_MODE.*METERING_LOCK_HOURS"):
        build_defs()


def test_assets_of_an_hour_by_name():
    graph = build_defs(settings=Settings()).resolve_asset_graph()
    assert {key.to_user_string() for key in graph.materializable_asset_keys} >= set(HOURLY)
    assert {key.to_user_string() for key in graph.external_asset_keys} >= set(EXTERNAL)
    assert {name: {key.to_user_string() for key in spec(name).parent_keys} for name in HOURLY} == {
        "pending_usage": {"raw_usage"},
        "aggregated_usage": {"pending_usage", "raw_usage"},
        "metered_usage": {"aggregated_usage", "subscribers"},
    }


def test_billing_changes_is_made_daily_of_both_tables():
    changes = spec("billing_changes")
    assert {key.to_user_string() for key in changes.parent_keys} == {"cloud_billing_daily", "cost_facts"}
    assert changes.partitions_def == spec("metering_report").partitions_def
    assert changes.group_name == "billing"


@pytest.mark.parametrize("name", [*HOURLY, *EXTERNAL, "expired_usage"])
def test_each_asset_says_what_it_is(name):
    node = spec(name)
    assert node.group_name == "metering"
    assert node.description
    assert node.kinds & {"dynamodb", "aws"}


@pytest.mark.parametrize("name", HOURLY)
def test_hourly_assets_are_owned_and_partitioned_alike(name):
    node = spec(name)
    assert node.owners == ["team:metering"]
    assert node.backfill_policy is None  # one run for each partition
    hours = node.partitions_def
    assert isinstance(hours, dg.HourlyPartitionsDefinition)
    assert (hours.timezone, hours.fmt, hours.end_offset) == ("UTC", "%Y-%m-%dT%H", 1)
    keys = hours.get_partition_keys(current_time=NOON)
    assert (keys[0], keys[-1]) == ("2026-01-01T00", "2026-11-28T12")
    assert len(keys) == len(set(keys)) == (31 + 28 + 31 + 30 + 31 + 30 + 31 + 31 + 30 + 31 + 27) * 24 + 13


@pytest.mark.parametrize("mode", [*Mode, None])
@pytest.mark.parametrize("name", [*HOURLY, "expired_usage"])
def test_each_asset_shows_the_mode(name, mode):
    shown = mode.value if mode else "not-set"
    assert spec(name, mode).tags["metering/mode"] == shown
    assert f"**Mode: {shown}**" in spec(name, mode).description


def test_the_job_of_an_hour():
    job = build_defs(settings=Settings()).resolve_job_def("meter_hour")
    assert job.tags == {"metering/lane": "regular"}
    assert job.partitions_def == spec("metered_usage").partitions_def
    assert {key.to_user_string() for key in job.asset_layer.selected_asset_keys} == set(HOURLY)
    assert job.executor_def is dg.in_process_executor


def test_the_age_out_by_shard():
    node = spec("expired_usage")
    assert node.partitions_def.get_partition_keys() == ["0", "1", "2", "3", "4", "5", "6"]
    assert {key.to_user_string() for key in node.parent_keys} == {"raw_usage"}
    assert node.owners == ["team:metering"]
    job = build_defs(settings=Settings()).resolve_job_def("age_out")
    assert job.tags == {"metering/lane": "expiry"}
    assert {key.to_user_string() for key in job.asset_layer.selected_asset_keys} == {"expired_usage"}


def test_ops_of_an_hour_by_name():
    ops = [discover_pending, aggregate_groups, submit_batches]
    assert [op.name for op in ops] == ["discover_pending", "aggregate_groups", "submit_batches"]
    job = build_defs(settings=Settings()).resolve_job_def("meter_hour")
    assert sorted(node.name for node in job.all_node_defs if isinstance(node, dg.OpDefinition)) == sorted(
        op.name for op in ops
    )


@pytest.mark.parametrize("op", [discover_pending, aggregate_groups, submit_batches])
def test_nothing_comes_to_the_ops_but_their_order_and_a_config_that_is_safe(op):
    assert {name: given.dagster_type.display_name for name, given in op.input_dict.items()} == {"after": "Nothing"}
    assert op.config_schema.default_value == {"ignore_lock": False} or not op.config_schema.is_required


def test_resources_can_be_swapped():
    mine = object()
    assert build_defs(settings=Settings(), resources={"metering": mine}).resources["metering"] is mine


@pytest.mark.parametrize("name", [*HOURLY, *EXTERNAL, "metering_report"])
def test_each_asset_shows_its_columns(name):
    schema = spec(name).metadata["dagster/column_schema"]
    assert {column.name for column in schema.columns} >= ({"hour"} if name == "metering_report" else {"licenseArn"})


@pytest.mark.parametrize("name", [*HOURLY, "metering_report", "expired_usage"])
def test_each_asset_of_ours_leads_to_its_code(name):
    (reference,) = spec(name).metadata["dagster/code_references"].code_references
    assert reference.file_path.endswith("assets.py")


def test_jobs_schedules_and_checks_by_name():
    defs = build_defs(settings=Settings())
    repository = defs.get_repository_def()
    assert {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")} == {
        "meter_hour", "refresh_report", "age_out", "apply_marketplace_events", "flush_deprovisioning",
        "finalize_deprovisioned", "refresh_billing_changes",
    }  # fmt: skip
    assert {sensor.name: sensor.minimum_interval_seconds for sensor in defs.sensors} == {
        "marketplace_events": 60, "deprovisioning_flush": 300, "deprovisioned_finalizer": 900, "run_failures": 60,
        "billing_changes": 60,
    }  # fmt: skip
    assert len(list(defs.schedules)) == 31
    assert {f"{key.asset_key.to_user_string()}.{key.name}" for key in defs.resolve_asset_graph().asset_check_keys} == {
        "aggregated_usage.quantity_conserved", "aggregated_usage.no_rejected_rows", "aggregated_usage.no_late_usage",
        "metered_usage.all_submitted", "metered_usage.no_conflicting_duplicates", "metered_usage.all_subscribed",
        "metered_usage.hour_closed",
        "billing_changes.groups_are_claimed", "billing_changes.stamps_are_sound", "billing_changes.no_gap",
    }  # fmt: skip
    report = spec("metering_report").partitions_def
    assert isinstance(report, dg.DailyPartitionsDefinition)
    assert (report.timezone, report.fmt, report.end_offset) == ("UTC", "%Y-%m-%d", 1)
