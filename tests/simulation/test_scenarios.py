"""Two worlds drawn up by hand: a month's end, and a metering service that is away for 25 hours.

Belongs here: exactly what is lost in them and why, by the judge's books; docs/guarantees.md prints the same reports.
Does not: worlds drawn from seeds (test_worlds).
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from metering_dagster.core.quantity_kind import Quantities
from tests.simulation import report
from tests.simulation.books import is_billable, opens, start_of
from tests.simulation.plan import HOUR, Plan
from tests.simulation.world import simulate

pytestmark = pytest.mark.services
DOCS = Path(__file__).parents[2] / "docs" / "guarantees.md"
ODD = frozenset({"ends", "direct", "group fault", "impossible", "future", "ghost", "misfiled", "large", "many"})
"""What would only be lost for reasons of its own."""
CALM = Plan(
    seed=1, start=datetime(2026, 6, 9, tzinfo=UTC), hours=48, quantities=Quantities.INTEGER,
    fault_rate=0.0, kill_rate=0.0, stall_rate=0.0, lag_most=1.0, groups_an_hour=3.0, by_hand=0,
)  # fmt: skip


def lived(plan: Plan):
    """The world at its end, its sums, what was lost."""
    worlds = []
    outcome = simulate(plan, worlds.append)
    assert outcome.violation is None
    return worlds[0], outcome.sums, report.lost(worlds[0])


@pytest.fixture(scope="module")
def month_end():
    """Usage from noon on 29 November to the evening of 1 December, with a lock of six hours; sellers are often late."""
    return lived(replace(CALM, start=datetime(2026, 11, 29, 12, tzinfo=UTC), hours=54, lock=6, quiet=ODD))


@pytest.fixture(scope="module")
def outage():
    """Two days of usage, all written on time, a lock of two hours; the service is away from 10:30 for 25 hours."""
    since = (CALM.start + timedelta(hours=10.5)).timestamp()
    quiet = ODD | {"late", "bad", "twice", "over", "deleted"}
    return lived(replace(CALM, lock=2, quiet=quiet, down=((since, since + 25 * HOUR),)))


def test_at_a_months_end_only_usage_is_lost_that_came_after_its_commit_or_its_last_tick(month_end):
    _, sums, lost = month_end
    assert {each.why for each in lost} == {report.AFTER_COMMIT, report.AFTER_WINDOW, report.AFTER_LAST_TICK}
    assert all(each.status in ("LateUsage", "AggregationExpired") for each in lost)
    assert sum(each.quantity for each in lost) == sums["used"] - sums["billed"] > 0


def test_at_a_months_end_the_old_months_hours_are_all_billed_before_six(month_end):
    world, _, _ = month_end
    six = datetime(2026, 12, 1, 6, tzinfo=UTC).timestamp()
    billed = [(group, at) for group in world.books.groups.values() for at, _ in group.billed]
    old = [at for group, at in billed if group.name[3] < "2026-12"]
    assert len(old) > 50
    assert max(old) < six
    last_evening = {group.name[3] for group, _ in billed if "2026-11-30T21" <= group.name[3] < "2026-12"}
    assert last_evening == {"2026-11-30T21", "2026-11-30T22", "2026-11-30T23"}, "their lock of six hours gives way"
    for group in world.books.groups.values():
        early = [row for row in group.rows.values() if row.now.is_good and row.now.at < six - HOUR]
        if group.name[3] < "2026-12" and early and group.good_sum(six - HOUR) and not group.billed:
            pytest.fail(f"{group.name} was there at the last tick, and not billed")


def test_an_outage_of_25_hours_loses_the_four_hours_whose_every_tick_lies_in_it(outage):
    world, sums, lost = outage
    ((since, until),) = world.plan.down
    hours = {group.name[3] for group in world.books.groups.values()}
    ticks = {
        hour: [at for n in range(1, 24) if is_billable(hour, at := start_of(hour) + n * HOUR) and at >= opens(hour, 2)]
        for hour in hours
    }
    expected = {hour for hour, all_of_it in ticks.items() if all(since <= at < until for at in all_of_it)}
    assert sorted(expected) == ["2026-06-09T09", "2026-06-09T10", "2026-06-09T11", "2026-06-09T12"]
    assert {each.hour for each in lost} == expected
    assert {(each.status, each.why) for each in lost} == {("SubmissionExpired", report.SERVICE_AWAY)}
    of_these = [group for group in world.books.groups.values() if group.name[3] in expected]
    used = sum((row.now.quantity for group in of_these for row in group.rows.values()), Decimal(0))
    assert sum(each.quantity for each in lost) == used == sums["used"] - sums["billed"] > 0


def test_the_docs_print_what_is_lost_at_a_months_end(month_end):
    _, sums, lost = month_end
    assert report.words("A month's end:", sums, lost) in DOCS.read_text()


def test_the_docs_print_what_is_lost_in_an_outage(outage):
    _, sums, lost = outage
    assert report.words("An outage of 25 hours:", sums, lost) in DOCS.read_text()
