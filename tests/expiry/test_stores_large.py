"""Items of which DynamoDB does not take the end: they are told, and keep nothing else from its own."""

import pytest

from tests.conftest import MINISTACK
from tests.contracts.engines import deviates
from tests.expiry.sweeping import OLD, OLDER, age_out
from tests.items import a_usage, an_aggregate, filled_up, some_usage

ROOM = 60
"""Bytes, too few for the status and reason of an end."""


@pytest.fixture(autouse=True)
def _sizes_are_checked(request):
    deviates(request, MINISTACK, "lets an update in a transaction grow an item past 400 KB")


def test_a_record_that_has_no_room_for_its_whole_end_gets_its_status_alone(world):
    world.put(filled_up(an_aggregate("7", hour=OLD), ROOM), a_usage(0, "5", hour=OLD, dimension="other"))
    world.put(a_usage(0, "6", hour=OLDER))
    assert age_out(world).success
    assert world.row_statuses() == {"AggregationExpired": 2}
    assert world.record_statuses() == {"SubmissionExpired": 1}
    assert "meteringStatusReason" not in world.aggregate(hour=OLD)


@pytest.mark.parametrize("beside", [0, 120])
def test_a_row_whose_end_dynamodb_does_not_take_is_named_and_keeps_nothing_else_from_its_end(world, beside):
    world.put(filled_up(a_usage(200, "7", hour=OLD), ROOM), *some_usage(*["1"] * beside, hour=OLD))
    world.put(a_usage(0, "6", hour=OLDER))
    swept = age_out(world)
    assert "1 rows or records stay pending, for DynamoDB does not take their end" in swept.message
    assert "which may pass 400 KB with it" in swept.metadata["notes"]
    assert world.row_statuses() == {"pending": 1, "AggregationExpired": beside + 1}
