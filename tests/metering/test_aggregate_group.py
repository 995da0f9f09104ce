"""What becomes of a group: its faults in order, the fold, holds, zeros, the last call (domain: terminal states)."""

import random
from decimal import Decimal
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metering_dagster.core.hours import HOUR
from metering_dagster.metering.rules.aggregate_group import (
    MAX_ITEM_BYTES,
    Aggregate,
    GroupOutcome,
    Verdict,
    belongs,
    fold,
    group_fault,
    item_bytes,
    judge_group,
    judge_pending,
)
from metering_dagster.metering.rules.quantities import Allocation, number_text, table_allocations
from metering_dagster.metering.rules.statuses import RawStatus, Reason
from tests.metering.builders import (
    ACCOUNT,
    DECIMAL,
    INTEGER,
    LICENSE,
    NOW,
    a_key,
    a_rejected_row,
    a_row,
    a_usage,
    an_aggregate,
    an_allocation,
    api_shape,
    longest_allocations,
    the_next_hour,
)


def judged(*rows, last_call=False, quantities=DECIMAL, **differences):
    return judge_group(a_key(**differences), rows, NOW, quantities, last_call=last_call)


def buckets(*pairs):
    return tuple(Allocation(tuple(sorted(tags.items())), Decimal(quantity)) for tags, quantity in pairs)


# Whose row it is.


@pytest.mark.case("hash_in_dimension")
def test_neither_of_a_and_a_hash_b_reads_the_others_rows():
    short, long = a_key(dimension="a"), a_key(dimension="a#b")
    rows = [a_row(0, Decimal(1), key=short), a_row(0, Decimal(2), key=long)]
    assert judge_group(short, rows, NOW, DECIMAL, last_call=False).aggregate == Aggregate(short, Decimal(1))
    assert judge_group(long, rows, NOW, DECIMAL, last_call=False).aggregate == Aggregate(long, Decimal(2))


def test_a_longer_dimension_that_begins_like_the_prefix_is_another_group():
    longer = a_key(dimension=f"api_calls#{a_key().bucket}")
    assert a_row(key=longer).sort_key.startswith(a_key().prefix)
    assert not belongs(a_key(), a_row(key=longer))
    assert belongs(longer, a_row(key=longer))


@pytest.mark.case("misfiled_row")
def test_a_fold_counts_every_pending_row_of_the_key_whatever_hour_it_is_filed_under():
    misfiled = a_row(3599, Decimal(4), pending=the_next_hour(a_key()))
    stranger = a_row(0, Decimal(8), key=a_key(hour=a_key().hour + HOUR), pending=a_key().bucket)
    assert judged(a_row(0), misfiled, stranger).aggregate == an_aggregate(5)


def test_a_final_row_is_not_counted_again():
    assert judged(a_row(0), a_row(1, pending=None, status=RawStatus.AGGREGATED.value)).aggregate == an_aggregate(1)


def test_a_pending_row_counts_whatever_its_status_says():
    rewritten = a_rejected_row(Reason.NON_NUMERIC_QUANTITY, 1, Decimal(2), pending=a_key().bucket)
    assert judged(a_row(0), rewritten).aggregate == an_aggregate(3)


def test_without_a_pending_row_there_is_nothing_to_do():
    final = [a_rejected_row(Reason.INVALID_TAG, 1), a_rejected_row(Reason.TIMESTAMP_IN_FUTURE, 2)]
    assert judged().outcome is GroupOutcome.NOTHING
    assert judged(*final, last_call=True).outcome is GroupOutcome.NOTHING


# A bad row holds its group.


def an_hour_with_one_bad_row():
    return [a_row(second) for second in range(59)], a_row(59, "abc")


@pytest.mark.case("one_bad_row_holds_the_hour")
def test_a_bad_row_holds_its_group_until_it_is_mended():
    good, bad = an_hour_with_one_bad_row()
    first = judged(*good, bad)
    assert (first.outcome, len(first.usages), first.aggregate) == (GroupOutcome.HOLD, 59, None)
    assert first.bad == ((bad, Reason.NON_NUMERIC_QUANTITY),)
    rejected = a_rejected_row(Reason.NON_NUMERIC_QUANTITY, 59, "abc")
    assert judged(*good, rejected).outcome is GroupOutcome.HOLD
    assert judged(*good, rejected).bad == ()
    assert judged(*good, a_row(59)).aggregate == an_aggregate(60)
    assert judged(*good).aggregate == an_aggregate(59)  # the bad row was deleted


@pytest.mark.case("one_bad_row_never_mended")
def test_a_bad_row_holds_its_group_until_the_last_call():
    good, bad = an_hour_with_one_bad_row()
    rejected = a_rejected_row(Reason.NON_NUMERIC_QUANTITY, 59, "abc")
    late = judged(*good, rejected, last_call=True)
    assert (late.outcome, late.aggregate, late.bad) == (GroupOutcome.COMMIT, an_aggregate(59), ())
    at_once = judged(*good, bad, last_call=True)
    assert (at_once.outcome, at_once.aggregate) == (GroupOutcome.COMMIT, an_aggregate(59))
    assert at_once.bad == ((bad, Reason.NON_NUMERIC_QUANTITY),)


def test_a_row_whose_key_names_no_time_holds_the_group_too():
    nameless = a_row(sort_key=f"{a_key().prefix}:99:00", timestamp=None)
    verdict = judged(a_row(1), nameless)
    assert (verdict.outcome, verdict.bad) == (GroupOutcome.HOLD, ((nameless, Reason.MALFORMED_TIMESTAMP),))


@pytest.mark.parametrize("last_call", [False, True])
def test_a_bad_row_alone_is_rejected_and_leaves_nothing(last_call):
    verdict = judged(a_row(0, Decimal(-1)), last_call=last_call)
    assert (verdict.outcome, [reason for _, reason in verdict.bad]) == (
        GroupOutcome.NOTHING,
        [Reason.NEGATIVE_QUANTITY],
    )


# Zero.


@pytest.mark.case("zero_waits")
def test_a_zero_waits_for_a_later_row_until_the_last_call():
    zeros = [a_row(second, Decimal("0.0")) for second in range(3)]
    assert judged(*zeros) == Verdict(GroupOutcome.ZERO, usages=judge_pending(zeros, DECIMAL)[1])
    assert judged(*zeros, a_row(9, Decimal(2))).aggregate == an_aggregate(2)
    assert judged(*zeros, last_call=True).aggregate == an_aggregate(0)


def test_a_zero_beside_a_bad_row_is_held():
    assert judged(a_row(0, Decimal(0)), a_row(1, None)).outcome is GroupOutcome.HOLD


# Faults of the whole group.

MANY = buckets(*(({"team": f"{n:04}"}, 1) for n in range(2501)))
FAULTS = [
    (Reason.MISSING_DIMENSION, {"dimension": ""}),
    (Reason.DIMENSION_TOO_LONG, {"dimension": "ä" * 256}),
    (Reason.TIMESTAMP_IN_FUTURE, {"hour": a_key().hour + 3 * HOUR}),
    (Reason.INVALID_LICENSE_ARN, {"license_arn": "arn:aws:license manager"}),
    (Reason.MISSING_CUSTOMER_AWS_ACCOUNT_ID, {"account": ""}),
    (Reason.INVALID_CUSTOMER_AWS_ACCOUNT_ID, {"account": "12345678901a"}),
    (Reason.MISSING_LEGACY_IDENTIFIER, {"license_arn": "prod-1", "account": ""}),
    (Reason.QUANTITY_TOO_LARGE, {"quantity": 10**10}),
    (Reason.TOO_MANY_ALLOCATIONS, {"allocations": MANY}),
    (Reason.AGGREGATE_TOO_LARGE, {"allocations": longest_allocations(500)}),
]


@pytest.mark.parametrize(("reason", "differences"), FAULTS)
def test_each_fault_of_a_group_has_its_reason(reason, differences):
    assert group_fault(an_aggregate(**differences), NOW, DECIMAL) is reason


@pytest.mark.parametrize(("first", "second"), [
    pair for pair in combinations(FAULTS, 2) if not set(pair[0][1]) & set(pair[1][1])
])  # fmt: skip
def test_a_group_with_two_faults_gets_the_first(first, second):
    assert group_fault(an_aggregate(**second[1], **first[1]), NOW, DECIMAL) is first[0]


def test_every_reason_of_a_group_is_tried_here():
    order = [reason for reason, _ in FAULTS]
    others = [reason for reason in order if reason is not Reason.QUANTITY_TOO_LARGE]  # a row's reason as well
    assert others == [reason for reason in Reason if reason in others]


@pytest.mark.parametrize("differences", [
    {"dimension": "x"}, {"dimension": "ä" * 255}, {"dimension": "a #\n☃"}, {"hour": a_key().hour + 2 * HOUR},
    {"license_arn": "arn:aws:license-manager::1:license/l-abc"}, {"license_arn": "arn:aws-cn:a:::b"},
    {"license_arn": "prod-1", "account": "letters"}, {"account": "1"}, {"quantity": "9999999999.999999"},
    {"license_arn": "prod-1", "account": "", "customer_identifier": "buyer"}, {"allocations": MANY[:2500]},
])  # fmt: skip
def test_what_the_contract_allows_is_no_fault(differences):
    assert group_fault(an_aggregate(**differences), NOW, DECIMAL) is None


@pytest.mark.parametrize(
    "arn", ["arn:", "arn:aws:::", f"{LICENSE} ", f"{LICENSE}\n", "arn:gcp:a:::b", f"arn:aws:a:::b{'b' * 1024}"]
)
def test_what_begins_like_an_arn_must_be_one(arn):
    assert group_fault(an_aggregate(license_arn=arn), NOW, DECIMAL) is Reason.INVALID_LICENSE_ARN


@pytest.mark.case("sum_too_large")
def test_a_sum_that_is_too_large_rejects_all_rows_and_sends_nothing():
    verdict = judged(a_row(0, Decimal("9999999999.999999")), a_row(1, Decimal("0.000001")))
    assert (verdict.outcome, verdict.reason, verdict.aggregate) == (
        GroupOutcome.REJECT,
        Reason.QUANTITY_TOO_LARGE,
        None,
    )
    assert len(verdict.usages) == 2
    whole = judged(a_row(0, Decimal(2**31 - 1)), a_row(1), quantities=INTEGER)
    assert whole.reason is Reason.QUANTITY_TOO_LARGE


def test_a_fault_of_the_group_goes_before_hold_and_zero():
    assert judged(a_row(0, Decimal(0), key=a_key(account="x")), account="x").outcome is GroupOutcome.REJECT
    rows = [a_row(0, Decimal(9) * 10**9), a_row(1, Decimal(9) * 10**9), a_row(2, "abc")]
    verdict = judged(*rows)
    assert (verdict.outcome, verdict.bad) == (GroupOutcome.REJECT, ((rows[2], Reason.NON_NUMERIC_QUANTITY),))
    assert [usage.row for usage in verdict.usages] == rows[:2]


@pytest.mark.case("aggregate_over_400_kb")
def test_a_group_whose_item_would_pass_400_kb_is_rejected():
    parts = longest_allocations(500)
    rows = [a_row(n, Decimal(100), allocations=api_shape(parts[n * 100 : n * 100 + 100])) for n in range(5)]
    assert judged(*rows).reason is Reason.AGGREGATE_TOO_LARGE
    assert judged(rows[0]).outcome is GroupOutcome.COMMIT


@pytest.mark.parametrize("reason", [*sorted(Reason), "MixedAllocatedAndUnallocated", None])
def test_rows_that_judge_good_by_now_are_judged_together_again_once_one_is_pending(reason):
    """Whatever they were rejected for: with their group, by a stricter pipeline, or by a setting that was mended."""
    standing = [a_rejected_row(reason, second) for second in range(3)]
    verdict = judged(*standing, a_row(9))
    assert verdict.outcome is GroupOutcome.REVIVE
    assert [usage.row for usage in verdict.usages] == standing
    revived = [a_row(second) for second in range(3)]
    assert judged(*revived, a_row(9)).aggregate == an_aggregate(4)


def test_a_row_that_is_bad_by_itself_is_not_revived():
    too_large = a_rejected_row(Reason.QUANTITY_TOO_LARGE, 0, Decimal(10**10))
    assert judged(too_large, a_row(1)).outcome is GroupOutcome.HOLD
    still_bad = a_rejected_row(Reason.INVALID_TAG, quantity="abc")
    assert judged(still_bad, a_row(1)).outcome is GroupOutcome.HOLD


# The fold.


@pytest.mark.case("fractions_are_exact")
def test_ten_tenths_and_a_millionth():
    rows = [a_row(second, Decimal("0.1")) for second in range(10)] + [a_row(10, Decimal("0.000001"))]
    assert number_text(judged(*rows).aggregate.quantity) == "1.000001"


@pytest.mark.case("allocations")
def test_rows_without_allocations_are_the_untagged_bucket():
    rows = [
        a_row(0, Decimal(5), allocations=[an_allocation("3", team="a"), an_allocation("2", team="b")]),
        a_row(1, Decimal(1), allocations=[an_allocation("1", team="b")]),
        a_row(2, Decimal(4)),
    ]
    expected = buckets(({}, 4), ({"team": "a"}, 3), ({"team": "b"}, 3))
    assert judged(*rows).aggregate == an_aggregate(10, allocations=expected)


def test_an_untagged_bucket_is_added_to_and_never_invented():
    tagged = a_row(0, Decimal(3), allocations=[an_allocation("2", team="a"), an_allocation("1")])
    assert judged(tagged, a_row(1)).aggregate.allocations == buckets(({}, 2), ({"team": "a"}, 2))
    alone = a_row(0, Decimal(2), allocations=[an_allocation("2", team="a")])
    assert judged(alone, a_row(1, Decimal(0))).aggregate.allocations == buckets(({"team": "a"}, 2))
    assert judged(a_row(0), a_row(1)).aggregate.allocations is None


def some_usage(second, quantity, team):
    quantity = Decimal(quantity).scaleb(-6)
    return a_usage(second, quantity, allocations=[an_allocation(quantity, team=team)] if team else None)


usages = st.builds(
    lambda parts: [some_usage(second, *part) for second, part in enumerate(parts)],
    st.lists(st.tuples(st.integers(0, 10**12), st.sampled_from(["", "a", "b"])), min_size=1, max_size=30),
)


@given(usages, st.randoms(use_true_random=False))
def test_a_fold_is_the_exact_sum_whatever_the_order(usages, order: random.Random):
    shuffled = list(usages)
    order.shuffle(shuffled)
    folded = fold(a_key(), usages, NOW, DECIMAL)
    assert folded == fold(a_key(), shuffled, NOW, DECIMAL)
    assert Fraction(folded.quantity) == sum(Fraction(usage.quantity) for usage in usages)
    if folded.allocations is not None:
        assert sum(Fraction(a.quantity) for a in folded.allocations) == Fraction(folded.quantity)


# Legacy products.


def test_a_legacy_group_carries_its_customers_identifier():
    key = a_key(license_arn="prod-1")
    rows = [
        a_row(0, key=key),
        a_row(1, key=key, customer_identifier="buyer"),
        a_row(2, key=key, customer_identifier=""),
    ]
    verdict = judge_group(key, rows, NOW, DECIMAL, last_call=False)
    assert verdict.aggregate == Aggregate(key, Decimal(3), customer_identifier="buyer")
    assert judged(a_row(0, customer_identifier="buyer")).aggregate.customer_identifier is None


def legacy_rows(*customers, **differences):
    key = a_key(license_arn="prod-1")
    return key, [a_row(n, key=key, customer_identifier=who, **differences) for n, who in enumerate(customers)]


@pytest.mark.parametrize(
    ("customers", "reason"),
    [(["a", "b", "a"], Reason.SORT_KEY_MISMATCH), (["a", ["c"]], Reason.MISSING_LEGACY_IDENTIFIER)],
)
def test_a_legacy_group_without_one_customer_is_nobodys(customers, reason):
    key, rows = legacy_rows(*customers)
    verdict = judge_group(key, rows, NOW, DECIMAL, last_call=True)
    assert (verdict.outcome, verdict.reason, verdict.aggregate) == (GroupOutcome.REJECT, reason, None)
    assert len(verdict.usages) == len(rows)


def test_a_legacy_group_is_judged_whole_again_once_its_odd_row_is_mended():
    key, rejected = legacy_rows("a", "a", pending=None, status="RejectedClientSide", reason="SortKeyMismatch")
    mended = a_row(5, key=key, customer_identifier="a")
    verdict = judge_group(key, [*rejected, mended], NOW, DECIMAL, last_call=False)
    assert verdict.outcome is GroupOutcome.REVIVE
    assert [usage.row for usage in verdict.usages] == rejected


def test_a_row_of_a_license_whose_key_is_contradicted_is_not_revived():
    rejected = a_row(0, account="000000000000", pending=None, status="RejectedClientSide", reason="SortKeyMismatch")
    verdict = judge_group(a_key(), [rejected, a_row(1)], NOW, DECIMAL, last_call=False)
    assert verdict.outcome is GroupOutcome.HOLD


# The size of an item.


def dynamodb_size(value):
    """The size of a value as DynamoDB's guide counts it: a number from above."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, list):
        return 3 + sum(1 + dynamodb_size(entry) for entry in value)
    if isinstance(value, dict):
        return 3 + sum(1 + len(name.encode()) + dynamodb_size(entry) for name, entry in value.items())
    return (len(str(value).replace(".", "")) + 1) // 2 + 1


def stored_item(aggregate):
    key, stamp = aggregate.key, "2026-11-28T12:20:30.123456Z"
    item = {
        "licenseArn": key.license_arn, "account_dimension_hour": key.prefix, "customerAWSAccountId": key.account,
        "dimension": key.dimension, "hourBucket": key.bucket, "quantity": aggregate.quantity, "createdAt": stamp,
        "updatedAt": stamp, "meteringPending": key.bucket,
    }  # fmt: skip
    if aggregate.customer_identifier:
        item["customerIdentifier"] = aggregate.customer_identifier
    if aggregate.allocations is not None:
        item["usageAllocations"] = table_allocations(aggregate.allocations)
    return item


SENT = {
    "meteringStatus": "RejectedClientSide", "meteringStatusReason": "InvalidUsageAllocationsException",
    "meteringRecordId": "r" * 64, "ttl": 1795000000,
}  # fmt: skip
texts = st.text("aä☃ #", min_size=1, max_size=255)
tags = st.dictionaries(st.text("ab", min_size=1, max_size=100), st.text('c"', min_size=1, max_size=256), max_size=5)


@given(texts, st.lists(st.tuples(tags, st.integers(0, 10**9)), max_size=20))
@example("☃" * 255, [])
@example("a", [({}, 1)] * 2500)
@example("a", [({"t": "v"}, 10**9)] * 2500)
def test_the_size_of_an_item_is_never_below_the_true_one_and_hardly_above(dimension, parts):
    allocations = buckets(*parts) or None
    aggregate = an_aggregate(7, dimension=dimension, allocations=allocations, customer_identifier="buyer-1")
    item = stored_item(aggregate)
    bare, full = (dynamodb_size(fields) - len(fields) - 3 for fields in (item, {**item, **SENT}))
    # A table packs two digits of a number into a byte; we count one each.
    assert full <= item_bytes(aggregate) <= bare + 2048 + 5 * len(parts)


def test_an_item_just_below_400_kb_is_billed():
    most = max(
        n for n in range(150, 260) if item_bytes(an_aggregate(n, allocations=longest_allocations(n))) <= MAX_ITEM_BYTES
    )
    key = a_key(account=ACCOUNT)
    assert group_fault(Aggregate(key, Decimal(most), longest_allocations(most)), NOW, DECIMAL) is None
    over = Aggregate(key, Decimal(most + 1), longest_allocations(most + 1))
    assert group_fault(over, NOW, DECIMAL) is Reason.AGGREGATE_TOO_LARGE


def test_a_customers_identifier_counts_for_the_size():
    assert item_bytes(an_aggregate(customer_identifier="1234")) == item_bytes(an_aggregate()) + 4


def test_an_item_of_exactly_400_kb_is_billed():
    parts = [Allocation(((f"{number:04}", "v" * 200),), Decimal(1)) for number in range(1500)]
    for missing in (MAX_ITEM_BYTES - item_bytes(an_aggregate(allocations=tuple(parts))), 1):
        parts[0] = Allocation((("0000", parts[0].tags[0][1] + "v" * missing),), Decimal(1))
        fault = group_fault(an_aggregate(allocations=tuple(parts)), NOW, DECIMAL)
        assert fault is (None if missing > 1 else Reason.AGGREGATE_TOO_LARGE)


def one_tagged(count, length):
    """So many buckets of 1, each with one tag of such a length in all."""
    return tuple(Allocation(((f"{number:04}", "v" * (length - 4)),), Decimal(1)) for number in range(count))


def test_what_a_commit_remembers_of_its_rows_counts_for_the_size():
    """The commit holds the record and its rows: an item that fits by itself may be too large with them."""
    length = max(
        n for n in range(100, 200) if item_bytes(an_aggregate(allocations=one_tagged(2500, n))) <= MAX_ITEM_BYTES
    )
    parts = one_tagged(2500, length)
    rows = [a_row(n, Decimal(1), allocations=api_shape(parts[n : n + 1])) for n in range(2500)]
    assert group_fault(an_aggregate(2500, allocations=parts), NOW, DECIMAL) is None
    assert judged(*rows).reason is Reason.AGGREGATE_TOO_LARGE
    assert judged(*rows[:1500]).outcome is GroupOutcome.COMMIT
