"""Usage that arrives while `metering-dagster dev` runs: steadily in the present hour, now and then in a metered one.

Belongs here: which rows arrive when, and the catch-up after a pause. Does not: buyers and their usage (sample), putting
rows into tables (loading).

Except late rows, the same instant always gives the same rows, so a catch-up never contradicts rows written before.
"""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from metering_dagster.core import hours
from metering_dagster.core.aws import dynamodb
from metering_dagster.devstack.sample import DEFAULT_SEED, SampleRow, Stream, generate, row_at

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

EACH_SECOND = 0.4
"""The probability that a second has a row."""
LATE_OFFSETS = range(1, 13)
TRIES = 40


def arriving(
    streams: Sequence[Stream], since: datetime, until: datetime, seed: int = DEFAULT_SEED
) -> Iterator[SampleRow]:
    """Generate the rows of the seconds after `since`, up to `until`."""
    for second in range(int(since.timestamp()) + 1, int(until.timestamp()) + 1):
        rng = random.Random(f"{seed}/arriving/{second}")
        if rng.random() < EACH_SECOND:
            at = datetime.fromtimestamp(second, UTC)
            (stream,) = rng.choices(streams, [each.activity(at) for each in streams])
            yield row_at(rng, stream, at, until)


def missed(streams: Sequence[Stream], since: datetime | None, now: datetime) -> Iterator[SampleRow]:
    """Generate the usage after `since` (None: of all hours that have samples), in hours that can still be billed.

    Whole hours are the sample's, with all its faults. The rest of the hour of `since`, and the present hour, have the
    rows that would have arrived.
    """
    this_hour = hours.floor_hour(now)
    if since is not None and hours.floor_hour(since) == this_hour:
        yield from arriving(streams, since, now)
        return
    first = this_hour - hours.LAST_OFFSET * hours.HOUR
    if since is not None:
        broken = hours.floor_hour(since)
        first = max(first, broken + hours.HOUR)
        if hours.is_billable(broken, now):
            yield from arriving(streams, since, broken + hours.HOUR - timedelta(seconds=1))
    span = (hours.hour_at_offset(now, offset) for offset in range(hours.FIRST_OFFSET, hours.LAST_OFFSET + 1))
    whole = {hours.bucket(hour) for hour in span if hour >= first and hours.is_billable(hour, now)}
    if whole:
        yield from (row for row in generate(now).rows if row.group[3] in whole)
    yield from arriving(streams, this_hour - timedelta(seconds=1), now)


def late_row(
    client: "DynamoDBClient", aggregated_table: str, streams: Sequence[Stream], now: datetime, rng: random.Random
) -> SampleRow | None:
    """Return a row of a committed group; None if none of `TRIES` random groups is committed."""
    for _ in range(TRIES):
        stream, hour = rng.choice(streams), hours.hour_at_offset(now, rng.choice(LATE_OFFSETS))
        if not hours.is_billable(hour, now):
            continue
        group = f"{stream.license.account}#{stream.dimension.name}#{hours.bucket(hour)}"
        key: dynamodb.Item = {"licenseArn": {"S": stream.license.arn}, "account_dimension_hour": {"S": group}}
        if "Item" in client.get_item(TableName=aggregated_table, Key=key):
            return row_at(rng, stream, hour + timedelta(seconds=rng.randrange(3600)), now)
    return None
