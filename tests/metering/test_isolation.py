"""One item's failure: counted, named, and no reason to stop before twenty alike in a row."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from metering_dagster.core.errors import CallerError, ItemRefusedError, TableError, UnreachableError
from metering_dagster.metering.rules.isolation import GIVE_UP, Failures, stops_the_rest, words_of

ARN = "arn:aws:license-manager::111122223333:license:l-0123456789abcdef"


@pytest.mark.parametrize("error", [CallerError("no credentials"), TableError("gone"), KeyboardInterrupt()])
def test_the_callers_own_troubles_stop_the_rest(error):
    assert stops_the_rest(error)


@pytest.mark.parametrize("error", [ItemRefusedError("no"), UnreachableError("away"), KeyError("x"), RecursionError()])
def test_whatever_else_is_raised_for_one_item_is_that_items_own(error):
    assert not stops_the_rest(error)


def test_an_error_is_told_on_one_line_masked_and_not_at_length():
    assert words_of(KeyError()) == "KeyError"
    words = words_of(ValueError(f"of {ARN}\nand cust-1, 444455556666" + "." * 1_000), ["cust-1"])
    assert words == "ValueError: of ****cdef and ****st-1, ****6666"


def test_a_failure_is_counted_and_named():
    failures = Failures()
    failures.add("read", "license ****cdef", KeyError("x"))
    failures.add("recorded", "license ****0001", ValueError("y"), items=25)
    assert failures.total == 26
    assert failures.by_why == {"could not be read: KeyError: 'x'": 1, "could not be recorded: ValueError: y": 25}
    assert failures.notes[0] == "license ****cdef could not be read: KeyError: 'x'"


def test_twenty_alike_in_a_row_rest_their_step_and_no_other():
    failures = Failures()
    for number in range(GIVE_UP - 1):
        failures.add("read", f"{number}", UnreachableError(f"away, request {number}"))
    assert not failures.resting("read")
    failures.add("read", "the last", UnreachableError("away"))
    assert failures.resting("read") == "not read, after 20 alike failures in a row: UnreachableError: away"
    assert not failures.resting("recorded")
    failures.went_well("read")
    assert failures.resting("read"), "for the rest of the run"


@pytest.mark.parametrize("between", ["another kind", "one that goes well"])
def test_a_row_ends_with_what_is_not_alike(between):
    failures = Failures()
    for _ in range(3):
        for _ in range(GIVE_UP - 1):
            failures.add("read", "it", UnreachableError("away"))
        if between == "another kind":
            failures.add("read", "it", KeyError("x"))
        else:
            failures.went_well("read")
    assert not failures.resting("read")
    failures.went_well("sent"), "a step in which nothing failed"


def test_threads_share_it():
    failures = Failures(give_up=1_000_000)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: failures.add("read", f"{n}", KeyError("x")), range(2_000)))
    assert failures.total == 2_000
    assert len(failures.notes) == 20
