"""A group through its hour: a seller writes, mends and deletes its rows between the visits, and nothing goes astray.

The judge keeps whole millionths by second, as the seller meant them, and never looks at what the code under test made.
"""

from collections import Counter
from dataclasses import replace
from decimal import Decimal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metering_dagster.metering.rules.aggregate_group import GroupOutcome, Verdict, judge_group, judge_pending
from metering_dagster.metering.rules.committed_rows import count, decode, encode, settle
from metering_dagster.metering.rules.raw_row import RawRow
from metering_dagster.metering.rules.statuses import RawStatus, Reason
from tests.metering.builders import DECIMAL, NOW, a_key, a_row, an_allocation

KEY = a_key()
LIMIT = 9_999_999_999_999_999
"""Of one record, in millionths."""
SECONDS = st.integers(0, 5)
AMOUNTS = st.sampled_from([0, 0, 1, 250_000, 1_000_000, 7_000_001, LIMIT])
TEAMS = st.sampled_from([None, None, "a", "b", ""])
"""None: no allocations at all; empty: the untagged bucket, said outright."""
FAULTS = st.sampled_from(["5", True, None, Decimal(-1), Decimal("1E-7"), Decimal("1E+10")])


def millionths(quantity: Decimal) -> int:
    whole = quantity * 1_000_000
    assert whole == int(whole)
    return int(whole)


class GroupsHour(RuleBasedStateMachine):
    """The rows under one group's key prefix, and the visits that judge them."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, RawRow] = {}
        self.meant: dict[int, tuple[int, str | None] | None] = {}
        """What the seller wrote in each second: millionths and team; None for what can be no usage."""
        self.counted: dict[int, tuple[int, str | None]] | None = None
        """What was billed, once the group is committed."""
        self.memory = b""
        self.billed = 0
        self.late_by: dict[int, int] = {}

    # What the seller does.

    @rule(second=SECONDS, amount=AMOUNTS, team=TEAMS)
    def writes(self, second, amount, team):
        quantity = Decimal(amount).scaleb(-6)
        tags = {"team": team} if team else {}
        allocations = None if team is None else [an_allocation(quantity, **tags)]
        self._put(second, a_row(second, quantity, allocations=allocations))
        self.meant[second] = (amount, team)

    @rule(second=SECONDS, stored=FAULTS)
    def writes_what_is_no_usage(self, second, stored):
        self._put(second, a_row(second, stored))
        self.meant[second] = None

    @rule(second=SECONDS)
    def puts_the_same_row_again(self, second):
        if second in self.rows:
            self._put(second, replace(self.rows[second], pending=KEY.bucket, status=None, reason=None))

    @rule(second=SECONDS)
    def deletes(self, second):
        self.late_by.pop(second, None)
        self.rows.pop(second, None)
        self.meant.pop(second, None)

    def _put(self, second: int, row: RawRow) -> None:
        self.rows[second] = row
        self.late_by.pop(second, None)

    # The visits.

    @precondition(lambda self: self.counted is None)
    @rule(last_call=st.booleans())
    def is_visited(self, last_call):
        while self._judged(last_call=last_call).outcome is GroupOutcome.REVIVE:
            pass

    @precondition(lambda self: self.counted is not None)
    @rule()
    def is_visited_after_its_commit(self):
        bad, usages = judge_pending(self.rows.values(), DECIMAL)
        self._reject({self._second(row): reason for row, reason in bad})
        settlement = settle(Decimal(self.billed).scaleb(-6), decode(self.memory) or {}, usages)
        pending = self._pending()
        counted = self.counted or {}
        again = {second for second in pending if counted.get(second) == self.meant[second]}
        assert {u.second for u in settlement.aggregated} == again
        assert {late.usage.second for late in settlement.late} == pending - again
        assert (millionths(settlement.total), settlement.count) == (self.billed, len(counted))
        for usage in settlement.aggregated:
            self._end(usage.second, RawStatus.AGGREGATED)
        for late in settlement.late:
            self._end(late.usage.second, RawStatus.LATE)
            self.late_by[late.usage.second] = millionths(late.late_by)

    def _judged(self, *, last_call: bool) -> Verdict:
        expected, seconds = self._expected(last_call)
        bad = {second for second in self._pending() if self.meant[second] is None}
        verdict = judge_group(KEY, self.rows.values(), NOW, DECIMAL, last_call=last_call)
        assert verdict.outcome is expected
        assert {u.second for u in verdict.usages} == seconds
        assert (verdict.aggregate is not None) == (expected is GroupOutcome.COMMIT)
        if expected is GroupOutcome.REVIVE:
            for second in seconds:
                self.rows[second] = replace(self.rows[second], pending=KEY.bucket, status=None, reason=None)
            return verdict
        assert {self._second(row) for row, _ in verdict.bad} == bad
        self._reject({self._second(row): reason for row, reason in verdict.bad})
        if expected is GroupOutcome.REJECT:
            assert verdict.reason is Reason.QUANTITY_TOO_LARGE
            self._reject(dict.fromkeys(seconds, Reason.QUANTITY_TOO_LARGE))
        elif verdict.aggregate is not None:
            self._committed(verdict)
        return verdict

    def _expected(self, last_call: bool) -> tuple[GroupOutcome, set[int]]:
        """What is to be done, and with the rows of which seconds (domain: a bad row holds its group; zero)."""
        pending = self._pending()
        good = {second for second in pending if self.meant[second] is not None}
        rejected = {second for second, row in self.rows.items() if row.pending is None}
        mendable = {second for second in rejected if self.meant[second] is not None}
        if not pending:
            return GroupOutcome.NOTHING, set()
        if mendable:
            return GroupOutcome.REVIVE, mendable
        if not good:
            return GroupOutcome.NOTHING, set()
        used = sum(self._amount(second) for second in good)
        if used > LIMIT:
            return GroupOutcome.REJECT, good
        if (rejected or pending > good) and not last_call:
            return GroupOutcome.HOLD, good
        return (GroupOutcome.COMMIT if used or last_call else GroupOutcome.ZERO), good

    def _committed(self, verdict: Verdict) -> None:
        aggregate = verdict.aggregate
        assert aggregate is not None
        self.counted = {u.second: self.meant[u.second] or (0, None) for u in verdict.usages}
        self.memory = encode(count(verdict.usages))
        self.billed = sum(amount for amount, _ in self.counted.values())
        assert millionths(aggregate.quantity) == self.billed
        teams: Counter[str] = Counter()
        for amount, team in self.counted.values():
            teams[team or ""] += amount
        said = {team for _, team in self.counted.values() if team is not None}
        expected = {team: amount for team, amount in teams.items() if team in said or (team == "" and amount)}
        found = {dict(a.tags).get("team", ""): millionths(a.quantity) for a in aggregate.allocations or ()}
        assert found == (expected if said else {})
        assert (aggregate.allocations is None) == (not said)
        for second in self.counted:
            self._end(second, RawStatus.AGGREGATED)

    def _pending(self) -> set[int]:
        return {second for second, row in self.rows.items() if row.pending is not None}

    def _amount(self, second: int) -> int:
        meant = self.meant[second]
        return meant[0] if meant else 0

    def _second(self, row: RawRow) -> int:
        return next(second for second, one in self.rows.items() if one is row)

    def _end(self, second: int, status: RawStatus, reason: str = "") -> None:
        self.rows[second] = replace(self.rows[second], pending=None, status=status.value, reason=reason)

    def _reject(self, reasons: dict[int, Reason]) -> None:
        for second, reason in reasons.items():
            self._end(second, RawStatus.REJECTED, reason.value)

    # What holds at any time.

    @invariant()
    def every_unit_is_billed_or_late_or_still_to_be_judged(self):
        """What stands in the table, second by second, is what was billed there and what is late, or visibly neither."""
        for second, row in self.rows.items():
            counted = (self.counted or {}).get(second, (0, None))
            if row.status == RawStatus.AGGREGATED and row.pending is None:
                assert self.meant[second] == counted
            elif row.status == RawStatus.LATE and row.pending is None:
                assert self._amount(second) == counted[0] + self.late_by[second]
            else:
                assert row.pending is not None or row.is_rejected

    def teardown(self):
        """At its last call all that can be billed is, and nothing stays pending."""
        if self.counted is None:
            self.is_visited(last_call=True)
        if self.counted is not None:
            self.is_visited_after_its_commit()
        assert not self._pending()
        self.every_unit_is_billed_or_late_or_still_to_be_judged()


TestGroupsHour = GroupsHour.TestCase
TestGroupsHour.settings = settings(max_examples=60, stateful_step_count=25)
