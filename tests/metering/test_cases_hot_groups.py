"""Cases: a group that cannot be settled, by its own row or by its seller, costs no other buyer's group its bill."""

from itertools import count

import pytest

from metering_dagster.devstack.sandbox import faults
from tests.items import (
    DIMENSION,
    LICENSE,
    OTHER_ACCOUNT,
    OTHER_LICENSE,
    a_deprovisioning,
    a_usage,
    filled_up,
)
from tests.world import LAST_CALL

ANOTHER = {"license": OTHER_LICENSE, "account": OTHER_ACCOUNT, "dimension": "another"}


def written_over_at_each_commit(world):
    """The seller of the ordinary group writes its row anew before each transaction of the pipeline's."""
    quantities = count(2)
    client = world.deployment.tables.usage.client
    client.meta.events.register(
        "before-call.dynamodb.TransactWriteItems", lambda **_: world.put(a_usage(0, str(next(quantities))))
    )


@pytest.mark.parametrize(("quantity", "billed", "status"), [
    ("5", {DIMENSION: "5"}, "Aggregated"), ("-1", {}, "RejectedClientSide"),
])  # fmt: skip
@pytest.mark.parametrize("now", ["2026-11-28T12:20:00Z", LAST_CALL, "2026-11-29T09:20:00Z"])
def test_a_row_that_leaves_no_room_for_its_end_ends_by_its_status_alone(world, now, quantity, billed, status):
    world.at(now)
    world.put(filled_up(a_usage(0, quantity), 20), a_usage(0, "7", **ANOTHER))
    assert world.meter().success
    assert world.billed() == {"another": "7"} | billed
    assert world.row(**ANOTHER)["meteringStatus"] == "Aggregated"
    assert world.row()["meteringStatus"] == status
    assert "meteringPending" not in world.row()
    assert world.aggregate(**ANOTHER)["meteringStatus"] == "Success"


def test_a_row_that_is_written_over_all_the_time_costs_no_other_buyer_his_bill(world):
    world.put(a_usage(0, "1"), a_usage(0, "7", **ANOTHER))
    written_over_at_each_commit(world)
    outcome = world.meter()
    assert not outcome.success
    assert "their rows changed each time they were read" in outcome.message
    assert world.billed() == {"another": "7"}
    assert world.aggregate() == {}


def test_what_is_left_of_the_others_is_said_beside_it(world):
    world.put(a_usage(0, "1"), a_usage(0, "7", **ANOTHER))
    written_over_at_each_commit(world)
    world.sandbox.inject(faults.http_503())
    outcome = world.meter()
    assert "1 groups of 2026-11-28T10 are still pending" in outcome.message
    assert "1 records of 2026-11-28T10 are left" in outcome.message
    assert world.bill() == []


def test_a_flush_sends_the_rest_of_its_hour_too(world):
    world.put(a_deprovisioning("2026-11-28T12:25:00Z", LICENSE))
    world.put(a_usage(0, "1"), a_usage(0, "7", dimension="another"))
    written_over_at_each_commit(world)
    outcome = world.flush()
    assert not outcome.success
    assert "Of the others, 1 records were billed in this run." in outcome.message
    assert world.billed() == {"another": "7"}
    assert DIMENSION in {row["dimension"] for row in world.rows() if "meteringPending" in row}
