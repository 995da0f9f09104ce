"""A table in memory that is restored, and items that outlive their `ttl`.

Belongs here: the engine's part of both. Does not: who does it in a world (strangers).
"""

from datetime import UTC, datetime

import pytest

from metering_dagster.core.aws.dynamodb import create_table
from metering_dagster.metering.stores import usage_table
from tests.simulation.memory import MemoryDynamoDB

PENDING = "2026-06-01T10"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tables(clock: Clock) -> MemoryDynamoDB:
    tables = MemoryDynamoDB(clock)
    create_table(tables.client(), "usage", usage_table.SHAPE)
    return tables


def put(tables: MemoryDynamoDB, key: str, **more: dict[str, str]) -> None:
    item = {"licenseArn": {"S": "l"}, "customerAWSAccountId_dimension_timestamp": {"S": key}, **more}
    tables.client().put_item(TableName="usage", Item=item)


def pending(tables: MemoryDynamoDB) -> list[str]:
    found = tables.client().query(
        TableName="usage", IndexName="metering_pending", KeyConditionExpression="meteringPending = :p",
        ExpressionAttributeValues={":p": {"S": PENDING}},
    )  # fmt: skip
    return sorted(item["customerAWSAccountId_dimension_timestamp"]["S"] for item in found["Items"])


def test_a_restored_table_is_as_it_was_with_its_indexes_and_a_new_time_of_creation(tables, clock):
    tables.remember("usage")
    put(tables, "kept", meteringPending={"S": PENDING})
    put(tables, "ended", meteringPending={"S": PENDING})
    put(tables, "deleted", meteringPending={"S": PENDING})
    clock.now = 2000.0
    put(tables, "ended")
    put(tables, "new", meteringPending={"S": PENDING})
    tables.client().delete_item(TableName="usage", Key={
        "licenseArn": {"S": "l"}, "customerAWSAccountId_dimension_timestamp": {"S": "deleted"},
    })  # fmt: skip
    assert pending(tables) == ["kept", "new"]
    clock.now = 3000.0
    tables.restore("usage", 1500.0)
    assert pending(tables) == ["deleted", "ended", "kept"]
    assert tables.item("usage", "l", "new") is None
    described = tables.client().describe_table(TableName="usage")["Table"]
    assert described["CreationDateTime"] == datetime.fromtimestamp(3000.0, UTC)


def test_only_an_item_whose_ttl_is_a_number_in_the_past_is_outlived(tables, clock):
    put(tables, "gone", ttl={"N": "999"})
    put(tables, "not yet", ttl={"N": "1001"})
    put(tables, "never")
    put(tables, "no number", ttl={"S": "999"})
    assert [item["customerAWSAccountId_dimension_timestamp"]["S"] for item in tables.outlived("usage")] == ["gone"]
