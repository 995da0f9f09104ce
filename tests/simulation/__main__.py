"""`.venv/bin/python -m tests.simulation --seeds 1000 --first 1`: live through so many worlds, tell of every violation.

With `--covering month_end,outage_in_grace` these are the next seeds that draw all of that. With `--drawn` it is only
told what they draw, seed by seed.

Belongs here: the command line, the progress. Does not: worlds, sums over them (fleet), what a seed draws (situations).
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.command_line import positive
from tests.simulation import situations
from tests.simulation.fleet import Totals, live_all


def main() -> int:
    """How many seeds, from which on; 1 if any of them shows a violation."""
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m tests.simulation")
    parser.add_argument("--seeds", type=positive, default=100, help="how many worlds")
    parser.add_argument("--first", type=positive, default=1, help="the seed of the first one")
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1, help="worlds at once, a process for each")
    parser.add_argument(
        "--covering", type=_situations, default=(), help="only worlds that draw all of these, separated by commas"
    )
    parser.add_argument("--drawn", action="store_true", help="tell what each world draws, and live through none")
    asked = parser.parse_args()
    try:
        seeds = situations.covering(asked.covering, asked.first, asked.seeds)
    except LookupError as error:
        parser.error(str(error))
    if asked.drawn:
        return _tell(seeds)
    began, totals = time.monotonic(), Totals()
    for number, lived in enumerate(live_all(seeds, asked.jobs), 1):
        totals.add(lived)
        if lived.violation is not None:
            print(lived.violation, flush=True)
        if number % 10 == 0 or number == asked.seeds:
            spent = time.monotonic() - began
            print(f"{number} of {asked.seeds} seeds, {len(totals.violations)} violations, {spent:.0f} s", flush=True)
    print(totals.words())
    return 1 if totals.violations else 0


def _situations(text: str) -> tuple[str, ...]:
    """Names of situations, as argparse reads them."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in situations.SITUATIONS]
    if unknown or not names:
        known = ", ".join(situations.SITUATIONS)
        raise argparse.ArgumentTypeError(f"must be some of {known}, and {', '.join(unknown) or 'nothing'} is none")
    return names


def _tell(seeds: Sequence[int]) -> int:
    drawn: Counter[str] = Counter()
    for seed in seeds:
        these = situations.of(seed)
        drawn.update(these)
        print(f"{seed}: {', '.join(name for name in situations.SITUATIONS if name in these)}", flush=True)
    print(situations.words(drawn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
