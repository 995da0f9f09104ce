"""The subscribers table as metering and the lifecycle have it, whatever engine it lies on."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from metering_dagster.licenses.rules.lifecycle import SubscriberRow
from metering_dagster.licenses.rules.lifecycle_event import EventKind, LifecycleEvent
from metering_dagster.licenses.services.connections import subscribers_of
from tests.contracts.late_index import indexes_stand_still
from tests.items import ACCOUNT, LICENSE, OTHER_LICENSE, a_deprovisioning, a_subscriber

EXPIRY, LATER = "2026-11-28T13:00:00Z", "2026-11-28T13:30:00Z"
AGREEMENT = "agmt-one"
EVENT = LifecycleEvent(EventKind.ENDED, datetime(2026, 11, 28, 12, tzinfo=UTC), agreement_id=AGREEMENT)


@pytest.fixture
def table(world):
    return world.deployment.tables.subscribers


def windows(table):
    return {key: at and f"{at:%Y-%m-%dT%H:%M:%SZ}" for key, at in table.deprovisioning().items()}


def test_a_window_that_a_late_index_still_shows_is_as_the_table_says(world, table):
    shut, moved = a_deprovisioning(EXPIRY), a_deprovisioning(EXPIRY, OTHER_LICENSE)
    world.put(shut, moved)
    with indexes_stand_still(world):
        world.put(a_subscriber(subscriptionStatus="inactive"), a_deprovisioning(LATER, OTHER_LICENSE))
        assert windows(table) == {(OTHER_LICENSE, ACCOUNT): LATER}
        world.put(a_deprovisioning(EXPIRY, f"{LICENSE}0"))
        assert windows(table) == {(OTHER_LICENSE, ACCOUNT): LATER}, "one that was just opened is shown a little later"
    assert windows(table) == {(OTHER_LICENSE, ACCOUNT): LATER, (f"{LICENSE}0", ACCOUNT): EXPIRY}


@pytest.mark.parametrize("expiry", ["soon", None])
def test_a_window_whose_end_is_no_instant_is_open_and_one_without_is_in_no_index(world, table, expiry):
    world.put(a_deprovisioning(expiry))
    assert windows(table) == ({(LICENSE, ACCOUNT): None} if expiry else {})


def test_every_window_is_found_however_many_a_page_holds(world, table):
    world.put(*(a_deprovisioning(EXPIRY, f"{LICENSE}{number}") for number in range(110)))
    table.client.meta.events.register(
        "provide-client-params.dynamodb.Query", lambda params, **_: {**params, "Limit": 7}
    )
    assert len(table.deprovisioning()) == 110


def test_products_of_more_buyers_than_a_batch_holds(world, table):
    world.put(*(a_subscriber(f"{LICENSE}{number}", productCode=f"p{number}") for number in range(205)))
    buyers = [(f"{LICENSE}{number}", ACCOUNT) for number in range(210)]
    assert table.product_codes([*buyers, *buyers[:3], (LICENSE, "")]) == {
        buyer: f"p{number}" for number, buyer in enumerate(buyers[:205])
    }


def test_an_agreement_that_a_late_index_does_not_show_yet_is_read_as_it_stands_where_it_does(world):
    subscribers = subscribers_of(world.deployment)
    world.put(a_subscriber(agreementId=AGREEMENT, productCode="old"))
    with indexes_stand_still(world):
        world.put(
            a_subscriber(agreementId=AGREEMENT, productCode="new"), a_subscriber(OTHER_LICENSE, agreementId=AGREEMENT)
        )
        (found,) = subscribers.rows_of(EVENT)
        assert found.row is not None
        assert found.row.product_code == "new"
    assert len(subscribers.rows_of(EVENT)) == 2


def test_of_two_writers_that_read_the_same_one_writes(world):
    world.put(a_subscriber(agreementId=AGREEMENT))
    one, other = (subscribers_of(world.deployment) for _ in range(2))
    (mine,), (others,) = one.rows_of(EVENT), other.rows_of(EVENT)
    assert one.write(mine, replace(mine.row, agreement_status="inactive")) is True
    before = world.dump()
    assert other.write(others, replace(others.row, agreement_status="ended")) is False
    assert world.dump() == before


def test_of_two_writers_that_found_nothing_one_makes_the_row(world):
    named = replace(EVENT, license_arn=LICENSE, account=ACCOUNT)
    one, other = (subscribers_of(world.deployment) for _ in range(2))
    (mine,), (others,) = one.rows_of(named), other.rows_of(named)
    assert one.write(mine, SubscriberRow(LICENSE, ACCOUNT, "active")) is True
    assert other.write(others, SubscriberRow(LICENSE, ACCOUNT, "inactive")) is False
    assert world.item(a_subscriber())["subscriptionStatus"] == "active"
