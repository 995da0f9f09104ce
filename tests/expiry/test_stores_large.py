"""Items of which DynamoDB does not take the end: they are told, and keep nothing else from its own."""

import pytest

from tests.conftest import MINISTACK
from tests.expiry.sweeping import OLD, OLDER, age_out
from tests.items import Item, a_usage, an_aggregate, some_usage


@pytest.fixture(autouse=True)
def _sizes_are_checked(request):
    if request.node.callspec.params["engine"] == MINISTACK:
        pytest.skip("ministack lets an update in a transaction grow an item past 400 KB")


def as_large_as_dynamodb_takes(item: Item) -> Item:
    """The item, filled up so far that the status and reason of its end do not go in."""
    size = sum(len(name) + len(str(next(iter(value.values())))) for name, value in item.values.items())
    return Item(item.table, {**item.values, "filler": {"S": "x" * (400 * 1024 - size - 60)}})


def test_a_record_whose_end_dynamodb_does_not_take_keeps_nothing_else_from_its_end(world):
    world.put(as_large_as_dynamodb_takes(an_aggregate("7", hour=OLD)), a_usage(0, "5", hour=OLD, dimension="other"))
    world.put(a_usage(0, "6", hour=OLDER))
    swept = age_out(world)
    assert not swept.success
    assert "1 rows or records stay pending, for DynamoDB does not take their end" in swept.message
    assert "DynamoDB does not take its end" in swept.metadata["notes"]
    assert world.row_statuses() == {"AggregationExpired": 2}
    assert world.record_statuses() == {"pending": 1}


@pytest.mark.parametrize("beside", [0, 120])
def test_a_row_whose_end_dynamodb_does_not_take_is_named_and_keeps_nothing_else_from_its_end(world, beside):
    world.put(as_large_as_dynamodb_takes(a_usage(200, "7", hour=OLD)), *some_usage(*["1"] * beside, hour=OLD))
    world.put(a_usage(0, "6", hour=OLDER))
    swept = age_out(world)
    assert "1 rows or records stay pending, for DynamoDB does not take their end" in swept.message
    assert "which may pass 400 KB with it" in swept.metadata["notes"]
    assert world.row_statuses() == {"pending": 1, "AggregationExpired": beside + 1}
