"""What may be asked of the feed, and what it answers: rows, and a meta block that is true."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.cells import (
    Claims,
    Group,
    Piece,
    Side,
    Signal,
    StampFault,
    Subscription,
    TenantScope,
)
from metering_dagster.billing_changes.rules.feed_response import (
    FeedRequest,
    FeedResponse,
    Repull,
    answer_since,
    day_ranges,
    instant_text,
    parsed_since,
    record,
)
from metering_dagster.core.errors import FeedRefusedError

NOW = datetime(2026, 11, 28, 12, 30, 0, 148758, tzinfo=UTC)
TEN, ELEVEN = datetime(2026, 11, 28, 10, tzinfo=UTC), datetime(2026, 11, 28, 11, tzinfo=UTC)
DAY = date(2026, 11, 20)
OVERLAP = timedelta(minutes=60)
TENANT = TenantScope("t1")
T1 = Subscription("t1", "azure", "ext-1", "Tenant 1", "azure", False)
GROUP = Subscription("g1", "azure", "rg-prod", "Group 1", "azure", True)


def a_question(since: datetime = TEN, days: int = 32, now: datetime = NOW) -> FeedRequest:
    return FeedRequest(since, timedelta(days=days), now)


def a_piece(
    stamp: datetime = TEN, day: date = DAY, owner: TenantScope | Group = TENANT, signal: Signal = Signal.DAILY
) -> Piece:
    return Piece(signal, day, owner, Side(1, newest=stamp, stamps=1))


def answered(
    *pieces: Piece,
    question: FeedRequest | None = None,
    claims: tuple[Subscription, ...] = (T1, GROUP),
    odd: dict[StampFault, dict[date, int]] | None = None,
) -> FeedResponse:
    return answer_since(question or a_question(), OVERLAP, pieces, Claims(claims), odd or {})


@pytest.mark.case("client_zone")
def test_since_is_taken_in_its_own_zone():
    assert parsed_since("2026-09-01T12:00:00+08:00") == datetime(2026, 9, 1, 4, tzinfo=UTC)
    assert parsed_since("2026-09-01T12:00:00+08:00").tzinfo is UTC
    assert parsed_since(datetime(2026, 9, 1, 12, tzinfo=timezone(timedelta(hours=8)))) == datetime(
        2026, 9, 1, 4, tzinfo=UTC
    )


@pytest.mark.parametrize(
    "text", ["2026-09-01T04:00:00Z", " 2026-09-01T04:00:00.000000Z\n", "20260901T040000Z", "2026-09-01 04:00+00:00"]
)
def test_since_may_be_spelt_as_iso_8601_allows(text):
    assert parsed_since(text) == datetime(2026, 9, 1, 4, tzinfo=UTC)


def test_since_keeps_its_microseconds():
    assert parsed_since("2026-09-01T04:00:00.148758Z").microsecond == 148758


def test_a_since_that_is_finer_than_a_microsecond_is_taken_earlier():
    assert parsed_since("2026-09-01T04:00:00.1487589Z").microsecond == 148758


def test_pandas_timestamps_may_be_asked_for():
    import pandas as pd

    assert parsed_since(pd.Timestamp("2026-09-01T12:00:00.148758999+08:00")) == datetime(
        2026, 9, 1, 4, 0, 0, 148758, tzinfo=UTC
    )
    with pytest.raises(FeedRefusedError, match="zone"):
        parsed_since(pd.NaT)


@pytest.mark.parametrize(
    ("since", "words"),
    [
        ("2026-09-01T12:00:00", "names no zone"),
        ("2026-09-01", "names no zone"),
        (datetime(2026, 9, 1, 12), "names no zone"),  # noqa: DTZ001
        ("yesterday", "invalid ISO-8601 instant"),
        ("", "invalid ISO-8601 instant"),
        ("2026-02-30T00:00:00Z", "invalid ISO-8601 instant"),
        ("1756684800", "invalid ISO-8601 instant"),
        ("0001-01-01T00:00:00+23:00", "before 1970"),
        ("1969-12-31T23:59:59Z", "before 1970"),
        (1756684800, "not int"),
        (None, "not NoneType"),
        (date(2026, 9, 1), "not date"),
    ],
)
def test_a_since_that_makes_no_sense_is_refused_in_words(since, words):
    with pytest.raises(FeedRefusedError, match=words):
        parsed_since(since)


@given(st.text() | st.datetimes(timezones=st.timezones() | st.none()) | st.integers() | st.binary() | st.floats())
def test_whatever_is_asked_for_is_an_instant_in_utc_or_refused_in_few_words(since):
    instant, refused = None, ""
    try:
        instant = parsed_since(since)
    except FeedRefusedError as error:
        refused = str(error)
    assert len(refused) < 400
    assert "Nothing was read" in refused if instant is None else instant.tzinfo is UTC


@given(st.datetimes(min_value=datetime(1971, 1, 1), timezones=st.timezones()))  # noqa: DTZ001
def test_an_instant_comes_back_as_it_was_written(instant):
    assert parsed_since(instant_text(instant)) == instant.astimezone(UTC)


def test_a_since_in_the_future_of_the_databases_clock_is_refused():
    with pytest.raises(FeedRefusedError, match=r"the database's clock says 2026-11-28T12:30:00\.148758Z"):
        a_question(since=NOW + timedelta(microseconds=1))
    assert a_question(since=NOW).since == NOW


@pytest.mark.case("column_precision")
@pytest.mark.parametrize(
    ("decimals", "microseconds"),
    [(0, 0), (1, 100_000), (2, 140_000), (3, 148_000), (4, 148_700), (5, 148_750), (6, 148_758)],
)
def test_a_column_is_read_from_the_stamp_that_it_holds_of_since_on(decimals, microseconds):
    assert a_question(since=NOW).start(decimals) == NOW.replace(microsecond=microseconds)


@pytest.mark.case("both_tables")
def test_a_cell_that_both_tables_tell_of_is_one_row_with_the_later_time():
    told = answered(a_piece(TEN, signal=Signal.FACTS), a_piece(ELEVEN, signal=Signal.DAILY))
    (row,) = told.rows
    assert (row.last_ingested_at, set(row.signals)) == (ELEVEN, set(Signal))
    assert told.meta.signals == tuple(Signal)
    assert told.meta.changed_cells == 1


def test_only_the_signals_that_contributed_are_named():
    assert answered(a_piece(signal=Signal.FACTS)).meta.signals == (Signal.FACTS,)


@pytest.mark.case("resource_group_case")
def test_spellings_of_one_resource_group_are_one_row():
    told = answered(
        a_piece(TEN, owner=Group("azure", "RG-Prod"), signal=Signal.FACTS),
        a_piece(ELEVEN, owner=Group("azure", "rg-prod"), signal=Signal.FACTS),
    )
    (row,) = told.rows
    assert (row.subscription_id, row.last_ingested_at) == ("g1", ELEVEN)


@pytest.mark.case("two_subscriptions_one_resource_group")
def test_two_subscriptions_of_one_resource_group_both_get_the_row():
    twin = Subscription("g2", "azure", "RG-PROD", "Group 2", "azure", True)
    told = answered(a_piece(owner=Group("azure", "rg-prod"), signal=Signal.FACTS), claims=(GROUP, twin))
    assert [row.subscription_id for row in told.rows] == ["g2", "g1"]


@pytest.mark.case("no_subscriptions")
def test_without_subscriptions_the_answer_is_empty_with_its_meta():
    told = answered(a_piece(), claims=())
    assert told.rows == ()
    assert (told.meta.changed_cells, told.meta.signals) == (0, ())
    assert told.meta.detects
    assert told.meta.does_not_detect
    assert told.meta.complete_until == NOW - OVERLAP


@pytest.mark.case("horizon")
def test_a_change_of_a_day_older_than_the_horizon_is_no_row_and_the_answer_says_so():
    oldest = NOW.date() - timedelta(days=32)
    told = answered(a_piece(day=oldest), a_piece(day=oldest - timedelta(days=1)))
    assert [row.day for row in told.rows] == [oldest]
    assert (told.meta.horizon, told.meta.first_day) == (32, oldest)
    assert f"days before {oldest}, which are older than the horizon of 32 days" in told.meta.does_not_detect


def test_a_day_that_left_the_horizon_since_and_has_moved_is_named_for_a_pull_by_hand():
    since = NOW - timedelta(days=3)
    left = NOW.date() - timedelta(days=33)
    told = answered(a_piece(day=left), question=a_question(since))
    assert told.rows == ()
    assert told.meta.repull_by_hand == (
        Repull(left, left, "they were ingested again, and have left the horizon since then"),
    )
    assert answered(question=a_question(since)).meta.repull_by_hand == ()


def test_days_that_are_too_old_to_be_looked_at_are_named_for_a_pull_by_hand():
    told = answered(question=a_question(NOW - timedelta(days=90)))
    (repull,) = told.meta.repull_by_hand
    assert repull.first_day == NOW.date() - timedelta(days=90 + 32)
    assert repull.last_day == NOW.date() - timedelta(days=93)


def test_no_day_more_than_the_longest_horizon_ago_is_ever_read():
    assert a_question(datetime(1970, 1, 1, tzinfo=UTC)).read_from == NOW.date() - timedelta(days=92)
    assert a_question(NOW).read_from == NOW.date() - timedelta(days=32)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=NOW.replace(tzinfo=None)), st.integers(1, 92))  # noqa: DTZ001
def test_each_day_within_the_horizon_then_or_now_is_read_or_named(since, days):
    question = a_question(since.replace(tzinfo=UTC), days)
    then = question.since.date() - question.horizon
    named = answered(question=question).meta.repull_by_hand
    assert question.read_from <= question.first_day
    if then < question.read_from:
        assert [(each.first_day, each.last_day) for each in named] == [(then, question.read_from - timedelta(days=1))]
    else:
        assert named == ()


def test_rows_without_a_stamp_are_named_for_a_pull_by_hand():
    told = answered(odd={StampFault.MISSING: {DAY: 2, DAY + timedelta(days=1): 3, DAY + timedelta(days=4): 1}})
    assert [(each.first_day.day, each.last_day.day, each.why[:6]) for each in told.meta.repull_by_hand] == [
        (20, 21, "5 rows"),
        (24, 24, "1 row "),
    ]


@pytest.mark.case("sentinel_stamps")
def test_rows_whose_stamps_tell_nothing_are_named_for_a_pull_by_hand_each_with_its_reason():
    told = answered(odd={StampFault.MISSING: {}, StampFault.EARLY: {DAY: 1}, StampFault.AHEAD: {DAY: 2}})
    assert [each.why.partition(":")[0] for each in told.meta.repull_by_hand] == [
        "1 row has a stamp before 2000, which no ingest writes",
        "2 rows have a stamp far ahead of the database's clock",
    ]


@pytest.mark.case("local_time_writer")
def test_what_a_writer_behind_utc_hides_is_told():
    (told,) = [sentence for sentence in answered().meta.does_not_detect if "behind UTC" in sentence]
    assert "local time" in told
    assert "60 minutes" in told


def test_rows_are_ordered_by_date_then_external_id_then_id():
    claims = tuple(Subscription(i, "azure", e, "n", "azure", False) for i, e in (("a", "z"), ("c", "b"), ("b", "b")))
    later = DAY + timedelta(days=1)
    told = answered(
        *(a_piece(day=day, owner=TenantScope(i)) for day in (later, DAY) for i in ("a", "b", "c")), claims=claims
    )
    assert [(row.day, row.subscription_id) for row in told.rows] == [
        (DAY, "b"), (DAY, "c"), (DAY, "a"), (later, "b"), (later, "c"), (later, "a"),
    ]  # fmt: skip


@given(st.sets(st.dates(date(2026, 1, 1), date(2026, 2, 28))))
def test_ranges_hold_exactly_their_days(days):
    ranges = day_ranges(days)
    held = [first + timedelta(days=n) for first, last in ranges for n in range((last - first).days + 1)]
    assert held == sorted(days)
    assert all(after[0] - before[1] > timedelta(days=1) for before, after in pairwise(ranges))


def test_amounts_are_written_out_exactly():
    (row,) = answered(a_piece()).rows
    assert record(row)["amounts"] is None
    amounts = (("EUR", Decimal("0.000001")), ("USD", Decimal("-3E+2")))
    assert record(replace(row, amounts=amounts))["amounts"] == "0.000001 EUR, -300 USD"
