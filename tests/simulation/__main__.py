"""`.venv/bin/python -m tests.simulation --seeds 1000 --first 1`: live through so many worlds, tell of every violation.

Belongs here: the command line, the progress. Does not: worlds, sums over them (fleet).
"""

import argparse
import os
import sys
import time

from tests.command_line import positive
from tests.simulation.fleet import Totals, live_all


def main() -> int:
    """How many seeds, from which on; 1 if any of them shows a violation."""
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m tests.simulation")
    parser.add_argument("--seeds", type=positive, default=100, help="how many worlds")
    parser.add_argument("--first", type=positive, default=1, help="the seed of the first one")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="worlds at once, a process for each")
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
