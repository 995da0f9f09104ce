"""Texts that are nearly what they should be: JSON with one thing wrong, cut short, or of another kind altogether.

Belongs here: breaking a good document. Does not: whose documents these are.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**40, -(10**400), float("nan"), float("inf"), "", "\x00", "\ud800", "x" * 3000, [],
    {}, [[]], {"a": {}}, "2026-11-28T10", "0001-01-01T00:00:00+14:00", "9999-12-31", 253402300799, 2**63,
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
DEEP = "[" * 100_000
TEXTS = st.text(max_size=60) | JSON.map(json.dumps) | st.sampled_from([DEEP, "9" * 5000, "", "null", "\x00", "{}"])


@st.composite
def broken(draw: st.DrawFn, good: Any) -> Any:
    """The document with one thing in it replaced or left out."""
    document = copy.deepcopy(good)
    holder, name = draw(st.sampled_from(list(_places(document))))
    if draw(st.booleans()) and isinstance(holder, dict):
        del holder[name]
    else:
        holder[name] = draw(st.sampled_from(ODD) | JSON)
    return document


def broken_text(good: Any) -> st.SearchStrategy[str]:
    """A text that nearly is the document, or any text at all."""
    whole = json.dumps(good)
    cut = st.integers(0, len(whole)).map(lambda length: whole[:length])
    return broken(good).map(json.dumps) | cut | TEXTS


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    names = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for name in list(names):
        yield document, name
        yield from _places(document[name])
