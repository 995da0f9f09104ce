"""The usage table as the pipeline has it, whatever engine it lies on."""

import pytest
from botocore.exceptions import ClientError

from metering_dagster.core.errors import MeteringError
from metering_dagster.core.hours import parse_bucket
from metering_dagster.metering.rules.raw_row import GroupKey, RowEnd
from metering_dagster.metering.rules.statuses import RawStatus
from tests.conftest import MINISTACK
from tests.contracts.engines import deviates
from tests.contracts.late_index import indexes_stand_still
from tests.items import ACCOUNT, DIMENSION, HOUR, LICENSE, OTHER_LICENSE, a_usage, filled_up, some_usage

KEY = GroupKey(LICENSE, ACCOUNT, DIMENSION, parse_bucket(HOUR))


@pytest.fixture
def usage(world):
    return world.deployment.tables.usage


def seconds(rows):
    return [int(row.sort_key[-2:]) for row in rows]


def test_a_late_index_says_where_to_look_and_the_table_what_stands_there(world, usage):
    world.put(*some_usage("1", "2", "3"))
    with indexes_stand_still(world):
        world.put(a_usage(3, "4"), a_usage(0, "1", filed=None, meteringStatus="Aggregated"))
        world.delete(a_usage(1))
        shown = list(usage.pending_rows(HOUR))
        assert sorted(seconds(shown)) == [0, 1, 2], "the index shows what was"
        assert usage.count_pending(HOUR) == 3
        assert sorted((row.sort_key[-2:], row.status) for row in usage.rows(shown)) == [
            ("00", "Aggregated"), ("02", None),
        ], "the table what is"  # fmt: skip
        assert seconds(usage.group_rows(KEY)) == [0, 2, 3], "and all of it, by the group's prefix"
    assert sorted(seconds(usage.pending_rows(HOUR))) == [2, 3], "the index follows in the end"


def test_nothing_that_a_late_index_shows_is_written_over_what_came_after(world, usage):
    world.put(*some_usage("1", "2"))
    with indexes_stand_still(world):
        read = usage.rows(usage.pending_rows(HOUR))
        usage.write([RowEnd(row, RawStatus.AGGREGATED, "first") for row in read], world.clock.now)
        before = world.dump()
        assert len(list(usage.pending_rows(HOUR))) == 2
        assert usage.write([RowEnd(row, RawStatus.EXPIRED, "second") for row in read], world.clock.now) == [False] * 2
        assert world.dump() == before


def test_a_row_that_moves_to_another_hour_is_shown_in_one_of_them_at_a_time(world, usage):
    world.put(*some_usage("1", "2"))
    other = "2026-11-28T11"
    with indexes_stand_still(world):
        usage.write([RowEnd(row, None, pending=other) for row in usage.group_rows(KEY)], world.clock.now)
        assert (usage.count_pending(HOUR), usage.count_pending(other)) == (2, 0)
    assert (usage.count_pending(HOUR), usage.count_pending(other)) == (0, 2)


def test_a_count_goes_no_further_than_it_is_asked_to(world, usage):
    world.put(*some_usage(*["1"] * 30))
    asked = []
    usage.client.meta.events.register("before-call.dynamodb.Query", lambda **_: asked.append(1))
    assert usage.count_pending(HOUR, most=5) == 5
    assert len(asked) == 1
    assert usage.count_pending(HOUR, most=50) == 30


@pytest.mark.parametrize("page", [1, 3, 100])
def test_rows_of_one_license_are_all_found_and_no_others(world, usage, page):
    world.put(*some_usage(*["1"] * 7), *some_usage(*["1"] * 4, license=OTHER_LICENSE))
    world.put(*some_usage(*["1"] * 2, license=f"{LICENSE}0"))
    world.with_pages_of(page)
    assert sorted(seconds(usage.pending_rows(HOUR, [LICENSE]))) == list(range(7))
    assert len(list(usage.pending_rows(HOUR))) == 13


@pytest.mark.parametrize("beside", [1, 120])
def test_a_row_whose_end_does_not_go_in_gets_its_status_alone_and_keeps_no_neighbor_from_its_end(
    world, usage, request, beside
):
    world.put(*some_usage(*["1"] * beside))
    world.put(filled_up(a_usage(beside), 20))
    ends = [RowEnd(row, RawStatus.AGGREGATED, "why") for row in usage.group_rows(KEY)]
    assert usage.write(ends, world.clock.now) == [True] * (beside + 1)
    assert world.row_statuses() == {"Aggregated": beside + 1}
    deviates(request, MINISTACK, "lets an update in a transaction grow an item past 400 KB")
    assert "meteringStatusReason" not in world.row(beside)


def test_an_error_of_the_table_is_told_in_words_with_its_name_and_setting(world):
    world.configure(usage_table="nowhere")
    with pytest.raises(MeteringError, match=r"nowhere.*USAGE_TABLE") as told:
        world.deployment.tables.usage.group_rows(KEY)
    assert isinstance(told.value.__cause__, ClientError)
    assert LICENSE not in str(told.value)
