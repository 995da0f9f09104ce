"""A snapshot of what Dagster shows: assets, checks, jobs, schedules, sensors, resources, as text for a diff.

`make snapshot` renews it; tests/test_definitions_snapshot.py compares. Not in it: code versions of Dagster's own, and
where a file lies.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import dagster as dg

from metering_dagster.definitions import build_defs
from metering_dagster.settings import Mode, Settings

SNAPSHOT = Path(__file__).parent / "snapshots" / "definitions.json"
_NOT_SHOWN = ("dagster/code_references",)


def taken() -> str:
    """Describe the definitions of a live deployment whose every setting has its default."""
    defs = build_defs(settings=Settings(mode=Mode.LIVE))
    repository = defs.get_repository_def()
    shown = {
        "assets": {spec.key.to_user_string(): _asset(spec) for spec in defs.resolve_all_asset_specs()},
        "checks": {
            f"{check.asset_key.to_user_string()}:{check.name}": _check(check)
            for assets in {id(made): made for made in repository.assets_defs_by_key.values()}.values()
            for check in assets.check_specs
        },
        "jobs": {job.name: _job(job) for job in repository.get_all_jobs() if not job.name.startswith("__")},
        "schedules": {schedule.name: _schedule(schedule) for schedule in repository.schedule_defs},
        "sensors": {sensor.name: _sensor(sensor) for sensor in repository.sensor_defs},
        "resources": sorted(repository.get_top_level_resources()),
    }
    return json.dumps(shown, indent=1, sort_keys=True, default=str, ensure_ascii=False) + "\n"


def _asset(spec: dg.AssetSpec) -> dict[str, Any]:
    return {
        "description": spec.description,
        "group": spec.group_name,
        "owners": list(spec.owners),
        "tags": dict(spec.tags),
        "deps": sorted(dep.asset_key.to_user_string() for dep in spec.deps),
        "partitions": str(spec.partitions_def),
        "skippable": spec.skippable,
        "code_version": spec.code_version,
        "metadata": {name: _value(value) for name, value in spec.metadata.items() if name not in _NOT_SHOWN},
    }


def _value(value: Any) -> Any:
    """Of columns their names, types, descriptions; of all else its text."""
    if isinstance(value, dg.TableSchema):
        return [f"{column.name} {column.type}: {column.description}" for column in value.columns]
    return str(value)


def _check(spec: dg.AssetCheckSpec) -> dict[str, Any]:
    return {"description": spec.description, "blocking": spec.blocking, "metadata": sorted(spec.metadata)}


def _job(job: dg.JobDefinition) -> dict[str, Any]:
    return {
        "description": job.description,
        "tags": dict(job.tags),
        "run_tags": dict(job.run_tags),
        "ops": {node.name: _config_of(node.definition) for node in job.nodes},
        "partitions": str(job.partitions_def),
    }


def _config_of(op: Any) -> list[str]:
    """The names of an op's settings for one run; empty where it has none."""
    schema = op.config_schema
    return sorted(getattr(schema.config_type, "fields", {})) if schema else []


def _schedule(schedule: dg.ScheduleDefinition) -> dict[str, Any]:
    return {
        "description": schedule.description,
        "cron": schedule.cron_schedule,
        "timezone": schedule.execution_timezone,
        "default_status": schedule.default_status.value,
        "job": schedule.job_name,
        "tags": dict(schedule.tags),
    }


def _sensor(sensor: dg.SensorDefinition) -> dict[str, Any]:
    return {
        "description": sensor.description,
        "seconds": sensor.minimum_interval_seconds,
        "default_status": sensor.default_status.value,
        "jobs": sorted(target.job_name for target in sensor.targets),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    SNAPSHOT.parent.mkdir(exist_ok=True)
    SNAPSHOT.write_text(taken())
