"""What an event does to a subscriber's row (domain: lifecycle events). Pure.

Belongs here: which row an event is about, what it changes in it, what an earlier or repeated one no longer changes.
Does not: reading events (lifecycle_event), finding and writing rows (subscriber_rows).

Events come at least once and in any order, and whatever the order, one row comes of them:
- A license goes one way, from active over deprovisioning to inactive; of several expiries the earliest stands.
- Each field of the agreement is as the latest event says that names it. That event's time is kept beside the row, for
  each field by itself, for no event names them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from metering_dagster.core.instants import instant_of
from metering_dagster.licenses.rules.lifecycle_event import EventKind, LifecycleEvent

ACTIVE, DEPROVISIONING, INACTIVE = "active", "deprovisioning", "inactive"
FLAG = "1"
"""`deprovisioningPendingFlag` of a row in its flush window."""
FLUSH_HOUR = timedelta(hours=1)
"""How long usage of a deprovisioned license is still accepted."""
AGREEMENT_FIELDS = ("agreement_id", "agreement_status", "end_time")
"""What is said of one agreement, and does not hold for the next."""


@dataclass(frozen=True, slots=True)
class SubscriberRow:
    """A subscriber's row, as far as events change it; None for what is absent (or is no text)."""

    license_arn: str
    account: str
    subscription_status: str | None = None
    flag: str | None = None
    expiry: str | None = None
    agreement_id: str | None = None
    agreement_status: str | None = None
    end_time: str | None = None
    product_code: str | None = None
    set_at: Mapping[str, datetime] = field(default_factory=dict)
    """For each field of the agreement, and the product code: the time of the event that it is of."""


def creates(event: LifecycleEvent) -> bool:
    """Return whether the event makes a row where there is none: one about a license, which names its key in full.

    A deprovisioning does so as well, so that an older `License Updated` that comes later does not revive the license.
    """
    return event.kind in (EventKind.UPDATED, EventKind.DEPROVISIONED) and bool(event.license_arn and event.account)


def concerns(row: SubscriberRow, event: LifecycleEvent) -> bool:
    """Return whether the event is about this row, which was found by what the event names.

    What is said of an agreement is nothing to a license that has another one, or of which none is known yet: it waits
    for the `License Updated` that says so, lest it be taken for what is said of the agreement that comes then. A
    license that is not named is known by its agreement, and by its product where both name one.
    """
    if event.account not in (None, row.account):
        return False
    if event.license_arn is None:
        of_product = row.product_code is None or event.product_code in (None, row.product_code)
        return row.agreement_id == event.agreement_id and of_product
    if event.kind in (EventKind.ENDED, EventKind.AMENDED):
        return event.agreement_id in (None, row.agreement_id)
    return event.license_arn == row.license_arn


def change_of(row: SubscriberRow | None, event: LifecycleEvent) -> SubscriberRow | None:
    """Return the row as the event wants it; None where nothing is to change. No row is made but by an event that
    `creates`.
    """
    if row is None:
        if not creates(event):
            return None
        wanted = _decided(SubscriberRow(str(event.license_arn), str(event.account)), event)
    else:
        wanted = _decided(row, event)
    return None if wanted == row else wanted


def _decided(row: SubscriberRow, event: LifecycleEvent) -> SubscriberRow:
    match event.kind:
        case EventKind.UPDATED:
            return _updated(row, event)
        case EventKind.DEPROVISIONED:
            return _deprovisioned(row, event)
        case EventKind.ENDED:
            return _set(row, event, agreement_status=INACTIVE)
        case EventKind.AMENDED:
            return _set(row, event, agreement_status=ACTIVE, end_time=event.end_time)
        case EventKind.CREATED:
            return row


def _updated(row: SubscriberRow, event: LifecycleEvent) -> SubscriberRow:
    if row.subscription_status not in (DEPROVISIONING, INACTIVE):
        row = replace(row, subscription_status=ACTIVE)
    row = _set(row, event, product_code=event.product_code)
    if event.agreement_id and row.agreement_id and event.agreement_id != row.agreement_id:
        if not _is_news(row, event, "agreement_id", event.agreement_id):
            return row  # of an agreement that another one has followed
        row = _without_agreement(row)
    return _set(
        row, event, agreement_id=event.agreement_id, agreement_status=ACTIVE, end_time=event.end_time
    )  # fmt: skip


def _deprovisioned(row: SubscriberRow, event: LifecycleEvent) -> SubscriberRow:
    if row.subscription_status == INACTIVE:
        return row
    expiry = event.time.replace(microsecond=0) + FLUSH_HOUR
    text: str | None = expiry.strftime("%Y-%m-%dT%H:%M:%SZ")
    if row.subscription_status == DEPROVISIONING:
        stored = instant_of(row.expiry)
        if stored is not None and stored <= expiry:
            text = row.expiry
    return replace(row, subscription_status=DEPROVISIONING, flag=FLAG, expiry=text)


def _set(row: SubscriberRow, event: LifecycleEvent, **values: str | None) -> SubscriberRow:
    """Return the row with those of the values that the event names and that are news to it."""
    news = {name: value for name, value in values.items() if value and _is_news(row, event, name, value)}
    if not news:
        return row
    return replace(row, **news, set_at={**row.set_at, **dict.fromkeys(news, event.time)})


def _is_news(row: SubscriberRow, event: LifecycleEvent, name: str, value: str) -> bool:
    """Return whether the event's value replaces the row's: it is later, or, of the same instant, the greater text.

    So an end stands against whatever else happened to the agreement in that instant. A value whose instant is not known
    was written by others, and is older than any event.
    """
    at = row.set_at.get(name)
    return at is None or (event.time, value) > (at, getattr(row, name) or "")


def _without_agreement(row: SubscriberRow) -> SubscriberRow:
    set_at = {name: at for name, at in row.set_at.items() if name not in AGREEMENT_FIELDS}
    return replace(row, agreement_id=None, agreement_status=None, end_time=None, set_at=set_at)
