"""A license through its life: events that come late, twice and in any order, and the finalizer between them.

The judge knows the events that were heard and nothing of how they were applied: of the expiries the earliest, of each
field the latest word.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metering_dagster.licenses.rules.lifecycle import SubscriberRow, change_of, concerns, creates
from metering_dagster.licenses.rules.lifecycle_event import EventKind, LifecycleEvent
from tests.items import ACCOUNT, LICENSE

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
FIRST, SECOND = "agmt-a", "agmt-b"
FOLLOWS = 50
"""The minute in which the second agreement begins. Of the first nothing is said of the license from then on."""
words = st.sampled_from([None, "one", "two"])


def at(minutes: int) -> datetime:
    return NOON + timedelta(minutes=minutes, microseconds=minutes)


class LicensesLife(RuleBasedStateMachine):
    """One subscriber's row, and the events that there have been of it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[LifecycleEvent] = []
        self.heard: list[LifecycleEvent] = []
        self.row: SubscriberRow | None = None
        self.closed = False

    @rule(agreement=st.sampled_from([FIRST, SECOND]), minutes=st.integers(0, FOLLOWS - 1), end=words, product=words)
    def the_license_is_updated(self, agreement, minutes, end, product):
        minutes += FOLLOWS if agreement == SECOND else 0
        self._send(LifecycleEvent(EventKind.UPDATED, at(minutes), LICENSE, ACCOUNT, agreement, end, product))

    @rule(minutes=st.integers(0, 2 * FOLLOWS), agreement=st.sampled_from([FIRST, SECOND, None]))
    def the_license_is_deprovisioned(self, minutes, agreement):
        self._send(LifecycleEvent(EventKind.DEPROVISIONED, at(minutes), LICENSE, ACCOUNT, agreement))

    @rule(
        kind=st.sampled_from([EventKind.ENDED, EventKind.AMENDED]),
        agreement=st.sampled_from([FIRST, SECOND]),
        named=st.booleans(),
        minutes=st.integers(0, 2 * FOLLOWS),
        end=words,
    )
    def something_happens_to_an_agreement(self, kind, agreement, named, minutes, end):
        license = (LICENSE, ACCOUNT) if named else (None, None)
        self._send(LifecycleEvent(kind, at(minutes), *license, agreement, end))

    @rule()
    def an_agreement_is_made(self):
        self._send(LifecycleEvent(EventKind.CREATED, at(0), LICENSE, ACCOUNT, FIRST, "never", "other"))

    def _send(self, event: LifecycleEvent) -> None:
        self.sent.append(event)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_event_is_delivered(self, data):
        """Any that was sent, also again; one that is about no row yet waits in the queue."""
        event = data.draw(st.sampled_from(self.sent))
        if self.row is None and not creates(event):
            assert change_of(None, event) is None
            return
        if self.row is not None and not concerns(self.row, event):
            return
        self.row = change_of(self.row, event) or self.row
        assert self.row is not None
        assert change_of(self.row, event) is None, "a repeat changes nothing"
        if not (self.closed and event.kind is EventKind.DEPROVISIONED):
            self.heard.append(event)

    @precondition(lambda self: self.row is not None and self.row.flag is not None)
    @rule()
    def the_window_is_closed(self):
        assert self.row is not None
        self.row = replace(self.row, subscription_status="inactive", flag=None, expiry=None)
        self.closed = True

    def _ends(self) -> list[datetime]:
        return [
            e.time.replace(microsecond=0) + timedelta(hours=1) for e in self.heard if e.kind is EventKind.DEPROVISIONED
        ]

    @invariant()
    def the_subscription_goes_one_way(self):
        if self.row is None:
            assert not self.heard
            return
        found = (self.row.subscription_status, self.row.flag, self.row.expiry)
        ends = self._ends()
        if self.closed:
            assert found == ("inactive", None, None)
        elif ends:
            assert found == ("deprovisioning", "1", min(ends).isoformat().replace("+00:00", "Z"))
        else:
            assert found == ("active", None, None)

    @invariant()
    def each_field_is_the_latest_word_of_the_latest_agreement(self):
        if self.row is None:
            return
        updates = [e for e in self.heard if e.kind is EventKind.UPDATED]
        agreement = max((e.time, e.agreement_id) for e in updates)[1] if updates else None
        own = [e for e in self.heard if e.agreement_id == agreement]
        said = {EventKind.UPDATED: "active", EventKind.AMENDED: "active", EventKind.ENDED: "inactive"}
        status = [(e.time, said[e.kind]) for e in own if e.kind in said]
        ends = [(e.time, e.end_time) for e in own if e.kind in (EventKind.UPDATED, EventKind.AMENDED) and e.end_time]
        products = [(e.time, e.product_code) for e in updates if e.product_code]
        assert self.row.agreement_id == agreement
        if agreement is None:
            assert (self.row.agreement_status, self.row.end_time, self.row.product_code) == (None, None, None)
            return
        assert self.row.product_code == max(products, default=(None, None))[1]
        assert self.row.agreement_status == max(status)[1]
        assert self.row.end_time == max(ends, default=(None, None))[1]


TestLicensesLife = LicensesLife.TestCase
TestLicensesLife.settings = settings(max_examples=80, stateful_step_count=20)
