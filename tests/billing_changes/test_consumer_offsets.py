"""What a named consumer has taken: nothing is given back, nothing is left out, and no mark moves back."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.cells import Cell, Claims, Side, Subscription
from metering_dagster.billing_changes.rules.consumer_offsets import (
    KEPT,
    ConsumerOffset,
    Mark,
    Offer,
    checked_name,
    checked_token,
    offer_of,
    offset_content,
    read_offset,
)
from metering_dagster.billing_changes.rules.consumer_response import ReportedDays, answer_for
from metering_dagster.billing_changes.rules.day_diff import DayReport, report
from metering_dagster.billing_changes.rules.heartbeat import Heartbeat, read_heartbeat
from metering_dagster.core.errors import DamagedFileError, FeedRefusedError

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY, NEXT = date(2026, 11, 20), date(2026, 11, 21)
BEAT = Heartbeat(NOON, NOON - 60 * MINUTE, date(2026, 10, 27))
NAMES = st.from_regex(r"[A-Za-z0-9-][A-Za-z0-9_.-]{0,63}", fullmatch=True)


def a_subscription(number: int) -> Subscription:
    return Subscription(f"t{number}", "azure", f"ext-{number}", f"Tenant {number}", "azure", False)


def a_report(
    versions: Mapping[int, int], read_at: datetime = NOON, before: DayReport | None = None, day: date = DAY
) -> DayReport:
    """A run's report of a day on which each tenant (by number) holds this version of its row."""
    cells = [Cell(a_subscription(n), day, daily=Side(1, newest=NOON, stamps=v)) for n, v in versions.items()]
    return report(day, {cell.key: cell for cell in cells}, Claims(map(a_subscription, range(9))), read_at, before)


def refusal(attempt: Callable[[], object]) -> str | None:
    """In which words it is refused; None if it is not."""
    try:
        attempt()
    except (DamagedFileError, FeedRefusedError) as error:
        return str(error)
    return None


def taking(offset: ConsumerOffset, *reports: tuple[str, DayReport]) -> tuple[list[str], ConsumerOffset]:
    """What is new of these reports, each with its generation, and the offset once that is acknowledged."""
    offer = offer_of(offset.name, reports, BEAT.complete_until)
    rows = [row.cell.subscription.id for _, one in reports for row in offset.new_of(one)]
    return rows, offset.offered(offer).acknowledging(offer.token)


def test_a_consumer_that_is_new_is_given_everything():
    assert taking(ConsumerOffset("w"), ("a", a_report({1: 1, 2: 1})))[0] == ["t1", "t2"]


def test_after_an_acknowledgement_only_what_moved_since_is_new():
    first = a_report({1: 1, 2: 1})
    _, offset = taking(ConsumerOffset("w"), ("a", first))
    second = a_report({1: 1, 2: 2}, NOON + MINUTE, first)
    assert taking(offset, ("b", second))[0] == ["t2"]


def test_a_run_that_found_nothing_new_gives_nothing_new():
    first = a_report({1: 1})
    _, offset = taking(ConsumerOffset("w"), ("a", first))
    assert taking(offset, ("b", a_report({1: 1}, NOON + MINUTE, first)))[0] == []


def test_without_an_acknowledgement_the_same_comes_again_under_the_same_token():
    offer = offer_of("w", [("a", a_report({1: 1}))], None)
    offset = ConsumerOffset("w").offered(offer)
    assert offset.new_of(a_report({1: 1}))
    assert offer_of("w", [("a", a_report({1: 1}))], None).token == offer.token
    assert offset.offered(offer) is offset


@pytest.mark.case("deleted_cell")
def test_a_cell_that_vanished_is_new_once():
    first = a_report({1: 1, 2: 1})
    _, offset = taking(ConsumerOffset("w"), ("a", first))
    gone = a_report({1: 1}, NOON + MINUTE, first)
    rows, offset = taking(offset, ("b", gone))
    assert rows == ["t2"]
    assert taking(offset, ("c", a_report({1: 1}, NOON + 2 * MINUTE, gone)))[0] == []


def test_a_day_that_was_empty_gives_what_comes_later():
    empty = a_report({})
    rows, offset = taking(ConsumerOffset("w"), ("a", empty))
    assert rows == []
    assert offset.has_taken(DAY, "a")
    assert taking(offset, ("b", a_report({1: 1}, NOON, empty)))[0] == ["t1"]


def test_an_acknowledgement_of_an_older_offer_moves_no_mark_back():
    first = a_report({1: 1})
    second = a_report({1: 2}, NOON + MINUTE, first)
    older, newer = offer_of("w", [("a", first)], NOON), offer_of("w", [("b", second)], NOON + MINUTE)
    offset = ConsumerOffset("w").offered(older).offered(newer).acknowledging(newer.token)
    after = offset.acknowledging(older.token)
    assert after.marks[DAY].reported_at == offset.marks[DAY].reported_at
    assert after.complete_until == NOON + MINUTE
    assert after.new_of(second) == []


def test_an_acknowledgement_twice_changes_nothing():
    offer = offer_of("w", [("a", a_report({1: 1}))], NOON)
    once = ConsumerOffset("w").offered(offer).acknowledging(offer.token)
    assert once.acknowledging(offer.token) is once


def test_a_token_that_was_never_offered_is_refused():
    foreign = offer_of("other", [("a", a_report({1: 1}))], NOON)
    own = offer_of("w", [("a", a_report({1: 1}))], NOON)
    assert foreign.token != own.token
    with pytest.raises(FeedRefusedError, match="it was never offered"):
        ConsumerOffset("w").offered(own).acknowledging(foreign.token)


def test_the_newest_offers_are_kept():
    offset = ConsumerOffset("w")
    offers = [offer_of("w", [(f"{n}", a_report({1: n}))], NOON) for n in range(KEPT + 1)]
    for offer in offers:
        offset = offset.offered(offer)
    assert offset.offers == tuple(offers[1:])
    with pytest.raises(FeedRefusedError, match="20 offers ago"):
        offset.acknowledging(offers[0].token)


def test_files_that_were_lost_and_made_anew_give_everything_again():
    _, offset = taking(ConsumerOffset("w"), ("a", a_report({1: 1, 2: 1})))
    assert taking(offset, ("z", a_report({1: 1, 2: 1}, NOON + MINUTE)))[0] == ["t1", "t2"]


def test_files_made_anew_while_the_databases_clock_stands_behind_give_everything_again():
    _, offset = taking(ConsumerOffset("w"), ("a", a_report({1: 1, 2: 1})))
    anew = a_report({1: 1, 2: 1}, NOON - MINUTE)
    rows, offset = taking(offset, ("z", anew))
    assert rows == ["t1", "t2"]
    assert offset.has_taken(DAY, "z")
    assert offset.marks[DAY].reported_at == NOON, "the mark has not moved back"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.sampled_from([DAY, NEXT]), st.dictionaries(st.integers(0, 3), st.integers(1, 3))),
        st.tuples(st.just("ask")),
        st.tuples(st.just("acknowledge"), st.integers(0, 9)),
    ),
    max_size=30,
)


@given(STEPS)
def test_whatever_comes_in_whatever_order_nothing_that_moved_is_left_out(steps):
    """Runs, answers that may be lost, and acknowledgements of any of them, also twice, also older ones.

    Judged without marks: a consumer that took the acknowledged answers, and takes the next one, holds what the newest
    reports hold.
    """
    files: dict[date, tuple[str, DayReport]] = {}
    offset, at = ConsumerOffset("w"), NOON
    answers: list[tuple[str, dict[tuple[date, str], datetime]]] = []
    held: dict[tuple[date, str], datetime] = {}
    """The state of each cell that the consumer has taken, by when it was reported."""

    def ask() -> tuple[Offer, dict[tuple[date, str], datetime]]:
        there = [one for day, one in files.items() if not offset.has_taken(day, one[0])]
        new = {row.key: row.reported_at for _, one in there for row in offset.new_of(one)}
        return offer_of("w", there, None), new

    def take(new: dict[tuple[date, str], datetime]) -> None:
        for key, state in new.items():
            held[key] = max(state, held.get(key, state))

    for step in steps:
        at += MINUTE
        if step[0] == "run":
            day, versions = step[1], step[2]
            before = files[day][1] if day in files else None
            files[day] = (at.isoformat(), a_report(versions, at, before, day))
        elif step[0] == "ask":
            offer, new = ask()
            offset = offset.offered(offer)
            answers.append((offer.token, new))
        elif answers:
            token, taken = answers[-1 - step[1] % len(answers)]
            moved = offset.acknowledging(token)
            assert all(moved.marks[day].reported_at >= mark.reported_at for day, mark in offset.marks.items())
            take(taken)
            offset = read_offset("w", json.loads(json.dumps(offset_content(moved))))
    take(ask()[1])
    assert held == {row.key: row.reported_at for _, one in files.values() for row in one.rows}


@given(NAMES)
def test_an_offset_comes_back_out_of_its_document(name):
    offer = Offer(name, {DAY: Mark(NOON, "a"), NEXT: Mark(NOON + MINUTE, "b")}, NOON)
    offset = ConsumerOffset(name).offered(replace(offer, complete_until=None)).acknowledging(offer.token).offered(
        Offer(name, {}, None)
    )  # fmt: skip
    assert read_offset(name, json.loads(json.dumps(offset_content(offset)))) == offset


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda some: st.lists(some) | st.dictionaries(st.text(), some),
)


@given(st.dictionaries(st.sampled_from(["name", "marks", "complete_until", "offers", "acknowledged"]), JSON))
def test_a_document_that_somebody_else_wrote_is_an_error_in_words_or_an_offset(content):
    refused = refusal(lambda: read_offset("w", {"version": 1} | content))
    assert refused is None or "left as it is" in refused


def test_a_document_of_a_newer_version_is_left_alone():
    with pytest.raises(DamagedFileError, match="version 2"):
        read_offset("w", offset_content(ConsumerOffset("w")) | {"version": 2})


def test_two_spellings_of_a_name_in_one_file_are_told_apart():
    with pytest.raises(FeedRefusedError, match="case of names"):
        read_offset("Warehouse", offset_content(ConsumerOffset("warehouse")))


@pytest.mark.parametrize("name", ["warehouse", "a", "A-1_b.c", "-x", "9" * 64])
def test_names_that_may_be(name):
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".hidden", "_looked", "..", "a/b", "a b", "a\n", "ä", "x" * 65, "\udc80", "a\x00", None, 7, b"a"]
)
def test_names_that_may_not_be_are_refused_in_words(name):
    with pytest.raises(FeedRefusedError, match="is an invalid consumer name"):
        checked_name(name)


@given(st.text())
def test_a_name_is_one_segment_of_a_path_or_refused(name):
    refused = refusal(lambda: checked_name(name))
    if refused is None:
        assert "/" not in name
        assert not name.startswith((".", "_"))
    else:
        assert len(refused) < 500


@given(st.text() | st.none() | st.integers())
def test_a_token_is_twelve_hexadecimal_digits_or_refused(token):
    refused = refusal(lambda: checked_token(token))
    assert len(token) == 12 if refused is None else "invalid token" in refused


def answer_of(beat: Heartbeat | None, now: datetime = NOON, lost: tuple[date, ...] = ()):
    reports = [a_report({1: 1}), a_report({1: 1}, day=NEXT)]
    offer = offer_of("w", [("a", one) for one in reports], beat.complete_until if beat else None)
    return answer_for(
        ConsumerOffset("w"), offer, ReportedDays(reports, lost, beat),
        now=now, horizon=timedelta(days=32), stale=timedelta(minutes=10),
    )  # fmt: skip


def test_the_answer_to_a_consumer_goes_as_far_as_the_sensor_has_looked():
    meta = answer_of(replace(BEAT, pending=(NEXT,))).meta
    assert (meta.complete_until, meta.looked_at, meta.pending) == (BEAT.complete_until, BEAT.polled_at, (NEXT,))
    assert (meta.horizon, meta.first_day) == (32, BEAT.first_day)
    assert any("days that are not materialized yet" in words for words in meta.does_not_detect)
    assert not any("has not polled" in words for words in meta.does_not_detect)


def test_the_answer_says_that_the_sensor_has_not_looked_for_long():
    meta = answer_of(BEAT, NOON + 11 * MINUTE).meta
    assert any("has not polled for 11 minutes" in words for words in meta.does_not_detect)


def test_the_answer_says_that_the_sensor_has_never_looked():
    meta = answer_of(None).meta
    assert meta.complete_until is None
    assert any("has recorded no poll" in words for words in meta.does_not_detect)


def test_the_answer_says_that_the_first_look_is_not_materialized_yet():
    meta = answer_of(replace(BEAT, complete_until=None, pending=(DAY,))).meta
    assert meta.complete_until is None
    assert any("have never been materialized" in words for words in meta.does_not_detect)


def test_days_whose_report_is_gone_are_named():
    (repull,) = answer_of(BEAT, lost=(DAY,)).meta.repull_by_hand
    assert (repull.first_day, repull.last_day) == (DAY, DAY)


def test_rows_of_several_days_are_ordered_and_carry_when_they_were_reported():
    rows = answer_of(BEAT).rows
    assert [(row.day, row.subscription_id, row.reported_at, row.vanished) for row in rows] == [
        (DAY, "t1", NOON, False), (NEXT, "t1", NOON, False),
    ]  # fmt: skip


def test_a_heartbeat_comes_back_out_of_its_document():
    for beat in (BEAT, replace(BEAT, pending=(DAY, NEXT)), replace(BEAT, complete_until=None)):
        assert read_heartbeat(json.loads(json.dumps(beat.content()))) == beat


@given(st.dictionaries(st.sampled_from(["looked", "complete_until", "first_day", "pending"]), JSON))
def test_a_heartbeat_that_somebody_else_wrote_is_none(content):
    assert read_heartbeat(content) is None
