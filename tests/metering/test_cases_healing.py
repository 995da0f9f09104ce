"""Cases: aggregates that are gone, tables that were restored, what another pipeline left, twins, long keys."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from botocore.exceptions import ClientError

from metering_dagster.core.hours import parse_bucket
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.devstack.sandbox import faults
from metering_dagster.metering.services import aggregation, hour_run
from metering_dagster.metering.services.aggregation import aggregate
from metering_dagster.metering.stores import aggregated_table
from metering_dagster.settings import Mode
from tests.conftest import MINISTACK
from tests.items import (
    ACCOUNT,
    DIMENSION,
    HOUR,
    LICENSE,
    OTHER_ACCOUNT,
    a_usage,
    an_aggregate,
    an_allocation,
    some_usage,
)
from tests.world import LAST_CALL, World

LEGACY = "legacy-product"
MADE, BEFORE, AFTER = "2026-11-28T11:05:00Z", "2026-11-28T10:30:00Z", "2026-11-28T11:20:00Z"


def committed_unsent(world: World) -> None:
    """Aggregate the hour and do not send it."""
    world.sandbox.inject(faults.error("ThrottlingException"))
    world.visit()
    world.sandbox.inject()
    assert world.bill() == []


def own_items(world: World) -> list[dict]:
    """Items of our own in the aggregated table, the quota's apart."""
    items = [item for item in world.dump()["aggregated"] if item["licenseArn"].startswith("metering-dagster#")]
    return [item for item in items if item["licenseArn"] != "metering-dagster#quota"]


def restore(world: World, items: list[dict]) -> None:
    """Have the aggregated table as it stood: everything that came later is gone."""
    table = world.names["aggregated"]
    for item in world.client.scan(TableName=table)["Items"]:
        key = {name: item[name] for name in ("licenseArn", "account_dimension_hour")}
        world.client.delete_item(TableName=table, Key=key)
    for item in items:
        world.client.put_item(TableName=table, Item=item)


# Deleted aggregates.


@pytest.mark.case("aggregate_deleted")
def test_rows_written_again_after_the_refused_aggregate_was_deleted_are_billed(world: World):
    rows = some_usage("3", "4")
    world.put(*rows)
    world.sandbox.inject(faults.error("InvalidUsageDimensionException"))
    world.visit()
    assert world.record_statuses() == {"RejectedClientSide": 1}
    world.sandbox.inject()
    world.delete(an_aggregate())
    world.put(*rows)
    world.visit()
    assert world.billed() == {DIMENSION: "7"}
    assert world.row_statuses() == {"Aggregated": 2}
    world.judge()


@pytest.mark.case("aggregate_deleted")
@pytest.mark.parametrize("sent", [False, True])
def test_an_aggregate_that_was_deleted_is_put_back_at_the_hours_last_visit(world: World, sent: bool):
    world.put(*some_usage("3", "4"))
    if sent:
        world.visit()
    else:
        committed_unsent(world)
    world.delete(an_aggregate())
    world.visit()
    assert world.aggregates() == []  # no row is pending, and the last visit has not come
    world.at(LAST_CALL)
    seen = world.visit()
    assert seen.aggregation.put_back == 1
    assert world.billed() == {DIMENSION: "7"}
    assert world.record_statuses() == {"Success": 1}
    world.judge()


@pytest.mark.case("aggregate_deleted")
def test_an_aggregate_is_put_back_where_a_row_of_its_group_is_pending(world: World):
    world.put(*some_usage("3", "4"))
    committed_unsent(world)
    world.delete(an_aggregate())
    world.put(a_usage(9, "2"))
    seen = world.visit()
    assert (seen.aggregation.put_back, seen.aggregation.late) == (1, 2)
    assert world.billed() == {DIMENSION: "7"}
    world.judge()


@pytest.mark.case("aggregate_deleted")
def test_an_aggregate_deleted_together_with_its_rows_is_withdrawn(world: World):
    rows = some_usage("3", "4")
    world.put(*rows)
    committed_unsent(world)
    for gone in (*rows, an_aggregate()):
        world.delete(gone)
    world.at(LAST_CALL)
    outcome = world.meter()
    assert outcome.success
    assert outcome.metadata["aggregated_usage"]["withdrawn_groups"] == 1
    assert "withdrawn" in outcome.metadata["aggregated_usage"]["notes"]
    assert (world.bill(), world.aggregates()) == ([], [])


@pytest.mark.case("aggregate_deleted")
def test_a_record_is_put_back_as_it_was_made(world: World):
    tagged = [a_usage(0, "5", allocations=[an_allocation("5", team="a")]), a_usage(1, "4")]
    named = a_usage(0, "3", license=LEGACY, customerIdentifier="customer-a")
    world.put(*tagged, named)
    committed_unsent(world)
    before = {(i["licenseArn"], i["quantity"]): i for i in world.aggregates()}
    world.delete(an_aggregate())
    world.delete(an_aggregate(license=LEGACY))
    world.at(LAST_CALL)
    world.visit()
    after = {(i["licenseArn"], i["quantity"]): i for i in world.aggregates()}
    assert after.keys() == before.keys()
    for key, item in before.items():
        for name in ("usageAllocations", "customerIdentifier", "quantity", "dimension"):
            assert after[key].get(name) == item.get(name)
    assert world.record_statuses() == {"Success": 2}


@pytest.mark.case("aggregate_deleted")
def test_a_record_is_put_back_beside_a_twin_that_ended_unbilled(world: World):
    """The twin, which the service takes for the same record, became the holder after the first had ended unbilled."""
    world.sandbox.configure(unsubscribed=["customer-a"])
    world.put(a_usage(0, "3", license=LEGACY, customerIdentifier="customer-a"))
    world.visit()
    world.put(a_usage(0, "5", license=LEGACY, account=OTHER_ACCOUNT, customerIdentifier="customer-a"))
    world.visit()
    assert world.record_statuses() == {"CustomerNotSubscribed": 2}
    world.delete(an_aggregate(license=LEGACY))
    world.sandbox.configure(unsubscribed=[])
    world.at(LAST_CALL)
    assert world.visit().aggregation.put_back == 1
    assert [(record.customer_identifier, record.quantity) for record in world.bill()] == [("customer-a", "3")]
    assert world.record_statuses() == {"Success": 1, "CustomerNotSubscribed": 1}


@pytest.mark.case("aggregate_deleted")
def test_a_record_put_back_and_refused_says_that_it_may_have_been_billed_before(world: World):
    """As after a deprovisioning: nobody can tell then whether the record that was gone had been billed."""
    world.put(*some_usage("3", "4"), a_usage(0, "1", dimension="other"))
    committed_unsent(world)
    world.delete(an_aggregate())
    world.delete(an_aggregate(dimension="other"))
    world.at(LAST_CALL)
    world.sandbox.inject(faults.error("InvalidTagException", dimension="other"))
    world.sandbox.configure(unsubscribed=[ACCOUNT])
    world.visit()
    assert world.aggregate()["meteringStatus"] == "CustomerNotSubscribed"
    assert "billed before" in world.aggregate()["meteringStatusReason"]
    assert world.aggregate(dimension="other")["meteringStatusReason"].startswith("InvalidTagException; ")
    assert world.bill() == []


@pytest.mark.case("aggregate_deleted")
def test_shadow_says_what_it_would_put_back_and_writes_nothing(world: World):
    world.put(*some_usage("3", "4"))
    committed_unsent(world)
    world.delete(an_aggregate())
    world.at(LAST_CALL)
    world.configure(mode=Mode.SHADOW)
    before = world.dump()
    assert world.meter().success
    assert world.dump() == before


def test_two_visits_at_once_put_an_aggregate_back_once(world: World):
    world.put(*some_usage("3", "4"))
    committed_unsent(world)
    world.delete(an_aggregate())
    world.at(LAST_CALL)
    table, now = world.deployment.tables.aggregated, world.clock.now
    (lost,) = table.lost_commits(HOUR)
    gate = threading.Barrier(2)

    def put_back(_: int) -> bool:
        gate.wait()
        return table.put_back(lost.aggregate, now)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(put_back, range(2))) == [False, True]


# Restored tables.


@pytest.mark.case("aggregated_table_restored")
@pytest.mark.parametrize("billed", [False, True])
def test_a_group_without_its_commit_is_aggregated_again_with_a_new_row(world: World, billed: bool):
    world.put(*some_usage("60", "40"))
    if billed:
        world.visit()
    else:
        committed_unsent(world)
    restore(world, [])
    world.put(a_usage(9, "3"))
    world.visit()
    assert world.aggregate()["quantity"] == 103
    assert world.billed() == {DIMENSION: "100" if billed else "103"}
    assert world.record_statuses() == {"DuplicateRecord" if billed else "Success": 1}
    assert {row["meteringStatusReason"] for row in world.rows()} == {
        "Aggregated total quantity 103 from 3 raw usage records"
    }


@pytest.mark.case("aggregated_table_restored")
def test_each_run_warns_of_a_table_that_was_created_lately(world: World):
    tables = world.deployment.tables
    created = tables.aggregated.created_at()
    assert created is not None
    words = hour_run.restored_lately(tables, created + timedelta(hours=29, minutes=59))
    assert words is not None
    assert "AGGREGATED_USAGE_TABLE" in words
    assert "restored" in words
    assert hour_run.restored_lately(tables, created + timedelta(hours=30)) is None


@pytest.mark.case("aggregated_table_restored")
def test_a_group_of_which_a_row_cannot_be_billed_is_left_as_it_is_and_named(world: World):
    world.put(a_usage(0, "-5", filed=None, meteringStatus="Aggregated"), a_usage(1, "3"))
    found = world.visit().aggregation
    assert found.left_groups == 1
    assert "NegativeQuantity" in found.notes[0]
    assert world.row_statuses() == {"Aggregated": 1, "pending": 1}
    assert world.bill() == []


def test_what_was_aggregated_before_is_read_as_others_do(world: World):
    world.put(a_usage(0, {"S": "5"}, filed=None, meteringStatus="Aggregated", timestamp="soon"), a_usage(1, "3"))
    world.visit()
    assert world.billed() == {DIMENSION: "8"}


# Another pipeline's leftovers.


@pytest.mark.case("strict_neighbour_rejected_the_group")
@pytest.mark.parametrize("reason", ["NegativeQuantity", "NonIntegerQuantity", "MixedAllocatedAndUnallocated"])
@pytest.mark.parametrize("half", [False, True])
def test_rows_that_a_stricter_pipeline_rejected_are_billed_once_the_bad_one_is_mended(
    world: World, reason: str, half: bool
):
    stamped = {"filed": None, "meteringStatus": "RejectedClientSide", "meteringStatusReason": reason}
    world.put(a_usage(0, "2", **stamped), a_usage(1, "3", **({} if half else stamped)), a_usage(2, "-1", **stamped))
    world.put(a_usage(2, "1"))
    world.visit()
    assert world.billed() == {DIMENSION: "6"}
    assert world.row_statuses() == {"Aggregated": 3}


@pytest.mark.case("others_committed_then_late")
def test_usage_beside_an_aggregate_of_others_is_late_by_one_figure(world: World):
    world.put(an_aggregate("5", status="Success", createdAt=MADE), a_usage(0, "5", updatedAt=BEFORE),
              a_usage(1, "1", updatedAt=AFTER))  # fmt: skip
    first = world.visit()
    assert (first.aggregation.late, world.row(0)["meteringStatus"]) == (1, "Aggregated")
    assert (world.row(1)["meteringStatus"], world.row(1)["lateBy"]) == ("LateUsage", 1)
    world.put(a_usage(2, "2", updatedAt=AFTER))
    assert world.visit().aggregation.late == 2
    assert world.row(2)["lateBy"] == 2
    assert world.bill() == []


@pytest.mark.case("others_counted_what_we_refuse")
@pytest.mark.parametrize("rows", [
    [a_usage(0, {"S": "5"}), a_usage(1, "3")],
    [a_usage(0, {"S": "5"}, filed=None, meteringStatus="Aggregated"), a_usage(1, "3")],
    [a_usage(0, "5", timestamp=f"{HOUR}:00:00Z"), a_usage(1, "3", timestamp=f"{HOUR}:00:01Z")],
    [a_usage(0, "5", allocations={"L": []}), a_usage(1, "3")],
    [a_usage(0, "5", customerAWSAccountId="1"),
     a_usage(1, "3", dimension="x", sort_key=f"{ACCOUNT}#{DIMENSION}#{HOUR}:00:01")],
])  # fmt: skip
def test_rows_that_others_counted_are_settled_before_they_are_judged(world: World, rows: list):
    world.put(an_aggregate("8", status="Success", createdAt=MADE), *rows)
    seen = world.visit()
    assert world.row_statuses() == {"Aggregated": 2}
    assert (seen.aggregation.late_rows, seen.discovery.settled.late_rows) == (0, 0)
    assert not seen.aggregation.rejected + seen.discovery.rejected


@pytest.mark.case("others_counted_what_we_refuse")
def test_rows_that_others_counted_are_settled_at_the_last_call_as_well(world: World):
    """There a bad row holds nothing, so its group would be committed, if it were not committed already."""
    world.put(an_aggregate("8", status="Success", createdAt=MADE), a_usage(0, {"S": "5"}), a_usage(1, "3"))
    world.at(LAST_CALL)
    seen = world.visit()
    assert world.row_statuses() == {"Aggregated": 2}
    assert not seen.aggregation.rejected


# The table's format.


@pytest.mark.case("table_keeps_the_old_format")
@pytest.mark.parametrize("quantities", list(Quantities))
def test_allocations_are_stored_as_numbers_and_sent_as_the_api_wants_them(world: World, quantities: Quantities):
    world.configure(quantities=quantities)
    world.put(a_usage(0, "5", allocations=[an_allocation("5", team="a")]), a_usage(1, "4"))
    committed_unsent(world)
    assert world.aggregate()["usageAllocations"] == [
        {"AllocatedUsageQuantity": Decimal(4)},
        {"AllocatedUsageQuantity": Decimal(5), "Tags": [{"Key": "team", "Value": "a"}]},
    ]
    world.visit()
    assert world.record_statuses() == {"Success": 1}


@pytest.mark.case("empty_allocations")
def test_a_zero_row_with_an_empty_list_holds_nothing(world: World):
    world.put(a_usage(0, "5", allocations={"L": []}), a_usage(1, "0", allocations={"L": []}), a_usage(2, "1"),
              an_aggregate("3", dimension="direct", allocations={"L": []}))  # fmt: skip
    world.visit()
    assert world.billed() == {DIMENSION: "6", "direct": "3"}


@pytest.mark.case("timestamp_spelt_otherwise")
def test_timestamps_in_any_spelling_are_billed_and_another_instant_is_a_mismatch(world: World):
    spelt = [f"{HOUR}:00:00Z", f"{HOUR}:00:01+00:00", f"{HOUR}:00:02.000Z", {"N": "1795860003"}, "soon"]
    world.put(*(a_usage(second, "5", timestamp=text) for second, text in enumerate(spelt)),
              a_usage(0, "1", dimension="off", timestamp="2026-11-28T11:00:00"))  # fmt: skip
    world.visit()
    assert world.billed() == {DIMENSION: "25"}
    assert world.row(0, dimension="off")["meteringStatusReason"] == "SortKeyMismatch"


# Keys of any length.


@pytest.mark.case("long_license_key")
@pytest.mark.parametrize("length", [1000, 1024, 1500, 2048])
def test_a_license_key_of_any_length_stops_no_neighbor(world: World, request: pytest.FixtureRequest, length: int):
    """An engine may refuse a row whose key is too long for the index, as all but ministack do: then none can be."""
    world.put(*(a_usage(0, "1", dimension=f"good-{n}") for n in range(20)))
    too_long = a_usage(0, "1", license="p" * length)
    if length > 1024 and MINISTACK not in request.node.callspec.params.values():
        with pytest.raises(ClientError, match="exceeded"):
            world.put(too_long)
    else:
        world.put(too_long)
    outcome = world.meter()
    assert {f"good-{n}" for n in range(20)} <= world.billed().keys()
    left = [item for item in (*world.rows(), *world.aggregates()) if "meteringPending" in item]
    assert bool(left) != outcome.success
    assert not left or "left" in outcome.message


@pytest.mark.case("long_license_key")
def test_a_sort_key_of_the_longest_kind_ends_in_a_state_of_its_own(world: World):
    dimension = "d" * (1024 - len(f"{ACCOUNT}##{HOUR}:00:00"))
    world.put(a_usage(0, "1"), a_usage(0, "1", dimension=dimension))
    world.visit()
    assert world.billed() == {DIMENSION: "1"}
    assert world.row(0, dimension=dimension)["meteringStatusReason"] == "DimensionTooLong"


# One group's trouble.


@pytest.mark.case("one_group_raises")
@pytest.mark.parametrize("step", ["read", "judged", "looked up", "committed", "recorded"])
def test_what_is_raised_for_one_group_leaves_that_group_alone(world: World, monkeypatch, step: str):
    world.put(*(a_usage(0, "1", dimension=f"good-{n}") for n in range(5)))
    world.put(
        a_usage(0, "1", dimension="odd"), a_usage(1, {"S": "abc"}, dimension="odd" if step == "recorded" else "x")
    )
    tables = world.deployment.tables

    def raising(function, is_odd):
        def wrapped(*arguments, **named):
            if is_odd(arguments):
                raise RuntimeError(f"something about {LICENSE}")
            return function(*arguments, **named)

        return wrapped

    if step == "read":
        read = tables.usage.group_rows
        monkeypatch.setattr(tables.usage, "group_rows", raising(read, lambda a: a[0].dimension == "odd"))
    elif step == "judged":
        judge = aggregation.judge_group
        monkeypatch.setattr(aggregation, "judge_group", raising(judge, lambda a: a[0].dimension == "odd"))
    elif step == "looked up":
        world.put(a_usage(2, "0", dimension="odd", filed=None, meteringStatus="Aggregated"))
        look = tables.aggregated.committed
        monkeypatch.setattr(
            tables.aggregated, "committed", raising(look, lambda a: any(key.dimension == "odd" for key in a[0]))
        )
    elif step == "committed":
        commit = tables.aggregated.commit
        monkeypatch.setattr(
            tables.aggregated, "commit",
            raising(commit, lambda a: any(c.aggregate.key.dimension == "odd" for c in a[0])),
        )  # fmt: skip
    else:
        write = tables.usage.write
        monkeypatch.setattr(
            tables.usage, "write", raising(write, lambda a: any("#odd#" in end.row.sort_key for end in a[0]))
        )
    outcome = world.meter()
    assert not outcome.success
    assert sorted(world.billed()) == [f"good-{n}" for n in range(5)]
    assert f"could not be {step}: RuntimeError" in outcome.message
    assert "odd" in outcome.message
    assert world.row(0, dimension="odd")["meteringPending"] == HOUR


def test_an_outage_is_not_retried_group_by_group(world: World, monkeypatch):
    world.put(*(a_usage(0, "1", dimension=f"d{n}") for n in range(200)))
    asked = 0
    usage = world.deployment.tables.usage

    def away(key):
        nonlocal asked
        asked += 1
        raise OSError("the network is away")

    monkeypatch.setattr(usage, "group_rows", away)
    seen = world.visit()
    assert seen.aggregation.failures.total == 200
    assert asked < 40  # twenty in a row, and what was under way
    assert world.row_statuses() == {"pending": 200}


# Legacy twins.


def twins(quantity: str = "5") -> list:
    return [a_usage(0, quantity, license=LEGACY, account=account, customerIdentifier="customer-a")
            for account in (ACCOUNT, "")]  # fmt: skip


@pytest.mark.case("legacy_twins")
def test_a_twin_in_a_later_run_is_rejected_at_once(world: World):
    first, second = twins()
    world.put(first)
    world.visit()
    world.put(second)
    world.visit()
    assert len(world.bill()) == 1
    assert world.item(second)["meteringStatusReason"] == "MissingLegacyIdentifier"
    assert world.row_statuses() == {"Aggregated": 1, "RejectedClientSide": 1}
    calls = len(world.calls())
    world.visit()
    assert len(world.calls()) == calls


@pytest.mark.case("legacy_twins")
def test_of_twins_that_two_runs_commit_at_once_one_is_sent(world: World):
    world.put(*twins())
    tables = world.deployment.tables
    part, _ = world.deployment.slice_of(parse_bucket(HOUR))
    buyers = [(LEGACY, ACCOUNT), (LEGACY, "")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda buyer: aggregate(tables, replace(part, buyers=frozenset([buyer]))), buyers))
    world.visit()
    assert len(world.bill()) == 1
    assert world.row_statuses() == {"Aggregated": 1, "RejectedClientSide": 1}


def test_a_holder_that_ended_unbilled_yields(world: World):
    first, second = twins()
    world.put(first)
    world.sandbox.inject(faults.error("InvalidUsageDimensionException"))
    world.visit()
    assert world.record_statuses() == {"RejectedClientSide": 1}
    world.sandbox.inject()
    world.put(second)
    world.visit()
    assert world.item(second)["meteringStatus"] == "Aggregated"
    assert len(world.bill()) == 1


def test_rows_of_two_customers_are_no_twins(world: World):
    world.put(a_usage(0, "5", license=LEGACY, customerIdentifier="customer-a"),
              a_usage(0, "5", license=LEGACY, account=OTHER_ACCOUNT, customerIdentifier="customer-b"))  # fmt: skip
    world.visit()
    assert len(world.bill()) == 2


# Commits filed by hour.


def test_the_commits_of_an_hour_are_found_by_query_and_spread_over_shards(world: World):
    world.put(*(a_usage(0, "1", dimension=f"d{n}") for n in range(60)))
    world.visit()
    commits = [i for i in own_items(world) if "#commit#" in i["licenseArn"]]
    assert len(commits) == 60
    assert len({i["licenseArn"] for i in commits}) > 8
    assert all("meteringPending" not in item for item in own_items(world))
    table = world.deployment.tables.aggregated
    assert aggregated_table.has_commits(table.client, table.name, HOUR)
    assert not aggregated_table.has_commits(table.client, table.name, "2026-11-28T09")
    assert list(table.lost_commits(HOUR)) == []


def test_the_commits_whose_aggregate_is_gone_are_named_whatever_pages_they_lie_on(world: World):
    world.put(*(a_usage(0, "1", dimension=f"d{n}") for n in range(30)))
    world.visit()
    world.with_pages_of(2)
    for n in (3, 17):
        world.delete(an_aggregate(dimension=f"d{n}"))
    found = {record.key.dimension: record for record in world.deployment.tables.aggregated.lost_commits(HOUR)}
    assert sorted(found) == ["d17", "d3"]
    assert found["d3"].aggregate is not None
    assert found["d3"].aggregate.quantity == 1
