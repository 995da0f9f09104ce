"""What a seed draws is told without living through it, and seeds are chosen by it.

Belongs here: that what is told is what a world has, that choosing finds what it is asked for. Does not: living through
worlds (test_worlds).
"""

import pytest

from tests.simulation import situations
from tests.simulation.books import month_after
from tests.simulation.plan import HOUR, draw
from tests.simulation.world import World

SEEDS = range(1, 60)
STRANGERS = frozenset(situations.STRANGERS.values())


def test_a_license_that_ends_in_the_grace_is_told_as_the_world_has_it():
    found = set()
    for seed in SEEDS:
        plan = draw(seed)
        turn = month_after(f"{plan.start:%Y-%m-%dT%H}")
        world = World(plan)
        world.market.begin()
        ends = [ending.at for ending in world.market.endings.values()]
        in_grace = turn < plan.end_of_usage and any(turn - HOUR < end < turn + 6 * HOUR for end in ends)
        assert ("deprovisioned_in_grace" in situations.of(seed)) is in_grace
        found.add(in_grace)
    assert found == {True, False}


def test_only_situations_that_are_known_are_told_and_each_that_is_drawn_is():
    told = set().union(*(situations.of(seed) for seed in range(1, 200)))
    assert told <= set(situations.SITUATIONS)
    assert told >= STRANGERS


def test_the_next_seeds_are_found_that_draw_all_that_is_asked_for():
    seeds = situations.covering(["month_end", "deprovisioned_in_grace"], 200, 3)
    assert seeds == sorted(set(seeds))
    assert min(seeds) >= 200
    for seed in range(200, seeds[-1] + 1):
        covers = {"month_end", "deprovisioned_in_grace"} <= situations.of(seed)
        assert covers is (seed in seeds)


def test_what_no_seed_draws_is_an_error_and_not_an_endless_search(monkeypatch):
    monkeypatch.setattr(situations, "MOST", 50)
    with pytest.raises(LookupError, match="only 0 of the 50 seeds from 1 on draw month_end, no_month_end"):
        situations.covering(["month_end", "no_month_end"], 1, 1)


def test_a_spread_draws_each_situation_as_often_as_asked_where_seeds_allow():
    seeds = situations.spread(1, 60, 2)
    drawn = [situations.of(seed) for seed in seeds]
    assert 10 < len(seeds) <= 60
    for name in set().union(*(situations.of(seed) for seed in SEEDS)):
        assert sum(name in these for these in drawn) >= 2, name


@pytest.mark.parametrize("wrong", ["", "month_end,snow", "MONTH_END"])
def test_a_situation_that_is_none_is_refused_in_words(monkeypatch, capsys, wrong):
    from tests.simulation import __main__

    monkeypatch.setattr("sys.argv", ["simulation", "--covering", wrong])
    with pytest.raises(SystemExit):
        __main__.main()
    assert "must be some of month_end, lock_gives_way" in capsys.readouterr().err
