"""Numbers that the command lines of the long tests take.

Belongs here: reading them, and refusing in argparse's own words what makes no sense. Does not: what they mean.
"""

import argparse
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """A `type` of argparse: a whole number that is no smaller."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        if found < least:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} on, and is {text[:40]!r}")
        return found

    return number


positive = at_least(1)
