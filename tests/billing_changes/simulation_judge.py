"""What must have come of a simulation. It knows what the writers committed, and nothing of how it is found.

Belongs here: what each report had to say, what must be reported at the end. Does not: writers (simulated_ingests), the
sensor's part (simulation).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal

from metering_dagster.billing_changes.rules.cells import Cell, CellKey
from metering_dagster.billing_changes.rules.day_diff import DayReport
from tests.billing_changes.simulated_ingests import Row, Write

State = tuple[datetime, Decimal]
Content = Mapping[Row, State]
"""The rows of a day that there are, each with its stamp and amount."""


@dataclass(frozen=True)
class Materialization:
    """What was stored of a day."""

    report: DayReport
    numbers: frozenset[int]
    """The transactions that its snapshot held."""


@dataclass(frozen=True)
class Promise:
    """What a look said, and how much of each day was stored by then."""

    complete_until: datetime
    stored: Mapping[date, int]


@dataclass
class Course:
    """Everything that happened in a simulation."""

    settle: timedelta
    longest: timedelta | None
    """See `Write.is_owed`."""
    writes: list[Write] = field(default_factory=list)
    """Of each row in their order, the baseline first."""
    stored: dict[date, list[Materialization]] = field(default_factory=dict)
    """Of each day in their order; the first one was stored before the writers began."""
    promises: list[Promise] = field(default_factory=list)
    held: Mapping[CellKey, Cell] = field(default_factory=dict)
    """What the database holds in the end."""

    def is_owed(self, write: Write) -> bool:
        return write.is_owed(settle=self.settle, longest=self.longest)


def problems(course: Course) -> list[str]:
    """What is not as it must be, in words; empty if all is well."""
    found: list[str] = []
    for day, stored in sorted(course.stored.items()):
        writes = [write for write in course.writes if write.row.day == day]
        contents = [_content(writes, one.numbers) for one in stored]
        for number, one in enumerate(stored):
            found += _of_clock(one, writes) + _of_amounts(one, contents[number])
            if number:
                found += _of_touched(stored[number - 1], one, contents[number - 1], contents[number])
        found += _of_end(course, day, writes, contents[-1])
    return found + _of_promises(course)


def _content(writes: Iterable[Write], numbers: frozenset[int]) -> Content:
    """What a snapshot with these transactions has."""
    content: dict[Row, State] = {}
    for write in writes:
        if write.number not in numbers:
            continue
        if write.stamp is None:
            content.pop(write.row, None)
        else:
            content[write.row] = (write.stamp, write.amount)
    return content


def _by_cell(content: Content) -> dict[str, dict[Row, State]]:
    cells: dict[str, dict[Row, State]] = {}
    for row, state in content.items():
        for cell in row.cells:
            cells.setdefault(cell, {})[row] = state
    return cells


def _of_clock(one: Materialization, writes: Iterable[Write]) -> list[str]:
    """What was committed before a report's clock is in it."""
    late = {write.number for write in writes if write.after <= one.report.read_at} - one.numbers
    return [f"{one.report.day}: read at {one.report.read_at} without transactions {sorted(late)}"] if late else []


def _of_amounts(one: Materialization, content: Content) -> list[str]:
    """A report has the cells and amounts of its snapshot."""
    wanted = {cell: _amount(rows) for cell, rows in _by_cell(content).items()}
    said = {row.cell.subscription.id: row.amount for row in one.report.rows if not row.vanished}
    return [] if wanted == said else [f"{one.report.day}: reported {said} of {wanted}"]


def _amount(rows: Mapping[Row, State]) -> Decimal:
    """The daily row says it where there is one."""
    daily = [amount for row, (_, amount) in rows.items() if not row.service]
    return sum(daily or [amount for _, amount in rows.values()], Decimal())


def _of_touched(before: Materialization, now: Materialization, was: Content, content: Content) -> list[str]:
    """Touched is what somebody wrote between the two snapshots, later than all before it; and nothing else."""
    old, new = _by_cell(was), _by_cell(content)
    written = {cell for cell in {*old, *new} if old.get(cell) != new.get(cell)}
    touched = {row.cell.subscription.id for row in now.report.touched}
    day, newest, found = now.report.day, before.report.newest, []
    if written - touched:
        found.append(f"{day}: written and not touched at {now.report.read_at}: {sorted(written - touched)}")
    if touched - written:
        found.append(f"{day}: touched and not written at {now.report.read_at}: {sorted(touched - written)}")
    behind = [row.cell.subscription.id for row in now.report.touched if newest and row.reported_at <= newest]
    return [*found, *([f"{day}: consumers pass over {behind}"] if behind else [])]


def _of_end(course: Course, day: date, writes: Sequence[Write], last: Content) -> list[str]:
    """The last report is what the database holds, but for what nothing could tell."""
    final = _content(writes, frozenset(write.number for write in writes))
    lost, excused = [], set()
    for row in {*last, *final}:
        if last.get(row) == final.get(row):
            continue
        if _is_excused(course, [write for write in writes if write.row == row], last.get(row)):
            excused.update(row.cells)
        else:
            lost.append(f"{row} is {final.get(row)} and was reported as {last.get(row)}")
    report = course.stored[day][-1].report
    said = {row.key: row.cell for row in report.rows if not row.vanished}
    held = {key: cell for key, cell in course.held.items() if key[0] == day}
    other = sorted(key[1] for key in {*said, *held} if said.get(key) != held.get(key) and key[1] not in excused)
    return [f"{day}: never reported: {one}" for one in lost] + ([f"{day}: the end differs: {other}"] if other else [])


def _is_excused(course: Course, writes: Sequence[Write], said: State | None) -> bool:
    """Whether none of the writes after the reported one had to be found."""
    states = [(write.stamp, write.amount) for write in writes]
    after = writes[states.index(said) + 1 :] if said in states else writes
    return not any(course.is_owed(write) for write in after)


def _of_promises(course: Course) -> list[str]:
    """What was stamped before a look's `complete_until` is stored by then, where stamps alone tell."""
    if course.longest is None:
        return []
    found = []
    for promise in course.promises:
        for write in course.writes:
            if write.stamp is None or write.stamp >= promise.complete_until or not course.is_owed(write):
                continue
            stored = course.stored[write.row.day][promise.stored[write.row.day] - 1]
            if write.number not in stored.numbers:
                found.append(f"complete until {promise.complete_until} without {write}")
    return found
