"""A hundred worlds, with no violation in any; `make simulate SEEDS=1000` lives through more.

Belongs here: that nothing goes wrong, that the worlds are as rough as they are said to be, that a seed says it all.
Does not: worlds drawn up by hand (test_scenarios).
"""

import pytest

from tests.simulation import situations
from tests.simulation.fleet import Totals, again, live_all

WORLDS = 100
TWICE = (1, 2)
"""Lived through once more, in another process perhaps."""
pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def lives():
    """All of them, on two processes: some chosen by what they draw, each situation in four of them, the others not."""
    chosen = situations.spread(first=1001, count=40, each=4)
    seeds = [*range(1, WORLDS + 1 - len(chosen)), *chosen]
    return list(live_all([*seeds, *TWICE], jobs=2))


def test_no_invariant_is_broken_in_a_hundred_worlds(lives):
    totals = Totals()
    for lived in lives:
        totals.add(lived)
    assert not totals.violations, "\n".join(totals.violations.values())


def test_each_world_has_48_hours_50_groups_and_faults_on_5_percent_of_its_calls(lives):
    for lived in lives:
        assert lived.hours >= 48, again(lived.seed)
        assert lived.figures["groups"] >= 50, again(lived.seed)
        assert lived.figures["faults"] >= 0.05 * lived.figures["calls"], again(lived.seed)


def test_equal_seeds_give_equal_worlds(lives):
    for seed in TWICE:
        first, second = (lived for lived in lives if lived.seed == seed)
        assert first == second
    assert len({lived.trace for lived in lives}) == WORLDS
