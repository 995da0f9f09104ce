"""`python -m tests.simulation --seeds 1000 --first 1`: live through that many worlds, tell of every violation.

Belongs here: the command line, the progress. Does not: worlds, sums over them (fleet).
"""

import argparse
import os
import sys
import time

from tests.simulation.fleet import Totals, live_all


def main() -> int:
    """How many seeds, from which on; 1 if any of them shows a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    began, totals = time.monotonic(), Totals()
    for number, lived in enumerate(live_all(range(asked.first, asked.first + asked.seeds), asked.jobs), 1):
        totals.add(lived)
        if lived.violation is not None:
            print(lived.violation, flush=True)
        if number % 10 == 0 or number == asked.seeds:
            spent = time.monotonic() - began
            print(f"{number} of {asked.seeds} seeds, {len(totals.violations)} violations, {spent:.0f} s", flush=True)
    print(totals.words())
    return 1 if totals.violations else 0


if __name__ == "__main__":
    sys.exit(main())
