"""What Dagster remembers of a partition, and of a job.

Belongs here: looking up what an earlier run reported, and which runs there are. Does not: what it means.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import dagster as dg

UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
"""Of a run that is to come, or has not ended yet."""


def failed_at(instance: dg.DagsterInstance, job: str) -> datetime | None:
    """When the last run of the job ended, if it failed; None if it did not, is not over, or never was."""
    records = instance.get_run_records(dg.RunsFilter(job_name=job), limit=1)
    if not records or records[0].dagster_run.status is not dg.DagsterRunStatus.FAILURE or not records[0].end_time:
        return None
    return datetime.fromtimestamp(records[0].end_time, UTC)


def is_under_way(instance: dg.DagsterInstance, job: str) -> bool:
    """Whether a run of the job is queued or under way."""
    return bool(instance.get_run_ids(dg.RunsFilter(job_name=job, statuses=UNDER_WAY), limit=1))


def last_materialization(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str
) -> tuple[datetime, Mapping[str, dg.MetadataValue]] | None:
    """When the partition was last materialised, and the metadata of that; None if it never was."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition]), limit=1
    ).records
    if not records or records[0].asset_materialization is None:
        return None
    return datetime.fromtimestamp(records[0].timestamp, UTC), records[0].asset_materialization.metadata
