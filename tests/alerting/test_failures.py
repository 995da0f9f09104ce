"""Why a run failed, in its own words: over runs that really failed."""

import dagster as dg
import pytest

from metering_dagster.alerting.defs.run_failures import alert_of_run
from metering_dagster.core.errors import SettingsError, TableError


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as ours:
        yield ours


def cause(instance: dg.DagsterInstance, *errors: BaseException) -> str:
    """What is told of a run whose step raised these, each the cause of the one before."""

    @dg.op
    def fails() -> None:
        error = errors[-1]
        for outer in reversed(errors[:-1]):
            outer.__cause__ = error
            error = outer
        raise error

    return cause_of_job(instance, fails)


def cause_of_job(instance: dg.DagsterInstance, *ops: dg.OpDefinition) -> str:
    @dg.job(name="hour")
    def job() -> None:
        for op in ops:
            op()

    job.execute_in_process(instance=instance, raise_on_error=False)
    return alert_of_run(instance, instance.get_runs(limit=1)[0], None).cause


def test_a_failure_speaks_for_itself(instance):
    assert cause(instance, dg.Failure("3 records are left."), ValueError("deeper")) == "3 records are left."


def test_of_nested_errors_the_deepest_of_ours_counts(instance):
    errors = (RuntimeError("step"), SettingsError("Not set: A."), TableError("No such table."), KeyError("x"))
    assert cause(instance, *errors) == "No such table."


def test_an_error_of_others_keeps_its_name_and_loses_its_traceback(instance):
    assert cause(instance, RuntimeError("step"), ValueError("boom")) == "ValueError: boom"


def test_of_several_failed_steps_the_first_counts(instance):
    @dg.op
    def first() -> None:
        raise dg.Failure("The first.")

    @dg.op
    def second() -> None:
        raise dg.Failure("The second.")

    told = cause_of_job(instance, first, second)
    assert told in ("The first. (Other steps that failed: 1.)", "The second. (Other steps that failed: 1.)")


def test_a_step_that_was_told_to_stop_is_not_the_cause(instance):
    @dg.op
    def interrupted() -> None:
        raise KeyboardInterrupt

    @dg.job
    def hour() -> None:
        interrupted()

    with pytest.raises(KeyboardInterrupt):
        hour.execute_in_process(instance=instance)
    run = instance.get_runs(limit=1)[0]
    instance.report_run_failed(run, "Exceeded maximum runtime of 3000 seconds.")
    assert alert_of_run(instance, run, None).cause == "Exceeded maximum runtime of 3000 seconds."


def test_without_the_uis_address_a_link_is_a_path(instance):
    @dg.job
    def idle() -> None: ...

    run = instance.create_run_for_job(idle)
    alert = alert_of_run(instance, run, None)
    assert alert.link == f"/runs/{run.run_id}"
    assert alert.cause == "Dagster does not say why. See the run."


@pytest.mark.parametrize(("tags", "about", "lane"), [
    ({"dagster/partition": "2026-11-28T10", "metering/lane": "regular"}, "2026-11-28T10", "regular"),
    ({"dagster/partition": "3", "metering/shard": "3", "metering/lane": "expiry"}, "shard 3", "expiry"),
    ({"dagster/asset_partition_range_start": "a", "dagster/asset_partition_range_end": "b"}, "a to b", "by hand"),
    ({"dagster/backfill": "x", "dagster/partition": "2026-11-28T10"}, "2026-11-28T10", "by hand, in a backfill"),
    ({}, None, "by hand"),
])  # fmt: skip
def test_what_a_run_was_about_and_who_asked_for_it(instance, tags, about, lane):
    @dg.job
    def idle() -> None: ...

    alert = alert_of_run(instance, instance.create_run_for_job(idle, tags=tags), None)
    assert (alert.hour, alert.lane) == (about, lane)
