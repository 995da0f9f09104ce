"""What the entries of an hour amount to."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from metering_dagster.ledger.rules.entries import Entry, EntryKind, EntryOutcome, HourSummary, standing_of

BEGIN = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


def an_entry(kind: EntryKind, outcome: EntryOutcome, minute: int = 0, **differences: object) -> Entry:
    entry = Entry(kind.value, outcome.value, "license", "account", "api-calls", Decimal(4))
    return replace(entry, at=BEGIN + timedelta(minutes=minute), **differences)


def faults_of(*entries: Entry) -> HourSummary:
    """What stands, but for how much was billed."""
    return replace(standing_of(entries), outcomes={}, billed={})


def test_nothing_stands_where_everything_was_billed() -> None:
    assert faults_of(an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS)) == HourSummary()


def test_of_a_record_sent_again_the_last_answer_counts_in_whatever_order_files_are_read() -> None:
    first, then = (
        an_entry(EntryKind.RECORD, EntryOutcome.NOT_SUBSCRIBED),
        an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, minute=5),
    )
    assert faults_of(then, first) == faults_of(first, then) == HourSummary()
    assert standing_of([first]).not_subscribed == 1


def test_records_of_other_groups_count_for_themselves() -> None:
    entries = [an_entry(EntryKind.RECORD, EntryOutcome.DUPLICATE, dimension=name) for name in ("a", "b")]
    assert standing_of(entries).duplicates == 2


def test_rejected_rows_are_remembered_by_key() -> None:
    entries = [an_entry(EntryKind.ROW, EntryOutcome.REJECTED, minute, sort_key=key) for minute, key in enumerate("aab")]
    assert standing_of(entries).rejected_rows == {("license", "a"), ("license", "b")}


def test_late_and_over_billed_are_kept_apart() -> None:
    entries = [an_entry(EntryKind.ROW, EntryOutcome.LATE, late_by=Decimal(by)) for by in ("5", "-2", "0.5", "0")]
    standing = standing_of(entries)
    assert (standing.late_rows, standing.late, standing.over_billed) == (4, Decimal("5.5"), Decimal(2))


def test_a_group_that_waits_is_no_standing_fault() -> None:
    assert faults_of(an_entry(EntryKind.GROUP, EntryOutcome.HELD)) == HourSummary()


def test_what_is_billed_by_now_is_added_up_exactly_by_dimension() -> None:
    entries = [
        an_entry(EntryKind.RECORD, EntryOutcome.SUCCESS, dimension=name, license_arn=license, quantity=Decimal("0.1"))
        for name, license in (("a", "1"), ("a", "2"), ("b", "1"))
    ]
    refused = an_entry(EntryKind.RECORD, EntryOutcome.DUPLICATE, dimension="c")
    standing = standing_of([*entries, refused])
    assert standing.billed == {"a": Decimal("0.2"), "b": Decimal("0.1")}
    assert standing.outcomes == {"Success": 3, "DuplicateRecord": 1}
