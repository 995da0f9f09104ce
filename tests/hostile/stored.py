"""Whatever DynamoDB can store.

Belongs here: values of every type, texts of keys. Does not: what an item is about.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.hostile.secrets import ACCOUNT, IDENTIFIER, LICENSE

# DynamoDB keeps UTF-8: no surrogates.
CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.text(CHARACTERS, max_size=12) | st.sampled_from(
    ["", "#", "##", "\x00", "a\nb", "\u202e", "é" * 3, "0", "arn:", LICENSE, ACCOUNT, IDENTIFIER, "2026-11-28T10"]
)
NUMBERS = st.sampled_from([
    "0", "-0", "1", "-1", "1.5", "0.0000001", "9999999999.999999", "10000000000", "1E+125", "1E-130", "-9.9E+125",
    "99999999999999999999999999999999999999", "0.10", "1E2",
]) | st.integers(-(10**6), 10**12).map(str) | st.decimals(
    Decimal("-1E30"), Decimal("1E30"), allow_nan=False, allow_infinity=False, places=9
).map(lambda number: f"{number:f}"[:38])  # fmt: skip
BYTES = st.binary(max_size=12)


def _scalars() -> st.SearchStrategy[Mapping[str, Any]]:
    return st.one_of(
        TEXT.map(lambda v: {"S": v}), NUMBERS.map(lambda v: {"N": v}), BYTES.map(lambda v: {"B": v}),
        st.booleans().map(lambda v: {"BOOL": v}), st.just({"NULL": True}),
        st.sets(TEXT, min_size=1, max_size=3).map(lambda v: {"SS": sorted(v)}),
        st.sets(st.integers(-9, 99).map(str), min_size=1, max_size=3).map(lambda v: {"NS": sorted(v)}),
        st.sets(BYTES, min_size=1, max_size=3).map(lambda v: {"BS": sorted(v)}),
    )  # fmt: skip


VALUES: st.SearchStrategy[Mapping[str, Any]] = st.recursive(
    _scalars(),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda v: {"L": v})
        | st.dictionaries(st.sampled_from(["Key", "Value", "Tags", "a", ""]), inner, max_size=3).map(lambda v: {"M": v})
    ),
    max_leaves=6,
)
_TAG = st.fixed_dictionaries(
    {}, optional={"Key": VALUES | st.just({"S": "team"}), "Value": VALUES | st.just({"S": "red"}), "Other": VALUES}
).map(lambda v: {"M": v})  # fmt: skip
_ALLOCATION = st.fixed_dictionaries({}, optional={
    "AllocatedUsageQuantity": VALUES | st.just({"N": "1"}),
    "AllocatedUsageQuantityAsDecimal": VALUES | st.just({"S": "1"}),
    "Tags": VALUES | st.lists(_TAG, max_size=7).map(lambda v: {"L": v}),
}).map(lambda v: {"M": v})  # fmt: skip
ALLOCATIONS = VALUES | st.lists(_ALLOCATION | VALUES, max_size=3).map(lambda v: {"L": v})
