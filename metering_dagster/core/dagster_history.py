"""What Dagster remembers of a partition, and of a job.

Belongs here: looking up what an earlier run reported, and which runs there are. Does not: what it means.

Not only our runs write there: whoever reaches the instance can report a materialization with any metadata, and start a
run with any tags. So what is not as our runs write it is unknown, and none of it is an error.
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
MOST_COUNTED = 10**9
"""No hour has so many rows, and no Query of DynamoDB is limited to so many items."""
Metadata = Mapping[str, dg.MetadataValue]


def failed_at(instance: dg.DagsterInstance, job: str) -> datetime | None:
    """Return when the last run of the job ended, if it failed; None if it did not, is not over, or never was."""
    records = instance.get_run_records(dg.RunsFilter(job_name=job), limit=1)
    if not records or records[0].dagster_run.status is not dg.DagsterRunStatus.FAILURE or not records[0].end_time:
        return None
    return datetime.fromtimestamp(records[0].end_time, UTC)


def is_under_way(instance: dg.DagsterInstance, job: str) -> bool:
    """Return whether a run of the job is queued or under way."""
    return bool(instance.get_run_ids(dg.RunsFilter(job_name=job, statuses=UNDER_WAY), limit=1))


def last_materialization(
    instance: dg.DagsterInstance, asset: dg.AssetKey, partition: str
) -> tuple[datetime, Metadata] | None:
    """Return when the partition was last materialized, and the metadata of that; None if it never was."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=asset, asset_partitions=[partition]), limit=1
    ).records
    if not records or records[0].asset_materialization is None:
        return None
    return datetime.fromtimestamp(records[0].timestamp, UTC), records[0].asset_materialization.metadata


def text_of(shown: Metadata, name: str) -> str | None:
    """Return the text of this name; None where there is none, or something else."""
    found = shown.get(name)
    return found.value if isinstance(found, dg.TextMetadataValue) else None


def count_of(shown: Metadata, name: str) -> int | None:
    """Return the count of this name, 0 where there is none; None where something else stands there, or more than can
    be.
    """
    found = shown.get(name)
    if found is None:
        return 0
    value = found.value if isinstance(found, dg.IntMetadataValue) else None
    return value if value is not None and 0 <= value <= MOST_COUNTED else None
