"""What a number is, how numbers add up exactly, what is wrong with allocations (domain: reason codes)."""

import re
from decimal import Decimal, Inexact
from fractions import Fraction

import pytest
from boto3.dynamodb.types import TypeDeserializer
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.metering.rules.quantities import (
    EXACT,
    Allocation,
    first_fault,
    has_repeated_tag_set,
    merge,
    number_fault,
    number_text,
    read_allocations,
    total,
)
from metering_dagster.metering.rules.statuses import Reason
from tests.metering.builders import DECIMAL, INTEGER, an_allocation

API = re.compile(r"^(0|[1-9][0-9]{0,9})(\.[0-9]{1,6})?$")
as_dynamodb_reads = TypeDeserializer().deserialize

billable = st.integers(0, 9999999999999999).map(lambda n: Decimal(n).scaleb(-6))
tag_sets = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("xyz"), max_size=5)


@pytest.mark.case("number_forms")
@pytest.mark.parametrize("form", ["5", "5.0", "5E0", "500E-2", "0.5E1", "+5.000000000"])
def test_every_form_of_five_is_five(form):
    number = as_dynamodb_reads({"N": form})
    assert number_fault(number, DECIMAL) is None
    assert number_fault(number, INTEGER) is None
    assert number_text(number) == "5"


@pytest.mark.case("number_forms")
@pytest.mark.parametrize(("stored", "reason"), [
    ({"NULL": True}, Reason.MISSING_QUANTITY),
    ({"S": "5"}, Reason.NON_NUMERIC_QUANTITY), ({"S": "5.0"}, Reason.NON_NUMERIC_QUANTITY),
    ({"S": ""}, Reason.NON_NUMERIC_QUANTITY), ({"BOOL": True}, Reason.NON_NUMERIC_QUANTITY),
    ({"BOOL": False}, Reason.NON_NUMERIC_QUANTITY), ({"L": [{"N": "5"}]}, Reason.NON_NUMERIC_QUANTITY),
    ({"M": {}}, Reason.NON_NUMERIC_QUANTITY), ({"NS": ["5"]}, Reason.NON_NUMERIC_QUANTITY),
    ({"B": b"5"}, Reason.NON_NUMERIC_QUANTITY),
    ({"N": "-1"}, Reason.NEGATIVE_QUANTITY), ({"N": "-0.0000001"}, Reason.NEGATIVE_QUANTITY),
])  # fmt: skip
def test_what_is_no_number_or_below_zero(stored, reason):
    assert number_fault(as_dynamodb_reads(stored), DECIMAL) is reason
    assert number_fault(as_dynamodb_reads(stored), INTEGER) is reason


@pytest.mark.parametrize(("text", "decimal", "integer"), [
    ("0", None, None), ("-0", None, None), ("0E-40", None, None), ("1E+3", None, None),
    ("0.5", None, Reason.NON_INTEGER_QUANTITY), ("0.000001", None, Reason.NON_INTEGER_QUANTITY),
    ("0.0000001", Reason.TOO_MANY_DECIMALS, Reason.NON_INTEGER_QUANTITY),
    ("1.0000000", None, None), ("1.1000000", None, Reason.NON_INTEGER_QUANTITY),
    ("2147483647", None, None), ("2147483648", None, Reason.QUANTITY_TOO_LARGE),
    ("9999999999.999999", None, Reason.NON_INTEGER_QUANTITY),
    ("10000000000", Reason.QUANTITY_TOO_LARGE, Reason.QUANTITY_TOO_LARGE),
    ("10000000000.0000001", Reason.TOO_MANY_DECIMALS, Reason.NON_INTEGER_QUANTITY),
    ("9.9999999999999999999999999999999999999E+125", Reason.QUANTITY_TOO_LARGE, Reason.QUANTITY_TOO_LARGE),
    ("1E-130", Reason.TOO_MANY_DECIMALS, Reason.NON_INTEGER_QUANTITY),
])  # fmt: skip
def test_the_faults_of_a_number_in_their_order(text, decimal, integer):
    assert number_fault(Decimal(text), DECIMAL) is decimal
    assert number_fault(Decimal(text), INTEGER) is integer


@pytest.mark.parametrize(("value", "text"), [
    ("0", "0"), ("-0", "0"), ("-0.00", "0"), ("0E+3", "0"), ("0E-9", "0"), ("1E+1", "10"), ("0.50", "0.5"),
    ("100", "100"), ("1E-6", "0.000001"), ("9999999999.999999", "9999999999.999999"), ("-1.50", "-1.5"),
])  # fmt: skip
def test_a_number_is_written_plain_and_short(value, text):
    assert number_text(Decimal(value)) == text


@given(billable, st.integers(0, 6))
def test_a_billable_number_reads_back_and_is_what_the_api_takes(value, zeros):
    written = number_text(EXACT.quantize(value, Decimal(1).scaleb(-6 - zeros)))
    assert API.match(written)
    assert Decimal(written) == value
    assert written == number_text(value)


@pytest.mark.case("fractions_are_exact")
def test_fractions_add_up_exactly():
    values = [Decimal("0.1")] * 10 + [Decimal("0.000001")]
    assert number_text(total(values)) == "1.000001"
    assert number_fault(Decimal("0.0000001"), DECIMAL) is Reason.TOO_MANY_DECIMALS


@given(st.lists(billable, max_size=30), st.randoms(use_true_random=False))
def test_a_sum_is_exact_whatever_the_order(values, random):
    exact = sum((Fraction(value) for value in values), Fraction())
    random.shuffle(values)
    assert Fraction(total(values)) == exact


def test_numbers_from_both_ends_of_what_a_table_can_hold_add_up():
    assert total([Decimal("9.9E+125"), Decimal("1E-130"), Decimal("-9.9E+125")]) == Decimal("1E-130")
    with pytest.raises(Inexact):
        total([Decimal("1E+400"), Decimal(1)])


def test_of_several_faults_the_one_looked_for_first_counts():
    assert first_fault([Reason.INVALID_TAG, Reason.TOO_MANY_TAGS, Reason.INVALID_TAG]) is Reason.TOO_MANY_TAGS
    with pytest.raises(ValueError, match="empty"):
        first_fault([])


def test_allocations_are_read_sorted_and_equal_tag_sets_are_added_up():
    raw = [
        an_allocation("1.5", team="b", app="x"), an_allocation(Decimal(2), app="x", team="b"), an_allocation("0.5"),
        an_allocation("1", team="a"), {"AllocatedUsageQuantity": Decimal(4)},
    ]  # fmt: skip
    assert read_allocations(raw, Decimal(9), DECIMAL) == (
        Allocation((), Decimal("4.5")),
        Allocation((("app", "x"), ("team", "b")), Decimal("3.5")),
        Allocation((("team", "a"),), Decimal(1)),
    )


GOOD = an_allocation("1", team="a")
SIX_TAGS = an_allocation("1", **{f"k{n}": "v" for n in range(6)})
IN_ORDER = [
    (Reason.MALFORMED_ALLOCATIONS, [
        "text", Decimal(1), None, {}, {"Tags": [{"Key": "a", "Value": "b"}]},
        {"AllocatedUsageQuantity": Decimal(1), "AllocatedUsageQuantityAsDecimal": "1"},
        {**GOOD, "Tags": []}, {**GOOD, "Tags": {}}, {**GOOD, "Tags": None}, {**GOOD, "Tags": ["team"]},
    ]),
    (Reason.INVALID_ALLOCATION, [
        an_allocation(Decimal(-1)), an_allocation("-1"), an_allocation("abc"), an_allocation("01"), an_allocation(""),
        an_allocation("1e3"), an_allocation("1.0000000"), an_allocation("1\n"), an_allocation("٣"),
        an_allocation(True), an_allocation(Decimal("0.0000001")), an_allocation(Decimal("1E+125")),
        {"AllocatedUsageQuantity": "1"}, {"AllocatedUsageQuantity": True}, {"AllocatedUsageQuantity": [Decimal(1)]},
    ]),
    (Reason.TOO_MANY_TAGS, [SIX_TAGS]),
    (Reason.MISSING_TAG_KEY_OR_VALUE, [
        {**GOOD, "Tags": [{}]}, {**GOOD, "Tags": [{"Key": "a"}]}, {**GOOD, "Tags": [{"Value": "a"}]},
        an_allocation("1", team=""), {**GOOD, "Tags": [{"Key": "", "Value": "v"}]},
        {**GOOD, "Tags": [{"Key": "a", "Value": None}]},
    ]),
    (Reason.INVALID_TAG, [
        an_allocation("1", **{"k" * 101: "v"}), an_allocation("1", team="v" * 257), an_allocation("1", team="ä"),
        an_allocation("1", **{"a{b": "v"}), an_allocation("1", team="a\n"), an_allocation("1", team=Decimal(1)),
        {**GOOD, "Tags": [{"Key": ["a"], "Value": "v"}]},
        {**GOOD, "Tags": [{"Key": "a", "Value": "v"}, {"Key": "a", "Value": "w"}]},
    ]),
    (Reason.ALLOCATION_SUM_MISMATCH, [an_allocation("1.000001"), an_allocation("0")]),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "entry"), [(reason, entry) for reason, entries in IN_ORDER for entry in entries])
def test_a_bad_allocation_has_its_reason_whatever_stands_beside_it(reason, entry):
    assert read_allocations([entry], Decimal(1), DECIMAL) is reason
    assert read_allocations([an_allocation("0", team="good"), entry], Decimal(1), DECIMAL) is reason


@pytest.mark.parametrize(("first", "second"), [
    (one, other) for n, one in enumerate(IN_ORDER) for other in IN_ORDER[n + 1 :]
])  # fmt: skip
def test_of_two_bad_allocations_the_first_reason_counts_in_either_order(first, second):
    for pair in ([first[1][0], second[1][0]], [second[1][0], first[1][0]]):
        assert read_allocations(pair, Decimal(1), DECIMAL) is first[0]


@pytest.mark.parametrize("raw", [[], {}, "text", Decimal(1), True, (GOOD,)])
def test_allocations_that_are_no_list_are_malformed(raw):
    assert read_allocations(raw, Decimal(1), DECIMAL) is Reason.MALFORMED_ALLOCATIONS


@pytest.mark.parametrize("text", ["azAZ09", " !\"#$%&'()*+,-./:;<=", "_@"])
def test_the_whole_range_of_the_api_is_allowed_in_tags(text):
    raw = [an_allocation("1", **{text: text})]
    assert read_allocations(raw, Decimal(1), DECIMAL) == (Allocation(((text, text),), Decimal(1)),)


def test_the_longest_and_the_most_tags_are_allowed():
    tags = {f"{n}{'k' * 99}": "v" * 256 for n in range(5)}
    read = read_allocations([an_allocation("1", **tags)], Decimal(1), DECIMAL)
    assert read == (Allocation(tuple(sorted(tags.items())), Decimal(1)),)


def test_integer_quantities_take_whole_allocations_alone():
    halves = [an_allocation("0.5", team="a"), an_allocation("0.5", team="b")]
    assert read_allocations(halves, Decimal(1), INTEGER) is Reason.INVALID_ALLOCATION
    assert read_allocations([{"AllocatedUsageQuantity": Decimal("1.0")}], Decimal(1), INTEGER) == (
        Allocation((), Decimal(1)),
    )


@given(st.lists(st.tuples(tag_sets, billable), min_size=1, max_size=20))
def test_merging_keeps_the_sum_and_names_each_tag_set_once(parts):
    merged = merge(Allocation(tuple(sorted(tags.items())), quantity) for tags, quantity in parts)
    assert sum(Fraction(a.quantity) for a in merged) == sum(Fraction(quantity) for _, quantity in parts)
    assert [a.tags for a in merged] == sorted({tuple(sorted(tags.items())) for tags, _ in parts})


def test_a_repeated_tag_set_is_seen_whatever_the_order_of_its_tags():
    assert has_repeated_tag_set([an_allocation("1", a="x", b="y"), an_allocation("2", b="y", a="x")], DECIMAL)
    assert has_repeated_tag_set([an_allocation("1"), an_allocation("2")], DECIMAL)
    assert not has_repeated_tag_set([an_allocation("1", a="x"), an_allocation("2", a="y"), an_allocation("1")], DECIMAL)
    assert not has_repeated_tag_set("text", DECIMAL)
