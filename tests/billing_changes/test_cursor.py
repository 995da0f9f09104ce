"""The sensor's cursor: it brings back what was remembered, and no text breaks a look."""

import json
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.cells import Signal
from metering_dagster.billing_changes.rules.cursor import PollCursor, PollGap, beginning, read, write
from metering_dagster.billing_changes.rules.pending_day import DueReason, PendingDay
from metering_dagster.billing_changes.rules.watermark import PollRules

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 9, 20, 12, tzinfo=UTC)
instants = st.integers(0, 7_000_000_000_000_000).map(lambda micros: EPOCH + timedelta(microseconds=micros))
days = st.dates(date(2000, 1, 1), date(2100, 1, 1))
digests = st.text("0123456789abcdef", min_size=12, max_size=12)
pendings = st.builds(
    PendingDay, st.none() | instants, instants, instants, st.none() | instants, st.sampled_from(DueReason),
    st.none() | instants, st.integers(0, 99), st.booleans(),
)  # fmt: skip
whole_seconds = st.integers(1, 7_000_000_000).map(lambda second: datetime.fromtimestamp(second, UTC))
memories = st.builds(
    PollCursor,
    polled_at=instants,
    claims=st.just("") | digests,
    starts=st.fixed_dictionaries(dict.fromkeys(Signal, instants)),
    marks=st.dictionaries(st.sampled_from(Signal), instants),
    states=st.dictionaries(days, digests),
    summed=st.none() | instants,
    sums=st.dictionaries(days, digests),
    suspects=st.frozensets(days),
    compared=st.dictionaries(days, whole_seconds),
    pending=st.dictionaries(days, pendings),
    gap=st.none() | st.builds(PollGap, instants, instants, st.none() | st.tuples(days, days)),
)
whatever_it_takes = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


@whatever_it_takes
@given(memories)
def test_a_cursor_brings_back_what_was_remembered(memory):
    assert read(write(memory)) == (memory, "")
    assert write(memory) == write(memory)


@whatever_it_takes
@given(st.text() | json_values.map(json.dumps))
def test_any_other_text_is_a_first_look_that_says_so(text):
    memory, said = read(text)
    assert memory is None
    assert "cannot be understood" in said


@whatever_it_takes
@given(memories, st.data())
def test_a_cursor_with_anything_else_in_a_place_is_read_or_a_first_look(memory, data):
    content = json.loads(write(memory))
    content[data.draw(st.sampled_from(sorted(content)))] = data.draw(json_values)
    found, said = read(json.dumps(content))
    assert (found is None) == bool(said)


@whatever_it_takes
@given(memories, st.data())
def test_a_cursor_that_was_cut_off_is_a_first_look(memory, data):
    text = write(memory)
    assert read(text[: data.draw(st.integers(0, len(text) - 1))])[0] is None


def test_a_cursor_of_another_version_is_a_first_look():
    content = json.loads(write(beginning(NOON, PollRules()))) | {"version": 99}
    assert read(json.dumps(content))[0] is None


def test_no_cursor_is_a_first_look():
    assert read(None) == (None, "First poll: a run is requested for every day of the horizon that has rows.")


def test_a_cursor_that_cannot_be_read_says_what_becomes_of_it():
    assert read("no cursor")[1] == (
        "The sensor's cursor cannot be understood, so polling starts anew: a run is requested for every day of the "
        "horizon that has rows. Days that left the horizon since the last poll are not requested."
    )


@pytest.mark.parametrize(("number", "most"), [(33, 4096), (93, 16384)])
def test_a_cursor_is_small(number, most):
    horizon = [NOON.date() - timedelta(days=n) for n in range(number)]
    digest = "0123456789ab"
    marks, sums = dict.fromkeys(Signal, NOON), dict.fromkeys(horizon, digest)
    full = PollCursor(NOON, digest, marks, marks, sums, NOON, sums, frozenset(horizon), dict.fromkeys(horizon, NOON))
    assert len(write(full)) < most
    assert " " not in write(full)


def test_a_beginning_can_be_remembered():
    memory = beginning(NOON, PollRules())
    assert read(write(memory)) == (memory, "")
