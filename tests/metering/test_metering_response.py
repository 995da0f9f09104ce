"""Which record a result is about: by its echo, else by its position, else by nothing."""

from datetime import datetime, timedelta

import pytest

from metering_dagster.core import clock_skew
from metering_dagster.metering.rules.metering_response import MeteringResponse, read_answer
from metering_dagster.metering.rules.usage_record import api_record
from tests.metering.builders import DECIMAL, TWO_BACK, an_aggregate

RECORDS = [an_aggregate(dimension=name) for name in ("a", "b", "c")]
LEGACY = an_aggregate(license_arn="prod-1", customer_identifier="cust-1")
NOON = datetime.fromisoformat("2026-11-28T12:00:00+00:00")


def echo(aggregate, **changes):
    sent = api_record(aggregate, DECIMAL) | changes
    return {name: value for name, value in sent.items() if value is not None}


def result(aggregate, status="Success", **changes):
    return {"UsageRecord": echo(aggregate, **changes), "Status": status, "MeteringRecordId": f"id-{status}"}


def read(*results, records=RECORDS, **answer):
    found = read_answer({"Results": [*results], **answer}, [api_record(r, DECIMAL) for r in records], records)
    assert isinstance(found, MeteringResponse)
    assert {r.aggregate for r in found.results} | set(found.unprocessed) == set(records)
    assert len(found.results) + len(found.unprocessed) == len(records)
    return {each.aggregate.key.dimension: each.status.value for each in found.results}, found.fault


def test_a_whole_echo_tells_the_record_in_any_order():
    said, fault = read(result(RECORDS[2], "DuplicateRecord"), result(RECORDS[0]), result(RECORDS[1]))
    assert said == {"a": "Success", "b": "Success", "c": "DuplicateRecord"}
    assert not fault


@pytest.mark.parametrize("missing", ["LicenseArn", "CustomerAWSAccountId", "Timestamp"])
def test_what_is_echoed_is_enough_where_it_fits_one_record_alone(missing):
    said, _ = read(*(result(each, **{missing: None}) for each in reversed(RECORDS)))
    assert set(said) == {"a", "b", "c"}


@pytest.mark.parametrize("instant", [TWO_BACK.replace(tzinfo=None), "soon", 5])
def test_a_timestamp_that_cannot_be_read_is_as_good_as_none(instant):
    said, fault = read(*(result(each, Timestamp=instant) for each in RECORDS))
    assert set(said) == {"a", "b", "c"}
    assert "Timestamp" in fault


def test_any_instant_of_the_hour_is_its_hour():
    said, fault = read(*(result(each, Timestamp=TWO_BACK + timedelta(seconds=3599)) for each in RECORDS))
    assert set(said) == {"a", "b", "c"}
    assert not fault


def test_by_position_where_there_are_as_many_and_nothing_contradicts():
    said, fault = read(*(result(each, Dimension=None) for each in RECORDS))
    assert set(said) == {"a", "b", "c"}
    assert not fault
    said, fault = read(*(result(each, Dimension=None) for each in RECORDS[:2]))
    assert not said
    assert "does not say which record it is about" in fault


def test_by_no_position_where_one_echo_stands_elsewhere():
    said, fault = read(result(RECORDS[1]), *(result(each, Dimension=None) for each in RECORDS[:2]))
    assert said == {"b": "Success"}
    assert "does not say" in fault


@pytest.mark.parametrize(("statuses", "known"), [
    (["Success", "Success", "Success"], 3), (["DuplicateRecord"] * 3, 3),
    (["Success", "Success", "DuplicateRecord"], 0),
    (["Success", "Success", "Strange"], 0),
])  # fmt: skip
def test_without_any_echo_only_where_the_statuses_are_alike(statuses, known):
    said, _ = read(*({"Status": status} for status in statuses))
    assert len(said) == known


def test_partial_echoes_go_by_position_though_their_statuses_differ():
    said, _ = read(
        *(result(r, s, Dimension=None) for r, s in zip(RECORDS, ["Success", "DuplicateRecord", "Success"], strict=True))
    )
    assert said == {"a": "Success", "b": "DuplicateRecord", "c": "Success"}


@pytest.mark.parametrize("changes", [
    {"LicenseArn": "arn:aws:license-manager::1:license:l-1"}, {"CustomerAWSAccountId": "1"}, {"Dimension": "A"},
    {"Timestamp": TWO_BACK - timedelta(seconds=1)},
])  # fmt: skip
def test_an_echo_that_contradicts_every_record_is_about_none(changes):
    said, fault = read(result(RECORDS[0], **changes), records=RECORDS[:1])
    assert not said
    assert "echoes a record that was not sent" in fault


def test_two_results_that_differ_about_a_record_say_nothing_of_it():
    said, fault = read(result(RECORDS[0]), result(RECORDS[0], "DuplicateRecord"), result(RECORDS[1]))
    assert said == {"b": "Success"}
    assert "differ" in fault
    said, _ = read(result(RECORDS[0]), result(RECORDS[0]))
    assert said == {"a": "Success"}


def test_a_legacy_customer_may_be_echoed_in_one_more_way_but_not_as_another():
    for added in ({"CustomerAWSAccountId": "1"}, {}):
        assert read(result(LEGACY, **added), records=[LEGACY])[0]
    other = {"CustomerIdentifier": None, "CustomerAWSAccountId": "1"}
    assert not read(result(LEGACY, **other), records=[LEGACY])[0]
    assert not read(result(LEGACY, LicenseArn="arn:aws:x"), records=[LEGACY])[0]


@pytest.mark.parametrize("odd", [None, [], "Success", 5, {"Status": None}, {"Status": []}, {"Status": "Strange"}, {}])
def test_a_result_that_is_none_is_told_and_stops_no_other(odd):
    said, fault = read(odd, result(RECORDS[1]), result(RECORDS[2]))
    assert said == {"b": "Success", "c": "Success"}
    assert fault


def test_what_comes_back_unprocessed_is_no_fault():
    said, fault = read(result(RECORDS[0]), UnprocessedRecords=[echo(RECORDS[1]), echo(RECORDS[2])])
    assert said == {"a": "Success"}
    assert not fault
    _, fault = read(result(RECORDS[0]), UnprocessedRecords=[echo(RECORDS[1])])
    assert fault == "1 of 3 records are in no list of the answer"


@pytest.mark.parametrize(
    "answer", [None, [], "text", {}, {"ResponseMetadata": {}}, {"Results": "text"}, {"Results": {"a": 1}}]
)
def test_what_is_no_answer_at_all_says_so(answer):
    assert isinstance(read_answer(answer, [api_record(r, DECIMAL) for r in RECORDS], RECORDS), str)


@pytest.mark.parametrize(("date", "words"), [
    ("Sat, 28 Nov 2026 11:53:00 GMT", "420 s ahead of the answer's Date header (2026-11-28T11:53:00Z)"),
    ("Sat, 28 Nov 2026 12:10:00 GMT", "600 s behind the answer's Date header"),
    ("Sat, 28 Nov 2026 12:00:00 GMT", "the same as the answer's Date header"),
    ("soon", "no Date header"), (None, "no Date header"),
])  # fmt: skip
def test_a_refused_signature_is_told_with_both_clocks(date, words):
    headers = {} if date is None else {"date": date}
    response = {"Error": {"Code": "RequestExpired"}, "ResponseMetadata": {"HTTPHeaders": headers}}
    assert words in clock_skew.words(response, NOON)
    assert clock_skew.words(response, NOON).startswith("This machine's clock says 2026-11-28T12:00:00Z")


def test_no_other_error_speaks_of_clocks():
    assert not clock_skew.words({"Error": {"Code": "AccessDeniedException"}}, NOON)
