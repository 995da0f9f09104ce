"""Runs of a rehearsal stand in the instance as those that the daemon launches: under their code location."""

from pathlib import Path

import dagster as dg
import yaml

from metering_dagster.definitions import build_defs
from metering_dagster.devstack.runs import LOCATION, MODULE, REPOSITORY, Run, perform
from metering_dagster.settings import read_settings

ROOT = Path(__file__).parents[2]
LABEL = {".dagster/repository": f"{REPOSITORY}@{LOCATION}"}
"""What the pages ask for."""


def test_a_run_is_listed_under_its_code_location(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    defs = build_defs(read_settings({"METERING_LEDGER_URI": str(tmp_path / "ledger")}))
    run = Run("refresh_report", "the report of a day", "2026-11-28", tags={"metering/offset": "5"})
    assert perform(run, defs, instance) == []
    (listed,) = instance.get_runs(dg.RunsFilter(job_name="refresh_report", tags=LABEL))
    assert listed.status is dg.DagsterRunStatus.SUCCESS
    assert listed.tags["dagster/partition"] == "2026-11-28"
    assert listed.tags["metering/lane"] == "regular", "tags of the job"
    assert listed.tags["metering/offset"] == "5"
    assert instance.get_materialized_partitions(dg.AssetKey("metering_report")) == {"2026-11-28"}


def test_a_run_that_fails_is_listed_and_told(instance: dg.DagsterInstance) -> None:
    (said,) = perform(Run("meter_hour", "metering", "2026-11-28T10"), build_defs(read_settings({})), instance)
    assert said.startswith("metering pending_usage")
    assert "Not set: USAGE_TABLE" in said
    (listed,) = instance.get_runs(dg.RunsFilter(tags=LABEL))
    assert listed.status is dg.DagsterRunStatus.FAILURE


def test_the_code_location_is_the_one_of_the_workspace() -> None:
    (entry,) = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]
    assert entry == {"python_module": {"module_name": MODULE, "location_name": LOCATION}}
    assert build_defs(read_settings({})).get_repository_def().name == REPOSITORY
