"""What Dagster remembers of partitions and runs.

Belongs here: looking up what an earlier run reported. Does not: what it means.
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


def is_job_under_way(instance: dg.DagsterInstance, job: str) -> bool:
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
