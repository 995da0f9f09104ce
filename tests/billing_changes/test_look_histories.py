"""Whatever is ingested when, and whenever it is looked: every re-ingest leads to a run that reads after it."""

from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.watermark import PollRules
from tests.billing_changes.imaginary import TODAY, Imaginary, Row, Watcher, daily, fact

LONG = timedelta(days=3650)
RULES = PollRules()
STAMPS_ALONE = replace(RULES, sums_every=LONG, recent_every=LONG, others_every=LONG)
"""Nothing is ever compared again: what is found is found by its stamps."""
DAYS = [TODAY, TODAY - timedelta(days=1), TODAY - timedelta(days=9)]
ROWS = [daily(DAYS[0]), fact(DAYS[0]), fact(DAYS[0], group="RG"), fact(DAYS[1], "t2", None), daily(DAYS[2])]
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
WAITS = [SECOND / 10, SECOND, 30 * SECOND, 61 * SECOND, 2 * MINUTE, 6 * MINUTE, 17 * MINUTE, 31 * MINUTE, 50 * MINUTE]


@dataclass(frozen=True)
class Ingest:
    """A transaction that stamps rows when it begins, and commits `open_for` later."""

    rows: tuple[Row, ...]
    open_for: timedelta = timedelta(0)
    ahead: timedelta = timedelta(0)
    """How far the clock that stamps is ahead of the database's."""


@dataclass(frozen=True)
class Delete:
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Look:
    """Time that passes, a look, and what becomes of the runs that it asks for."""

    after: timedelta
    fate: str


@st.composite
def histories(draw: st.DrawFn, open_for: list[timedelta], deletions: bool = False) -> list[object]:
    """Looks, and what happens between them."""
    rows = st.lists(st.sampled_from(ROWS), min_size=1, max_size=2, unique=True).map(tuple)
    ingest = st.one_of(
        st.builds(Ingest, rows, st.sampled_from([timedelta(0), *open_for])),
        st.builds(Ingest, rows, ahead=st.sampled_from([timedelta(0), SECOND, 2 * HOUR])),
    )
    fates = st.sampled_from(["through", "through", "slow", "failed", "lost"])
    history: list[object] = []
    for _ in range(draw(st.integers(4, 14))):
        history += draw(st.lists(ingest | st.builds(Delete, rows) if deletions else ingest, max_size=2))
        history.append(Look(draw(st.sampled_from(WAITS)), draw(fates)))
    return history


@dataclass(frozen=True)
class Committed:
    """A row that was ingested."""

    row: Row
    stamp: datetime
    at: datetime

    @property
    def day(self) -> date:
        return self.row.day


@dataclass
class World:
    """The database, who watches it, transactions that are open, runs that are slow."""

    rules: PollRules = RULES
    whole_seconds: bool = False
    apart: timedelta = timedelta(microseconds=1)
    """Of the stamps of two ingests."""
    database: Imaginary = field(default_factory=Imaginary)
    open: list[tuple[datetime, tuple[Row, ...], datetime]] = field(default_factory=list)
    slow: list[tuple[datetime, date]] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    ingests: int = 0
    longer_than_the_overlap: bool = False
    """Whether transactions may be; then nobody says that all of them are complete."""

    def __post_init__(self) -> None:
        self.database.ingest(*ROWS[:4], stamp=self.database.now - timedelta(days=2))
        self.watcher = Watcher(self.database, self.rules)
        self.watcher.settle()

    def live(self, event: object) -> None:
        if isinstance(event, Ingest):
            self.open.append((self.database.now + event.open_for, event.rows, self.stamp(event.ahead)))
            self.passes(timedelta(0))
        elif isinstance(event, Delete):
            for row in event.rows:
                self.database.rows.pop(row, None)
        elif isinstance(event, Look):
            self.passes(event.after)
            self.looks(event.fate)

    def counts(self, one: Committed) -> bool:
        """Whether the stamp was there when its time was read. Read in pieces, a table may have another one by then."""
        return self.database.most is None or self.database.rows.get(one.row) == one.stamp

    def stamp(self, ahead: timedelta) -> datetime:
        """Another one for each ingest, unless the columns have whole seconds only."""
        self.ingests += 1
        second = (self.database.now + ahead).replace(microsecond=0)
        return second if self.whole_seconds else second + self.ingests * self.apart

    def passes(self, time: timedelta) -> None:
        """Time passes; transactions commit and slow runs read in it, in their order."""
        until = self.database.now + time
        while coming := sorted([(at, 0) for at, *_ in self.open if at <= until]
                               + [(at, 1) for at, _ in self.slow if at <= until])[:1]:  # fmt: skip
            self.database.now = max(self.database.now, coming[0][0])
            if coming[0][1] == 0:
                self._commit(min(self.open))
            else:
                self._run(min(self.slow))
        self.database.now = until

    def looks(self, fate: str) -> None:
        looked = self.watcher.look()
        asked = [ask.day for ask in looked.due_days]
        assert not {*asked} & {*self.watcher.under_way}, "no run is asked for beside another one of its day"
        until = None if self.longer_than_the_overlap else looked.complete_until
        assert until is None or [one for one in self.unread() if one.stamp < until and self.counts(one)] == [], (
            "it says complete, and is not"
        )
        if fate == "through":
            self.watcher.run(*asked)
        elif fate == "slow":
            self.slow += [(self.database.now + 3 * MINUTE, day) for day in asked]
            self.watcher.under_way += asked

    def _commit(self, one: tuple[datetime, tuple[Row, ...], datetime]) -> None:
        self.open.remove(one)
        _, rows, stamp = one
        self.database.ingest(*rows, stamp=stamp)
        self.committed += [Committed(row, stamp, self.database.now) for row in rows]

    def _run(self, one: tuple[datetime, date]) -> None:
        self.slow.remove(one)
        self.watcher.under_way.remove(one[1])
        self.watcher.run(one[1])

    def ends(self) -> None:
        """All transactions commit, all runs end; then it is looked until there is nothing more to be done."""
        self.passes(2 * HOUR + 10 * MINUTE)
        self.watcher.settle()
        self.watcher.settle()

    def unread(self) -> list[Committed]:
        """What was committed and not read since."""
        return [one for one in self.committed
                if not any(ran == one.day and read >= one.at for ran, read in self.watcher.runs)]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(histories([SECOND, 20 * MINUTE, RULES.overlap - SECOND]))
def test_every_ingest_is_read_by_a_run_after_it(history):
    world = World(STAMPS_ALONE)
    for event in history:
        world.live(event)
    world.ends()
    assert world.unread() == []


@settings(max_examples=300, deadline=None)
@given(histories([SECOND / 2, RULES.settle - SECOND]))
def test_every_ingest_is_read_by_a_run_after_it_where_stamps_have_whole_seconds(history):
    world = World(STAMPS_ALONE, whole_seconds=True)
    for event in history:
        world.live(event)
    world.ends()
    assert world.unread() == []


@settings(max_examples=200, deadline=None)
@given(histories([RULES.overlap + 20 * MINUTE, 5 * HOUR], deletions=True))
def test_what_stamps_do_not_tell_is_found_within_a_day(history):
    world = World(longer_than_the_overlap=True)
    for event in history:
        world.live(event)
    world.passes(5 * HOUR)
    for _ in range(5):
        world.watcher.settle()
        world.passes(6 * HOUR)
    for day in DAYS:
        known = world.watcher.reported.get(day)
        again = Watcher(world.database)
        again.run(day)
        assert (known.state if known else "") == again.reported[day].state


@settings(max_examples=150, deadline=None)
@given(histories([SECOND, 20 * MINUTE, RULES.overlap - SECOND]), st.integers(1, 2))
def test_every_ingest_is_read_by_a_run_after_it_where_readings_of_many_rows_take_too_long(history, most):
    world = World(replace(STAMPS_ALONE, narrowest=SECOND / 200), apart=SECOND / 50)
    world.database.most = most
    for event in history:
        world.live(event)
    world.ends()
    assert world.unread() == []
