"""Many licenses end at once, and one ends beside many others: how many requests that takes."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metering_dagster.licenses.services.finalization import close_windows
from metering_dagster.licenses.services.flush_search import need_of_flush
from metering_dagster.licenses.stores.open_windows import ClosingStore
from tests.items import LICENSE, OTHER_LICENSE, a_deprovisioning, a_usage
from tests.world import World

EXPIRY = "2026-11-28T13:15:00Z"
PENDING = ("2026-11-28T09", "2026-11-28T10", "2026-11-28T11")
LICENSES = 200
HOURS = 24
"""That can be billed at the world's instant, with the current one."""


@contextmanager
def counted(world: World) -> Iterator[Counter[str]]:
    """What the pipeline asks of DynamoDB within, by operation; Queries of the index of what is pending apart."""
    tables, asked = world.deployment.tables, Counter[str]()

    def count(params, model, **_):
        pending = params.get("IndexName") == "metering_pending"
        asked["pending index" if pending else model.name] += 1

    clients = {id(client): client for client in (tables.usage.client, tables.subscribers.client)}
    for client in clients.values():
        client.meta.events.register("provide-client-params.dynamodb", count)
    yield asked
    for client in clients.values():
        client.meta.events.unregister("provide-client-params.dynamodb", count)


def close(world: World):
    subscribers = world.deployment.tables.subscribers
    store = ClosingStore(subscribers.client, subscribers.name)
    return close_windows(store, world.deployment.tables, lambda bucket, losses: None)


@pytest.mark.case("five_thousand_windows")
def test_licenses_that_end_at_once_are_flushed_and_closed_in_a_handful_of_requests_an_hour(world):
    licenses = [f"{LICENSE}{number:04}" for number in range(LICENSES)]
    world.put(*(a_deprovisioning(EXPIRY, each, productCode="product") for each in licenses))
    world.put(*(a_usage(0, "2", license=each, hour=hour) for hour in PENDING for each in licenses))
    world.put(*(a_usage(0, "9", license=f"{each}x", hour=PENDING[0]) for each in licenses))
    with counted(world) as asked:
        assert world.flush().success
    assert Counter(record.hour for record in world.bill()) == dict.fromkeys(PENDING, LICENSES)
    assert world.row_statuses() == {"Aggregated": 3 * LICENSES, "pending": LICENSES}
    assert len(world.calls()) == 3 * LICENSES / 25
    assert asked["pending index"] < 2 * HOURS + 20 * len(PENDING), "and not one for each license"
    assert asked["BatchGetItem"] < 20 * len(PENDING) * LICENSES / 100
    assert asked["Query"] < 1.5 * len(PENDING) * LICENSES, "each group's rows once"
    world.put(*(a_usage(5, "4", license=each, hour=PENDING[2], dimension="late") for each in licenses[::2]))
    world.at(EXPIRY)
    with counted(world) as asked:
        done = close(world)
    assert [len(done.closed), done.still_open] == [LICENSES, 0]
    assert sum(loss.quantity for loss in done.losses) == 4 * LICENSES / 2
    assert asked["pending index"] <= 2 * HOURS + 2
    assert asked["UpdateItem"] == LICENSES
    assert asked["BatchGetItem"] < 20 * LICENSES / 100


@pytest.mark.case("five_thousand_windows")
def test_a_license_that_ends_beside_many_others_is_read_by_itself(world):
    mine = f"{LICENSE}0100x"
    world.put(a_deprovisioning(EXPIRY, mine))
    world.put(
        *(a_usage(0, "9", license=f"{LICENSE}{number:04}", hour=hour) for hour in PENDING for number in range(300))
    )
    world.put(*(a_usage(0, "2", license=mine, hour=hour) for hour in PENDING))
    world.with_pages_of(20)
    read = []

    def hear(parsed, **_):
        read.append(parsed["ScannedCount"])

    world.deployment.tables.usage.client.meta.events.register("after-call.dynamodb.Query", hear)
    assert need_of_flush(world.deployment.indexes, world.clock.now, 60).pending is not None
    with counted(world) as asked:
        assert world.flush().success
    assert sorted(record.hour for record in world.bill()) == sorted(PENDING)
    assert {record.license_arn for record in world.bill()} == {mine}
    assert max(read) == 1, "nothing of the others is read"
    assert asked["pending index"] < 2 * HOURS + 20 * len(PENDING), "and not every page of the others"
    world.at(EXPIRY)
    with counted(world) as asked:
        assert len(close(world).closed) == 1
    assert asked["pending index"] <= 2 * HOURS + 2


@pytest.mark.case("five_thousand_windows")
def test_few_licenses_that_end_far_apart_take_no_more_requests_than_each_by_itself(world):
    mine = [f"{LICENSE}{number:04}x" for number in (10, 150, 151, 280)]
    world.put(*(a_deprovisioning(EXPIRY, each, productCode="product") for each in mine))
    world.put(*(a_usage(0, "9", license=f"{LICENSE}{number:04}", hour=PENDING[0]) for number in range(300)))
    world.put(*(a_usage(0, "2", license=each, hour=PENDING[0]) for each in mine), a_usage(0, license=OTHER_LICENSE))
    world.with_pages_of(20)
    with counted(world) as asked:
        found = list(world.deployment.tables.usage.pending_rows(PENDING[0], mine))
    assert [row.license_arn for row in found] == mine
    assert asked["pending index"] <= len(mine)
    assert world.flush().success
    assert sorted(record.license_arn for record in world.bill()) == mine
