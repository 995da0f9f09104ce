"""The runs of a rehearsal: in this process, one after the other, recorded like the daemon's.

Belongs here: executing a run, and the error messages of a failed one. Does not: the list of runs (demo, billing_demo).
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

# Dagster's public functions that run a job in this process record no origin, but its pages file runs by origin.
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

Progress = Callable[[str, int, int], None]
"""A callback with the step's text, the number of steps done, and their total."""
LOCATION, REPOSITORY, MODULE = "metering_dagster", "__repository__", "metering_dagster.definitions"
"""The code location of workspace.yaml, and the name that Dagster gives to its only repository."""
PARTITION_TAG = "dagster/partition"


@dataclass(frozen=True)
class Run:
    """Run of a rehearsal."""

    job: str
    what: str
    """The run's text in the progress."""
    partition: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


def perform(run: Run, defs: dg.Definitions, instance: dg.DagsterInstance) -> list[str]:
    """Execute the run; return the messages of its failed steps."""
    job = defs.resolve_job_def(run.job)
    partition = {PARTITION_TAG: run.partition} if run.partition else {}
    recorded = instance.create_run_for_job(
        job,
        run_config={**run.config, "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        tags={**job.run_tags, **run.tags, **partition, "metering/rehearsal": "demo"},
        remote_job_origin=_origin(run.job),
    )
    result = execute_run(InMemoryJob(job), recorded, instance)
    if result.success:
        return []
    failed = [event for event in result.all_events if event.is_step_failure]
    return [f"{run.what} {event.step_key}: {event.step_failure_data.user_failure_data}" for event in failed] or [
        f"{run.what}: the run failed outside its steps"
    ]


def _origin(job: str) -> RemoteJobOrigin:
    """Return the origin that the daemon records of a run of this job: Dagster's pages list runs by code location."""
    target = LoadableTargetOrigin(executable_path=sys.executable, module_name=MODULE)
    location = ManagedGrpcPythonEnvCodeLocationOrigin(target, LOCATION)
    return RemoteJobOrigin(RemoteRepositoryOrigin(location, REPOSITORY), job)
