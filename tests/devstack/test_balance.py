"""The balance must find every kind of wrong: a judge that cannot say no is worth nothing."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from metering_dagster.devstack.balance import Balance, row_key, strike_balance
from metering_dagster.devstack.sample import SORT_KEY, SampleKind, SampleRow
from metering_dagster.devstack.sandbox import BilledRecord

ARN = "arn:aws:license-manager::111122223333:license:l-0123456789abcdef"
ACCOUNT, DIMENSION, HOUR = "444455556666", "api-calls", "2026-11-28T10"
GROUP = (ARN, ACCOUNT, DIMENSION, HOUR)


def a_row(second: int, used: str, kind: SampleKind = SampleKind.GOOD) -> SampleRow:
    stamp = datetime(2026, 11, 28, 10, 0, second, tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    item = {
        "licenseArn": ARN,
        SORT_KEY: f"{ACCOUNT}#{DIMENSION}#{stamp}",
        "customerAWSAccountId": ACCOUNT,
        "dimension": DIMENSION,
        "timestamp": stamp,
        "quantity": Decimal(used),
    }
    return SampleRow(item, Decimal(used), kind)


def billed(quantity: str) -> BilledRecord:
    return BilledRecord("us-east-1", None, ARN, ACCOUNT, None, DIMENSION, HOUR, quantity, None, "id-1")


def an_aggregate(quantity: str) -> Mapping[str, Any]:
    return {"quantity": Decimal(quantity), "meteringStatus": "Success"}


COUNTED = [a_row(1, "3"), a_row(2, "4.5")]
AGGREGATED = {"meteringStatus": "Aggregated"}


def strike(**differences: Any) -> Balance:
    given: dict[str, Any] = {
        "rows": COUNTED,
        "later": [],
        "ends": {row_key(row): AGGREGATED for row in COUNTED},
        "aggregates": {GROUP: an_aggregate("7.5")},
        "bill": [billed("7.5")],
    }
    return strike_balance(**(given | differences))


def test_an_hour_that_was_billed_as_used_is_even() -> None:
    balance = strike()
    assert balance.is_even
    assert balance.total.billed == Decimal("7.5")


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"bill": []}, id="nothing billed"),
        pytest.param({"bill": [billed("7.500001")]}, id="a millionth too much"),
        pytest.param({"bill": [billed("7.5"), replace(billed("7.5"), hour="2026-11-28T09")]}, id="an hour too much"),
        pytest.param({"aggregates": {}}, id="no aggregate"),
        pytest.param({"aggregates": {GROUP: an_aggregate("7")}}, id="another aggregate"),
        pytest.param({"ends": {}}, id="rows lost without a word"),
        pytest.param({"ends": {row_key(row): {"meteringStatus": "Whatever"} for row in COUNTED}}, id="unknown state"),
        pytest.param({"rows": [*COUNTED, a_row(3, "1")]}, id="a row more than was ended"),
    ],
)
def test_what_is_wrong_is_found(wrong: dict[str, Any]) -> None:
    assert not strike(**wrong).is_even


def test_each_state_has_its_column() -> None:
    held, zero, bad, late = (
        a_row(3, "1"),
        a_row(4, "0", SampleKind.ZERO),
        a_row(5, "2", SampleKind.BAD),
        a_row(6, "8", SampleKind.LATE),
    )
    pending = {"meteringPending": HOUR}
    ends = {row_key(row): AGGREGATED for row in COUNTED} | {
        row_key(held): pending,
        row_key(zero): pending,
        row_key(bad): {"meteringStatus": "RejectedClientSide"},
        row_key(late): {"meteringStatus": "LateUsage"},
    }
    hour = strike(rows=[*COUNTED, held, zero, bad], later=[late], ends=ends).hours[HOUR]
    assert (hour.held, hour.waiting, hour.rejected, hour.late) == (1, 1, 2, 8)
    assert hour.is_even


def test_an_overwritten_second_is_late_for_what_is_new_and_billed_for_what_was_counted() -> None:
    again = a_row(1, "5", SampleKind.OVERWRITTEN)
    ends = {row_key(COUNTED[0]): {"meteringStatus": "LateUsage"}, row_key(COUNTED[1]): AGGREGATED}
    balance = strike(later=[again], ends=ends)
    assert balance.hours[HOUR].late == 5
    assert balance.is_even


def test_an_overwritten_second_that_nobody_noticed_is_uneven() -> None:
    again = a_row(1, "5", SampleKind.OVERWRITTEN)
    assert not strike(later=[again]).is_even
