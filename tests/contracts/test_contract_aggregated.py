"""The aggregated table as the pipeline has it, whatever engine it lies on."""

from dataclasses import replace

import pytest

from metering_dagster.core.aws import dynamodb
from metering_dagster.core.hours import parse_bucket
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.aggregate_group import judge_group
from metering_dagster.metering.rules.group_steps import Commit
from metering_dagster.metering.rules.raw_row import GroupKey
from metering_dagster.metering.rules.statuses import RecordStatus
from metering_dagster.metering.rules.usage_record import RecordEnd
from tests.contracts.late_index import indexes_stand_still
from tests.items import ACCOUNT, DIMENSION, HOUR, LICENSE, a_usage, an_aggregate, some_usage

KEY = GroupKey(LICENSE, ACCOUNT, DIMENSION, parse_bucket(HOUR))
OTHER = replace(KEY, dimension="other")


@pytest.fixture
def tables(world):
    return world.deployment.tables


def commit_of(world, key):
    tables = world.deployment.tables
    rows = tables.usage.group_rows(key)
    verdict = judge_group(key, rows, world.clock.now, Quantities.DECIMAL, last_call=True)
    return Commit(verdict.aggregate, verdict.usages)


def ends_of(pending, status=RecordStatus.SUCCESS):
    return [RecordEnd(each.license_arn, each.sort_key, each.pending, each.quantity, status) for each in pending]


def test_what_a_late_index_still_shows_is_not_pending_where_it_has_come_to_its_end(world, tables):
    world.put(an_aggregate("1"), an_aggregate("2", dimension="sent"), an_aggregate("3", dimension="gone"))
    with indexes_stand_still(world):
        world.put(an_aggregate("2", dimension="sent", status="Success"))
        world.delete(an_aggregate(dimension="gone"))
        world.put(an_aggregate("10"))
        assert tables.aggregated.count_pending(HOUR) == 3, "the index shows what was"
        assert [(each.dimension, each.quantity) for each in tables.aggregated.pending(HOUR)] == [(DIMENSION, 10)]


def test_what_was_sent_under_a_late_index_is_not_sent_again(world, tables):
    world.put(an_aggregate("1"))
    with indexes_stand_still(world):
        ends = ends_of(tables.aggregated.pending(HOUR))
        assert tables.aggregated.record(ends, world.clock.now) == [True]
        assert list(tables.aggregated.pending(HOUR)) == []
        assert tables.aggregated.record(ends, world.clock.now) == [False]


def test_a_commit_is_known_at_once_though_no_index_shows_it(world, tables, monkeypatch):
    monkeypatch.setattr(dynamodb, "pause", lambda attempt: 0.0)
    world.put(*some_usage("1", "2"))
    with indexes_stand_still(world):
        commit = commit_of(world, KEY)
        assert tables.aggregated.commit([commit], world.clock.now)[0].written
        assert tables.aggregated.committed([KEY, OTHER]).keys() == {KEY}
        assert not tables.aggregated.commit([commit], world.clock.now)[0].written
        assert tables.aggregated.await_visible([KEY], HOUR) == [KEY], "it is hidden, and said to be"
    assert tables.aggregated.await_visible([KEY], HOUR) == []


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_commit_that_fails_in_one_row_leaves_nothing_of_itself(world, tables, changed):
    world.put(*some_usage("1", "2", "3"), *some_usage("4", dimension="other"))
    commits = [commit_of(world, KEY), commit_of(world, OTHER)]
    world.put(a_usage(changed, "9"))
    before = world.dump()
    assert [done.written for done in tables.aggregated.commit(commits, world.clock.now)] == [False, True]
    after = world.dump()
    assert [row for row in after["usage"] if row["dimension"] == DIMENSION] == [
        row for row in before["usage"] if row["dimension"] == DIMENSION
    ]
    assert tables.aggregated.committed([KEY, OTHER]).keys() == {OTHER}
    assert world.record_statuses() == {"pending": 1}


def test_an_end_is_refused_in_the_place_of_its_own_record(world, tables):
    world.put(*(an_aggregate("1", dimension=f"d{number:03}") for number in range(130)))
    ends = sorted(ends_of(tables.aggregated.pending(HOUR)), key=lambda end: end.sort_key)
    for number in (0, 99, 100, 129):
        world.put(an_aggregate("2", dimension=f"d{number:03}"))
    written = tables.aggregated.record(ends, world.clock.now)
    assert {place for place, ok in enumerate(written) if not ok} == {0, 99, 100, 129}
    assert world.record_statuses() == {"Success": 126, "pending": 4}


def test_the_services_answer_replaces_an_expiry_and_an_expiry_no_answer(world, tables):
    world.put(an_aggregate("1"), an_aggregate("1", dimension="other"))
    mine, other = sorted(tables.aggregated.pending(HOUR), key=lambda each: each.dimension)
    for first, second, written in (
        (ends_of([mine], RecordStatus.EXPIRED), ends_of([mine]), True),
        (ends_of([other]), ends_of([other], RecordStatus.EXPIRED), False),
    ):
        assert tables.aggregated.record(first, world.clock.now) == [True]
        assert tables.aggregated.record(second, world.clock.now) == [written]
    assert world.record_statuses() == {"Success": 2}
