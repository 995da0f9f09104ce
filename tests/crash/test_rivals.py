"""Two workers on one hour at once are as good as one: each row counts once, each group is billed once."""

import pytest

from tests.crash.truth import metered_exactly_once, put_in_parts, usage_of_all_sizes

pytestmark = pytest.mark.services


@pytest.mark.parametrize(("time", "dagster"), [(1, False), (2, False), (3, True)])
def test_two_workers_on_one_hour_at_once(world, crew, time, dagster):
    usage = usage_of_all_sizes()
    put_in_parts(world, usage)
    crew.together([crew.start(dagster=dagster, waits=True) for _ in range(2)])
    metered_exactly_once(world, usage)
    world.judge()


def test_three_workers_on_one_hour_and_one_of_them_is_killed(world, crew):
    usage = usage_of_all_sizes()
    put_in_parts(world, usage)
    victim = crew.start(stops_at_any=4)
    rivals = [crew.start(waits=True) for _ in range(2)]
    victim.until_it_stands()
    victim.kill()
    crew.together(rivals)
    metered_exactly_once(world, usage)
    world.judge()
