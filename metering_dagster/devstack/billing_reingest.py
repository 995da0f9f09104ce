"""The repeated ingests of a billing sample, in all the ways that occur. Pure.

Belongs here: which rows are written again, added and deleted, and which cells must be reported for them. Does not: the
sample itself (billing_sample), SQL (billing_db), the comparison with the report (billing_demo).
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from metering_dagster.devstack.billing_sample import (
    AWS,
    AZURE,
    GCP,
    MICRO,
    BillingSample,
    Daily,
    Fact,
    Subscribed,
    cast_of,
)

AGAIN, AHEAD, CORRECTED, GONE, NEW_GROUP = 2, 3, 5, 8, 12
"""The days back of each ingest."""
FAST_CLOCK = timedelta(hours=2)
RECENT = timedelta(days=6)
CORRECTED_SHARE = 0.3
UNCLAIMED = "rg-lab-nobody-told-us-of"
CellKey = tuple[date, str]
"""A day and the id of a subscription."""


class ExpectedChange(StrEnum):
    """Change that must be reported of a cell."""

    TOUCHED = "touched"
    """Ingested again at the same cost."""
    CHANGED = "changed"
    """Ingested again at another cost."""
    VANISHED = "vanished"
    """In neither table any more."""


@dataclass(frozen=True)
class Reingest:
    """Rows to insert or to replace by their keys, and rows to delete."""

    facts: tuple[Fact, ...]
    daily: tuple[Daily, ...]
    gone_facts: tuple[Fact, ...]
    gone_daily: tuple[Daily, ...]
    due: Mapping[CellKey, ExpectedChange]
    """The cells that must be reported, and no others."""


def reingest(sample: BillingSample, now: datetime) -> Reingest:
    """Build a night's ingests of five earlier days.

    One day repeats a whole cloud unchanged. One corrects a resource group that two subscriptions name. One withdraws a
    project. One is stamped by a clock that is two hours fast. One adds a resource group that no subscription claims.
    """
    days = {back: now.astimezone(UTC).date() - timedelta(days=back)
            for back in (AGAIN, AHEAD, CORRECTED, GONE, NEW_GROUP)}  # fmt: skip
    cast = cast_of()
    aws, gcp = ([t.scope_id for t in cast.tenants if t.integration_id == cloud] for cloud in (AWS, GCP))
    same = _rows(sample, days[AGAIN], aws)
    ahead = _rows(sample, days[AHEAD], aws[:1])
    withdrawn, beside_it = _rows(sample, days[GONE], gcp[:1]), _rows(sample, days[GONE], gcp[1:])
    corrected = _corrected(sample, days[CORRECTED], cast.shared_group)
    added = _new_group(sample, days[NEW_GROUP])
    due: dict[CellKey, ExpectedChange] = {}
    for move, facts, daily in (
        (ExpectedChange.TOUCHED, *same), (ExpectedChange.TOUCHED, *beside_it), (ExpectedChange.TOUCHED, (), ahead[1]),
        (ExpectedChange.VANISHED, *withdrawn), (ExpectedChange.CHANGED, *corrected), (ExpectedChange.CHANGED, *added),
    ):  # fmt: skip
        due |= dict.fromkeys(_cells(sample.subscriptions, facts, daily), move)
    written = (same, beside_it, corrected, added)
    stamped = [replace(row, updated_at=now) for facts, _ in written for row in facts]
    told = [replace(row, fetched_at=now) for _, daily in written for row in daily]
    fast = [replace(row, fetched_at=now + FAST_CLOCK) for row in ahead[1]]
    return Reingest(tuple(stamped), (*told, *fast), *withdrawn, due)


def again(sample: BillingSample, now: datetime, rng: random.Random) -> Reingest:
    """Build another ingest of a tenant's recent day: mostly at the same cost, now and then at another."""
    daily = rng.choice([row for row in sample.daily if row.day >= max(row.day for row in sample.daily) - RECENT])
    facts, _ = _rows(sample, daily.day, {daily.scope_id})
    share = Decimal(rng.randint(80, 120)) / 100 if rng.random() < CORRECTED_SHARE else Decimal(1)
    stamped = [replace(row, amount=(row.amount * share).quantize(MICRO), updated_at=now) for row in facts]
    more = sum((new.amount - old.amount for new, old in zip(stamped, facts, strict=True)
                if new.currency == daily.currency), Decimal())  # fmt: skip
    told = replace(daily, amount=daily.amount + more, fetched_at=now)
    move = ExpectedChange.CHANGED if share != 1 else ExpectedChange.TOUCHED
    due = dict.fromkeys(_cells(sample.subscriptions, facts, [daily]), move)
    return Reingest(tuple(stamped), (told,), (), (), due)


Rows = tuple[tuple[Fact, ...], tuple[Daily, ...]]


def _rows(sample: BillingSample, day: date, scopes: Iterable[str]) -> Rows:
    scopes = set(scopes)
    return (
        tuple(row for row in sample.facts if row.day == day and row.scope_id in scopes),
        tuple(row for row in sample.daily if row.day == day and row.scope_id in scopes),
    )


def _corrected(sample: BillingSample, day: date, group: str) -> Rows:
    """Return rows that cost a tenth less for each service of the group, and its tenant's row less the difference."""
    found = [row for row in sample.facts if row.day == day and (row.resource_group or "").lower() == group]
    facts = [replace(row, amount=(row.amount * Decimal("0.9")).quantize(MICRO)) for row in found]
    less = sum((new.amount - old.amount for new, old in zip(facts, found, strict=True)), Decimal())
    return tuple(facts), _with(sample, found[0], less)


def _new_group(sample: BillingSample, day: date) -> Rows:
    """Return the row of a service in a new resource group, and its tenant's row plus its amount."""
    model = next(row for row in sample.facts if row.day == day and row.integration_id == AZURE)
    fact = replace(model, resource_group=UNCLAIMED, service="Storage", amount=Decimal("12.345678"))
    return (fact,), _with(sample, fact, fact.amount)


def _with(sample: BillingSample, fact: Fact, more: Decimal) -> tuple[Daily, ...]:
    """Return the daily row of the fact's tenant, plus `more`."""
    _, daily = _rows(sample, fact.day, {fact.scope_id})
    return tuple(replace(row, amount=row.amount + more) for row in daily)


def _cells(subscriptions: Iterable[Subscribed], facts: Iterable[Fact], daily: Iterable[Daily]) -> set[CellKey]:
    """Return the cells of these rows, of enabled subscriptions alone."""
    enabled = [each for each in subscriptions if each.enabled]
    of_facts = {(row.day, each.id) for row in facts for each in enabled if each.claims(row)}
    return of_facts | {(row.day, each.id) for row in daily for each in enabled
                       if not each.is_resource_group and each.id == row.scope_id}  # fmt: skip
