"""A sweep that is killed costs nothing: whoever comes next ends what is left, and nothing that was final again."""

import pytest

from metering_dagster.ledger.stores.files import Ledger
from tests.crash import worker as points
from tests.crash.truth import final_items
from tests.items import an_aggregate, some_usage

pytestmark = pytest.mark.services

SHARD, OLD = 2, "2026-11-27T06"
LATER = "2026-11-28T12:25:00Z"
"""When the next sweep comes: what it writes bears another time than what the killed one wrote."""


@pytest.fixture
def old_hour(world):
    """A group of more rows than three transactions hold, a committed one, and records, all past their window."""
    world.put(
        *some_usage(*["1.5"] * 250, hour=OLD), *some_usage("2", "3", hour=OLD, dimension="small"),
        an_aggregate("6", hour=OLD, dimension="billed", status="Success"),
        *some_usage("1", "2", "3", hour=OLD, dimension="billed"),
        *(an_aggregate("4", hour=OLD, dimension=f"direct{n}") for n in range(120)),
    )  # fmt: skip


def expired_exactly_once(world):
    """What was billed is told from what was lost, and all of it has come to its end."""
    assert world.row_statuses() == {"AggregationExpired": 252, "Aggregated": 3}
    assert world.record_statuses() == {"SubmissionExpired": 120, "Success": 1}
    for row in world.rows():
        assert (row["meteringStatus"] == "Aggregated") is (row["dimension"] == "billed")


@pytest.mark.parametrize(("stops_at", "dagster"), [
    ((points.ROWS_READ, 1), False),
    ((points.TRANSACTION_ANSWERED, 1), False),
    ((points.TRANSACTION_ANSWERED, 2), True),
    ((points.TRANSACTION_ANSWERED, 3), False),
    ((points.TRANSACTION_ANSWERED, 5), False),
    ((points.LEDGER_UNFINISHED, 1), True),
], ids=str)  # fmt: skip
def test_killed_at_a_boundary_of_a_sweep(world, crew, old_hour, stops_at, dagster):
    victim = crew.start(shard=SHARD, dagster=dagster, stops_at=stops_at)
    assert victim.until_it_stands() == (*stops_at, True)
    victim.kill()
    before = final_items(world)
    assert (len(before) > 1) is (stops_at[0] != points.ROWS_READ)
    world.at(LATER)
    crew.start(shard=SHARD, dagster=dagster).end()
    expired_exactly_once(world)
    after = final_items(world)
    assert {key: after[key] for key in before} == before, "what was final was written again"
    if stops_at[0] == points.LEDGER_UNFINISHED:
        assert before == after, "there was nothing left to do"
        assert Ledger(world.settings.ledger_uri).read_hour(OLD) == [], "a file that was not finished is none of it"


@pytest.mark.parametrize("dagster", [False, True])
def test_two_sweeps_of_one_shard_at_once_are_as_good_as_one(world, crew, old_hour, dagster):
    crew.together([crew.start(shard=SHARD, dagster=dagster, waits=True) for _ in range(2)])
    expired_exactly_once(world)
    if dagster:
        told = Ledger(world.settings.ledger_uri).read_hour(OLD)
        assert len(told) == 252 + 120, "each end is told by the sweep that wrote it, and by no other"


@pytest.mark.parametrize("stands_at", [1, 2, 3])
def test_a_visit_that_is_killed_in_its_commit_while_a_sweep_comes(world, crew, stands_at):
    """The group's window closes in the middle of its commit; the sweep must not call a committed row expired."""
    world.put(*some_usage(*["1.5"] * 250, hour=OLD))
    world.at("2026-11-28T05:50:00Z")
    visit = crew.start(OLD, stops_at=(points.TRANSACTION_ANSWERED, stands_at))
    visit.until_it_stands()
    visit.kill()
    world.at(LATER)
    crew.start(shard=SHARD).end()
    assert world.row_statuses() == {"Aggregated": 250}
    assert world.aggregate(hour=OLD)["quantity"] == 375


def test_a_sweep_and_a_committing_visit_at_once(world, crew):
    world.put(*(row for n in range(4) for row in some_usage(*["1.5"] * 150, hour=OLD, dimension=f"d{n}")))
    crew.together([crew.start(OLD, waits=True), crew.start(shard=SHARD, waits=True)])
    crew.start(shard=SHARD).end()
    rows = world.rows()
    assert not [row for row in rows if "meteringPending" in row]
    for n in range(4):
        mine = [row for row in rows if row["dimension"] == f"d{n}"]
        counted = [row for row in mine if row["meteringStatus"] == "Aggregated"]
        committed = world.aggregate(hour=OLD, dimension=f"d{n}").get("quantity", 0)
        assert sum(row["quantity"] for row in counted) == committed, "what is called aggregated is in the aggregate"
