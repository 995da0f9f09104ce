"""Runs of `billing_changes` as a test makes them: the real job on the real database and files."""

from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg

from metering_dagster.billing_changes.defs.assets import (
    BILLING_CHANGES,
    JOB,
    billing_changes,
    external_assets,
    refresh_billing_changes,
)
from metering_dagster.billing_changes.defs.io_manager import BillingChangesIO
from metering_dagster.billing_changes.rules.day_diff import DayReport
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.billing_changes.stores.day_files import DayFiles
from metering_dagster.settings import Settings
from tests.billing_changes.filling import BillingTables


@dataclass
class Runs:
    """One deployment: its tables, its files, and an instance that remembers its runs."""

    tables: BillingTables
    files: DayFiles
    instance: dg.DagsterInstance
    settings: Settings

    def run(self, day: date, **config: str) -> dg.ExecuteInProcessResult:
        """A run of the day's partition, however it ends."""
        billing = Billing(self.settings)
        if self.settings.billing_database_url:
            self.tables.databases.append(billing.database)  # closed with the test
        name = BILLING_CHANGES.to_python_identifier()
        return refresh_job().execute_in_process(
            partition_key=day.isoformat(),
            instance=self.instance,
            resources={
                "billing": billing,
                "billing_changes_io": BillingChangesIO(billing=billing),
                "io_manager": dg.mem_io_manager,
            },
            run_config={"ops": {name: {"config": config}}} if config else None,
            raise_on_error=False,
        )

    def report(self, day: date, **config: str) -> DayReport:
        """What a run of the day's partition that succeeds reports."""
        assert self.run(day, **config).success
        found = self.files.read(day)
        assert found is not None
        return found.report


def definitions(settings: Settings, *more: dg.AssetsDefinition) -> dg.Definitions:
    """Those of the billing room, with further assets beside it."""
    asset = billing_changes(settings)
    return dg.Definitions(
        assets=[*external_assets(settings), asset, *more],
        jobs=[refresh_billing_changes],
        resources={
            "billing": (deployment := Billing(settings)),
            "billing_changes_io": BillingChangesIO(billing=deployment),
        },
        executor=dg.in_process_executor,
    )


@cache
def refresh_job() -> dg.JobDefinition:
    """The job, made once: each run brings its own resources."""
    return definitions(Settings()).resolve_job_def(JOB)


def metadata_of(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """The values that the run's materialization shows."""
    (found,) = result.get_asset_materialization_events()
    return {name: value.value for name, value in found.materialization.metadata.items()}


def checks_of(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    """The run's answers to the checks, by name."""
    return {found.check_name: found for found in result.get_asset_check_evaluations()}


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    """What the run that failed says."""
    assert not result.success
    (event,) = (event for event in result.all_events if event.event_type_value == "STEP_FAILURE")
    assert event.step_failure_data.user_failure_data is not None, event.step_failure_data.error
    return event.step_failure_data.user_failure_data.description


def a_runs(tables: BillingTables, folder: Path, instance: dg.DagsterInstance, **settings: Any) -> Runs:
    """With its files below that folder."""
    ours = Settings(billing_database_url=tables.url, billing_changes_uri=str(folder / "changes"), **settings)
    return Runs(tables, DayFiles(str(folder / "changes"), ours), instance, ours)
