"""The subscribers table as the lifecycle reads and writes it: never over what was not read."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from metering_dagster.core.errors import UnreachableError
from metering_dagster.licenses.rules.lifecycle import SubscriberRow
from metering_dagster.licenses.rules.lifecycle_event import EventKind, LifecycleEvent
from metering_dagster.licenses.services.connections import subscribers_of
from metering_dagster.licenses.services.event_application import Effect, apply_event
from tests.items import ACCOUNT, LICENSE, OTHER_ACCOUNT, OTHER_LICENSE, a_subscriber
from tests.licenses.bodies import AGREEMENT

AT = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
EVENT = LifecycleEvent(EventKind.UPDATED, AT, LICENSE, ACCOUNT, AGREEMENT, "2027-01-01T00:00:00Z", "product-one")
DEPROVISIONED = replace(EVENT, kind=EventKind.DEPROVISIONED)
NOW, LATER = "2026-11-28T12:20:00Z", "2026-11-28T12:30:00Z"


def test_a_row_that_is_made_holds_all_that_the_event_says(world):
    assert apply_event(subscribers_of(world.deployment), EVENT) is Effect.APPLIED
    assert world.item(a_subscriber()) == {
        "licenseArn": LICENSE, "customerAWSAccountId": ACCOUNT, "subscriptionStatus": "active",
        "agreementStatus": "active", "agreementId": AGREEMENT, "endTime": "2027-01-01T00:00:00Z",
        "productCode": "product-one", "createdAt": NOW, "updatedAt": NOW,
        "agreementEventTimes": dict.fromkeys(
            ["agreementId", "agreementStatus", "endTime", "productCode"], "2026-11-28T12:00:00+00:00"
        ),
    }  # fmt: skip


def test_what_others_keep_in_a_row_stays_and_it_is_made_only_once(world):
    world.put(a_subscriber(createdAt="2026-01-01T00:00:00Z", note="kept", seats={"N": "5"}))
    world.at(LATER)
    assert apply_event(subscribers_of(world.deployment), DEPROVISIONED) is Effect.APPLIED
    row = world.item(a_subscriber())
    assert (row["createdAt"], row["updatedAt"], row["note"], row["seats"]) == ("2026-01-01T00:00:00Z", LATER, "kept", 5)


def test_an_event_that_changes_nothing_writes_nothing(world):
    assert apply_event(subscribers_of(world.deployment), EVENT) is Effect.APPLIED
    before = world.dump()
    world.at(LATER)
    assert apply_event(subscribers_of(world.deployment), EVENT) is Effect.UNCHANGED
    assert world.dump() == before


def test_fields_of_an_agreement_that_is_followed_by_another_are_removed(world):
    subscribers = subscribers_of(world.deployment)
    apply_event(subscribers, EVENT)
    apply_event(subscribers, replace(EVENT, time=AT.replace(hour=13), agreement_id="agmt-next", end_time=None))
    row = world.item(a_subscriber())
    assert row["agreementId"] == "agmt-next"
    assert "endTime" not in row
    assert "endTime" not in row["agreementEventTimes"]


@pytest.mark.parametrize("attribute", [
    "subscriptionStatus", "agreementStatus", "agreementId", "endTime", "productCode", "deprovisioningPendingFlag",
    "deprovisioningExpiry", "agreementEventTimes",
])  # fmt: skip
@pytest.mark.parametrize("change", ["set", "removed"])
def test_a_row_that_is_no_longer_what_was_read_is_not_written(world, attribute, change):
    full = dict.fromkeys(("agreementId", "endTime", "productCode", "deprovisioningExpiry"), "some")
    whole = a_subscriber(
        **full, deprovisioningPendingFlag="1", agreementEventTimes={"M": {"endTime": {"S": "2026-11-28T00:00:00Z"}}}
    )
    without = a_subscriber(**{**{name: whole.values[name] for name in whole.values}, attribute: None})
    before, after = (without, whole) if change == "set" else (whole, without)
    world.put(before)
    subscribers = subscribers_of(world.deployment)
    (found,) = subscribers.rows_of(EVENT)
    assert found.row is not None
    world.put(after)
    standing = world.dump()
    assert subscribers.write(found, replace(found.row, subscription_status="inactive", end_time="x")) is False
    assert world.dump() == standing


def test_a_row_that_was_deleted_meanwhile_is_not_made_again(world):
    world.put(a_subscriber(subscriptionStatus=None, agreementStatus=None))
    subscribers = subscribers_of(world.deployment)
    (found,) = subscribers.rows_of(EVENT)
    world.delete(a_subscriber())
    assert subscribers.write(found, SubscriberRow(LICENSE, ACCOUNT, "active")) is False
    assert world.dump()["subscribers"] == []


def test_a_row_that_was_made_meanwhile_is_not_made_again(world):
    subscribers = subscribers_of(world.deployment)
    (found,) = subscribers.rows_of(EVENT)
    assert (found.row, found.key) == (None, (LICENSE, ACCOUNT))
    world.put(a_subscriber(subscriptionStatus="inactive"))
    assert subscribers.write(found, SubscriberRow(LICENSE, ACCOUNT, "active")) is False


def test_a_row_that_changes_meanwhile_is_read_and_decided_again(events, engine):
    rival = a_subscriber(subscriptionStatus="inactive", agreementStatus="active")
    events.world.put(a_subscriber())
    events.meanwhile(lambda n: events.world.put(rival) if n == 1 else None)
    waits = []
    subscribers = subscribers_of(events.world.deployment)
    assert apply_event(subscribers, DEPROVISIONED, wait=waits.append) is Effect.UNCHANGED
    assert events.row()["subscriptionStatus"] == "inactive"
    assert waits == [1]


def test_a_row_that_never_stands_still_is_given_up_in_words(events, engine):
    events.meanwhile(lambda n: events.world.put(a_subscriber(productCode=f"product-{n}")))
    with pytest.raises(
        UnreachableError, match=r"license \*{4}cdef .* changed each of the 8 times it was read"
    ) as error:
        apply_event(subscribers_of(events.world.deployment), EVENT, wait=lambda _: None)
    assert LICENSE not in str(error.value)


def test_values_of_other_types_count_as_absent_and_are_replaced(world):
    odd = {"N": "5"}
    world.put(a_subscriber(subscriptionStatus=odd, endTime=odd, productCode={"NULL": True},
                           agreementEventTimes={"S": "odd"}, agreementStatus={"L": []}))  # fmt: skip
    assert apply_event(subscribers_of(world.deployment), EVENT) is Effect.APPLIED
    row = world.item(a_subscriber())
    assert (row["subscriptionStatus"], row["endTime"], row["productCode"]) == ("active", EVENT.end_time, "product-one")
    assert row["agreementStatus"] == "active"
    assert apply_event(subscribers_of(world.deployment), EVENT) is Effect.UNCHANGED


def test_instants_that_do_not_parse_count_as_absent(world):
    world.put(a_subscriber(agreementEventTimes={"M": {
        "endTime": {"S": "soon"}, "agreementStatus": {"N": "1"}, "other": {"S": "2999-01-01T00:00:00Z"},
    }}))  # fmt: skip
    assert apply_event(subscribers_of(world.deployment), EVENT) is Effect.APPLIED
    assert set(world.item(a_subscriber())["agreementEventTimes"].values()) == {"2026-11-28T12:00:00+00:00"}


def keys_of(world, **named) -> list[tuple[str, str]]:
    event = replace(EVENT, **{"license_arn": None, "account": None, **named})
    return sorted(found.key for found in subscribers_of(world.deployment).rows_of(event) if found.row)


def test_rows_are_found_by_key_by_license_and_by_agreement(world):
    world.put(
        a_subscriber(agreementId=AGREEMENT), a_subscriber(account=OTHER_ACCOUNT),
        a_subscriber(OTHER_LICENSE, agreementId=AGREEMENT), a_subscriber(f"{LICENSE}0", agreementId="another"),
    )  # fmt: skip
    assert keys_of(world, license_arn=LICENSE, account=ACCOUNT) == [(LICENSE, ACCOUNT)]
    assert keys_of(world, license_arn=LICENSE) == [(LICENSE, ACCOUNT), (LICENSE, OTHER_ACCOUNT)]
    assert keys_of(world) == [(OTHER_LICENSE, ACCOUNT), (LICENSE, ACCOUNT)]
    assert keys_of(world, agreement_id="nobody's") == []


def test_every_page_of_an_agreement_is_read(world):
    world.put(*(a_subscriber(f"{LICENSE}{number}", agreementId=AGREEMENT) for number in range(7)))

    def hook(params, **_):
        return {**params, "Limit": 2}

    client = world.deployment.tables.subscribers.client
    client.meta.events.register("provide-client-params.dynamodb.Query", hook)
    assert len(keys_of(world)) == 7


def test_an_event_of_an_agreement_reaches_all_of_its_licenses(world):
    world.put(*(a_subscriber(f"{LICENSE}{number}", agreementId=AGREEMENT) for number in range(3)))
    ended = LifecycleEvent(EventKind.ENDED, AT, agreement_id=AGREEMENT)
    assert apply_event(subscribers_of(world.deployment), ended) is Effect.APPLIED
    assert {row["agreementStatus"] for row in world.dump()["subscribers"]} == {"inactive"}


@pytest.mark.parametrize("kind", [EventKind.ENDED, EventKind.AMENDED, EventKind.UPDATED, EventKind.DEPROVISIONED])
def test_an_event_of_an_unknown_agreement_is_about_nobody(world, kind):
    world.put(a_subscriber(agreementId="another"))
    before = world.dump()
    event = LifecycleEvent(kind, AT, agreement_id=AGREEMENT)
    assert apply_event(subscribers_of(world.deployment), event) is Effect.NOBODY
    assert world.dump() == before


def test_the_write_that_never_happens_writes_nothing(world):
    world.put(a_subscriber(), a_subscriber("-", "-"))
    before = world.dump()
    subscribers_of(world.deployment).try_write()
    assert world.dump() == before
