"""Whatever is ingested when, and whenever it is looked: every re-ingest leads to a run that reads after it."""

from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.billing.watermark import Rules
from tests.billing.imaginary import TODAY, Imaginary, Row, Watcher, daily, fact

LONG = timedelta(days=3650)
RULES = Rules()
STAMPS_ALONE = replace(RULES, sums_every=LONG, recent_every=LONG, others_every=LONG)
"""Nothing is ever compared again: what is found is found by its stamps."""
DAYS = [TODAY, TODAY - timedelta(days=1), TODAY - timedelta(days=9)]
ROWS = [make(day) for day in DAYS for make in (daily, fact)] + [fact(TODAY, group="RG"), fact(TODAY, "t2", None)]


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
class Pass:
    time: timedelta


@dataclass(frozen=True)
class Look:
    """A look, and what becomes of the runs that it asks for."""

    fate: str


def histories(open_for: timedelta, *more: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
    rows = st.lists(st.sampled_from(ROWS), min_size=1, max_size=3, unique=True).map(tuple)
    return st.lists(
        st.one_of(
            st.builds(Ingest, rows, st.timedeltas(timedelta(0), open_for)),
            st.builds(Ingest, rows, ahead=st.sampled_from([timedelta(seconds=1), timedelta(hours=2)])),
            st.builds(Pass, st.timedeltas(timedelta(0), timedelta(minutes=40))),
            st.builds(Pass, st.timedeltas(timedelta(0), timedelta(seconds=90))),
            st.builds(Look, st.sampled_from(["through", "through", "slow", "failed", "lost"])),
            *more,
        ),
        min_size=1,
        max_size=30,
    )


@dataclass
class World:
    """The database, who watches it, transactions that are open, runs that are slow."""

    rules: Rules = RULES
    whole_seconds: bool = False
    database: Imaginary = field(default_factory=Imaginary)
    open: list[tuple[datetime, tuple[Row, ...], datetime]] = field(default_factory=list)
    slow: list[tuple[datetime, date]] = field(default_factory=list)
    committed: list[tuple[date, datetime]] = field(default_factory=list)
    ingests: int = 0

    def __post_init__(self) -> None:
        self.database.ingest(*ROWS[:3])
        self.watcher = Watcher(self.database, self.rules)
        self.watcher.settle()

    def live(self, event: object) -> None:
        if isinstance(event, Ingest):
            self.open.append((self.database.now + event.open_for, event.rows, self.stamp(event.ahead)))
            self.passes(timedelta(0))
        elif isinstance(event, Delete):
            for row in event.rows:
                if self.database.rows.pop(row, None):
                    self.committed.append((row.day, self.database.now))
        elif isinstance(event, Pass):
            self.passes(event.time)
        elif isinstance(event, Look):
            self.looks(event.fate)

    def stamp(self, ahead: timedelta) -> datetime:
        """Another one for each ingest, unless the columns have whole seconds only."""
        self.ingests += 1
        return (self.database.now + ahead).replace(microsecond=0 if self.whole_seconds else self.ingests)

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
        asked = self.watcher.asks()
        for day in asked:
            assert day not in self.watcher.under_way, "no run is asked for beside another one of its day"
        if fate == "through":
            self.watcher.run(*asked)
        elif fate == "slow":
            self.slow += [(self.database.now + timedelta(minutes=3), day) for day in asked]
            self.watcher.under_way += asked

    def _commit(self, one: tuple[datetime, tuple[Row, ...], datetime]) -> None:
        self.open.remove(one)
        _, rows, stamp = one
        self.database.ingest(*rows, stamp=stamp)
        self.committed += [(row.day, self.database.now) for row in rows]

    def _run(self, one: tuple[datetime, date]) -> None:
        self.slow.remove(one)
        self.watcher.under_way.remove(one[1])
        self.watcher.run(one[1])

    def ends(self) -> None:
        """All transactions commit, all runs end; then it is looked until there is nothing more to be done."""
        self.passes(timedelta(hours=2, minutes=10))
        self.watcher.settle()
        self.watcher.settle()

    def unread(self) -> list[tuple[date, datetime]]:
        """What was committed and not read since."""
        return [(day, at) for day, at in self.committed
                if not any(ran == day and read >= at for ran, read in self.watcher.runs)]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(histories(RULES.overlap - timedelta(seconds=1)))
def test_every_ingest_is_read_by_a_run_after_it(history):
    world = World(STAMPS_ALONE)
    for event in history:
        world.live(event)
    world.ends()
    assert world.unread() == []


@settings(max_examples=300, deadline=None)
@given(histories(RULES.settle - timedelta(seconds=1)))
def test_every_ingest_is_read_by_a_run_after_it_where_stamps_have_whole_seconds(history):
    world = World(STAMPS_ALONE, whole_seconds=True)
    for event in history:
        world.live(event)
    world.ends()
    assert world.unread() == []


@settings(max_examples=200, deadline=None)
@given(histories(
    timedelta(hours=5),
    st.builds(Delete, st.lists(st.sampled_from(ROWS), min_size=1, max_size=3, unique=True).map(tuple)),
))  # fmt: skip
def test_what_stamps_do_not_tell_is_found_within_a_day(history):
    world = World()
    for event in history:
        world.live(event)
    world.passes(timedelta(hours=5))
    for _ in range(5):
        world.watcher.settle()
        world.passes(timedelta(hours=6))
    for day in DAYS:
        known = world.watcher.reported.get(day)
        again = Watcher(world.database)
        again.run(day)
        assert (known.state if known else "") == again.reported[day].state
