"""The day's report: sums, picture, asset, schedule."""

import base64
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import dagster as dg
import pytest

from metering_dagster.definitions import build_defs
from metering_dagster.ledger.rules.entries import Entry, EntryKind, EntryOutcome
from metering_dagster.ledger.stores.files import Ledger
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.reporting.defs.assets import days_of_tick, digest_of_day, hours_of
from metering_dagster.reporting.services.daily_report import Line, draw, lines_of_hour, table_of_day
from metering_dagster.settings import Mode, Settings

DAY, HOUR = "2026-11-28", "2026-11-28T10"
PNG = b"\x89PNG\r\n"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(str(tmp_path / "ledger"))


def tell(ledger: Ledger, run: str, *entries: Entry, hour: str = HOUR) -> None:
    with ledger.file(hour, run, "live", run) as file:
        for entry in entries:
            file.tell(entry)


def an_entry(
    kind: EntryKind, outcome: EntryOutcome, quantity: str, dimension: str = "api-calls", **more: object
) -> Entry:
    return Entry(kind.value, outcome.value, "license", "account", dimension, Decimal(quantity), **more)


def lines(ledger: Ledger) -> set[tuple[str, str, int, Decimal]]:
    return {(line.kind, line.outcome, line.entries, line.quantity) for line in lines_of_hour(ledger, HOUR)}


def test_an_hour_that_the_ledger_does_not_know_has_no_lines(ledger: Ledger) -> None:
    assert lines_of_hour(ledger, HOUR) == []


def test_records_are_added_up_exactly_by_dimension_and_outcome(ledger: Ledger) -> None:
    tell(ledger, "a", *(an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, "0.1", f"d{n}") for n in range(3)))
    assert sorted(lines_of_hour(ledger, HOUR)) == [
        Line(HOUR, f"d{n}", "record", "Success", 1, Decimal("0.1")) for n in range(3)
    ]


def test_of_a_record_sent_again_only_the_last_answer_is_shown(ledger: Ledger) -> None:
    tell(ledger, "z", an_entry(EntryKind.RECORD, EntryOutcome.NOT_SUBSCRIBED, "4"))
    tell(ledger, "a", an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, "4"))
    assert lines(ledger) == {("record", "Success", 1, Decimal(4))}


def test_a_held_group_is_shown_until_a_record_replaces_it(ledger: Ledger) -> None:
    tell(ledger, "a", an_entry(EntryKind.GROUP, EntryOutcome.HELD, "9"))
    assert lines(ledger) == {("group", "Held", 1, Decimal(9))}
    tell(ledger, "b", an_entry(EntryKind.GROUP, EntryOutcome.HELD, "12"))
    assert lines(ledger) == {("group", "Held", 1, Decimal(12))}
    tell(ledger, "c", an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, "13"))
    assert lines(ledger) == {("record", "Success", 1, Decimal(13))}


def test_late_rows_show_what_the_bill_lacks(ledger: Ledger) -> None:
    tell(ledger, "a", an_entry(EntryKind.ROW, EntryOutcome.LATE, "9", late_by=Decimal(5)),
         an_entry(EntryKind.ROW, EntryOutcome.REJECTED, "2"))  # fmt: skip
    assert lines(ledger) == {("row", "LateUsage", 1, Decimal(5)), ("row", "RejectedClientSide", 1, Decimal(2))}


@pytest.mark.parametrize("dimensions", [0, 1, 12])
def test_a_day_is_drawn_whatever_is_in_it(dimensions: int) -> None:
    found = [Line(HOUR, f"d{n}", "record", "Success", 1, Decimal(n)) for n in range(dimensions)]
    found += [
        Line(HOUR, "d", "row", outcome.value, 2, Decimal(1)) for outcome in (EntryOutcome.LATE, EntryOutcome.REJECTED)
    ]
    assert draw(DAY, table_of_day(found)).startswith(PNG)


def test_today_and_until_six_yesterday_are_looked_after() -> None:
    assert days_of_tick(datetime(2026, 12, 1, 5, 50, tzinfo=UTC)) == ["2026-12-01", "2026-11-30"]
    assert days_of_tick(datetime(2026, 12, 1, 6, 50, tzinfo=UTC)) == ["2026-12-01"]
    assert days_of_tick(datetime(2026, 12, 1, 22, 50, tzinfo=UTC)) == ["2026-12-01"]
    assert days_of_tick(datetime(2026, 12, 1, 23, 50, tzinfo=UTC)) == ["2026-12-01", "2026-11-30"]
    assert len(hours_of(DAY)) == 24


def test_the_digest_changes_with_each_file(ledger: Ledger) -> None:
    assert digest_of_day(ledger, DAY) == ""
    tell(ledger, "a", an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, "4"))
    one = digest_of_day(ledger, DAY)
    tell(ledger, "b", an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, "4"), hour="2026-11-28T23")
    assert "" != one != digest_of_day(ledger, DAY)


class TestInDagster:
    """The asset and its schedule beside a real instance."""

    @pytest.fixture
    def settings(self, ledger: Ledger) -> Settings:
        return Settings(mode=Mode.LIVE, ledger_uri=ledger.uri)

    def refresh(self, settings: Settings, instance: dg.DagsterInstance) -> dict[str, dg.MetadataValue]:
        with dg.partition_loading_context(effective_dt=datetime(2026, 11, 29, 1, 0, tzinfo=UTC)):
            job = build_defs(settings=settings).resolve_job_def("refresh_report")
            config = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
            result = job.execute_in_process(partition_key=DAY, instance=instance, run_config=config)
        (event,) = result.get_asset_materialization_events()
        return dict(event.materialization.metadata)

    def tick(self, settings: Settings, instance: dg.DagsterInstance, at: datetime) -> list[str] | str:
        schedule = build_defs(settings=settings).get_repository_def().get_schedule_def("metering_report_daily")
        resources = {"metering": Deployment(settings)}
        with dg.build_schedule_context(instance=instance, scheduled_execution_time=at, resources=resources) as context:
            answer = schedule(context)
        return answer.skip_message if isinstance(answer, dg.SkipReason) else [r.partition_key for r in answer]

    def test_the_report_shows_a_picture_and_a_table(self, ledger, settings, instance) -> None:
        tell(
            ledger,
            "a",
            an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, "4.5"),
            an_entry(EntryKind.RECORD, EntryOutcome.LATE, "1", "b"),
        )
        shown = self.refresh(settings, instance)
        picture = shown["picture"].value.split("base64,")[1].rstrip(")")
        assert base64.b64decode(picture).startswith(PNG)
        assert {record.data["quantity"] for record in shown["table"].records} == {"4.5", "1"}
        assert shown["records_Success"].value == 1

    def test_a_day_without_entries_says_so(self, settings, instance) -> None:
        assert "nothing" in self.refresh(settings, instance)

    def test_the_schedule_skips_what_has_been_seen_and_asks_for_what_is_new(self, ledger, settings, instance) -> None:
        at = datetime(2026, 11, 28, 14, 50, tzinfo=UTC)
        assert self.tick(settings, instance, at) == "Nothing new was written to the ledger of 2026-11-28."
        tell(ledger, "a", an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, "4"))
        assert self.tick(settings, instance, at) == [DAY]
        self.refresh(settings, instance)
        assert isinstance(self.tick(settings, instance, at), str)
        tell(ledger, "b", an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, "5"))
        assert self.tick(settings, instance, at) == [DAY]

    def test_what_a_terminal_or_a_page_would_act_on_is_escaped_in_the_report(self, ledger, settings, instance) -> None:
        nasty = ("wipe\x1b[2J\x07\r\nline", "not $math^$")
        tell(ledger, "a", *(an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, "4.5", dimension) for dimension in nasty))
        shown = self.refresh(settings, instance)
        assert {record.data["dimension"] for record in shown["table"].records} == {
            "not $math^$", r"wipe\x1b[2J\x07\r\nline",
        }  # fmt: skip
