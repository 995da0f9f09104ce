"""Mark and start through any history of transactions: what is committed within the overlap is read, whoever is slow."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metering_dagster.billing_changes.rules.watermark import PollRules, advanced, lowered, start_of, stepped

RULES = PollRules()
MINUTE = timedelta(minutes=1)
LOOKS_AT_LEAST = timedelta(minutes=10)
"""So often somebody looks; a transaction that is open between two looks is no longer than the overlap all the same."""


@dataclass(eq=False)
class Transaction:
    """Rows that were stamped, and are not to be seen yet."""

    begun: datetime
    """By a clock that is never set."""
    stamps: list[datetime]


class Ingests(RuleBasedStateMachine):
    """One table, its clock, the transactions that write to it, and somebody who looks from time to time."""

    def __init__(self) -> None:
        super().__init__()
        self.real = datetime(2026, 9, 20, 12, tzinfo=UTC)
        self.set_by = timedelta(0)
        self.open: list[Transaction] = []
        self.committed: set[tuple[datetime, int]] = set()
        self.seen: set[tuple[datetime, int]] = set()
        self.written = 0
        self.mark: datetime | None = None
        self.start = start_of(None, self.now, RULES)

    @property
    def now(self) -> datetime:
        """The database's clock."""
        return self.real + self.set_by

    @rule(seconds=st.floats(0, LOOKS_AT_LEAST.total_seconds()))
    def time_passes_until_the_next_look(self, seconds):
        self.real += timedelta(seconds=seconds)
        for one in [one for one in self.open if self.real + LOOKS_AT_LEAST - one.begun > RULES.overlap]:
            self._commit(one)
        self.somebody_looks()

    @rule()
    def a_transaction_begins(self):
        self.open.append(Transaction(self.real, [self.now]))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def it_stamps_another_row(self, data):
        data.draw(st.sampled_from(self.open)).stamps.append(self.now)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def it_commits(self, data):
        self._commit(data.draw(st.sampled_from(self.open)))

    @rule(back=st.timedeltas(timedelta(0), timedelta(hours=5)))
    def the_databases_clock_is_set_back_between_two_looks(self, back):
        self.somebody_looks()
        self.set_by -= back
        self.somebody_looks()

    def _commit(self, one: Transaction) -> None:
        self.open.remove(one)
        for stamp in one.stamps:
            self.written += 1
            self.committed.add((stamp, self.written))

    @rule()
    def somebody_looks(self):
        begins = lowered(self.start, self.mark, self.now, RULES)
        found = {row for row in self.committed if row[0] >= begins}
        self.seen |= found
        before, self.mark = self.mark, advanced(self.mark, (stamp for stamp, _ in found), self.now, RULES)
        self.start = stepped(begins, self.mark, self.now, RULES)
        assert self.seen == self.committed, "none that was committed lies before what was read"
        assert before is None or (self.mark is not None and self.mark >= before)

    @invariant()
    def what_is_still_open_lies_within_the_next_reading(self):
        """However the clock was set: a start passes no stamp that can still appear."""
        for one in self.open:
            if self.real - one.begun <= RULES.overlap:
                assert min(self.start, lowered(self.start, self.mark, self.now, RULES)) <= max(one.stamps)


TestIngests = Ingests.TestCase
TestIngests.settings = settings(max_examples=60, stateful_step_count=30)
