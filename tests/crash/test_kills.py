"""A worker that is killed costs nothing: whoever comes next bills what was used, and ends every row once."""

import random

import pytest

from metering_dagster.ledger.stores.files import Ledger
from tests.crash import worker as points
from tests.crash.truth import final_items, metered_exactly_once, put_in_parts, usage_of_all_sizes
from tests.items import some_usage
from tests.world import HOUR

pytestmark = pytest.mark.services

LATER = "2026-11-28T12:25:00Z"
"""When the next worker comes: what it writes bears another time than what the killed one wrote."""
PARTS_OF_THE_COMMITS = 5
"""Transactions that commit `usage_of_all_sizes`: after the third all four groups are committed, and those rows of the
largest that its first transaction did not hold are still pending."""
ANNOUNCEMENTS = 15
"""Of a worker on a small hour, at most: discovery, transactions and the call, coming and going."""
ROUNDS = 6


def kill_and_meter_again(world, crew, stops_at, *, through_dagster, again_through_dagster=False):
    """Kill a worker at this point; then let another one meter the hour."""
    usage = usage_of_all_sizes()
    put_in_parts(world, usage)
    victim = crew.start(dagster=through_dagster, stops_at=stops_at)
    assert victim.until_it_stands() == (*stops_at, True)
    victim.kill()
    before = final_items(world)
    world.at(LATER)
    crew.meter(dagster=again_through_dagster)
    metered_exactly_once(world, usage)
    after = final_items(world)
    assert {key: after[key] for key in before} == before, "what was final was written again"
    world.judge()
    return before


@pytest.mark.parametrize("number", [1, 3, 4])
def test_killed_between_the_parts_of_a_commit(world, crew, number):
    before = kill_and_meter_again(world, crew, (points.TRANSACTION_ANSWERED, number), through_dagster=False)
    assert before, "nothing had been written: the kill was at no interesting point"


@pytest.mark.parametrize(("stops_at", "again_through_dagster"), [
    ((points.DISCOVERED, 1), False), ((points.TRANSACTION_ANSWERED, PARTS_OF_THE_COMMITS - 1), True),
    ((points.CALL_LEAVES, 1), False), ((points.CALL_ANSWERED, 1), True),
], ids=str)  # fmt: skip
def test_killed_at_any_point_of_a_run_of_dagster(world, crew, stops_at, again_through_dagster):
    kill_and_meter_again(world, crew, stops_at, through_dagster=True, again_through_dagster=again_through_dagster)
    if again_through_dagster:
        told = Ledger(world.settings.ledger_uri).read_hour(HOUR)
        assert sorted(entry.dimension for entry in told if entry.outcome == "Success") == sorted(world.billed())


@pytest.mark.parametrize("point", [points.LEDGER_UNFINISHED, points.LEDGER_WRITTEN_IN_PART])
def test_killed_after_the_answers_were_written_and_before_the_ledger(world, crew, point):
    before = kill_and_meter_again(world, crew, (point, 1), through_dagster=True)
    assert before == final_items(world), "there was nothing left to do"
    left = [path.suffix for path in world.folder.rglob("hour=*/*")]
    assert left == ([".part"] if point == points.LEDGER_WRITTEN_IN_PART else [])
    assert Ledger(world.settings.ledger_uri).read_hour(HOUR) == [], "a file that was not finished is none of it"


def test_a_group_is_billed_right_however_often_its_workers_are_killed(world, crew):
    usage = some_usage(*["1.5"] * 330)
    world.put(*usage)
    for number, stops_at in enumerate((
        (points.TRANSACTION_ANSWERED, 1), (points.TRANSACTION_ANSWERED, 1), (points.TRANSACTION_ANSWERED, 1),
        (points.CALL_ANSWERED, 1),
    )):  # fmt: skip
        world.at(f"2026-11-28T12:{20 + number}:00Z")
        victim = crew.start(stops_at=stops_at)
        assert victim.until_it_stands() == (*stops_at, True)
        victim.kill()
    crew.meter()
    metered_exactly_once(world, usage)
    assert len(world.calls()) == 2


def test_killed_at_random_points(world, crew):
    seed = random.randrange(10**9)
    chance = random.Random(seed)
    for number in range(ROUNDS):
        hour = f"2026-11-28T{number:02}"
        story = [f"seed {seed}, round {number}"]
        usage = [
            row
            for dimension in range(chance.randint(1, 3))
            for row in some_usage(*["0.5"] * chance.choice([1, 40, 99, 130, 250]), dimension=f"d{dimension}", hour=hour)
        ]
        world.put(*usage)
        for _ in range(chance.randint(1, 2)):
            victim = crew.start(hour, stops_at_any=chance.randint(1, ANNOUNCEMENTS))
            story.append(str(victim.until_it_stands()))
            victim.kill()
        crew.meter(hour)
        try:
            metered_exactly_once(world, usage, hour)
        except AssertionError as error:
            error.add_note("; ".join(story))
            raise
    world.judge()
