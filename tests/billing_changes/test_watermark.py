"""The watermark's arithmetic, whatever the stamps and the clock."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.watermark import PollRules, advanced, lowered, start_of, stepped

RULES = PollRules()
NOON = datetime(2026, 9, 20, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
instants = st.datetimes(NOON.replace(tzinfo=None) - timedelta(days=2), NOON.replace(tzinfo=None) + timedelta(days=2),
                        timezones=st.just(UTC))  # fmt: skip
marks = st.none() | instants


@given(marks, instants)
def test_a_reading_that_found_nothing_leaves_the_mark(mark, now):
    assert advanced(mark, [], now, RULES) == mark


@given(st.none() | st.just(NOON - timedelta(days=3)), st.lists(instants, min_size=1), instants)
def test_a_mark_follows_the_newest_stamp_up_to_what_has_settled(mark, stamps, now):
    newest = min(max(stamps), now - RULES.settle)
    assert advanced(mark, stamps, now, RULES) == (newest if mark is None else max(mark, newest))


@given(instants, st.lists(instants), instants)
def test_a_mark_never_goes_back(mark, stamps, now):
    assert advanced(mark, stamps, now, RULES) >= mark


@given(marks, st.lists(instants, min_size=1), instants)
def test_a_mark_does_not_pass_what_was_read_nor_the_settled_part_of_the_clock(mark, stamps, now):
    after = advanced(mark, stamps, now, RULES)
    assert after in {mark, max(stamps), now - RULES.settle}, "no other instant, so that it is never rounded"
    assert after == mark or after <= min(max(stamps), now - RULES.settle)


@given(marks, instants)
def test_a_reading_begins_an_overlap_before_the_mark_and_before_what_may_still_be_stamped(mark, now):
    start = start_of(mark, now, RULES)
    assert start <= now - RULES.settle - RULES.overlap
    assert mark is None or start <= mark - RULES.overlap


def test_the_start_is_an_overlap_before_the_mark_to_the_microsecond():
    mark = NOON + timedelta(microseconds=726_846)
    assert start_of(mark, NOON + timedelta(minutes=5), RULES) == mark - RULES.overlap


@given(instants, marks, instants)
def test_a_start_is_lowered_only_where_the_clock_was_set_back_behind_it(start, mark, now):
    assert lowered(start, mark, now, RULES) <= start_of(mark, now, RULES)
    assert lowered(start, mark, now, RULES) in {start, start_of(mark, now, RULES)}
    assert lowered(start_of(mark, now, RULES), mark, now + timedelta(hours=1), RULES) == start_of(mark, now, RULES)


@given(instants, marks, instants)
def test_a_start_moves_on_in_steps_of_half_an_overlap_and_never_too_far(start, mark, now):
    after = stepped(start, mark, now, RULES)
    assert after == start or after - start >= RULES.overlap / 2
    assert after == start or after == start_of(mark, now, RULES)


@given(st.lists(st.tuples(st.timedeltas(timedelta(0), timedelta(hours=1)), st.lists(instants, max_size=3))))
def test_the_next_reading_never_begins_past_an_overlap_before_the_mark(readings):
    now, mark, start = NOON, None, start_of(None, NOON, RULES)
    for passed, stamps in readings:
        now += passed
        mark = advanced(mark, stamps, now, RULES)
        start = stepped(start, mark, now, RULES)
        assert start <= now - RULES.settle - RULES.overlap
        assert mark is None or start <= max(mark - RULES.overlap, NOON - RULES.settle - RULES.overlap)


def test_half_an_overlap_is_a_step_and_a_microsecond_less_is_none():
    start = NOON - timedelta(hours=5)
    mark = start + RULES.overlap + RULES.overlap / 2
    assert stepped(start, mark, NOON, RULES) == mark - RULES.overlap
    assert stepped(start, mark - MICROSECOND, NOON, RULES) == start
    assert stepped(start, None, NOON, RULES) == start
