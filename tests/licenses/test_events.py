"""What a message says, or in words why it says nothing; whatever its body is, it never raises."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering_dagster.licenses.rules.lifecycle_event import EventKind, LifecycleEvent, Unreadable, parse_event
from tests.items import ACCOUNT, LICENSE
from tests.licenses.bodies import AGREEMENT, CREATED, PRODUCT, a_body, of_agreement

SECRET = "arn:aws:license-manager::999988887777:license:l-secret"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def read(body: str) -> LifecycleEvent:
    event = parse_event(body)
    assert isinstance(event, LifecycleEvent), event
    return event


def unreadable(body: str) -> str:
    fault = parse_event(body)
    assert isinstance(fault, Unreadable), fault
    return fault.words


def test_all_that_an_event_names_is_read():
    assert read(a_body(end_time="2027-01-01T00:00:00Z")) == LifecycleEvent(
        kind=EventKind.UPDATED,
        time=datetime(2026, 11, 28, 14, 20, tzinfo=UTC),
        license_arn=LICENSE,
        account=ACCOUNT,
        agreement_id=AGREEMENT,
        end_time="2027-01-01T00:00:00Z",
        product_code=PRODUCT,
    )


@pytest.mark.parametrize("kind", list(EventKind))
@pytest.mark.parametrize("suffix", ["", " - Manufacturer", " - Proposer"])
def test_a_detail_type_is_known_by_its_beginning(kind, suffix):
    assert read(a_body(f"{kind}{suffix}")).kind is kind


@pytest.mark.parametrize("kind", [
    "License Updatedx", "License Updated -", "license updated", "License", " License Updated", "License Updated ", "",
    "Purchase Agreement Replaced",
])  # fmt: skip
def test_any_other_detail_type_is_none_that_is_known(kind):
    assert "its detail-type is none that is known" in unreadable(a_body(kind))


def test_a_missing_arn_prefix_is_put_back():
    assert read(a_body(license=LICENSE.removeprefix("arn:"))).license_arn == LICENSE


@pytest.mark.parametrize("time", [
    "2026-11-28T14:20:00Z", "2026-11-28T15:20:00+01:00", "2026-11-28T09:20:00-05:00", "20261128T142000Z",
])  # fmt: skip
def test_a_time_is_an_instant_in_whatever_zone(time):
    assert read(a_body(time=time)).time == datetime(2026, 11, 28, 14, 20, tzinfo=UTC)


@pytest.mark.parametrize("time", [
    None, "", "yesterday", "2026-11-28", "2026-11-28T14:20:00", "2026-13-28T14:20:00Z", 1764339600, {}, [], True,
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59Z",
])  # fmt: skip
def test_a_time_that_is_no_instant_with_a_zone_is_said(time):
    assert "its time is no ISO-8601 instant with a zone" in unreadable(a_body(time=time))


@pytest.mark.parametrize("body", ["", "hello", "{", "[" * 100_000, "{'a': 1}", "\x00", '{"a": ' + "9" * 10_000 + "}"])
def test_no_json_is_said(body):
    assert unreadable(body) == "its body is no JSON"


@pytest.mark.parametrize("body", ["null", "[]", "5", '"License Updated"', "NaN"])
def test_json_that_is_no_object_is_said(body):
    assert unreadable(body) == "its body is no JSON object"


@pytest.mark.parametrize("nobody", [{"license": None, "agreement": None}, {"license": "", "agreement": ""}])
def test_an_event_that_names_nobody_is_said(nobody):
    assert "it names nobody" in unreadable(a_body(**nobody))


def test_an_event_without_any_detail_names_nobody():
    assert "it names nobody" in unreadable(a_body(detail=None))
    assert "it names nobody" in unreadable(json.dumps({**json.loads(a_body()), "detail": None}))


@pytest.mark.parametrize("part", ["license", "account", "agreement", "end_time", "product"])
@pytest.mark.parametrize("wrong", [5, True, ["x"], {"x": "y"}, 1.5])
def test_a_wrong_type_anywhere_is_no_event(part, wrong):
    assert "is no text" in unreadable(a_body(**{part: wrong}))


@pytest.mark.parametrize("wrong", [5, True, ["x"], "text"])
def test_a_part_that_is_no_object_is_no_event(wrong):
    assert unreadable(a_body(detail=wrong)) == "its detail is no JSON object"
    for part in ("acceptor", "agreement", "license", "product"):
        assert f"detail.{part} is no JSON object" in unreadable(a_body(detail={part: wrong}))


@pytest.mark.parametrize("kind", [5, ["License Updated"], {}, True])
def test_a_detail_type_that_is_no_text_is_said(kind):
    assert unreadable(a_body(kind)) == "its detail-type is no text"


def test_a_missing_detail_type_is_said():
    assert unreadable(a_body(None)) == "it has no detail-type"


@pytest.mark.parametrize("changes", [
    {"license": "l-123"}, {"license": "arn:other:x"}, {"license": "x" * 3000}, {"account": "12ab"},
    {"agreement": "a" * 600}, {"agreement": "a\x00"}, {"product": "\ud800"}, {"end_time": "a\nb"},
])  # fmt: skip
def test_values_that_no_table_should_hold_are_no_event(changes):
    assert unreadable(a_body(**changes)).startswith("its detail.")


@pytest.mark.parametrize("body", [
    a_body(f"License of {SECRET} 999988887777"), a_body(license=f"{SECRET} "), a_body(account="x999988887777"),
    a_body(time=SECRET), a_body(agreement=[SECRET]), f"{SECRET} 999988887777",
])  # fmt: skip
def test_no_word_about_a_body_names_a_buyer(body):
    words = unreadable(body)
    assert "l-secret" not in words
    assert "999988887777" not in words


def test_an_event_of_an_agreement_needs_no_license():
    event = read(of_agreement(CREATED, "2026-11-28T14:20:00Z"))
    assert (event.license_arn, event.account, event.agreement_id) == (None, None, AGREEMENT)


@given(st.text() | JSON.map(json.dumps))
def test_whatever_is_written_into_the_queue_it_never_raises(body):
    assert isinstance(parse_event(body), Unreadable)


@given(st.sampled_from(["license", "agreement", "acceptor", "product", "detail-type", "time", "detail"]), JSON)
def test_whatever_stands_in_one_place_it_never_raises(place, value):
    content = json.loads(a_body())
    (content if place in content else content["detail"])[place] = value
    assert isinstance(parse_event(json.dumps(content)), LifecycleEvent | Unreadable)


def test_a_deprovisioning_is_read_whatever_stands_where_it_does_not_look():
    body = json.loads(a_body())
    body["detail-type"] = str(EventKind.DEPROVISIONED)
    body["detail"]["agreement"]["endTime"] = 1_700_000_000
    assert read(json.dumps(body)).kind is EventKind.DEPROVISIONED


@pytest.mark.parametrize(("changes", "words"), [
    ({"detail": {}}, "it names nobody: neither detail.license.arn nor detail.agreement.id is there"),
    ({"time": "soon"}, "its time is no ISO-8601 instant with a zone, such as 2026-11-28T14:20:00Z"),
    ({"license": "l-123"}, "its detail.license.arn is no ARN of a license"),
    ({"account": "12ab"}, "its detail.acceptor.accountId is not all digits"),
    ({"kind": "License Replaced"}, "its detail-type is none that is known: 'License Replaced'"),
    ({"agreement": "a" * 513}, "its detail.agreement.id is longer than 512 characters"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_full(changes, words):
    assert unreadable(a_body(**changes)) == words


def test_the_longest_values_are_read():
    assert read(a_body(agreement="a" * 512)).agreement_id == "a" * 512
    longest = LICENSE + "x" * 600
    assert read(a_body(license=longest)).license_arn == longest
