"""The index of what is pending, asked for some licenses: what it finds, and in how many requests."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metering_dagster.metering.rules.own_item_keys import OURS
from metering_dagster.metering.stores.pending_index import RANGE_KEY, PendingIndex
from metering_dagster.metering.stores.usage_table import SHAPE
from tests.items import HOUR, LICENSE, a_usage, some_usage

KEYS = f"{SHAPE.hash_key}, {SHAPE.range_key}"
NAMES = [f"{LICENSE}{name}" for name in ("", "0", "a", "a#", "ab", "b", "é", "z", "\uffee", "\U0001f600")]
"""Licenses that begin alike, and some whose order is another one in UTF-16."""


@pytest.fixture
def index(world) -> PendingIndex:
    return PendingIndex(world.deployment.tables.usage.client, world.names["usage"], SHAPE)


@contextmanager
def answers_of(index: PendingIndex) -> Iterator[list[dict]]:
    """Every answer to a Query within."""
    answers: list[dict] = []

    def hear(parsed, **_) -> None:
        answers.append(parsed)

    index.client.meta.events.register("after-call.dynamodb.Query", hear)
    yield answers
    index.client.meta.events.unregister("after-call.dynamodb.Query", hear)


def found(index: PendingIndex, bucket: str, licenses: list[str] | None) -> list[tuple[str, str]]:
    return [
        (item[RANGE_KEY]["S"], item[SHAPE.range_key]["S"])
        for page in index.pages(bucket, licenses, KEYS)
        for item in page
    ]


@pytest.mark.parametrize("page", [1, 2, 7])
def test_some_licenses_are_what_a_whole_pass_finds_of_them_in_no_more_requests(world, index, page):
    world.with_pages_of(page)
    for seed in range(12):
        chance, bucket = random.Random(f"{seed} {page}"), f"2026-11-28T{seed:02}"
        filled = {name: chance.choice([0, 1, 1, 2, 9]) for name in NAMES}
        world.put(*(row for name, rows in filled.items()
                    for row in some_usage(*["1"] * rows, license=name, hour=bucket)))  # fmt: skip
        wanted = chance.sample(NAMES, chance.randint(0, len(NAMES)))
        with answers_of(index) as whole:
            everything = found(index, bucket, None)
        with answers_of(index) as asked:
            theirs = found(index, bucket, wanted)
        assert len(everything) == sum(filled.values())
        assert sorted(theirs) == sorted(place for place in everything if place[0] in wanted)
        assert [name for name, _ in theirs] == sorted(name for name, _ in theirs), "in the order of licenses"
        ends = [answer["LastEvaluatedKey"][RANGE_KEY]["S"] for answer in asked if "LastEvaluatedKey" in answer]
        assert len(asked) <= min(len(whole), len(wanted) + sum(end in wanted for end in ends)), f"seed {seed}"


def test_one_license_is_read_by_itself_whatever_lies_beside_it(world, index):
    world.put(*(row for name in NAMES for row in some_usage(*["1"] * 5, license=name)))
    with answers_of(index) as asked:
        assert len(found(index, HOUR, [LICENSE])) == 5
    assert [answer["ScannedCount"] for answer in asked] == [5]


def test_of_nobody_nothing_is_asked(index):
    with answers_of(index) as asked:
        assert found(index, HOUR, []) == []
    assert asked == []


def test_a_license_that_no_index_can_hold_keeps_no_other_from_being_found(world, index):
    world.put(a_usage(0))
    assert found(index, HOUR, ["é" * 600, LICENSE, OURS, "x" * 1025]) == [(LICENSE, a_usage(0).sort_key)]
    assert found(index, HOUR, ["x" * 1025]) == []
