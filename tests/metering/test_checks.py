"""What the checks of an hour say, by partition, after real runs."""

import dagster as dg
import pytest

from metering_dagster.devstack.sandbox import faults
from metering_dagster.ledger.rules.entries import EntryKind
from metering_dagster.ledger.stores.files import Ledger
from metering_dagster.metering.defs import checks
from tests.items import HOUR, a_subscriber, a_usage, an_aggregate, some_usage
from tests.world import LAST_CALL, World

ALL = {*checks.AGGREGATED, *checks.METERED}
WARN, ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR


def failed(outcome) -> set[str]:
    return {name for name, evaluation in outcome.checks.items() if not evaluation.passed}


def test_an_ordinary_hour_passes_every_check_of_its_partition(world: World):
    world.put(*some_usage("3", "4.5"), a_subscriber())
    outcome = world.meter()
    assert outcome.success
    assert set(outcome.checks) == ALL
    assert failed(outcome) == set()


def test_an_empty_hour_passes_as_well(world: World):
    outcome = world.meter()
    assert set(outcome.checks) == ALL
    assert failed(outcome) == set()


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("quantity_conserved", ERROR), ("no_rejected_rows", WARN), ("no_late_usage", WARN), ("all_submitted", ERROR),
        ("no_conflicting_duplicates", ERROR), ("all_subscribed", WARN), ("hour_closed", WARN),
    ],
)  # fmt: skip
def test_each_check_has_its_severity(world: World, name: str, severity: dg.AssetCheckSeverity):
    assert world.meter().checks[name].severity is severity


def test_a_rejected_row_warns_and_the_held_rest_keeps_the_hour_open(world: World):
    world.put(a_usage(0, "4"), a_usage(1, {"S": "abc"}))
    outcome = world.meter()
    assert outcome.success
    assert failed(outcome) == {"no_rejected_rows", "hour_closed"}
    assert outcome.checks["hour_closed"].metadata["pending_rows"].value == 1
    assert outcome.checks["hour_closed"].metadata["next_cutoff"].value == "2026-11-29T10:00Z"
    assert "mended" in outcome.checks["no_rejected_rows"].description


def test_a_rejection_of_an_earlier_run_is_not_forgotten(world: World):
    world.put(a_usage(0, {"S": "abc"}))
    assert "no_rejected_rows" in failed(world.meter())
    world.put(a_usage(0, "5", dimension="another"))
    assert "no_rejected_rows" in failed(world.meter())


def test_a_rejection_is_forgotten_once_the_row_is_mended(world: World):
    world.put(a_usage(0, {"S": "abc"}))
    world.meter()
    world.put(a_usage(0, "5"))
    outcome = world.meter()
    assert failed(outcome) == set()
    assert world.billed() == {"api_calls": "5"}


def test_late_usage_warns_in_this_run_and_in_every_later_one(world: World):
    world.put(a_usage(0, "10"))
    world.meter()
    world.put(a_usage(1, "5"))
    outcome = world.meter()
    assert failed(outcome) == {"no_late_usage"}
    assert outcome.checks["no_late_usage"].metadata["late_quantity"].value == 5.0
    assert failed(world.meter()) == {"no_late_usage"}


@pytest.mark.case("non_success_is_never_success")
def test_what_is_no_success_shows_in_a_check_and_stays_there(world: World):
    stranger = a_usage(0, "2", account="777788889999")
    world.sandbox.configure(unsubscribed=["777788889999"])
    world.put(a_usage(0, "1"), stranger, a_usage(0, "9", dimension="twice"))
    world.meter()
    world.put(an_aggregate("8", dimension="twice"))
    outcome = world.meter()
    assert failed(outcome) == {"no_conflicting_duplicates", "all_subscribed"}
    assert failed(world.meter()) == {"no_conflicting_duplicates", "all_subscribed"}


def test_what_is_left_fails_the_check_and_the_run(world: World):
    world.sandbox.inject(faults.error("ThrottlingException"))
    world.put(a_usage(0, "4"))
    outcome = world.meter()
    assert not outcome.success
    assert failed(outcome) == {"all_submitted", "hour_closed"}
    assert "ThrottlingException" in outcome.checks["all_submitted"].description


def test_zero_waits_and_says_so_until_its_last_call(world: World):
    world.put(a_usage(0, "0"))
    assert failed(world.meter()) == {"hour_closed"}
    world.at(LAST_CALL)
    assert failed(world.meter()) == set()


@pytest.mark.parametrize("committed", [True, False])
def test_usage_found_too_late_under_another_hour_fails_the_check_and_the_ledger_of_its_own(world: World, committed):
    lost_in = "2026-11-28T09" if committed else "2026-11-27T12"  # metered already, or past its window
    if committed:
        world.put(a_usage(0, "2", hour=lost_in))
        world.meter(lost_in)
    world.put(a_usage(5, "3", hour=lost_in, filed=HOUR), a_usage(0, "1"))
    outcome = world.meter(HOUR)
    assert failed(outcome) == set()
    late = outcome.elsewhere["no_late_usage"]
    assert (late.partition, late.passed, late.metadata["late_rows"].value) == (lost_in, False, 1)
    ledger = Ledger(str(world.settings.ledger_uri))
    assert [e.sort_key for e in ledger.read_hour(lost_in) if e.kind == EntryKind.ROW] == [
        a_usage(5, hour=lost_in).sort_key
    ]
    assert [e.kind for e in ledger.read_hour(HOUR)] == [EntryKind.RECORD]
    if committed:
        assert "no_late_usage" in failed(world.meter(lost_in)), "the hour's own next run remembers it"


@pytest.mark.parametrize(
    ("hour", "clock", "closes"),
    [
        ("2026-11-29T20", "2026-12-01T00:30:00Z", "2026-12-01T02:00Z"),  # 28 back, in the month's grace
        ("2026-11-30T01", "2026-12-01T00:30:00Z", "2026-12-01T06:00Z"),
        ("2026-11-28T10", "2026-11-29T08:30:00Z", "2026-11-29T10:00Z"),
    ],
)
def test_the_next_cutoff_lies_ahead_also_in_the_months_grace(world: World, hour: str, clock: str, closes: str):
    world.at(clock)
    world.sandbox.inject(faults.error("ThrottlingException"))
    world.put(a_usage(0, "4", hour=hour))
    outcome = world.meter(hour, ignore_lock=True)
    assert outcome.checks["hour_closed"].metadata["next_cutoff"].value == closes
    assert closes in outcome.message


def test_a_refused_hour_answers_no_check(world: World):
    world.at(f"{HOUR}:30:00Z")
    outcome = world.meter()
    assert not outcome.success
    assert outcome.checks == {}


def test_a_lost_ledger_costs_the_memory_and_not_the_run(world: World):
    world.put(a_usage(0, "10"))
    world.meter()
    world.put(a_usage(1, "5"))
    world.meter()
    world.configure(ledger_uri=str(world.folder / "another"))
    outcome = world.meter()
    assert outcome.success
    assert failed(outcome) == set()


def test_what_an_hour_was_billed_stays_on_its_page_after_a_run_with_nothing_to_do(world: World):
    world.put(*some_usage("3", "4.5"), an_aggregate("-1", dimension="broken"))
    first = world.meter().metadata["metered_usage"]
    again = world.meter().metadata["metered_usage"]
    assert (first["billed_quantity"], first["billed_in_this_run"]) == (7.5, 7.5)
    assert (again["billed_quantity"], again["billed_in_this_run"]) == (7.5, 0.0)
    assert first["dagster/partition_row_count"] == again["dagster/partition_row_count"] == 2


def test_an_hour_that_the_service_refuses_is_not_all_submitted(world: World):
    world.sandbox.configure(dimensions=["another"])
    world.put(a_usage(0, "4"))
    outcome = world.meter()
    assert outcome.success
    assert failed(outcome) == {"all_submitted"}
    assert "InvalidUsageDimensionException" in outcome.checks["all_submitted"].description
    assert failed(world.meter()) == {"all_submitted"}


def test_a_ledger_that_cannot_be_written_stops_no_billing(world: World):
    (world.folder / "file").write_text("in the way")
    world.configure(ledger_uri=str(world.folder / "file" / "ledger"))
    world.put(a_usage(0, "4", dimension="held"), a_usage(1, "-1", dimension="held"), a_usage(0, "7", dimension="good"))
    outcome = world.meter()
    assert not outcome.success
    assert "METERING_LEDGER_URI" in outcome.message
    assert world.billed() == {"good": "7"}


@pytest.mark.parametrize("place", ["x" * 300, "gs://bucket/ledger", "hdfs://host/ledger"])
def test_a_ledger_at_a_place_that_can_be_none_stops_no_billing(world: World, place):
    world.configure(ledger_uri=place)
    world.put(a_usage(0, "7"))
    outcome = world.meter()
    assert not outcome.success
    assert "METERING_LEDGER_URI" in outcome.message
    assert world.billed() == {"api_calls": "7"}


def test_a_broken_file_in_the_ledger_stops_no_billing(world: World):
    folder = world.folder / "ledger" / f"hour={HOUR}"
    folder.mkdir(parents=True)
    (folder / "broken.parquet").write_bytes(b"")
    world.put(a_usage(0, "7"))
    outcome = world.meter()
    assert outcome.success
    assert world.billed() == {"api_calls": "7"}
