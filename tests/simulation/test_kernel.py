"""Simulated time by itself."""

from datetime import UTC, datetime

import pytest

from tests.simulation.kernel import Kernel

START = datetime(2026, 11, 28, 10, tzinfo=UTC)


def a_kernel() -> Kernel:
    return Kernel(START)


def test_processes_come_in_the_order_of_time_and_not_of_their_beginning():
    kernel, said = a_kernel(), []

    def waits(name: str, *seconds: float) -> None:
        for each in seconds:
            kernel.sleep(each)
            said.append((name, kernel.now - START.timestamp()))

    kernel.spawn("a", lambda: waits("a", 3, 3))
    kernel.spawn("b", lambda: waits("b", 1, 3))
    kernel.schedule(kernel.now + 5, lambda: said.append(("c", 5)))
    kernel.run(kernel.now + 100)
    assert said == [("b", 1), ("a", 3), ("b", 4), ("c", 5), ("a", 6)]
    kernel.close()


def test_a_killed_process_does_nothing_more_though_it_unwinds():
    kernel, said = a_kernel(), []

    def works() -> None:
        try:
            kernel.sleep(10)
            said.append("went on")
        finally:
            kernel.sleep(1)
            said.append("waited in its end")

    victim = kernel.spawn("victim", works)
    kernel.schedule(kernel.now + 5, victim.kill)
    kernel.run(kernel.now + 100)
    assert (said, victim.is_over) == ([], True)
    kernel.close()


def test_what_goes_wrong_in_a_process_ends_the_world():
    kernel, said = a_kernel(), []

    def fails() -> None:
        kernel.sleep(1)
        raise ValueError("so")

    def goes_on() -> None:
        kernel.sleep(2)
        said.append("went on")

    kernel.spawn("a", goes_on)
    kernel.spawn("b", fails)
    with pytest.raises(ValueError, match="so"):
        kernel.run(kernel.now + 100)
    kernel.close()
    assert said == []


def test_what_is_due_later_is_done_by_the_next_run():
    kernel, said = a_kernel(), []
    kernel.schedule(kernel.now + 5, lambda: said.append("late"))
    kernel.run(kernel.now + 4)
    assert said == []
    kernel.run(kernel.now + 10)
    assert said == ["late"]
