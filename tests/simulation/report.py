"""What was lost in a world, hour by hour, and why: the report that the scenarios print.

Belongs here: reading the judge's books and the tables as they stand at the end. Does not: whether it is excused
(losses), what the scenarios expect (test_scenarios).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.simulation.books import GroupBook, closes_for_good, is_billable
from tests.simulation.memory.tables import Item
from tests.simulation.sellers import AGGREGATED, USAGE

AFTER_COMMIT = "written after its group was committed"
AFTER_WINDOW = "written after its hour's window"
AFTER_LAST_TICK = "written in its hour's window, after the last tick that looked at it"
NEVER_TAKEN = "there in its hour's window, and no run took it"
SERVICE_AWAY = "committed, and the service took nothing before its hour's window was over"


@dataclass(frozen=True)
class Lost:
    """A raw row, or a whole record, that was used and not billed."""

    group: GroupBook
    status: str
    why: str
    quantity: Decimal
    written: float
    """When the seller wrote it; of a record, when the pipeline did."""

    @property
    def hour(self) -> str:
        """Its hour bucket."""
        return self.group.name[3]


def lost(world: Any) -> list[Lost]:
    """All of it."""
    return [each for group in world.books.groups.values() for each in _of_group(world, group)]


def _of_group(world: Any, group: GroupBook) -> Iterable[Lost]:
    license, account, dimension, bucket = group.name
    commit = group.commit
    if commit is not None and not group.billed:
        status = _status(world.tables.item(AGGREGATED, license, f"{account}#{dimension}#{bucket}"))
        yield Lost(group, status, SERVICE_AWAY if status == "SubmissionExpired" else status, commit.quantity, commit.at)
    for sort_key, row in group.rows.items():
        version = row.now
        content = version.quantity, version.allocations
        if not version.is_good or (commit and row.second is not None and commit.counted.get(row.second) == content):
            continue
        why = NEVER_TAKEN
        looked = [tick.at for tick in world.daemon.ticks.get(bucket, []) if is_billable(bucket, tick.at)]
        if version.at >= closes_for_good(bucket):
            why = AFTER_WINDOW
        elif commit is None and version.at > max(looked, default=0.0):
            why = AFTER_LAST_TICK
        elif commit is not None and version.at > commit.at:
            why = AFTER_COMMIT
        yield Lost(group, _status(world.tables.item(USAGE, license, sort_key)), why, version.quantity, version.at)


def _status(item: Item | None) -> str:
    assert item is not None
    return "pending" if "meteringPending" in item else str(item["meteringStatus"]["S"])


def words(title: str, sums: dict[str, Decimal], these: Sequence[Lost]) -> str:
    """The report: what was used, what was billed, and each kind of loss with its hours."""
    lines = [title, f"  used {sums['used']}, billed {sums['billed']}, lost {sums['used'] - sums['billed']}"]
    for status, why in sorted({(each.status, each.why) for each in these}):
        kind = [each for each in these if (each.status, each.why) == (status, why)]
        of = "records" if why == SERVICE_AWAY else "rows"
        lines.append(f"  {status}: {sum(each.quantity for each in kind)} in {len(kind)} {of}: {why}")
        for hour in sorted({each.hour for each in kind}):
            quantities = [each.quantity for each in kind if each.hour == hour]
            lines.append(f"    {hour}  {len(quantities):3d}  {sum(quantities)}")
    return "\n".join(lines)
