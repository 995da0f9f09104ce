"""Any raw row: it costs its own group at most, and the hour beside it is billed to the unit.

Belongs here: items of the usage table, of every type in every attribute and with any key. Does not: what each fault is
called (tests/metering/test_raw_row.py).
"""

from decimal import Decimal

from hypothesis import assume, example, given
from hypothesis import strategies as st

from metering_dagster.metering.rules.statuses import RawStatus, Reason
from tests.hostile.effort import examples
from tests.hostile.secrets import (
    ACCOUNT,
    IDENTIFIER,
    LICENSE,
    OTHER_ACCOUNT,
    OTHER_LICENSE,
    PASSWORD,
    assert_nothing_leaks,
)
from tests.hostile.stored import ALLOCATIONS, TEXT, VALUES
from tests.hostile.tiny_world import TinyWorld
from tests.items import HOUR, Item, a_usage
from tests.world import World

GOOD, HOSTILE = "good_calls", "hostile_calls"
LAST_CALL, EXPIRED = "2026-11-29T08:20:00Z", "2026-11-30T12:20:00Z"
LICENSES = st.sampled_from([
    LICENSE, OTHER_LICENSE, "product-code", "arn:", "arn:aws:x", "metering-dagster#commit#2026-11-28T10#00",
    "metering-dagster#quota", "p" * 1000, LICENSE.replace("arn:", "ARN:"), "é",
]) | TEXT  # fmt: skip
NAMELESS = TEXT.filter(lambda text: not any(secret in text for secret in (IDENTIFIER, PASSWORD)))
"""Hypothesis draws constants of these files as well, and a key's dimension is no secret whoever bears its name."""
PARTS = NAMELESS | st.sampled_from([ACCOUNT, OTHER_ACCOUNT, HOSTILE, GOOD, "d" * 300])
TIMES_OF_KEYS = st.sampled_from([
    f"{HOUR}:00:00", f"{HOUR}:59:59", f"{HOUR}:61:00", HOUR, "2026-11-28T11:00:00", "2026-11-27T11:00:00",
    "9999-12-31T23:59:59", "0001-01-01T00:00:00", "0000-00-00T00:00:00", "2026-02-30T10:00:00", f"{HOUR}:00:00Z", "",
    "2025-01-01T00:00:00", "2026-11-28T24:00:00",
]) | NAMELESS  # fmt: skip
KEYS = st.tuples(PARTS, PARTS, TIMES_OF_KEYS).map("#".join) | NAMELESS
ATTRIBUTES = st.fixed_dictionaries({}, optional={
    "customerAWSAccountId": VALUES, "dimension": VALUES, "timestamp": VALUES, "quantity": VALUES,
    "usageAllocations": ALLOCATIONS, "customerIdentifier": VALUES, "meteringStatus": VALUES,
    "meteringStatusReason": VALUES, "createdAt": VALUES, "updatedAt": VALUES, "ttl": VALUES, "more": VALUES,
})  # fmt: skip


@st.composite
def rows(draw: st.DrawFn) -> Item:
    """A row that is filed under the hour: a good one with some things changed, or one of which nothing is right."""
    hashed, ranged = draw(LICENSES), draw(KEYS)
    whole = draw(st.booleans())
    good = a_usage(draw(st.integers(0, 3599)), "2", license=LICENSE, account=ACCOUNT, dimension=HOSTILE).values
    values = dict(good) if whole else {"licenseArn": {"S": hashed}, "meteringPending": {"S": HOUR}}
    if not whole:
        values["customerAWSAccountId_dimension_timestamp"] = {"S": ranged}
    values |= draw(ATTRIBUTES)
    return Item("usage", values)


def good_rows() -> list[Item]:
    return [a_usage(n, "1.5", license=LICENSE, account=ACCOUNT, dimension=GOOD) for n in (0, 7)]


def is_beside(item: Item) -> bool:
    """Whether it is no row of the good group's own, which it may hold or add to."""
    key = item.values["customerAWSAccountId_dimension_timestamp"]["S"]
    return not (item.values["licenseArn"]["S"] == LICENSE and key.startswith(f"{ACCOUNT}#{GOOD}#"))


def put(world: TinyWorld, hostile: list[Item]) -> None:
    """Write what DynamoDB itself takes."""
    for item in hostile:
        try:
            world.put(item)
        except world.tables.client().exceptions.ClientError:
            assume(False)


def assert_every_row_has_an_end(world: TinyWorld) -> None:
    for item in world.items("usage"):
        if "meteringPending" not in item:
            assert item["meteringStatus"] in {status.value for status in RawStatus}
            if item["meteringStatus"] == RawStatus.REJECTED:
                assert item["meteringStatusReason"] in set(Reason)


@examples(120)
@given(st.lists(rows(), min_size=1, max_size=4).filter(lambda items: all(map(is_beside, items))))
@example([a_usage(0, "1", license="metering-dagster#commit#2026-11-28T10#00", account=ACCOUNT, dimension=GOOD)])
@example([a_usage(0, "1", license="metering-dagster#quota", account=ACCOUNT, dimension=GOOD)])
def test_a_row_of_any_kind_keeps_no_other_group_from_being_billed(hostile):
    world = TinyWorld()
    put(world, hostile)
    if len(hostile) == 1:
        world.meter(HOUR)  # it comes first, and whatever is made of it is there when the others come
    world.put(*good_rows())
    words = world.meter(HOUR)
    assert world.billed()[LICENSE, GOOD] == "3", words
    assert_every_row_has_an_end(world)
    world.meter(HOUR)
    world.clock.now = world.clock.now.fromisoformat(LAST_CALL)
    world.meter(HOUR)
    bill = world.marketplace.bill()
    world.clock.now = world.clock.now.fromisoformat(EXPIRED)
    assert not world.age_out(HOUR).faults
    assert world.marketplace.bill() == bill
    assert not [item for item in world.items("usage") if item.get("meteringPending") == HOUR], world.said
    assert_every_row_has_an_end(world)
    assert_nothing_leaks(*world.said)


@examples(60)
@given(VALUES, ALLOCATIONS, st.sampled_from(["quantity", "usageAllocations", "customerIdentifier", "timestamp"]))
def test_a_row_that_is_refused_stays_as_it_was_but_for_its_end(value, allocations, name):
    world = TinyWorld()
    item = a_usage(0, "1", license=LICENSE, account=ACCOUNT)
    item.values[name] = allocations if name == "usageAllocations" else value
    world.put(item)
    before = world.items("usage")[0]
    world.meter(HOUR)
    after = world.items("usage")[0]
    ours = ("meteringPending", "meteringStatus", "meteringStatusReason", "updatedAt")
    assert {n: v for n, v in after.items() if n not in ours} == {n: v for n, v in before.items() if n not in ours}
    used = after["quantity"] if after.get("meteringStatus") == RawStatus.AGGREGATED else Decimal(0)
    assert sum((Decimal(q) for q in world.billed().values()), Decimal(0)) == used


@examples(2, shrink=False)
@given(st.lists(rows().filter(is_beside), min_size=10, max_size=25, unique_by=lambda item: repr(item.values)))
def test_rows_of_any_kind_on_the_emulator(world: World, hostile):
    world.configure(quantities=world.settings.quantities)
    for item in hostile:
        # The emulator takes keys that DynamoDB does not; those that the model refuses are left out.
        try:
            put(TinyWorld(), [item])
        except BaseException as refused:
            if type(refused).__name__ != "UnsatisfiedAssumption":
                raise
            continue
        world.client.put_item(TableName=world.names["usage"], Item=item.values)
    world.put(*good_rows())
    world.visit(HOUR)
    assert ("3", GOOD) in {(line.quantity, line.dimension) for line in world.bill()}
