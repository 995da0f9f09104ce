"""`python -m tests.simulation --seeds 1000 --first 1`: live through that many worlds, tell of every violation.

Belongs here: the command line, the progress, sums over all seeds. Does not: worlds.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from decimal import Decimal

from tests.simulation.fleet import live


def main() -> int:
    """How many seeds, from which on; 1 if any of them shows a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    began, violations = time.monotonic(), []
    figures: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    sums: dict[str, Decimal] = {}
    with multiprocessing.get_context("spawn").Pool(min(asked.jobs, asked.seeds)) as pool:
        for number, (seed, words, these, why, its_sums) in enumerate(pool.imap_unordered(live, seeds), 1):
            figures += these
            reasons += why
            for name, quantity in its_sums.items():
                sums[name] = sums.get(name, Decimal(0)) + quantity
            if words is not None:
                violations.append((seed, words))
                print(words, flush=True)
            if number % 10 == 0 or number == asked.seeds:
                spent = time.monotonic() - began
                print(f"{number} of {asked.seeds} seeds, {len(violations)} violations, {spent:.0f} s", flush=True)
    print(", ".join(f"{name}: {count}" for name, count in figures.items()))
    print("quantities:", ", ".join(f"{name} {quantity}" for name, quantity in sorted(sums.items())))
    print(
        "lost, and excused:", ", ".join(f"{why}: {count} groups" for why, count in reasons.most_common()) or "nothing"
    )
    if violations:
        print(f"violations in seeds {', '.join(str(seed) for seed, _ in sorted(violations))}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
