"""`.venv/bin/python -m tests.simulation.planted [--most 1000] [NAME...]`: in how many worlds each planted bug is found.

Belongs here: the command line, what is printed. Does not: bugs, hunting.
"""

import argparse
import sys
import time

from tests.command_line import positive
from tests.simulation.planted.hunt import ALL, hunt


def main() -> int:
    """Hunt for the bugs, then live through the same worlds without any; 1 if one is missed, or on a false alarm."""
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m tests.simulation.planted")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(ALL)}; default: all")
    parser.add_argument("--most", type=positive, default=1000, help="worlds for each bug")
    parser.add_argument("--first", type=positive, default=1, help="the seed of the first one")
    parser.add_argument("--jobs", type=positive, default=1, help="worlds at once, a process for each")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(ALL):
        parser.error(f"no such bug: {', '.join(sorted(unknown))}")
    seeds = range(asked.first, asked.first + asked.most)
    last, missed = asked.first - 1, []
    for name in asked.names or ALL:
        began = time.monotonic()
        find = hunt(name, seeds, asked.jobs)
        spent = f"{time.monotonic() - began:.0f} s"
        if find is None:
            missed.append(name)
            print(f"{name}: NOT FOUND in {len(seeds)} worlds, {spent}", flush=True)
        else:
            last = max(last, find.seed)
            print(f"{name}: seed {find.seed}, after {find.worlds} worlds, {spent}", flush=True)
            print(f"    ({find.invariant}) {find.words}", flush=True)
    same = range(asked.first, last + 1)
    find = hunt(None, same, asked.jobs)
    print(f"without any of them, in the same {len(same)} worlds: {find or 'nothing'}")
    return 1 if missed or find else 0


if __name__ == "__main__":
    sys.exit(main())
