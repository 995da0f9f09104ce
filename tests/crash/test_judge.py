"""The judge of the crash test can say no: each fault that it is there for makes it red, and it names the group."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest

from tests.crash.journal import Written
from tests.crash.judge import Evidence, Verdict, judge

LICENSE, OTHER = "arn:aws:license-manager::111122223333:license:l-0001", "arn:aws:license-manager::1:license:l-0002"
ACCOUNT, HOUR = "444455556666", "2026-03-10T06"
WORDS = "Aggregated total quantity {} from {} raw usage records"


@dataclass
class Books:
    """Evidence that can be tampered with."""

    written: list[Written] = field(default_factory=list)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    bill: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    slots: list[tuple[float, float]] = field(default_factory=list)
    subscribers: list[dict[str, Any]] = field(default_factory=list)
    in_queue: int = 0

    def write(self, second: int, used: str, status: str, reason: str, **changes: Any) -> Written:
        """A row as its seller wrote it, and as it ended."""
        late = changes.pop("hours_late", 0)
        at = f"2026-03-{10 + (6 + late) // 24:02}T{(6 + late) % 24:02}:30:00+00:00"
        row = Written(LICENSE, ACCOUNT, "calls", f"{HOUR}:00:{second:02}", used, at, **changes)
        self.written.append(row)
        self.rows[row.key[1]] = {
            "licenseArn": LICENSE, "customerAWSAccountId_dimension_timestamp": row.key[1], "quantity": row.quantity,
            "meteringStatus": status, "meteringStatusReason": reason,
        }  # fmt: skip
        return row

    def verdict(self) -> Verdict:
        """What the judge says of them."""
        return judge(Evidence(
            self.written, list(self.rows.values()), self.records, self.subscribers, self.bill, self.calls, self.slots,
            {LICENSE: None, OTHER: "2026-03-10T04:20:00+00:00"}, lock_hours=2, in_queue=self.in_queue,
        ))  # fmt: skip


def right_books() -> Books:
    """An hour with all that can happen to a row, and a bill that is right."""
    books = Books()
    words = WORDS.format("4.5", 3)
    books.write(1, "1.25", "Aggregated", words)
    books.write(2, "1.25", "LateUsage", "", before=None)
    books.written.append(replace(books.written.pop(), at="2026-03-10T08:30:00+00:00"))
    books.write(3, "2", "Aggregated", words)
    # Counted as 1.25, and written over after that while its clean-up was lost.
    first = books.write(4, "1.25", "LateUsage", "")
    books.written.append(replace(first, used="9", at="2026-03-10T08:30:00+00:00", before="pending"))
    books.rows[first.key[1]]["quantity"] = Decimal(9)
    books.write(5, "7", "RejectedClientSide", "NegativeQuantity", fault="NegativeQuantity")
    books.records.append({
        "licenseArn": LICENSE, "account_dimension_hour": f"{ACCOUNT}#calls#{HOUR}", "quantity": Decimal("4.5"),
        "meteringStatus": "Success", "meteringRecordId": "id-1",
    })  # fmt: skip
    books.bill.append({
        "license_arn": LICENSE, "customer_aws_account_id": ACCOUNT, "dimension": "calls", "hour": HOUR,
        "quantity": "4.5", "metering_record_id": "id-1", "product_code": None, "allocations": None,
    })  # fmt: skip
    books.calls += [{"monotonic": float(second), "records": 25, "bytes": 999_999} for second in range(5)]
    books.slots += [(float(second), second + 0.01) for second in range(5)]
    books.subscribers += [
        {"licenseArn": LICENSE, "subscriptionStatus": "active"},
        {"licenseArn": OTHER, "subscriptionStatus": "inactive"},
    ]
    return books


def test_right_books_are_green_and_add_up():
    verdict = right_books().verdict()
    assert verdict.differences == []
    assert verdict.totals == {
        "used": Decimal("20.5"), "billed": Decimal("4.5"), "rejected": 7, "late": 9, "expired": 0, "refused": 0,
    }  # fmt: skip


def _bill_more(books: Books) -> None:
    books.bill[0]["quantity"] = "4.500001"


def _bill_and_record_more(books: Books) -> None:
    books.bill[0]["quantity"], books.records[0]["quantity"] = "4.500001", Decimal("4.500001")


def _double_a_line(books: Books) -> None:
    books.bill.append(deepcopy(books.bill[0]))


def _bill_another_time_under_another_product(books: Books) -> None:
    books.bill.append(deepcopy(books.bill[0]) | {"product_code": "product"})


def _bill_what_nobody_used(books: Books) -> None:
    books.bill.append(deepcopy(books.bill[0]) | {"dimension": "other"})


def _lose_the_line(books: Books) -> None:
    books.bill.clear()


def _lose_a_row(books: Books) -> None:
    del books.rows[f"{ACCOUNT}#calls#{HOUR}:00:03"]


def _make_a_row_up(books: Books) -> None:
    key = f"{ACCOUNT}#calls#{HOUR}:00:09"
    books.rows[key] = deepcopy(books.rows[f"{ACCOUNT}#calls#{HOUR}:00:03"])
    books.rows[key]["customerAWSAccountId_dimension_timestamp"] = key


def _change_a_row(books: Books) -> None:
    books.rows[f"{ACCOUNT}#calls#{HOUR}:00:03"]["quantity"] = Decimal(3)


def _leave_a_row_pending(books: Books) -> None:
    books.rows[f"{ACCOUNT}#calls#{HOUR}:00:05"]["meteringPending"] = HOUR


def _leave_a_record_pending(books: Books) -> None:
    books.records[0]["meteringPending"] = HOUR


def _call_a_row_late_that_came_in_time(books: Books) -> None:
    books.write(6, "1", "LateUsage", "", hours_late=1)


def _call_a_good_row_rejected(books: Books) -> None:
    books.write(6, "1", "RejectedClientSide", "NegativeQuantity")


def _let_a_row_expire_in_time(books: Books) -> None:
    books.write(6, "1", "AggregationExpired", "", hours_late=23)


def _count_a_row_that_the_bill_lacks(books: Books) -> None:
    books.write(6, "1", "Aggregated", WORDS.format("4.5", 3))


def _misstate_the_reason(books: Books) -> None:
    books.rows[f"{ACCOUNT}#calls#{HOUR}:00:03"]["meteringStatusReason"] = WORDS.format("4.5", 2)


def _invent_an_allocation(books: Books) -> None:
    books.bill[0]["allocations"] = [{"AllocatedUsageQuantityAsDecimal": "4.5"}]


def _end_as_a_duplicate(books: Books) -> None:
    books.records[0]["meteringStatus"] = "DuplicateRecord"


def _send_too_many_records(books: Books) -> None:
    books.calls[0]["records"] = 26


def _send_too_large_a_call(books: Books) -> None:
    books.calls[0]["bytes"] = 1_000_000


def _call_too_often(books: Books) -> None:
    books.slots += [(9 + part / 11, 10.0) for part in range(11)]


def _call_without_a_slot(books: Books) -> None:
    books.slots.pop()


def _use_a_slot_twice(books: Books) -> None:
    books.slots.append((books.slots[0][0], 0.02))


def _call_before_the_slot(books: Books) -> None:
    books.slots[1] = (1.0, 0.99)


def _leave_a_window_open(books: Books) -> None:
    books.subscribers[1] |= {"subscriptionStatus": "deprovisioning", "deprovisioningPendingFlag": "1"}


def _forget_an_event(books: Books) -> None:
    books.in_queue = 1


@pytest.mark.parametrize(("tamper", "says"), [
    (_bill_more, "aggregated is 4.5, billed 4.500001"), (_bill_and_record_more, "no row explains"),
    (_double_a_line, "billed twice"), (_bill_another_time_under_another_product, "product's code"),
    (_bill_what_nobody_used, "there is no record of it"), (_lose_the_line, "the record is Success, billed is None"),
    (_lose_a_row, "00:03 is lost"), (_make_a_row_up, "nobody wrote"), (_change_a_row, "does not say what its seller"),
    (_leave_a_row_pending, "has not ended: pending"), (_leave_a_record_pending, "the record is pending"),
    (_call_a_row_late_that_came_in_time, "must not end as LateUsage"),
    (_call_a_good_row_rejected, "must not end as RejectedClientSide"),
    (_let_a_row_expire_in_time, "must not end as AggregationExpired"),
    (_count_a_row_that_the_bill_lacks, "no row explains"), (_misstate_the_reason, "instead of"),
    (_invent_an_allocation, "its allocations are billed as"), (_end_as_a_duplicate, "the record is DuplicateRecord"),
    (_send_too_many_records, "26 records"), (_send_too_large_a_call, "too large"),
    (_call_too_often, "11 calls have slots within one second"), (_call_without_a_slot, "1 calls were sent without"),
    (_use_a_slot_twice, "used twice"), (_call_before_the_slot, "let go before its slot"),
    (_leave_a_window_open, "was never closed"),
    (_forget_an_event, "1 were never applied"),
])  # fmt: skip
def test_the_judge_is_red_on(tamper: Callable[[Books], None], says: str):
    books = right_books()
    tamper(books)
    assert [words for words in books.verdict().differences if says in words], books.verdict().differences


def test_the_sums_alone_show_a_unit_that_went_nowhere():
    books = right_books()
    books.rows[f"{ACCOUNT}#calls#{HOUR}:00:05"]["meteringStatus"] = "Vanished"
    differences = books.verdict().differences
    assert [words for words in differences if "has not ended: Vanished" in words]
    assert [words for words in differences if words.startswith(f"{HOUR}: what was used is not what became of it")]
