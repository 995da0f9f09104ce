"""What a seller wrote, in the order it was written: the truth that the judge holds the bill against.

Belongs here: one entry of it, and the file of them. Does not: writing tables (seller), judging (judge). Nothing of the
project is imported here: a wrong rule there must not be wrong here as well.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, TypeAlias

Group: TypeAlias = tuple[str, str, str, str]
"""License, account, dimension, hour."""
RowKey: TypeAlias = tuple[str, str]
"""License and sort key."""
PENDING = "pending"


@dataclass(frozen=True)
class Written:
    """One put (or delete) of a raw row, or one put of a finished total."""

    license: str
    account: str
    dimension: str
    timestamp: str
    """Of a row to the second, of a total its hour."""
    used: str
    """What was really used; of a row with a fault it is not what the row says."""
    at: str
    """The clock when it was written."""
    team: str | None = None
    """The tag of its only allocation; None: it has none."""
    fault: str | None = None
    """The reason code that the row deserves; None: a good one."""
    before: str | None = None
    """How the row stood that was there before: `pending` or its status; None: there was none."""
    deletes: bool = False
    is_total: bool = False
    """Whether it is a finished hourly total, written straight into the aggregated table."""

    @property
    def hour(self) -> str:
        """Its hour bucket."""
        return self.timestamp[:13]

    @property
    def group(self) -> Group:
        """Its group."""
        return self.license, self.account, self.dimension, self.hour

    @property
    def key(self) -> RowKey:
        """Its key in the usage table (of a total: in the aggregated one)."""
        return self.license, f"{self.account}#{self.dimension}#{self.timestamp}"

    @property
    def quantity(self) -> Decimal:
        """What was used."""
        return Decimal(self.used)

    @property
    def content(self) -> tuple[Decimal, str | None]:
        """What counts of a good row."""
        return self.quantity, self.team

    @property
    def hours_late(self) -> int:
        """How many hours before the clock its hour lay when it was written."""
        written = datetime.fromisoformat(self.at)
        begun = datetime.fromisoformat(f"{self.hour}:00:00+00:00")
        return int((written.replace(minute=0, second=0, microsecond=0) - begun).total_seconds()) // 3600


def note(file: IO[str], entry: Written) -> None:
    """Add an entry, for good: it outlives this process."""
    file.write(json.dumps(asdict(entry)) + "\n")
    file.flush()


def entries(path: Path) -> Iterator[Written]:
    """All entries, in their order."""
    with path.open() as file:
        for line in file:
            yield Written(**json.loads(line))
