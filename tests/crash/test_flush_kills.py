"""A flush or a finalizer that is killed costs nothing: whoever comes next bills what was used, and closes once."""

import pytest

from metering_dagster.ledger.stores.files import Ledger
from tests.crash import worker as points
from tests.crash.truth import final_items, metered_exactly_once, put_in_parts, usage_of_all_sizes
from tests.items import HOUR, a_deprovisioning, a_subscriber, a_usage
from tests.world import World

pytestmark = pytest.mark.services

EXPIRY = "2026-11-28T13:15:00Z"
LATER = "2026-11-28T12:25:00Z"
COMMITTED = 4
"""Transactions after which all groups of `usage_of_all_sizes` are committed, and rows of the largest still pending."""
FLUSH, FINALIZE = "flush_deprovisioning", "finalize_deprovisioned"


def kill_and_run_again(world: World, crew, job: str, stops_at: tuple[str, int]) -> None:
    """Kill a worker of this job at this point; then let another one do it."""
    victim = crew.start(dagster=True, job=job, stops_at=stops_at)
    assert victim.until_it_stands() == (*stops_at, True)
    victim.kill()
    before = final_items(world)
    world.at(LATER)
    crew.start(dagster=True, job=job).end()
    after = final_items(world)
    assert {key: after[key] for key in before} == before, "what was final was written again"


@pytest.mark.parametrize("stops_at", [
    (points.FLUSH_PLANNED, 1), (points.TRANSACTION_ANSWERED, COMMITTED), (points.CALL_LEAVES, 1),
    (points.CALL_ANSWERED, 1), (points.LEDGER_UNFINISHED, 1),
], ids=str)  # fmt: skip
def test_a_flush_is_killed_and_the_next_one_bills_right(world, crew, stops_at):
    world.configure(lock_hours=20)
    usage = usage_of_all_sizes()
    put_in_parts(world, usage)
    world.put(a_deprovisioning(EXPIRY))
    kill_and_run_again(world, crew, FLUSH, stops_at)
    metered_exactly_once(world, usage)
    world.judge()
    if stops_at[0] != points.LEDGER_UNFINISHED:
        told = Ledger(world.settings.ledger_uri).read_hour(HOUR)
        assert sorted(entry.dimension for entry in told if entry.outcome == "Success") == sorted(world.billed())


def test_two_flushes_and_an_hours_own_run_at_once_bill_once(world, crew):
    usage = usage_of_all_sizes()
    put_in_parts(world, usage)
    world.put(a_deprovisioning(EXPIRY))
    flushes = [crew.start(dagster=True, job=FLUSH, waits=True) for _ in range(2)]
    crew.together([*flushes, crew.start(dagster=True, waits=True)])
    metered_exactly_once(world, usage)
    world.judge()


@pytest.mark.parametrize(("stops_at", "closed_at"), [
    ((points.CLOSING_LEAVES, 1), "2026-11-28T12:25:00Z"), ((points.CLOSING_ANSWERED, 1), "2026-11-28T12:20:00Z"),
], ids=str)  # fmt: skip
def test_a_finalizer_is_killed_and_the_next_one_closes_what_is_left(world, crew, stops_at, closed_at):
    world.put(a_deprovisioning("2026-11-28T12:00:00Z"), a_usage(0, "3"))
    kill_and_run_again(world, crew, FINALIZE, stops_at)
    row = world.item(a_subscriber())
    assert (row["subscriptionStatus"], row["updatedAt"]) == ("inactive", closed_at)
    assert "deprovisioningPendingFlag" not in row


def test_a_loss_is_told_again_where_the_first_to_tell_it_was_killed_before_the_write(world, crew):
    import dagster as dg

    world.put(a_deprovisioning("2026-11-28T12:00:00Z"), a_usage(0, "3", hour="2026-11-28T06"))
    kill_and_run_again(world, crew, FINALIZE, (points.CLOSING_LEAVES, 1))
    key = dg.AssetCheckKey(dg.AssetKey("metered_usage"), "all_subscribed")
    with dg.DagsterInstance.from_config(str(crew.home)) as instance:
        told = instance.event_log_storage.get_asset_check_execution_history(key, limit=20)
    events = [record.event.dagster_event for record in told if record.event]
    answered = dg.DagsterEventType.ASSET_CHECK_EVALUATION
    evaluations = [each.asset_check_evaluation_data for each in events if each.event_type is answered]
    mine = [each for each in evaluations if each.partition == "2026-11-28T06"]
    assert [(each.passed, each.metadata["lost_quantity"].value) for each in mine] == [(False, 3.0), (False, 3.0)]
