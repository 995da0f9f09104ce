"""The asset of the age-out by its job: what it shows, logs, keeps in the ledger, and refuses."""

from decimal import Decimal

import dagster as dg
import pytest

from metering_dagster.core import hours
from metering_dagster.definitions import build_defs
from metering_dagster.expiry.services.sweep_report import MOST_LINES, OTHERS, Sweep
from metering_dagster.ledger.stores.files import Ledger
from metering_dagster.reporting.services.daily_report import draw, lines_of_hour, table_of_day
from metering_dagster.settings import Mode
from tests.expiry.sweeping import OLD, OLDER, SHARD, age_out
from tests.items import OTHER_LICENSE, a_usage, an_aggregate, some_usage


def test_what_was_lost_shows_by_hour_and_dimension(world):
    world.put(
        *some_usage("3", "0.5", hour=OLD), a_usage(0, "2", hour=OLDER, license=OTHER_LICENSE),
        an_aggregate("7", hour=OLDER, dimension="direct 444455556666"),
    )  # fmt: skip
    swept = age_out(world)
    assert swept.success
    shown = swept.metadata
    assert (shown["mode"], shown["expired_rows"], shown["expired_records"], shown["lost_quantity"]) == (
        "live", 3, 1, 12.5,
    )  # fmt: skip
    assert shown["lost"] == [
        {"hour": OLD, "dimension": "api_calls", "rows": 2, "records": 0, "quantity": "3.5"},
        {"hour": OLDER, "dimension": "api_calls", "rows": 1, "records": 0, "quantity": "2"},
        {"hour": OLDER, "dimension": "direct ****6666", "rows": 0, "records": 1, "quantity": "7"},
    ]
    assert shown["lost_by_dimension"][0] == {"dimension": "api_calls", "rows": 3, "records": 0, "quantity": "5.5"}
    assert shown["hours_with_something_pending"] == 2
    assert swept.warnings == [
        f"{OLD}: 2 raw rows and 0 records can no longer be billed, 3.5 together",
        f"{OLDER}: 1 raw rows and 1 records can no longer be billed, 9 together",
    ]


def test_late_and_rejected_rows_show_masked(world):
    world.put(
        an_aggregate("1", hour=OLD, status="Success"), a_usage(0, "4", hour=OLD),
        a_usage(1, "3", hour=OLD, sort_key="one#two", filed=OLD), a_usage(0, "9", filed=OLD),
        an_aggregate("1", dimension="filed wrongly", meteringPending=OLD),
    )  # fmt: skip
    shown = age_out(world).metadata
    assert (shown["late_rows"], shown["late_quantity"], shown["expired_rows"], shown["refiled_rows"]) == (1, 3.0, 0, 1)
    assert shown["rejected_by_reason"] == [
        {"reason": "MalformedSortKey", "count": 1}, {"reason": "SortKeyMismatch", "count": 1},
    ]  # fmt: skip
    assert "late by 3: the group was committed without it" in shown["notes"]


def test_a_shard_materialized_by_hand_sweeps_everything(world, monkeypatch):
    monkeypatch.setattr(hours, "OLDEST_OFFSET", 30 * 24)
    far = hours.bucket(hours.shard_hours(SHARD, world.clock.now)[60])
    world.put(a_usage(0, "5", hour=far))
    assert age_out(world, whole=False).metadata["expired_rows"] == 0
    job = build_defs(settings=world.settings, resources={"metering": world.deployment}).resolve_job_def("age_out")
    with dg.DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(partition_key=str(SHARD), instance=instance).success  # no config at all
    assert world.row_statuses() == {"AggregationExpired": 1}


def test_a_run_that_waited_meets_the_hours_of_its_tick(world):
    at_the_tick = hours.bucket(hours.shard_hours(SHARD, world.clock.now)[0])
    world.put(a_usage(0, "5", hour=at_the_tick))
    world.at("2026-11-28T13:40:00Z")
    assert age_out(world).metadata["expired_rows"] == 0
    assert age_out(world, as_of="2026-11-28T12").metadata["expired_rows"] == 1


def test_each_hour_has_its_file_in_the_ledger(world):
    world.put(a_usage(0, "5", hour=OLD), a_usage(0, "6", hour=OLDER), an_aggregate("7", hour=OLDER, dimension="direct"))
    swept = age_out(world)
    ledger = Ledger(world.settings.ledger_uri)
    assert [(e.kind, e.outcome, e.quantity) for e in ledger.read_hour(OLD)] == [("row", "AggregationExpired", 5)]
    assert sorted((e.kind, e.outcome, e.quantity) for e in ledger.read_hour(OLDER)) == [
        ("record", "SubmissionExpired", Decimal(7)), ("row", "AggregationExpired", Decimal(6)),
    ]  # fmt: skip
    for bucket in (OLD, OLDER):
        assert [path.rsplit("/", 1)[-1] for path in ledger.files_of(bucket)] == [
            f"{swept.run_id}-expired_usage.parquet"
        ]


def test_the_days_report_draws_what_expired(world):
    world.put(a_usage(0, "5", hour=OLD), an_aggregate("7", hour=OLD, dimension="direct"))
    age_out(world)
    lines = lines_of_hour(Ledger(world.settings.ledger_uri), OLD)
    assert {(line.kind, line.outcome, line.quantity) for line in lines} == {
        ("row", "AggregationExpired", 5), ("record", "SubmissionExpired", 7),
    }  # fmt: skip
    assert draw(OLD[:10], table_of_day(lines))


def test_a_sweep_that_found_nothing_leaves_no_file(world):
    assert age_out(world).metadata["hours_with_something_pending"] == 0
    assert list(world.folder.rglob("*.parquet")) == []


def test_shadow_mode_writes_nothing_at_all_and_says_what_it_would(world):
    world.put(a_usage(0, "5", hour=OLD))
    world.configure(mode=Mode.SHADOW)
    before = world.dump()
    swept = age_out(world)
    assert world.dump() == before
    assert swept.metadata["expired_rows"] == 1
    assert swept.warnings == [
        f"{OLD}: 1 raw rows and 0 records can no longer be billed, 5 together (shadow mode: nothing was written)"
    ]
    assert list(world.folder.rglob("*.parquet")) == []


def test_a_ledger_that_cannot_be_written_ends_no_sweep_and_is_told(world, tmp_path):
    (tmp_path / "file").write_text("in the way")
    world.put(a_usage(0, "5", hour=OLD), a_usage(0, "6", hour=OLDER))
    world.configure(ledger_uri=str(tmp_path / "file" / "ledger"))
    swept = age_out(world)
    assert world.row_statuses() == {"AggregationExpired": 2}
    assert "METERING_LEDGER_URI" in swept.message
    assert swept.metadata["expired_rows"] == 2


def test_a_sweep_that_breaks_off_says_what_was_lost_until_then(world):
    world.put(a_usage(0, "5", hour=OLD), a_usage(0, "6", hour=OLDER))
    client = world.deployment.tables.usage.client

    def lose_the_table():
        client.meta.events.register(
            "before-parameter-build.dynamodb.BatchGetItem", lambda params, **_: params.update(RequestItems={"gone": {}})
        )

    world.meanwhile(lose_the_table, "TransactWriteItems")
    swept = age_out(world)
    assert not swept.success
    assert swept.metadata["expired_rows"] == 1
    assert swept.warnings[0].startswith(f"{OLD}: 1 raw rows")
    assert len(Ledger(world.settings.ledger_uri).read_hour(OLD)) == 1


def test_missing_settings_are_named(world):
    world.configure(usage_table=None)
    swept = age_out(world)
    assert "USAGE_TABLE" in swept.message


@pytest.mark.parametrize("as_of", ["0001-01-02T00", "2025-01-01T00", "2027-05-03T00"])
def test_an_hour_that_no_sweep_could_have_ticked_in_is_refused(world, as_of):
    assert "no hour of the last 400 days" in age_out(world, as_of=as_of).message


@pytest.mark.parametrize("as_of", ["yesterday", "2026-11-28"])
def test_an_hour_that_is_none_is_refused(world, as_of):
    world.put(a_usage(0, "5", hour=OLD))
    swept = age_out(world, as_of=as_of)
    assert f"not an hour bucket (YYYY-MM-DDTHH): '{as_of}'. Nothing was read or written" in swept.message
    assert world.row_statuses() == {"pending": 1}


@pytest.mark.parametrize("shard", ["7", "-1", "one"])
def test_an_unknown_shard_is_refused(world, shard):
    world.put(a_usage(0, "5", hour=OLD))
    with pytest.raises(dg.DagsterUnknownPartitionError, match=shard):
        age_out(world, shard)
    assert world.row_statuses() == {"pending": 1}


def test_hours_and_dimensions_beyond_the_table_are_counted_together():
    report = Sweep()
    for number in range(MOST_LINES + 5):
        report.lose(OLD, f"d{number}", rows=1, quantity=Decimal("0.1"))
    assert len(report.lost) == MOST_LINES + 1
    assert (report.lost[OTHERS].rows, report.lost[OTHERS].quantity) == (5, Decimal("0.5"))
    assert report.total.quantity == Decimal("0.1") * (MOST_LINES + 5)
