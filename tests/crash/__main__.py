"""`.venv/bin/python -m tests.crash --kills 100 --seed 1`: kill so many workers, then hold the bill against the usage.

Belongs here: the command line and what it prints. Does not: the test (conductor).
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from metering_dagster.devstack.stack import running_stack
from tests.command_line import at_least, positive
from tests.crash.conductor import Conductor, crash_test
from tests.crash.judge import Verdict

PROJECT = Path(__file__).resolve().parents[2]
MOST_SHOWN = 40


def main() -> int:
    """0 where the bill is right to the unit, 1 where it differs from what was used."""
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m tests.crash")
    parser.add_argument("--kills", type=positive, default=100, help="how many")
    parser.add_argument("--seed", type=at_least(0), default=None, help="default: another one each time")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if asked.seed is None else asked.seed
    print(f"seed {seed}, {asked.kills} kills", flush=True)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="crash-test-") as folder,
        running_stack(Path(folder) / "stack", persist=False, now=None) as stack,
    ):
        town = Path(folder) / "town"
        town.mkdir()
        verdict, conductor = crash_test(
            stack, town, PROJECT, seed=seed, kills=asked.kills, say=lambda words: print(words, flush=True)
        )
        print(told(verdict, conductor, time.monotonic() - began))
    return 1 if verdict.differences else 0


def told(verdict: Verdict, conductor: Conductor, seconds: float) -> str:
    """Verdict and figures, for people."""
    figures, sandbox = conductor.figures, conductor.town.sandbox
    lines = [
        "",
        verdict.table(),
        "",
        f"kills: {figures.killed} ({_counts(figures.kills)})",
        f"  within a call {figures.within_a_call.total()} ({_counts(figures.within_a_call)}), "
        f"between calls {figures.between_calls}; {figures.missed} more came too soon or too late and do not count",
        f"  left to the next tick: {figures.left_to_the_next_tick}; all others started again",
        f"errands done: {_counts(figures.ended)}; ended with an error and done again: {figures.failures.total()}",
        f"marketplace: killed {sandbox.kills} times; {verdict.calls} calls, at most {verdict.most_records} records in "
        f"one and {verdict.most_in_a_second} calls in a second ({verdict.most_arriving} by arrival); outcomes: "
        f"{_counts(conductor.outcomes)}",
        f"rows: {_counts(verdict.row_states)}",
        f"records: {_counts(verdict.record_states)}; lines of the bill: {verdict.lines}",
        f"licenses ended: {len(conductor.town.ended)} of {len(conductor.town.buyers)}",
    ]
    shown = verdict.differences[:MOST_SHOWN]
    lines += [f"DIFFERENCE {words}" for words in shown]
    hidden = len(verdict.differences) - len(shown)
    lines += [f"... and {hidden} more"] if hidden else []
    verdict_in_words = f"{len(verdict.differences)} differences" if verdict.differences else "right to the last unit"
    lines.append(f"seed {conductor.seed}: {figures.killed} kills in {seconds:.0f} s, the bill: {verdict_in_words}")
    return "\n".join(lines)


def _counts(counts: "dict[str, int]") -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda each: -each[1])) or "none"


if __name__ == "__main__":
    sys.exit(main())
