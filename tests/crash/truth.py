"""What must be true of an hour whoever was killed in it, and how often: compared with what was put there."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tests.items import Item, a_usage, an_allocation, longest_allocations, plain, some_usage
from tests.world import HOUR, World


def usage_of_all_sizes(hour: str = HOUR) -> list[Item]:
    """A group of one row, one that fits into a transaction, one that takes three, and one with large allocations."""
    return [
        a_usage(0, "7", dimension="one", hour=hour),
        *some_usage(*["0.25"] * 60, dimension="sixty", hour=hour),
        *some_usage(*["1.5"] * 250, dimension="large", hour=hour),
        *(
            a_usage(second, "40", dimension="allocated", hour=hour, allocations=longest_allocations(40, second * 40))
            for second in range(4)
        ),
        a_usage(9, "3", dimension="allocated", hour=hour, allocations=[an_allocation("3", team="a")]),
    ]  # fmt: skip


def put_in_parts(world: World, usage: Sequence[Item]) -> None:
    """Put the rows in requests that DynamoDB takes: those with large allocations one by one."""
    large = [item for item in usage if "usageAllocations" in item.values]
    for item in large:
        world.put(item)
    world.put(*(item for item in usage if item not in large))


def metered_exactly_once(world: World, usage: Iterable[Item], hour: str = HOUR) -> None:
    """The bill of the hour is what was used; every row and record of it is final, with the right status and reason."""
    groups: dict[str, list[Decimal]] = defaultdict(list)
    for item in usage:
        row = plain(item.values)
        groups[row["dimension"]].append(row["quantity"])
    sums = {dimension: sum(quantities) for dimension, quantities in groups.items()}

    billed = [record for record in world.bill() if record.hour == hour]
    assert len(billed) == len(sums), "each group is billed in one record"
    assert {record.dimension: Decimal(record.quantity) for record in billed} == sums

    rows = [row for row in world.rows() if row["timestamp"].startswith(hour)]
    assert len(rows) == sum(map(len, groups.values()))
    for row in rows:
        assert "meteringPending" not in row
        assert row["meteringStatus"] == "Aggregated"
        dimension = row["dimension"]
        words = f"Aggregated total quantity {_text(sums[dimension])} from {len(groups[dimension])} raw usage records"
        assert row["meteringStatusReason"] == words

    records = [record for record in world.aggregates() if record["hourBucket"] == hour]
    assert {record["dimension"]: record["quantity"] for record in records} == sums
    for record in records:
        assert "meteringPending" not in record
        assert record["meteringStatus"] == "Success"
    assert {r["meteringRecordId"] for r in records} == {line.metering_record_id for line in billed}


def final_items(world: World) -> dict[tuple[str, ...], Mapping[str, Any]]:
    """All that has come to its end, by its key: it must never change again."""
    return {
        (kind, *(str(item[name]) for name in sorted(item) if name in _KEYS)): item
        for kind, items in world.dump().items()
        for item in items
        if "meteringStatus" in item and "meteringPending" not in item
    }


_KEYS = ("licenseArn", "customerAWSAccountId_dimension_timestamp", "account_dimension_hour")


def _text(quantity: Decimal) -> str:
    return format(quantity.normalize(), "f")
