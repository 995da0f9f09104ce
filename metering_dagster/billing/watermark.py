"""The watermark's arithmetic: from when on to read, and up to where what was read counts (domain: the billing-changes
signal). Pure: the database's clock is an argument.

Belongs here: marks, their overlap and their cap. Does not: what was found there (look), how it is read (changes).
"""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Rules:
    """For how long something counts as fresh."""

    horizon: timedelta = timedelta(days=32)
    """Days older than this are not looked at."""
    overlap: timedelta = timedelta(minutes=60)
    """How far before its mark is read again: longer than the longest ingest transaction."""
    settle: timedelta = timedelta(seconds=60)
    """A stamp younger than this may still be given to further rows."""
    quiet: timedelta = timedelta(minutes=2)
    """A day is asked for once nothing of it has moved for so long ..."""
    at_most: timedelta = timedelta(minutes=15)
    """... or once it has moved for so long without a pause."""
