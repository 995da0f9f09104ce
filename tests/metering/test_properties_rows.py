"""Whatever is stored under a raw row's or a record's key, it is judged, by the domain's text and without an error."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.metering.rules.aggregate_group import Aggregate, judge_group
from metering_dagster.metering.rules.quantities import (
    MAX_DECIMALS,
    first_fault,
    number_fault,
    number_text,
    read_allocations,
)
from metering_dagster.metering.rules.raw_row import BillableRow, RawRow, group_of, judge, key_fault, parse_timestamp
from metering_dagster.metering.rules.statuses import Reason
from metering_dagster.metering.rules.usage_record import StoredAggregate, api_allocations, api_record, judge_aggregate
from tests.metering.builders import DECIMAL, INTEGER, LICENSE, NOW, a_key, a_row, an_allocation

modes = st.sampled_from([DECIMAL, INTEGER])
numbers = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False, places=7),
    st.builds(lambda digits, exponent: Decimal(digits).scaleb(exponent), st.integers(-(10**18), 10**18),
              st.integers(-130, 107)),
    st.builds(lambda edge, millionths: edge + Decimal(millionths).scaleb(-6),
              st.sampled_from([Decimal(0), Decimal(2147483647), Decimal("9999999999.999999")]), st.integers(-2, 2)),
)  # fmt: skip
"""As DynamoDB keeps them: up to 38 digits between 1E-130 and 1E+126."""
stored = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
times = st.sampled_from(
    ["2026-11-28T10:00:00", "2026-11-28T10:59:59", "2026-11-28T10:60:00", "2026-11-28T10", "", "now"]
)
sort_keys = st.one_of(
    st.builds("{}#{}#{}".format, st.sampled_from(["1", "", "x"]), st.sampled_from(["d", "a#b", ""]), times), st.text()
)
tags = st.dictionaries(st.sampled_from(["team", "env", "", "é", "k" * 100, "k" * 101]),
                       st.sampled_from(["a", "b", "", "\n", "v" * 256, "v" * 257]), max_size=6)  # fmt: skip
quantity_fields = st.dictionaries(
    st.sampled_from(["AllocatedUsageQuantity", "AllocatedUsageQuantityAsDecimal"]),
    st.sampled_from([Decimal(1), Decimal("0.5"), Decimal(-1), "1", "0.25", "01", "-1", 1.5, True, None]),
    max_size=2,
)
entries = st.one_of(
    stored,
    st.builds(lambda amount, tags: amount | {"Tags": [{"Key": k, "Value": v} for k, v in tags.items()]},
              quantity_fields, tags),
    quantity_fields,
)  # fmt: skip
allocations = st.lists(entries, max_size=3) | stored


def fault_by_the_text(value: object, quantities: Quantities) -> Reason | None:
    """Whole fractions instead of decimals."""
    if value is None:
        return Reason.MISSING_QUANTITY
    if not isinstance(value, Decimal):
        return Reason.NON_NUMERIC_QUANTITY
    exact = Fraction(value)
    faults = [
        (exact < 0, Reason.NEGATIVE_QUANTITY),
        (quantities is INTEGER and exact.denominator != 1, Reason.NON_INTEGER_QUANTITY),
        ((exact * 10**MAX_DECIMALS).denominator != 1, Reason.TOO_MANY_DECIMALS),
        (exact > (2**31 - 1 if quantities is INTEGER else Fraction(10**16 - 1, 10**6)), Reason.QUANTITY_TOO_LARGE),
    ]
    return next((reason for holds, reason in faults if holds), None)


@given(stored | numbers, modes)
@example(Decimal("-0"), DECIMAL)
@example(Decimal("5.000000000"), INTEGER)
def test_the_fault_of_a_number_is_the_texts(value, quantities):
    assert number_fault(value, quantities) is fault_by_the_text(value, quantities)


@given(numbers)
def test_a_number_is_written_as_plain_digits_that_mean_the_same(value):
    text = number_text(value)
    assert Fraction(text) == Fraction(value)
    assert set(text) <= set("-0123456789.")
    assert not text.startswith(("-0", ".")) or Fraction(value) < 0
    assert "." not in text or text[-1] not in "0."


absent = st.none() | st.none() | st.none() | stored
"""Mostly: else hardly anything would come as far as its quantity."""
any_rows = st.builds(
    RawRow, st.just(LICENSE), sort_keys, absent, absent, absent, numbers | stored, st.none() | allocations,
    pending=st.just("2026-11-28T10"),
)  # fmt: skip


@given(any_rows, modes)
def test_any_row_states_a_usage_or_has_a_reason(row, quantities):
    found, sort_key = judge(row, quantities), row.sort_key
    fault = key_fault(sort_key, row.account, row.dimension, row.timestamp)
    assert (group_of(LICENSE, sort_key) is None) == (
        key_fault(sort_key) in (Reason.MALFORMED_SORT_KEY, Reason.MALFORMED_TIMESTAMP)
    )
    if fault is not None:
        assert found is fault
    elif (number := fault_by_the_text(row.quantity, quantities)) is not None:
        assert found is number
    elif isinstance(found, BillableRow):
        key = group_of(LICENSE, sort_key)
        instant = parse_timestamp(sort_key.rpartition("#")[2])
        assert key is not None
        assert instant == key.hour + timedelta(seconds=found.second)
        assert found.quantity == row.quantity
        assert (found.allocations is None) == (row.allocations in (None, []))  # an empty list allocates nothing
    else:
        assert row.allocations is not None
        assert list(Reason).index(found) >= list(Reason).index(Reason.MALFORMED_ALLOCATIONS)


@given(st.lists(entries, min_size=1, max_size=4), numbers, modes)
def test_of_any_allocations_the_first_fault_of_any_of_them_counts(parts, quantity, quantities):
    """Each by itself, with its own quantity for a sum; only where all are good does the sum matter."""

    def alone(entry: object) -> Reason | None:
        found = read_allocations([entry], Decimal(-1), quantities)  # no allocation is negative: never its sum
        assert isinstance(found, Reason)
        return None if found is Reason.ALLOCATION_SUM_MISMATCH else found

    faults = [fault for entry in parts if (fault := alone(entry)) is not None]
    found = read_allocations(parts, quantity, quantities)
    if faults:
        assert found is first_fault(faults)
    elif isinstance(found, Reason):
        assert found is Reason.ALLOCATION_SUM_MISMATCH
    else:
        assert sum(Fraction(a.quantity) for a in found) == Fraction(quantity)
        assert [a.tags for a in found] == sorted({a.tags for a in found})
        assert read_allocations(api_allocations(found, quantities), quantity, quantities) in (
            found, Reason.INVALID_ALLOCATION  # the API's integers are no numbers of DynamoDB's
        )  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 3599), stored | numbers, st.none() | allocations), max_size=6), modes,
       st.booleans())  # fmt: skip
def test_any_rows_make_a_verdict_that_speaks_of_each_pending_row_once(parts, quantities, last_call):
    rows = [a_row(second, quantity, allocations=found) for second, quantity, found in parts]
    verdict = judge_group(a_key(), rows, NOW, quantities, last_call=last_call)
    spoken_of = [*(row for row, _ in verdict.bad), *(usage.row for usage in verdict.usages)]
    assert sorted(map(id, spoken_of)) == sorted(map(id, rows))


good_parts = st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(0, 10**9)), max_size=4,
                      unique_by=lambda part: part[0])  # fmt: skip


@given(good_parts, st.integers(0, 10**9), modes)
def test_a_record_reads_back_out_of_what_is_stored_of_it(parts, whole, quantities):
    """What a fold commits is what the submission judges, and its API form says the same number once."""
    tagged = [an_allocation(Decimal(n), **({"team": team} if team else {})) for team, n in parts]
    quantity = Decimal(sum(n for _, n in parts) if parts else whole)
    key = a_key()
    item = StoredAggregate(
        key.license_arn,
        key.prefix,
        key.account,
        key.dimension,
        key.bucket,
        quantity,
        tagged or None,
        pending=key.bucket,
    )
    found = judge_aggregate(item, NOW, quantities)
    if quantity > quantities.limit or any(Decimal(n) > quantities.limit for _, n in parts):
        assert found is Reason.QUANTITY_TOO_LARGE
        return
    assert isinstance(found, Aggregate)
    assert (found.key, found.quantity) == (key, quantity)
    record = api_record(found, quantities)
    name = "Quantity" if quantities is INTEGER else "QuantityAsDecimal"
    assert [Fraction(record[field]) for field in record if "Quantity" in field] == [Fraction(quantity)]
    assert name in record
    parts_of_it = record.get("UsageAllocations", [])
    assert sum(Fraction(part[f"AllocatedUsage{name}"]) for part in parts_of_it) == (Fraction(quantity) if parts else 0)
    assert [part.get("Tags") for part in parts_of_it] == [
        [{"Key": "team", "Value": team}] if team else None for team in sorted(team for team, _ in parts)
    ]


any_records = st.builds(
    lambda license, *attributes: StoredAggregate(
        license, a_key(license_arn=license).prefix, *attributes, pending=a_key().bucket
    ),
    st.sampled_from([LICENSE, "prod-1"]), absent, absent, absent, numbers | stored, st.none() | allocations, absent,
)  # fmt: skip


@given(any_records, modes)
def test_any_stored_record_is_a_record_or_has_a_reason(item, quantities):
    if isinstance(judge_aggregate(item, NOW, quantities), Aggregate):
        assert fault_by_the_text(item.quantity, quantities) is None
        assert judge_aggregate(replace(item, quantity=None), NOW, quantities) is Reason.MISSING_QUANTITY
