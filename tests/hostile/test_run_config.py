"""Any run config and any partition key: a run that is right, or one that fails in words before it has touched anything.

Belongs here: what a person, the API or a tag hands to a run. Does not: what good values do (the tests of the jobs).

A key of a partition that is none is refused by Dagster itself where partitions are hours or days, in its words, before
code of ours begins; a shard of the age-out comes through.
"""

import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import metering_dagster
from metering_dagster.core import hours
from metering_dagster.definitions import build_defs
from tests.billing_changes.changes_runs import a_runs, failure_of
from tests.billing_changes.conftest import filled_by_hand
from tests.billing_changes.filling import BillingTables, tenant
from tests.hostile.broken import ODD
from tests.hostile.effort import examples
from tests.hostile.secrets import ACCOUNT, LICENSE, PASSWORD, assert_nothing_leaks
from tests.items import HOUR, a_usage
from tests.world import World, last_run

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
SECRET_WORDS = f"{LICENSE} of {ACCOUNT} at mysql://u:{PASSWORD}@h/d"
WORDS = st.text(max_size=40) | st.sampled_from(
    [odd for odd in ODD if isinstance(odd, str)] + [SECRET_WORDS, "9" * 5000]
)
VALUES = st.sampled_from(ODD) | WORDS
BUCKETS = st.sampled_from([
    HOUR, "2026-11-28T24", "2026-11-28T1٣", "2026-02-30T01", "0001-01-01T00", "9999-12-31T23", "2025-01-01T00",
    "2026-11-28T13", f"{HOUR}\n", f"{HOUR}:00", "2026-11-28", "",
])  # fmt: skip
DAY = datetime.now(UTC).date() - timedelta(days=5)
PRODUCT = str(Path(metering_dagster.__file__).parent)
LOCKED = "2026-11-28T11"
OURS = "Nothing was read or written."


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ours:
        yield ours


@pytest.fixture
def filled(world: World) -> World:
    """An hour that can be metered and one for the age-out, in the world's tables."""
    world.put(a_usage(0, quantity=5), a_usage(0, hour="2026-11-26T10", quantity=7))
    return world


def run(
    world: World, instance: dg.DagsterInstance, name: str, config: Any, key: str, *, by_tag: bool = False
) -> tuple[bool, str]:
    """A run of the job: whether it succeeded, and in which words it failed. The key is a partition's, or only a tag."""
    where: Mapping[str, Any] = {"tags": {"dagster/partition": key}} if by_tag else {"partition_key": key}
    try:
        with dg.partition_loading_context(effective_dt=world.clock.now):
            job_of(world, name).execute_in_process(run_config={**QUIET, "ops": config}, instance=instance, **where)
    except dg.Failure as failure:
        _, log, _ = last_run(instance)
        assert_nothing_leaks(str(failure.description), *(entry.user_message for entry in log))
        return False, str(failure.description)
    except Exception as error:  # Dagster's own refusals are of many kinds
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PRODUCT)]
        if ours:
            raise
        return False, f"Dagster: {error}"
    return True, ""


@cache
def job_of(world: World, name: str) -> dg.JobDefinition:
    """Made once for all examples of a test."""
    defs = build_defs(settings=world.settings, resources={"metering": world.deployment})
    return defs.resolve_job_def(name)


@examples(15)
@given(as_of=WORDS | BUCKETS)
@example(as_of="2026-11-28T11")
@example(as_of=SECRET_WORDS)
@example(as_of="9999-12-31T23")
def test_any_as_of_is_an_hour_or_is_refused_in_words(filled, instance, as_of):
    before = filled.dump()
    done, words = run(filled, instance, "age_out", {"expired_usage": {"config": {"as_of": as_of, "whole": False}}}, "2")
    if done:
        assert as_of == "" or hours.bucket(hours.parse_bucket(as_of)) == as_of
    else:
        assert OURS in words
        assert "as_of" in words
        assert filled.dump() == before


@examples(12)
@given(name=st.sampled_from(["as_of", "whole", "ignore_lock", "why", LICENSE]), value=VALUES)
@example(name="whole", value="yes")
@example(name="as_of", value=10**400)
def test_a_sweep_is_not_begun_with_a_config_of_another_shape(filled, instance, name, value):
    before = filled.dump()
    done, words = run(filled, instance, "age_out", {"expired_usage": {"config": {name: value}}}, "1")
    assert done or words
    if name not in ("as_of", "whole"):
        assert words.startswith("Dagster: ")
    if not done:
        assert filled.dump() == before


@pytest.fixture
def still_locked(world: World) -> World:
    """The hour before the current one, which five hours from now may be metered."""
    world.configure(lock_hours=6)
    world.put(a_usage(0, hour=LOCKED, quantity=3))
    return world


@examples(10)
@given(value=VALUES)
@example(value="true")
@example(value=1)
@example(value=None)
def test_only_a_plain_yes_or_no_opens_a_locked_hour(still_locked, instance, value):
    before = still_locked.dump()
    config = {
        "pending_usage": {"ops": {"discover_pending": {"config": {"ignore_lock": value}}}},
        "aggregated_usage": {"ops": {"aggregate_groups": {"config": {"ignore_lock": value}}}},
        "metered_usage": {"ops": {"submit_batches": {"config": {"ignore_lock": value}}}},
    }
    assume(value is not True)  # then it is billed: tests/metering shows it
    done, words = run(still_locked, instance, "meter_hour", config, LOCKED)
    assert not done
    assert words.startswith("Dagster: ") or OURS in words
    assert still_locked.dump() == before
    assert not still_locked.calls()


@examples(12)
@given(shard=WORDS | st.integers().map(str) | st.sampled_from(["7", "-1", "٣", " 2", "2 ", "1_0", "+1", "2.0", "0x1"]))
@example(shard="x")
@example(shard="9" * 5000)
@example(shard=SECRET_WORDS)
def test_only_the_seven_shards_are_swept(filled, instance, shard):
    before = filled.dump()
    done, words = run(filled, instance, "age_out", {}, shard, by_tag=True)
    if done:
        assert shard in "0123456"
    else:
        assert OURS in words or words.startswith("Dagster: ")
        assert filled.dump() == before


@examples(12)
@given(key=WORDS | BUCKETS, name=st.sampled_from(["meter_hour", "refresh_report", "refresh_billing_changes"]))
@example(key="9999-12-31T23", name="meter_hour")
@example(key="2026-11-28T13", name="meter_hour")
@example(key="2025-06-01T10", name="meter_hour")
def test_no_partition_that_is_none_is_worked_on(filled, instance, key, name):
    assume((key, name) != (HOUR, "meter_hour"))
    before = filled.dump()
    done, words = run(filled, instance, name, {}, key, by_tag=True)
    assert done or words
    assert filled.dump() == before
    assert not filled.calls()


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[BillingTables]:
    with filled_by_hand(f"sqlite:///{tmp_path / 'billing.db'}") as filled:
        filled.subscribe(tenant("t1"))
        filled.daily("t1", DAY, filled.now() - timedelta(hours=1))
        yield filled


@examples(15)
@given(why=WORDS, gap=WORDS)
@example(why=SECRET_WORDS, gap=SECRET_WORDS)
def test_a_day_is_reported_whatever_it_is_said_to_be_asked_for(tables, instance, tmp_path, why, gap):
    result = a_runs(tables, tmp_path, instance).run(DAY, why=why, gap=gap)
    assert result.success
    told = [event.message or "" for event in result.all_events]
    shown = [result.get_asset_materialization_events(), result.get_asset_check_evaluations()]
    assert_nothing_leaks(*told, *shown)


@pytest.mark.parametrize("day", [date.min, date(2025, 1, 1), date(2099, 1, 1)])
def test_a_day_that_cannot_be_is_refused_or_is_empty(tables, instance, tmp_path, day):
    ours = a_runs(tables, tmp_path, instance)
    try:
        result = ours.run(day)
    except dg.DagsterError:
        return  # Dagster knows no such partition
    if not result.success:
        assert failure_of(result)
