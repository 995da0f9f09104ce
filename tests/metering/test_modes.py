"""Live, dry-run and shadow: how far a run goes."""

from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from metering_dagster.settings import Mode
from tests.items import (
    ACCOUNT,
    DIMENSION,
    HOUR,
    LICENSE,
    OTHER_ACCOUNT,
    OTHER_LICENSE,
    a_subscriber,
    a_usage,
    an_aggregate,
    an_allocation,
    some_usage,
)
from tests.world import World

NEXT_HOUR = "2026-11-28T11"


def foretold(world: World, hour: str = HOUR) -> list[dict]:
    """What the ledger says would have been billed, whichever run said so."""
    files = (Path(world.settings.ledger_uri) / f"hour={hour}").glob("*.parquet")
    entries = [entry for file in files for entry in pq.ParquetFile(file).read().to_pylist()]
    assert {entry["mode"] for entry in entries} <= {"shadow"}
    return [entry for entry in entries if entry["outcome"] == "WouldBill"]


def an_hour_of_every_kind(world: World) -> None:
    """Rows and records of all that an hour may hold."""
    world.put(
        *some_usage("3", "3", "3", "1"),
        a_usage(0, "5", dimension="fraction", allocations=[an_allocation("4.5", team="a"), an_allocation("0.5")]),
        *some_usage(*["1"] * 120, dimension="large"),
        a_usage(0, "1", dimension="held"), a_usage(1, {"S": "abc"}, dimension="held"),
        a_usage(0, "0", dimension="zero"),
        a_usage(0, "7", dimension="misfiled"), a_usage(1, "1", dimension="misfiled", filed=NEXT_HOUR),
        a_usage(0, "8", hour=NEXT_HOUR, dimension="elsewhere"),
        a_usage(0, "2", dimension="bad key", customerAWSAccountId=OTHER_ACCOUNT),
        *some_usage("9999999999", "1", dimension="too large"),
        a_usage(0, "2", license="legacy", dimension="old", customerIdentifier="customer-one"),
        a_usage(0, "6", license=OTHER_LICENSE, account=OTHER_ACCOUNT),
        an_aggregate("10", dimension="direct"), an_aggregate("-1", dimension="wrong"),
        an_aggregate("4", dimension="crashed"), *some_usage("1", "3", dimension="crashed"),
        a_subscriber(productCode="product-one"),
    )  # fmt: skip


@pytest.mark.case("shadow_beside_live")
def test_shadow_writes_to_no_table_and_foretells_the_bill(world):
    an_hour_of_every_kind(world)
    world.configure(mode=Mode.SHADOW)
    before = world.dump()
    outcome = world.meter()
    assert outcome.success
    assert outcome.metadata["metered_usage"]["mode"] == "shadow"
    assert world.dump() == before
    assert world.calls() == []
    entries = foretold(world)
    world.configure(mode=Mode.LIVE)
    assert world.meter().success
    assert sorted(
        (e["license_arn"], e["dimension"], e["customer_identifier"] or "", e["quantity"]) for e in entries
    ) == sorted(
        (r.license_arn or "legacy", r.dimension, r.customer_identifier or "", Decimal(r.quantity)) for r in world.bill()
    )
    assert {e["customer_aws_account_id"] for e in entries} == {ACCOUNT, OTHER_ACCOUNT}


@pytest.mark.case("shadow_beside_live")
def test_shadow_says_in_its_metadata_what_it_would_have_done(world):
    world.put(*some_usage("3", "1"), a_usage(0, {"S": "x"}, dimension="bad"), an_aggregate("-1", dimension="wrong"))
    world.configure(mode=Mode.SHADOW)
    outcome = world.meter()
    assert outcome.metadata["aggregated_usage"]["committed_groups"] == 1
    assert outcome.metadata["aggregated_usage"]["rejected"] == {"NonNumericQuantity": 1}
    assert outcome.metadata["metered_usage"]["dimensions"] == {DIMENSION: "4"}
    assert outcome.metadata["metered_usage"]["statuses"]["WouldBill"] == 1


@pytest.mark.case("shadow_beside_live")
def test_shadow_foretells_what_mending_a_group_fault_will_bill(world):
    world.put(*some_usage("5000000000", "5000000000"))
    world.visit()
    world.put(a_usage(1, "4"))
    world.configure(mode=Mode.SHADOW)
    before = world.dump()
    world.meter()
    assert world.dump() == before
    assert [entry["quantity"] for entry in foretold(world)] == [Decimal(5000000004)]
    world.configure(mode=Mode.LIVE)
    world.visit()
    assert world.billed() == {DIMENSION: "5000000004"}


@pytest.mark.case("shadow_beside_live")
def test_shadow_of_an_hour_that_another_pipeline_has_sent_foretells_nothing(world):
    world.put(an_aggregate("10", status="Success"), *some_usage("4", "6"))
    world.configure(mode=Mode.SHADOW)
    before = world.dump()
    assert world.meter().success
    assert foretold(world) == []
    assert world.dump() == before


@pytest.mark.case("shadow_beside_live")
def test_a_second_shadow_run_says_it_again_by_itself(world):
    world.put(*some_usage("4", "6"))
    world.configure(mode=Mode.SHADOW)
    world.meter()
    world.meter()
    assert len(foretold(world)) == len({entry["run_id"] for entry in foretold(world)}) == 2


def test_shadow_needs_no_right_to_write_anything_but_its_ledger(world):
    world.put(*some_usage("4", "6"))
    world.configure(mode=Mode.SHADOW)
    requests = []
    for client in (world.deployment.tables.usage.client, world.deployment.tables.subscribers.client):
        client.meta.events.register("before-call.dynamodb", lambda model, **_: requests.append(model.name))
    assert world.meter().success
    assert set(requests) == {"Query", "BatchGetItem", "DescribeTable"}


def test_a_ledger_that_cannot_be_written_fails_the_shadow_run(world, tmp_path):
    (tmp_path / "file").write_text("in the way")
    world.put(*some_usage("4", "6"))
    world.configure(mode=Mode.SHADOW, ledger_uri=str(tmp_path / "file" / "ledger"))
    outcome = world.meter()
    assert "METERING_LEDGER_URI" in outcome.message
    assert "Mend the place or the permissions" in outcome.message
    assert world.row_statuses() == {"pending": 2}


def test_dry_run_ends_every_row_and_calls_nothing(world):
    world.put(*some_usage("3", "3", "3", "1"), an_aggregate("2", dimension="direct"))
    world.configure(mode=Mode.DRY_RUN)
    outcome = world.meter()
    assert outcome.success
    assert world.row_statuses() == {"Aggregated": 4}
    assert world.record_statuses() == {"DryRunSubmitted": 2}
    assert world.calls() == []
    assert outcome.metadata["metered_usage"]["mode"] == "dry-run"
    assert outcome.metadata["metered_usage"]["statuses"] == {"DryRunSubmitted": 2}
    assert outcome.metadata["metered_usage"]["dimensions"] == {DIMENSION: "10", "direct": "2"}
    assert outcome.metadata["metered_usage"]["calls"] == 0


def test_dry_run_rejects_what_live_rejects(world):
    world.put(a_usage(0, "-1"), an_aggregate("-1", dimension="direct"))
    world.configure(mode=Mode.DRY_RUN)
    outcome = world.meter()
    assert world.row(0)["meteringStatusReason"] == "NegativeQuantity"
    assert world.aggregate(dimension="direct")["meteringStatusReason"] == "NegativeQuantity"
    assert outcome.metadata["metered_usage"]["rejected"] == {"NegativeQuantity": 1}


def test_dry_run_takes_no_slot_of_the_quota(world):
    world.put(an_aggregate("2"))
    world.configure(mode=Mode.DRY_RUN)
    world.visit()
    assert not [item for item in world.dump()["aggregated"] if item["licenseArn"].endswith("#quota")]


def test_live_does_all_of_it(world):
    an_hour_of_every_kind(world)
    outcome = world.meter()
    assert outcome.success
    assert outcome.metadata["metered_usage"]["mode"] == "live"
    billed = {(record.license_arn or "legacy", record.dimension): record.quantity for record in world.bill()}
    assert billed == {
        (LICENSE, DIMENSION): "10", (LICENSE, "fraction"): "5", (LICENSE, "large"): "120", (LICENSE, "misfiled"): "8",
        (LICENSE, "direct"): "10", (LICENSE, "crashed"): "4", ("legacy", "old"): "2", (OTHER_LICENSE, DIMENSION): "6",
    }  # fmt: skip
    assert world.row_statuses() == {
        "Aggregated": 4 + 1 + 120 + 2 + 1 + 1 + 2, "RejectedClientSide": 1 + 1 + 2, "pending": 3,
    }  # fmt: skip
