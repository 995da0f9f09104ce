"""The Scan of the sparse index: it finds what no Query of ours names, and nothing else."""

import pytest

from metering_dagster.core import hours
from metering_dagster.metering.stores import aggregated_table, usage_table
from metering_dagster.metering.stores.pending_index import HASH_KEY, PendingIndex
from tests.items import a_usage, an_aggregate

NAMED = ["2026-11-28T12", "2026-11-28T10", "2026-11-20T00", "2025-10-24T12"]
"""The current hour, usual ones, and the oldest that a sweep meets."""
NEVER_NAMED = [
    "true", "2026-11-30 22", "2026-11-28T22:00", "2026-11-28T13", "2025-10-24T11", "2026-11-28T24", "x" * 2048,
    "2026-11-28T1\N{FULLWIDTH DIGIT ZERO}", " 2026-11-28T10", "\N{GRINNING FACE}",
]  # fmt: skip
"""No hour at all, one ahead, one too long ago, digits of another script, DynamoDB's longest key."""


@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.parametrize("shape", [usage_table.SHAPE, aggregated_table.SHAPE])
def test_a_scan_finds_all_that_no_query_names_by_keys_alone(world, shape, limit):
    kind = "usage" if shape is usage_table.SHAPE else "aggregated"
    for n, value in enumerate([*NAMED, *NEVER_NAMED]):
        world.put(
            a_usage(n, "1", filed=value)
            if kind == "usage"
            else an_aggregate("1", dimension=f"d{n}", meteringPending=value)
        )
    world.put(a_usage(50, "1", filed=None, meteringStatus="Aggregated"), an_aggregate("1", status="Success"))
    index = PendingIndex(world.deployment.tables.usage.client, world.names[kind], shape)
    if limit:
        events = index.client.meta.events
        events.register("provide-client-params.dynamodb.Scan", lambda params, **_: {**params, "Limit": limit})
    items = [item for page in index.unreachable(world.clock.now) for item in page]
    assert sorted(item[HASH_KEY]["S"] for item in items) == sorted(NEVER_NAMED)
    assert all(item.keys() == {shape.hash_key, shape.range_key, HASH_KEY} for item in items)
    assert all(hours.is_named(value, world.clock.now) for value in NAMED)
