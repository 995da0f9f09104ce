"""A commit of ours whose aggregate is gone: put back, or withdrawn (domain: a commit whose aggregate is gone).

Belongs here: whether its record may be put back, and doing so. Does not: finding such commits (aggregated_table,
aggregation), what is sent of them (submission).
"""

from collections.abc import Iterable
from enum import Enum

from metering_dagster.core import hours
from metering_dagster.metering.rules.aggregate_group import Aggregate
from metering_dagster.metering.rules.committed_rows import Counted
from metering_dagster.metering.rules.raw_row import RawRow, parse_sort_key, parse_timestamp
from metering_dagster.metering.services.tables import Tables


class LostFate(Enum):
    """The fate of a commit whose aggregate is gone."""

    PUT_BACK = "pending again, as the record that it made"
    WOULD_BE_PUT_BACK = "in shadow mode: nothing is written"
    WITHDRAWN = "none of the rows that it counted exists any more"
    LEFT = "its hour can no longer be billed, or another run was first"


def restore(tables: Tables, lost: Aggregate, counted: Counted, rows: Iterable[RawRow]) -> LostFate:
    """Put the record of a commit back, pending, while its hour can be billed; `rows` are all of its group.

    First write wins at the service, so nothing is billed twice by it. Where none of the counted seconds holds a row any
    more, the usage was withdrawn.
    """
    now = tables.clock()
    if not hours.is_billable(lost.key.hour, now):
        return LostFate.LEFT
    if not any(_second_of(row) in counted for row in rows):
        return LostFate.WITHDRAWN
    if not tables.writes:
        return LostFate.WOULD_BE_PUT_BACK
    return LostFate.PUT_BACK if tables.aggregated.put_back(lost, now) else LostFate.LEFT


def _second_of(row: RawRow) -> int | None:
    parts = parse_sort_key(row.sort_key)
    instant = parse_timestamp(parts.timestamp) if parts else None
    return instant.minute * 60 + instant.second if instant is not None else None
