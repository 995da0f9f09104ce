"""A day that has moved, at any instants whatever: when it is read, due, done with; said once more by other means.

Three instants of a day matter: when it moved; a settle time after its newest stamp, as far as the clock had come; and a
settle time after that stamp, though it lies ahead of the clock. The last of them that has come is what a reading needs.
"""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.cursor import PollCursor, PollGap
from metering_dagster.billing_changes.rules.pending_day import DueReason, PendingDay
from metering_dagster.billing_changes.rules.watermark import PollRules

RULES = PollRules()
NOON = datetime(2026, 9, 20, 12, tzinfo=UTC)
DAY = NOON.date()
SETTLE = timedelta(seconds=60)
instants = st.one_of(
    st.integers(-30, 30).map(lambda n: NOON + n * timedelta(seconds=30)),
    st.timedeltas(timedelta(hours=-3), timedelta(hours=3)).map(lambda passed: NOON + passed),
)
perhaps = st.none() | instants
pendings = st.builds(
    PendingDay,
    perhaps,
    instants,
    instants,
    perhaps,
    st.sampled_from(DueReason),
    perhaps,
    st.integers(1, 9),
    st.booleans(),
)


def points(one: PendingDay) -> list[datetime]:
    """The instants from which on a reading has more than one before them."""
    if one.newest is None:
        return [one.changed_at]
    seen = one.newest if one.newest < one.changed_at else one.changed_at
    return sorted({one.changed_at, max(one.changed_at, seen + SETTLE), max(one.changed_at, one.newest + SETTLE)})


def is_enough(one: PendingDay, read_at: datetime | None, at: datetime) -> bool:
    if read_at is None or read_at > at or read_at < one.changed_at:
        return False
    return not [point for point in points(one) if read_at < point <= at]


@given(pendings, perhaps, instants)
def test_a_day_is_read_if_no_instant_that_matters_has_come_since(one, read_at, at):
    assert one.is_read(read_at, at, RULES) == is_enough(one, read_at, at)
    assert one.wanted(at, RULES) == max((point for point in points(one) if point <= at), default=one.changed_at)


@given(pendings, perhaps, instants)
def test_a_day_is_done_with_once_all_of_them_are_read(one, read_at, at):
    assert one.is_done(read_at, at, RULES) == (read_at is not None and points(one)[-1] <= read_at <= at)


@given(pendings, instants)
def test_a_day_is_due_when_it_rests_or_has_gone_on_too_long_or_its_run_was_in_vain(one, at):
    if one.requested_at is None:
        rests, too_long = at - one.changed_at >= timedelta(minutes=2), at - one.since >= timedelta(minutes=15)
        assert one.is_due(at, RULES) == (rests or too_long)
        return
    too_early = one.requested_at < one.changed_at or bool(
        [point for point in points(one) if one.requested_at < point <= at]
    )
    minutes = [5, 10, 20, 40, 60, 60, 60, 60, 60][one.attempt - 1]
    assert one.is_due(at, RULES) == (too_early or at - one.requested_at >= timedelta(minutes=minutes))


@given(pendings, pendings, perhaps)
def test_another_movement_takes_the_place_of_one_that_was_read_and_is_added_to_one_that_was_not(one, other, read_at):
    after = one.changed_again(other, read_at, RULES)
    if is_enough(one, read_at, other.changed_at):
        assert after == other
        return
    unknown = one.first is None or other.first is None
    assert after.first == (None if unknown else min(one.first, other.first))
    assert after.since == (other.since if one.requested_at else one.since)
    assert after.reports_gap == one.reports_gap
    assert replace(after, first=other.first, since=other.since, reports_gap=other.reports_gap) == other


@given(pendings, perhaps, instants)
def test_what_was_read_is_materialized_up_to_what_had_settled_then(one, read_at, at):
    after = one.updated(read_at, at, RULES)
    assert replace(after, first=one.first) == one
    if read_at is not None and one.changed_at <= read_at <= at:
        assert after.first == max(first for first in (one.first, read_at - SETTLE) if first is not None)
    else:
        assert after.first == one.first


@given(pendings, perhaps, instants)
def test_a_day_is_complete_up_to_a_stamp_ahead_of_the_clock_or_to_what_was_materialized(one, read_at, at):
    found = one.complete_until(read_at, at, RULES)
    settled = one.changed_at if one.newest is None else max(one.changed_at, min(one.newest, one.changed_at) + SETTLE)
    if read_at is not None and settled <= read_at <= at:
        assert found == (min(at, one.newest) if one.newest else at)
    else:
        assert found == one.first


@given(pendings, instants, st.booleans())
def test_asking_for_a_day_leaves_what_moved_and_counts(one, at, reports_gap):
    asked = one.after_request(at, reports_gap)
    assert (asked.requested_at, asked.attempt, asked.reports_gap) == (at, one.attempt + 1, reports_gap)
    assert replace(asked, requested_at=one.requested_at, attempt=one.attempt, reports_gap=one.reports_gap) == one
    assert asked.run_key(DAY) != one.run_key(DAY)


@given(pendings, pendings, st.dates(date(2026, 1, 1)))
def test_a_run_key_is_the_same_for_the_same_movement_and_attempt_alone(one, other, day):
    what = [(p.newest, p.changed_at, p.attempt) for p in (one, other)]
    assert (one.run_key(day) == other.run_key(day)) == (what[0] == what[1])
    assert one.run_key(day) != one.run_key(day + timedelta(days=1))


def test_a_run_key_says_the_day_the_stamps_and_the_attempt():
    one = PendingDay(None, NOON, NOON + timedelta(microseconds=7), NOON, DueReason.INGESTED)
    assert one.run_key(DAY) == "2026-09-20:20260920T120000.000000:20260920T120000.000007:1"
    assert replace(one, newest=None, attempt=2).run_key(DAY) == "2026-09-20:-:20260920T120000.000007:3"


memories = st.builds(
    PollCursor, polled_at=instants, claims=st.just("c"), starts=st.just({}), marks=st.just({}), summed=perhaps,
    compared=st.dictionaries(st.dates(date(2026, 9, 1), date(2026, 9, 9)), instants, max_size=4),
    pending=st.dictionaries(st.dates(date(2026, 9, 1), date(2026, 9, 9)), pendings, max_size=3),
)  # fmt: skip


@given(memories, instants)
def test_after_the_clock_was_set_back_nothing_lies_ahead_of_it_and_nothing_else_changes(memory, now):
    after = memory.rewound(now)
    assert after.polled_at == min(memory.polled_at, now)
    # Of what lies ahead nobody knows when it was: compared anew, summed up anew.
    assert after.summed == (memory.summed if memory.summed and memory.summed <= now else None)
    assert after.compared == {day: at for day, at in memory.compared.items() if at <= now}
    for day, one in after.pending.items():
        before = memory.pending[day]
        pairs = [
            (one.first, before.first),
            (one.since, before.since),
            (one.changed_at, before.changed_at),
            (one.requested_at, before.requested_at),
        ]
        assert all(new == (old if old is None or old <= now else now) for new, old in pairs)
        assert (
            replace(
                one,
                first=before.first,
                since=before.since,
                changed_at=before.changed_at,
                requested_at=before.requested_at,
            )
            == before
        )
    assert after.pending.keys() == memory.pending.keys()


def test_a_gap_is_told_with_the_days_that_left_the_horizon_in_it():
    left = PollGap(NOON, NOON + timedelta(hours=3), None)
    assert left.message == "The sensor did not poll from 2026-09-20T12:00:00Z until 2026-09-20T15:00:00Z."
    one = replace(left, left=(date(2026, 8, 18), date(2026, 8, 18)))
    assert one.message == (
        f"{left.message} 2026-08-18 has left the horizon in that time and will not be reconciled: materialize by hand."
    )
    assert "2026-08-18 to 2026-08-19 have left" in replace(left, left=(date(2026, 8, 18), date(2026, 8, 19))).message
