"""Resource groups cut into pieces for queries with two plain IN lists: some integrations, times some names. Pure.

Belongs here: the cutting. Does not: the queries (stores/queries). Along plain lists MariaDB jumps through an index from
one group to the next; pairs it reads row by row.
"""

from collections.abc import Iterable, Iterator

from metering_dagster.core.chunks import chunked


def rectangles(pairs: Iterable[tuple[str, str]], size: int) -> Iterator[tuple[list[str], list[str]]]:
    """Yield integrations and names, at most `size` of either at a time; each pair is in exactly one rectangle.

    An integration is in several rectangles only if it is alone there.
    """
    groups_of: dict[str, list[tuple[str, str]]] = {}
    for pair in sorted(pairs):
        groups_of.setdefault(pair[0], []).append(pair)
    together: list[tuple[str, str]] = []
    for own in groups_of.values():
        if len(together) + len(own) > size and together:
            yield _sides(together)
            together = []
        *full, rest = chunked(own, size)
        for chunk in full:
            yield _sides(chunk)
        if full:
            yield _sides(rest)
        else:
            together += rest
    if together:
        yield _sides(together)


def _sides(pairs: Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
    integrations, names = zip(*pairs, strict=True)
    return sorted(set(integrations)), sorted(set(names))
