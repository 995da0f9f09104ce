"""A bounded number of things at a time, so that memory stays flat however many there are (pure).

Belongs here: cutting a stream. Does not: what is in it.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`, the last one shorter; none of nothing."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
