"""Ending rows whose group was never committed (no Dagster).

Belongs here: the transactions that let a row expire only while its group is uncommitted. Does not: which rows (sweep),
any table's expressions (the stores).

A commit of the same group may be under way: it finalizes a hundred rows, and the others of a large group after it. So
each transaction also checks that the group has neither an aggregate nor a commit of ours, or a row that is billed could
be called expired.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from botocore.exceptions import ClientError

from metering_dagster.core.aws import dynamodb, transactions
from metering_dagster.core.aws.transactions import Fate, Unit, transact
from metering_dagster.metering.rules.raw_row import GroupKey, RowEnd
from metering_dagster.metering.services.tables import Tables
from metering_dagster.metering.stores import aggregated_table


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one group that end in one transaction, with the checks of the group."""

    ends: tuple[RowEnd, ...]
    unit: Unit


def end_uncommitted(
    tables: Tables, groups: Mapping[GroupKey, Sequence[RowEnd]], now: datetime
) -> Iterator[tuple[GroupKey, RowEnd, Fate]]:
    """Give these rows their end, each while it is what was read and its group is uncommitted; what became of each.

    `INVALID` is a row whose end DynamoDB does not take, by itself.
    """
    parts = {key: list(_parts(tables, key, ends, now)) for key, ends in groups.items()}
    # A transaction takes an item once, and each part checks its group's: so one part of every group at a time.
    for turn in itertools.zip_longest(*([(key, part) for part in of_key] for key, of_key in parts.items())):
        yield from _write(tables, [place for place in turn if place is not None], now)


def _parts(tables: Tables, key: GroupKey, ends: Sequence[RowEnd], now: datetime) -> Iterator[_Part]:
    """Yield the rows in as few transactions as hold them."""
    checks = tables.aggregated.uncommitted(key)
    actions, size, held = list(checks.actions), checks.size, 0
    for position, end in enumerate(ends):
        row = tables.usage.end_unit(end, now)
        full = len(actions) + 1 > transactions.MAX_ACTIONS or size + row.size > transactions.MAX_BYTES
        if full and position > held:
            yield _Part(tuple(ends[held:position]), Unit(tuple(actions), size))
            actions, size, held = list(checks.actions), checks.size, position
        actions += row.actions
        size += row.size
    yield _Part(tuple(ends[held:]), Unit(tuple(actions), size))


def _write(
    tables: Tables, places: Sequence[tuple[GroupKey, _Part]], now: datetime
) -> Iterator[tuple[GroupKey, RowEnd, Fate]]:
    for (key, part), fate in zip(places, _transact(tables, [part.unit for _, part in places]), strict=True):
        if fate is Fate.INVALID and len(part.ends) > 1:
            # Together they may pass 4 MB, which nobody can tell from outside: then one after the other.
            for end in part.ends:
                yield from _write(tables, [(key, alone) for alone in _parts(tables, key, [end], now)], now)
        else:
            for end in part.ends:
                yield key, end, fate


def _transact(tables: Tables, units: Sequence[Unit]) -> list[Fate]:
    aggregated = tables.aggregated
    with dynamodb.Explained(aggregated.client, aggregated.name, aggregated_table.SHAPE):
        try:
            return transact(aggregated.client, units)
        except ClientError as error:
            # Raised where DynamoDB takes none of the units; each row is then tried, and told, by itself.
            if error.response["Error"]["Code"] != "ValidationException":
                raise
            return [Fate.INVALID] * len(units)
