"""Sweeps as the tests make them: of a few hours without Dagster, or of a shard by the job `age_out`."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import dagster as dg

from metering_dagster.core import hours
from metering_dagster.definitions import build_defs
from metering_dagster.expiry.services.sweep import Tell, ignore, sweep
from metering_dagster.expiry.services.sweep_report import Sweep
from tests.world import World, last_run

OLD = "2026-11-27T06"
"""30 hours back at the world's instant: of shard 2, its second hour."""
SHARD = 2
OLDER = "2026-11-26T23"
"""Seven hours before: the shard's next."""


def sweep_of(world: World, *buckets: str, tell: Tell = ignore) -> Sweep:
    """Sweep these hours."""
    return sweep(world.deployment.tables, [hours.parse_bucket(bucket) for bucket in buckets or [OLD]], tell, whole=True)


@dataclass(frozen=True)
class Swept:
    """What became of one run of `age_out`."""

    success: bool
    message: str
    metadata: Mapping[str, Any]
    """Of the materialization, or of the failure."""
    warnings: list[str]
    run_id: str
    said: str
    """The whole event log, the run with its tags, and what was stored."""


def age_out(
    world: World,
    shard: int | str = SHARD,
    *,
    whole: bool = False,
    as_of: str = "",
    instance: dg.DagsterInstance | None = None,
    tags: Mapping[str, str] | None = None,
) -> Swept:
    """Sweep a shard by its job. Whatever it says, it never names a buyer in full."""
    run_config = {
        "ops": {"expired_usage": {"config": {"whole": whole, "as_of": as_of}}},
        "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
    }
    with ExitStack() as stack:
        instance = instance or stack.enter_context(dg.DagsterInstance.ephemeral())
        defs = build_defs(settings=world.settings, resources={"metering": world.deployment})
        job = defs.resolve_job_def("age_out")
        failure: Exception | None = None
        try:
            job.execute_in_process(
                run_config=run_config, partition_key=str(shard), instance=instance, tags=dict(tags or {})
            )
        except dg.Failure as error:
            failure = error
        run, log, said = last_run(instance)
    assert not [secret for secret in world.secrets if secret in said]
    shown: Mapping[str, Any] = failure.metadata if isinstance(failure, dg.Failure) else {}
    for entry in log:
        if entry.dagster_event and entry.dagster_event.is_step_materialization:
            shown = entry.dagster_event.step_materialization_data.materialization.metadata
    return Swept(
        success=failure is None,
        message=str(failure.description) if isinstance(failure, dg.Failure) else "",
        metadata={name: _value(value) for name, value in shown.items()},
        warnings=[entry.user_message for entry in log if entry.level == 30],
        run_id=run.run_id,
        said=said,
    )


def _value(value: Any) -> Any:
    return [dict(r.data) for r in value.records] if isinstance(value, dg.TableMetadataValue) else value.value
