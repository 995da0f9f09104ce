"""What an event does to a row, and that one row comes of them in whatever order and however often they come."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.licenses.rules.lifecycle import SubscriberRow, change_of, concerns, creates
from metering_dagster.licenses.rules.lifecycle_event import EventKind, LifecycleEvent
from tests.items import ACCOUNT, LICENSE, OTHER_ACCOUNT

NOON = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
A, B = "agmt-a", "agmt-b"
AT_ONE = "2026-11-28T13:00:00Z"


def an_event(
    kind: EventKind, minutes: float = 0, *, agreement: str | None = A, named: bool = True, **changes
) -> LifecycleEvent:
    event = LifecycleEvent(kind, NOON + timedelta(minutes=minutes), agreement_id=agreement, **changes)
    return replace(event, license_arn=LICENSE, account=ACCOUNT) if named else event


def a_row(*events: LifecycleEvent, row: SubscriberRow | None = None) -> SubscriberRow:
    """What comes of these events, one after the other."""
    for event in events:
        row = change_of(row, event) or row
    assert row is not None
    return row


def settled(events: list[LifecycleEvent]) -> SubscriberRow | None:
    """What comes of them where each that is about no row yet is put back to the end, as the queue does."""
    row: SubscriberRow | None = None
    waiting, unheard = list(events), 0
    while waiting and unheard < len(waiting):
        event = waiting.pop(0)
        if (row is None and not creates(event)) or (row is not None and not concerns(row, event)):
            waiting.append(event)
            unheard += 1
            continue
        row = change_of(row, event) or row
        unheard = 0
    return row


def test_license_updated_makes_an_active_row():
    row = a_row(an_event(EventKind.UPDATED, product_code="p", end_time="2027"))
    assert (row.license_arn, row.account) == (LICENSE, ACCOUNT)
    assert (row.subscription_status, row.agreement_status, row.agreement_id) == ("active", "active", A)
    assert (row.product_code, row.end_time, row.flag, row.expiry) == ("p", "2027", None, None)


def test_a_repeat_changes_nothing():
    for kind in EventKind:
        event = an_event(kind)
        row = a_row(an_event(EventKind.UPDATED, -1), event)
        assert change_of(row, event) is None


def test_license_deprovisioned_opens_the_flush_window_for_an_hour():
    row = a_row(an_event(EventKind.UPDATED), an_event(EventKind.DEPROVISIONED, 1 / 7))
    assert (row.subscription_status, row.flag, row.expiry) == ("deprovisioning", "1", "2026-11-28T13:00:08Z")
    assert (row.agreement_status, row.agreement_id) == ("active", A)


def test_a_deprovisioning_makes_the_row_that_a_late_update_does_not_revive():
    row = a_row(an_event(EventKind.DEPROVISIONED), an_event(EventKind.UPDATED, 5))
    assert (row.subscription_status, row.flag, row.expiry) == ("deprovisioning", "1", AT_ONE)
    assert (row.agreement_status, row.agreement_id) == ("active", A)


@pytest.mark.parametrize("minutes", [-30, 0, 30])
def test_of_two_expiries_the_earlier_stands(minutes):
    row = a_row(an_event(EventKind.DEPROVISIONED), an_event(EventKind.DEPROVISIONED, minutes))
    assert row.expiry == ("2026-11-28T12:30:00Z" if minutes < 0 else AT_ONE)


@pytest.mark.parametrize("expiry", [None, "soon", "2026-11-28T12:10:00", "0001-01-01T00:00:00+14:00"])
def test_an_expiry_that_does_not_parse_is_replaced(expiry):
    row = replace(a_row(an_event(EventKind.DEPROVISIONED)), expiry=expiry)
    assert a_row(an_event(EventKind.DEPROVISIONED), row=row).expiry == AT_ONE


@pytest.mark.parametrize("expiry", ["2026-11-28T13:30:00+01:00", "2026-11-28T14:00:00+01:00"])
def test_an_expiry_that_is_not_later_stands_as_it_is_written_in_whatever_zone(expiry):
    row = replace(a_row(an_event(EventKind.DEPROVISIONED)), expiry=expiry)
    assert change_of(row, an_event(EventKind.DEPROVISIONED)) is None


def test_an_expiry_that_is_later_by_the_least_gives_way():
    row = replace(a_row(an_event(EventKind.DEPROVISIONED)), expiry="2026-11-28T13:00:00.000001Z")
    assert a_row(an_event(EventKind.DEPROVISIONED), row=row).expiry == AT_ONE


def test_what_an_active_row_has_kept_of_an_earlier_window_does_not_count():
    row = replace(a_row(an_event(EventKind.UPDATED)), expiry="2020-01-01T00:00:00Z")
    assert a_row(an_event(EventKind.DEPROVISIONED), row=row).expiry == AT_ONE


def test_a_lost_flag_is_set_again():
    row = replace(a_row(an_event(EventKind.DEPROVISIONED)), flag=None)
    assert a_row(an_event(EventKind.DEPROVISIONED), row=row).flag == "1"


def test_nothing_opens_an_inactive_license_again():
    inactive = SubscriberRow(LICENSE, ACCOUNT, subscription_status="inactive")
    assert change_of(inactive, an_event(EventKind.DEPROVISIONED, 5)) is None
    row = a_row(an_event(EventKind.UPDATED, 5), row=inactive)
    assert (row.subscription_status, row.agreement_status, row.agreement_id) == ("inactive", "active", A)
    assert (row.flag, row.expiry) == (None, None)


@pytest.mark.parametrize("status", [None, "pending", "ACTIVE"])
def test_a_subscription_status_that_is_none_becomes_active(status):
    assert (
        a_row(an_event(EventKind.UPDATED), row=SubscriberRow(LICENSE, ACCOUNT, status)).subscription_status == "active"
    )


def test_an_agreement_that_ends_leaves_the_subscription_alone():
    before = a_row(an_event(EventKind.UPDATED))
    after = a_row(an_event(EventKind.ENDED, 1), row=before)
    assert after.agreement_status == "inactive"
    assert replace(after, agreement_status="active", set_at=before.set_at) == before


def test_an_amended_agreement_is_active_until_its_new_end():
    row = a_row(
        an_event(EventKind.UPDATED), an_event(EventKind.ENDED, 1), an_event(EventKind.AMENDED, 2, end_time="2028")
    )
    assert (row.agreement_status, row.end_time, row.subscription_status) == ("active", "2028", "active")


def test_an_amendment_that_comes_after_the_later_end_does_not_reactivate():
    row = a_row(
        an_event(EventKind.UPDATED), an_event(EventKind.ENDED, 2), an_event(EventKind.AMENDED, 1, end_time="2028")
    )
    assert (row.agreement_status, row.end_time) == ("inactive", "2028")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_in_one_instant_the_end_of_an_agreement_wins(order):
    both = [an_event(EventKind.ENDED, 1), an_event(EventKind.AMENDED, 1)]
    assert a_row(an_event(EventKind.UPDATED), *(both[n] for n in order)).agreement_status == "inactive"


def test_what_others_wrote_is_older_than_any_event():
    row = SubscriberRow(
        LICENSE, ACCOUNT, "active", agreement_id=B, agreement_status="inactive", end_time="1", product_code="q"
    )
    row = a_row(an_event(EventKind.UPDATED, end_time="2", product_code="p"), row=row)
    assert (row.agreement_id, row.agreement_status, row.end_time, row.product_code) == (A, "active", "2", "p")


def test_nothing_of_an_agreement_holds_for_the_one_that_follows_it():
    row = a_row(
        an_event(EventKind.UPDATED, end_time="2027"),
        an_event(EventKind.ENDED, 5),
        an_event(EventKind.UPDATED, 3, agreement=B),
    )
    assert (row.agreement_id, row.agreement_status, row.end_time) == (B, "active", None)
    assert not concerns(row, an_event(EventKind.ENDED, 9))
    assert change_of(row, an_event(EventKind.UPDATED, 2)) is None


@pytest.mark.parametrize("kind", [EventKind.ENDED, EventKind.AMENDED, EventKind.CREATED])
def test_no_event_of_an_agreement_makes_a_row(kind):
    assert change_of(None, an_event(kind)) is None


@pytest.mark.parametrize("changes", [{"license_arn": None}, {"account": None}])
def test_a_row_is_made_only_where_its_whole_key_is_named(changes):
    assert not creates(replace(an_event(EventKind.UPDATED), **changes))


def test_created_changes_nothing():
    assert change_of(a_row(an_event(EventKind.UPDATED)), an_event(EventKind.CREATED, 1, product_code="other")) is None


@pytest.mark.parametrize(("changes", "about"), [
    ({}, True), ({"account": OTHER_ACCOUNT}, False), ({"agreement_id": B}, False), ({"product_code": "p"}, True),
    ({"product_code": "q"}, False), ({"account": ACCOUNT}, True),
])  # fmt: skip
def test_a_license_that_is_not_named_is_known_by_agreement_account_and_product(changes, about):
    row = SubscriberRow(LICENSE, ACCOUNT, agreement_id=A, product_code="p")
    for kind in EventKind:
        assert concerns(row, replace(an_event(kind, named=False), **changes)) is about


@pytest.mark.parametrize("kind", [EventKind.ENDED, EventKind.AMENDED])
@pytest.mark.parametrize(("of_row", "of_event", "about"), [
    (A, A, True), (A, None, True), (None, B, False), (None, None, True), (A, B, False),
])  # fmt: skip
def test_what_is_said_of_an_agreement_is_nothing_to_a_license_that_has_another_or_none_yet(
    kind, of_row, of_event, about
):
    assert concerns(SubscriberRow(LICENSE, ACCOUNT, agreement_id=of_row), an_event(kind, agreement=of_event)) is about


@pytest.mark.parametrize("order", [[A, B], [B, A]])
def test_of_two_agreements_of_one_instant_the_greater_text_stands(order):
    assert a_row(*(an_event(EventKind.UPDATED, agreement=each) for each in order)).agreement_id == B


def test_a_value_that_others_took_out_is_set_again_by_the_event_that_it_was_of():
    row = SubscriberRow(LICENSE, ACCOUNT, set_at={"agreement_id": NOON})
    assert a_row(an_event(EventKind.UPDATED, agreement="A"), row=row).agreement_id == "A"


MINUTES = st.integers(0, 6)
TEXTS = st.sampled_from([None, "one", "two"])
OF_A = st.builds(
    an_event,
    st.sampled_from(EventKind),
    MINUTES,
    agreement=st.sampled_from([A, None]),
    end_time=TEXTS,
    product_code=TEXTS,
)
BY_AGREEMENT = st.builds(
    an_event, st.sampled_from([EventKind.ENDED, EventKind.AMENDED]), MINUTES, agreement=st.sampled_from([A, B]),
    named=st.just(False), end_time=TEXTS,
)  # fmt: skip


@given(st.data())
def test_one_row_comes_of_all_orders_and_repeats(data):
    events = data.draw(st.lists(OF_A | BY_AGREEMENT.filter(lambda e: e.agreement_id == A), max_size=6))
    repeats = data.draw(st.lists(st.sampled_from(events), max_size=4)) if events else []
    shuffled = data.draw(st.permutations([*events, *repeats]))
    assert settled(shuffled) == settled(events)


@given(st.data())
def test_one_row_comes_of_them_where_one_agreement_follows_another(data):
    first = st.builds(an_event, st.just(EventKind.UPDATED), st.integers(0, 2), end_time=TEXTS)
    second = st.builds(an_event, st.just(EventKind.UPDATED), st.integers(3, 6), agreement=st.just(B), end_time=TEXTS)
    deprovisioned = st.builds(an_event, st.just(EventKind.DEPROVISIONED), MINUTES)
    events = data.draw(st.lists(first | second | deprovisioned | BY_AGREEMENT, max_size=7))
    repeats = data.draw(st.lists(st.sampled_from(events), max_size=4)) if events else []
    shuffled = data.draw(st.permutations([*events, *repeats]))
    assert settled(shuffled) == settled(events)


@given(st.lists(OF_A, max_size=8), st.sampled_from(["deprovisioning", "inactive"]))
def test_no_event_leads_a_license_back(events, status):
    row = SubscriberRow(LICENSE, ACCOUNT, status, flag="1", expiry="2026-11-28T12:30:00Z")
    after = a_row(*events, row=row)
    assert (after.subscription_status, after.flag) == (status, "1")
    assert str(after.expiry) <= str(row.expiry)
