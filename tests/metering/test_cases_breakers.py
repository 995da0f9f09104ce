"""Inputs that once stopped or misled the pipeline, found by trying to break it: the whole kind of each must hold."""

import pytest

from metering_dagster.devstack.sandbox import faults
from tests.items import ACCOUNT, HOUR, LICENSE, OTHER_ACCOUNT, OTHER_LICENSE, a_subscriber, a_usage, an_aggregate
from tests.world import World

LARGE = {"S": "x" * 390_000}


def some_good_rows(count: int = 10) -> list:
    return [a_usage(0, "1", dimension=f"good-{number}") for number in range(count)]


def test_a_dozen_large_bad_rows_stop_no_neighbor(world: World):
    world.put(*some_good_rows(), *(a_usage(0, LARGE, dimension=f"bad-{number}") for number in range(12)))
    world.visit()
    assert world.row_statuses() == {"Aggregated": 10, "RejectedClientSide": 12}
    assert len(world.bill()) == 10


def test_a_dozen_rows_with_much_of_the_sellers_own_are_billed(world: World):
    world.put(*some_good_rows(), *(a_usage(second, "1", customerIdentifier="x" * 390_000) for second in range(12)))
    world.visit()
    assert world.row_statuses() == {"Aggregated": 22}
    assert len(world.bill()) == 11


def test_a_dozen_large_bad_aggregates_stop_no_neighbor(world: World):
    world.put(*(an_aggregate("1", dimension=f"good-{number}") for number in range(10)),
              *(an_aggregate(LARGE, dimension=f"bad-{number}") for number in range(12)))  # fmt: skip
    world.visit()
    assert world.record_statuses() == {"Success": 10, "RejectedClientSide": 12}


def test_a_mended_legacy_group_is_billed_whole(world: World):
    rows = [a_usage(n, "10", license="legacy-product", customerIdentifier="customer-a") for n in range(5)]
    odd = a_usage(5, "10", license="legacy-product", customerIdentifier="customer-b")
    world.put(*rows, odd)
    world.visit()
    assert world.row_statuses() == {"RejectedClientSide": 6}
    world.put(a_usage(5, "10", license="legacy-product", customerIdentifier="customer-a"))
    world.visit()
    assert world.billed() == {"api_calls": "60"}
    assert world.row_statuses() == {"Aggregated": 6}


def test_two_accounts_of_one_legacy_customer_are_told(world: World):
    """The service knows the customer alone: the second record would be the first again, and not be billed."""
    world.put(*(a_usage(0, "7", license="legacy-product", account=account, customerIdentifier="customer-a")
                for account in (ACCOUNT, OTHER_ACCOUNT)))  # fmt: skip
    visit = world.visit()
    assert world.record_statuses() == {"Success": 1}
    assert world.row_statuses() == {"Aggregated": 1, "RejectedClientSide": 1}
    assert visit.aggregation.rejected == {"MissingLegacyIdentifier": 1}


@pytest.mark.parametrize("odd", [{"BOOL": True}, {"N": "1"}, {"L": [{"NULL": True}]}, {"M": {}}])
def test_a_legacy_customer_that_is_no_text_is_nobody(world: World, odd: dict):
    world.put(a_usage(0, "7", license="legacy-product", customerIdentifier=odd),
              an_aggregate("3", license="legacy-product", dimension="direct", customerIdentifier=odd))  # fmt: skip
    world.visit()
    assert world.bill() == []
    assert world.row()["meteringStatusReason"] if world.row() else True
    assert world.row_statuses() == {"RejectedClientSide": 1}
    assert world.record_statuses() == {"RejectedClientSide": 1}


def test_an_index_that_lags_behind_the_commits_is_waited_for(world: World):
    world.put(*some_good_rows(30))
    hidden = 3

    def hide(parsed: dict, **_: object) -> None:
        """The next few looks at the aggregated table's index see nothing."""
        nonlocal hidden
        if hidden and any("account_dimension_hour" in item for item in parsed.get("Items", [])):
            hidden -= 1
            parsed.update(Items=[], Count=0)

    world.deployment.tables.aggregated.client.meta.events.register("after-call.dynamodb.Query", hide)
    outcome = world.meter()
    assert outcome.success
    assert hidden == 0
    assert len(world.bill()) == 30


def test_an_index_that_never_shows_the_commits_fails_the_run(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("metering_dagster.core.aws.dynamodb.pause", lambda attempt: 0.0)
    world.put(*some_good_rows(3))

    def hide(parsed: dict, **_: object) -> None:
        if any("account_dimension_hour" in item for item in parsed.get("Items", [])):
            parsed.update(Items=[], Count=0)

    world.deployment.tables.aggregated.client.meta.events.register("after-call.dynamodb.Query", hide)
    outcome = world.meter()
    assert not outcome.success
    assert "does not show them yet" in outcome.message
    assert "metered_usage" not in outcome.metadata


def test_one_products_trouble_starves_no_other(world: World):
    world.sandbox.configure(licenses={LICENSE: "product-a", OTHER_LICENSE: "product-b"})
    world.put(a_subscriber(productCode="product-a"), a_subscriber(license=OTHER_LICENSE, productCode="product-b"))
    for license in (LICENSE, OTHER_LICENSE):
        world.put(*(an_aggregate("1", license=license, dimension=f"d-{number:03}") for number in range(250)))
    world.sandbox.inject(faults.error("InternalServiceErrorException", license_arn=LICENSE))
    world.visit()
    assert world.record_statuses() == {"Success": 250, "pending": 250}
    assert {record.license_arn for record in world.bill()} == {OTHER_LICENSE}


def test_a_service_that_is_down_stops_the_run_before_all_is_tried(world: World):
    world.put(*(an_aggregate("1", dimension=f"d{number:04}") for number in range(900)))
    world.sandbox.inject(faults.error("InternalServiceErrorException"))
    world.visit()
    assert world.record_statuses() == {"pending": 900}
    assert len(world.calls()) < 36 * 5


def test_a_buyer_in_a_dimension_is_masked_as_anywhere(world: World):
    arn = LICENSE
    for number, dimension in enumerate((f"{ACCOUNT}#api", arn, f"for {ACCOUNT}")):
        world.put(a_usage(number, {"S": "abc"}, dimension=dimension), a_usage(number, "1", dimension=f"{dimension} ok"))
    outcome = world.meter()  # it looks through everything that was written for any buyer's data
    assert outcome.success
    assert ACCOUNT not in outcome.said
    assert arn not in outcome.said


def test_an_aggregate_that_is_written_again_during_the_run_leaves_no_green_hour(world: World):
    world.put(an_aggregate("4"))
    again = iter(range(5, 100))
    client = world.deployment.marketplace.client
    client.meta.events.register(
        "after-call.marketplace-metering.BatchMeterUsage", lambda **_: world.put(an_aggregate(str(next(again))))
    )
    outcome = world.meter()
    assert not outcome.success
    assert "written again" in outcome.message
    assert world.billed() == {"api_calls": "4"}


def test_the_wrong_table_gives_no_green_hour(world: World):
    world.configure(usage_table=world.names["aggregated"], aggregated_usage_table=world.names["usage"])
    outcome = world.meter(HOUR)
    assert not outcome.success
    assert "its key is" in outcome.message


@pytest.mark.parametrize("mended", [
    {"dimension": "other"}, {"customerAWSAccountId": "x"}, {"hourBucket": "2026-11-28T11"},
    {"allocations": [{"AllocatedUsageQuantityAsDecimal": "3"}]},
])  # fmt: skip
def test_an_aggregate_that_is_mended_while_it_is_judged_is_not_rejected(world: World, mended):
    allocations = mended.pop("allocations", None)
    broken = an_aggregate("10", allocations=allocations)
    broken.values.update({name: {"S": value} for name, value in mended.items()})
    world.put(broken)
    world.meanwhile(lambda: world.put(an_aggregate("10")))
    world.visit()
    assert world.record_statuses() == {"Success": 1}
    assert world.billed() == {"api_calls": "10"}
