"""The identities of legacy records, whatever engine they lie on."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import pytest

from metering_dagster.core.aws import dynamodb
from metering_dagster.core.aws.transactions import Fate, transact
from metering_dagster.core.hours import parse_bucket
from metering_dagster.metering.rules import own_item_keys
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.raw_row import GroupKey
from metering_dagster.metering.stores.identities import identity_key
from tests.items import ACCOUNT, DIMENSION, HOUR, a_usage, an_aggregate

PRODUCT, CUSTOMER = "prodcode", "cust-1"
FIRST = Aggregate(GroupKey(PRODUCT, ACCOUNT, DIMENSION, parse_bucket(HOUR)), Decimal(5), None, CUSTOMER)
TWIN = replace(FIRST, key=replace(FIRST.key, account=""))


@pytest.fixture
def identities(world):
    return world.deployment.tables.aggregated.identities


def stored(aggregate, **changes):
    return an_aggregate("5", license=PRODUCT, account=aggregate.key.account, customerIdentifier=CUSTOMER, **changes)


def holder(world, aggregate=FIRST):
    key = dict(zip(("licenseArn", "account_dimension_hour"), identity_key(aggregate), strict=True))
    typed = {name: {"S": text} for name, text in key.items()}
    item = world.client.get_item(TableName=world.names["aggregated"], Key=typed, ConsistentRead=True)["Item"]
    assert int(dynamodb.plain(item["ttl"])) > world.clock.now.timestamp()
    assert "meteringPending" not in item
    return item["holder"]["S"]


def test_the_first_holds_it_and_passes_again(world, identities):
    for _ in range(2):
        assert not identities.claim([FIRST], world.clock.now).refused
    assert holder(world) == f"{PRODUCT}#{ACCOUNT}#{DIMENSION}#{HOUR}"


def test_a_claim_alone_is_refused_to_another(world, identities):
    client = world.deployment.tables.aggregated.client
    units = [identities.claim_unit(each, world.clock.now) for each in (FIRST, FIRST, TWIN)]
    assert [transact(client, [unit])[0] for unit in units] == [Fate.WRITTEN, Fate.WRITTEN, Fate.REFUSED]


@pytest.mark.parametrize("changes", [{}, {"status": "Success"}, {"status": "DuplicateRecord"}])
def test_a_holder_that_is_pending_or_billed_keeps_it(world, identities, changes):
    identities.claim([FIRST], world.clock.now)
    world.put(stored(FIRST, **changes))
    assert identities.claim([TWIN], world.clock.now).refused == {TWIN.key}
    assert holder(world) == f"{PRODUCT}#{ACCOUNT}#{DIMENSION}#{HOUR}"


@pytest.mark.parametrize("status", ["RejectedClientSide", "CustomerNotSubscribed", "SubmissionExpired", None])
def test_a_holder_that_ended_unbilled_yields(world, identities, status):
    identities.claim([FIRST], world.clock.now)
    if status:
        world.put(stored(FIRST, status=status))
    assert not identities.claim([TWIN], world.clock.now).refused
    assert holder(world) == f"{PRODUCT}##{DIMENSION}#{HOUR}"


def test_a_holder_whose_commit_stands_keeps_it_without_its_aggregate(world, identities):
    identities.claim([FIRST], world.clock.now)
    hash_key, range_key = own_item_keys.commit_key(FIRST.key)
    commit = {"licenseArn": {"S": hash_key}, "account_dimension_hour": {"S": range_key}}
    world.client.put_item(TableName=world.names["aggregated"], Item=commit)
    assert identities.claim([TWIN], world.clock.now).refused == {TWIN.key}


def test_a_holder_that_is_sent_again_meanwhile_keeps_it(world, identities):
    identities.claim([FIRST], world.clock.now)
    world.put(stored(FIRST, status="CustomerNotSubscribed"))
    world.meanwhile(lambda: world.put(stored(FIRST)), table="aggregated")
    assert identities.claim([TWIN], world.clock.now).refused == {TWIN.key}


def test_many_are_claimed_at_once(world, identities):
    many = [
        replace(FIRST, customer_identifier=f"cust-{n}", key=replace(FIRST.key, account=f"{n:012d}")) for n in range(150)
    ]
    claimed = identities.claim(many, world.clock.now)
    assert not claimed.refused
    assert not claimed.undecided
    assert holder(world, many[-1]) == f"{PRODUCT}#{149:012d}#{DIMENSION}#{HOUR}"


def test_twins_that_claim_together_are_told_apart(world, identities):
    world.put(stored(FIRST), stored(TWIN))
    assert identities.claim([FIRST, TWIN], world.clock.now).refused == {FIRST.key}, "in the order of their keys"
    assert holder(world) == f"{PRODUCT}##{DIMENSION}#{HOUR}"


def test_of_two_that_claim_at_once_one_is_refused(world, identities):
    world.put(stored(FIRST), stored(TWIN))
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda a: identities.claim([a], world.clock.now), (FIRST, TWIN)))
    assert len(done[0].refused | done[1].refused) == 1


def test_a_claim_that_is_held_costs_no_write_and_one_of_a_license_nothing_at_all(world, identities):
    identities.claim([FIRST], world.clock.now)
    world.meanwhile(lambda: pytest.fail("nothing to write"), table="aggregated")
    identities.claim([FIRST], world.clock.now)
    world.meanwhile(lambda: pytest.fail("nothing to read"), "BatchGetItem", table="aggregated")
    arn = replace(FIRST, key=replace(FIRST.key, license_arn=a_usage().values["licenseArn"]["S"]))
    assert not identities.claim([arn], world.clock.now).refused
