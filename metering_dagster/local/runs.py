"""Runs of a rehearsal: in this process, one after the other, marked as what they are.

Belongs here: how one is started, and the words of one that failed. Does not: which runs there are (demo, billing_demo).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Run:
    """One run of a rehearsal."""

    job: str
    what: str
    """For the person who waits."""
    partition: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


def perform(run: Run, defs: dg.Definitions, instance: dg.DagsterInstance) -> list[str]:
    """Do it; what its failed steps say."""
    result = defs.resolve_job_def(run.job).execute_in_process(
        partition_key=run.partition,
        instance=instance,
        raise_on_error=False,
        run_config={**run.config, "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        tags={**run.tags, "metering/rehearsal": "demo"},
    )
    if result.success:
        return []
    failed = [event for event in result.all_events if event.is_step_failure]
    return [f"{run.what} {event.step_key}: {event.step_failure_data.user_failure_data}" for event in failed]
