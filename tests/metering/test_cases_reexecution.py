"""Cases: Dagster executes a failed run again from its failure, where the outputs of its steps are gone."""

import shutil
from pathlib import Path

import dagster as dg
import pytest

from metering_dagster.definitions import build_defs
from metering_dagster.devstack.sandbox import faults
from tests.items import HOUR, a_deprovisioning, a_usage, an_aggregate
from tests.world import World

_WORLDS: list[World] = []
"""The world that meters now: Dagster finds a job again by a function of a module."""


@pytest.fixture
def metering(world):
    _WORLDS.append(world)
    yield world
    _WORLDS.remove(world)


def meter_hour() -> dg.JobDefinition:
    """The hour's job in this world."""
    (world,) = _WORLDS
    return build_defs(settings=world.settings, resources={"metering": world.deployment}).resolve_job_def("meter_hour")


def flush_deprovisioning() -> dg.JobDefinition:
    """The flush in this world."""
    (world,) = _WORLDS
    defs = build_defs(settings=world.settings, resources={"metering": world.deployment})
    return defs.resolve_job_def("flush_deprovisioning")


def execute(world, job, instance, **run):
    """Whether the run went well, its id, and the steps that did."""
    with (
        dg.partition_loading_context(effective_dt=world.clock.now),
        dg.execute_job(dg.reconstructable(job), instance, **run) as result,
    ):
        return result.success, result.run_id, {event.step_key for event in result.get_step_success_events()}


def again(world, job, instance, run_id):
    """Re-execute from failure, as the UI's button does; the outputs of the steps before are gone."""
    shutil.rmtree(instance.storage_directory())
    Path(instance.storage_directory()).mkdir()
    options = dg.ReexecutionOptions.from_failure(run_id, instance)
    tags = {name: text for name, text in instance.get_run_by_id(run_id).tags.items() if name == "dagster/partition"}
    return execute(world, job, instance, reexecution_options=options, tags=tags)


@pytest.mark.case("reexecute_from_failure")
def test_a_failed_run_executed_again_from_failure_sends_and_bills(metering, instance):
    metering.put(a_usage(0, "5"), an_aggregate("2", dimension="direct"))
    metering.configure(product_code="wrong")
    metering.sandbox.inject(faults.error("InvalidProductCodeException"))
    tags = {"dagster/partition": HOUR}
    success, run_id, done = execute(metering, meter_hour, instance, tags=tags)
    assert not success
    assert done == {"pending_usage.discover_pending", "aggregated_usage.aggregate_groups"}
    metering.sandbox.inject()
    success, _, done = again(metering, meter_hour, instance, run_id)
    assert success
    assert done == {"metered_usage.submit_batches"}
    assert sorted(metering.billed().values()) == ["2", "5"]
    metering.judge()


@pytest.mark.case("reexecute_from_failure")
def test_a_failed_flush_executed_again_from_failure_bills_the_hour_of_its_step(metering, instance):
    metering.put(a_deprovisioning("2026-11-28T13:15:00Z"), a_usage(0, "5"), a_usage(0, "3", hour="2026-11-28T09"))
    metering.sandbox.inject(faults.error("InvalidProductCodeException"))
    success, run_id, _ = execute(metering, flush_deprovisioning, instance)
    assert not success
    metering.sandbox.inject()
    success, _, done = again(metering, flush_deprovisioning, instance, run_id)
    assert success
    assert done == {f"flush_hour.submit_batches[2026_11_28T{hour}]" for hour in ("09", "10")}
    assert sorted(record.quantity for record in metering.bill()) == ["3", "5"]
    metering.judge()
