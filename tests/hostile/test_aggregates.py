"""Any aggregate, and any item in the place of one of ours: it costs itself at most, and the hour beside it is billed.

Belongs here: items of the aggregated and the subscribers table, of every type in every attribute. Does not: what each
fault is called (tests/metering/test_usage_record.py).
"""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from metering_dagster.metering.rules.raw_row import OURS
from metering_dagster.metering.rules.statuses import Reason, RecordStatus
from tests.hostile.effort import examples
from tests.hostile.secrets import ACCOUNT, LICENSE, OTHER_ACCOUNT, assert_nothing_leaks
from tests.hostile.stored import ALLOCATIONS, BYTES, VALUES
from tests.hostile.test_raw_rows import EXPIRED, GOOD, HOSTILE, LICENSES, PARTS, TIMES_OF_KEYS, good_rows, put
from tests.hostile.tiny_world import TinyWorld
from tests.items import HOUR, Item, a_subscriber, a_usage, an_aggregate

KEYS = st.tuples(PARTS, PARTS, TIMES_OF_KEYS | st.just(HOUR)).map("#".join)
ATTRIBUTES = st.fixed_dictionaries({}, optional={
    "customerAWSAccountId": VALUES, "dimension": VALUES, "hourBucket": VALUES, "quantity": VALUES,
    "usageAllocations": ALLOCATIONS, "customerIdentifier": VALUES, "meteringStatus": VALUES,
    "meteringStatusReason": VALUES, "meteringRecordId": VALUES, "createdAt": VALUES, "ttl": VALUES, "more": VALUES,
})  # fmt: skip


@st.composite
def aggregates(draw: st.DrawFn) -> Item:
    """An aggregate that is filed under the hour: a good one with some things changed, or one of which nothing is."""
    if draw(st.booleans()):
        values: dict[str, Any] = dict(an_aggregate("2", license=LICENSE, account=ACCOUNT, dimension=HOSTILE).values)
    else:
        values = {"licenseArn": {"S": draw(LICENSES)}, "account_dimension_hour": {"S": draw(KEYS)}}
        values["meteringPending"] = {"S": HOUR}
    return Item("aggregated", values | draw(ATTRIBUTES))


def is_beside(item: Item) -> bool:
    key = item.values["account_dimension_hour"]["S"]
    return item.values["licenseArn"]["S"] != LICENSE or not key.startswith(f"{ACCOUNT}#{GOOD}#")


@examples(100)
@given(st.lists(aggregates().filter(is_beside), min_size=1, max_size=4))
@example([an_aggregate("1", license=OURS + "quota", account=ACCOUNT)])
def test_an_aggregate_of_any_kind_keeps_no_other_from_being_billed(hostile):
    world = TinyWorld()
    put(world, hostile)
    world.put(*good_rows(), an_aggregate("4.25", license=LICENSE, account=OTHER_ACCOUNT, dimension="direct"))
    words = world.meter(HOUR)
    assert world.billed()[LICENSE, GOOD] == "3", words
    assert world.billed()[LICENSE, "direct"] == "4.25", words
    for item in world.items("aggregated"):
        if item.get("meteringStatus") == RecordStatus.REJECTED and "meteringPending" not in item:
            assert item["meteringStatusReason"] in {*Reason} or str(item["meteringStatusReason"]).endswith("Exception")
    world.clock.now = world.clock.now.fromisoformat(EXPIRED)
    bill = world.marketplace.bill()
    assert not world.age_out(HOUR).faults
    assert world.marketplace.bill() == bill
    assert not [item for item in world.items("aggregated") if item.get("meteringPending") == HOUR], world.said
    assert_nothing_leaks(*world.said)


@examples(40)
@given(memory=VALUES | BYTES.map(lambda v: {"B": v}), quantity=VALUES, name=st.sampled_from(["counted", "quantity"]))
@example(memory={"NULL": True}, quantity={"N": "1"}, name="counted")
def test_a_damaged_memory_of_a_commit_costs_its_own_group_at_most(memory, quantity, name):
    world = TinyWorld()
    damaged = a_usage(0, "1", license=LICENSE, account=ACCOUNT, dimension=HOSTILE)
    world.put(damaged)
    world.meter(HOUR)
    client = world.tables.client()
    (ours,) = [dict(item) for item in world.tables.items("aggregated")
               if item["licenseArn"]["S"].startswith(OURS + "commit#")]  # fmt: skip
    client.put_item(TableName="aggregated", Item=ours | {name: memory if name == "counted" else quantity})
    world.put(damaged, a_usage(9, "5", license=LICENSE, account=ACCOUNT, dimension=HOSTILE), *good_rows())
    words = world.meter(HOUR)
    assert world.billed() == {(LICENSE, HOSTILE): "1", (LICENSE, GOOD): "3"}, words
    assert all("meteringPending" not in item for item in world.items("usage"))


@examples(60)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "productCode",
                "agreementId",
                "agreementStatus",
                "subscriptionStatus",
                "deprovisioningPendingFlag",
                "deprovisioningExpiry",
                "updatedAt",
                "agreementEventTimes",
                "endTime",
            ]
        ),
        VALUES | st.sampled_from([{"S": "1"}, {"S": "2026-11-28T12:25:00Z"}, {"S": "0001-01-01T00:00:00+14:00"}]),
    )
)
def test_a_subscriber_of_any_kind_keeps_nobody_from_being_billed(attributes):
    world = TinyWorld()
    subscriber = a_subscriber(LICENSE, ACCOUNT)
    subscriber.values.update(attributes)
    put(world, [subscriber])
    world.put(*good_rows())
    words = world.meter(HOUR)
    assert world.billed() == {(LICENSE, GOOD): "3"}, words
    assert_nothing_leaks(*world.said)
