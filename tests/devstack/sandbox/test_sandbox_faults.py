"""Faults on request: what the caller sees of them, and what was billed all the same."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from metering_dagster.devstack.sandbox import Fault, Sandbox, faults
from metering_dagster.devstack.sandbox.odd import WAYS
from tests.devstack.sandbox.sandbox_calls import (
    HOUR,
    LICENSE,
    NOW,
    OTHER_LICENSE,
    PRODUCT,
    a_legacy_record,
    a_record,
    metering,
    refusal,
    send,
    some_records,
    statuses,
)


def outcomes(client: Any, calls: int) -> list[str]:
    """What so many calls end in, each with a record of its own."""
    return [_outcome(client, a_record(Dimension=f"call-{place}")) for place in range(1, calls + 1)]


def _outcome(client: Any, record: dict[str, Any]) -> str:
    try:
        return statuses(send(client, record))[0]
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    except ConnectionClosedError:
        return "closed"


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (faults.error("AccessDeniedException"), ["AccessDeniedException"] * 4),
        (faults.error("ThrottlingException", calls=2), ["Success", "ThrottlingException", "Success", "Success"]),
        (faults.error("Strange", calls=[1, 3]), ["Strange", "Success", "Strange", "Success"]),
        (faults.error("Strange", calls="from 3"), ["Success", "Success", "Strange", "Strange"]),
        (faults.http_503(calls=1), ["503", "Success", "Success", "Success"]),
        (faults.drop(calls=2), ["Success", "closed", "Success", "Success"]),
    ],
)
def test_a_fault_strikes_the_calls_it_names_and_they_bill_nothing(
    sandbox: Sandbox, client: Any, fault: Fault, expected: list[str]
) -> None:
    sandbox.inject(fault)
    assert outcomes(client, 4) == expected
    billed = [f"call-{place}" for place, outcome in enumerate(expected, 1) if outcome == "Success"]
    assert [record.dimension for record in sandbox.bill()] == billed


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (faults.error("InternalServiceErrorException"), 500),
        (faults.error("ThrottlingException"), 400),
        (faults.error("AccessDeniedException", status=403), 403),
        (faults.http_503(), 503),
    ],
)
def test_an_error_has_its_usual_status_or_the_one_asked_for(
    sandbox: Sandbox, client: Any, fault: Fault, status: int
) -> None:
    sandbox.inject(fault)
    with pytest.raises(ClientError) as caught:
        send(client, a_record())
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == status


def test_a_lost_answer_is_billed_once_however_often_it_is_sent(sandbox: Sandbox, client: Any) -> None:
    sandbox.inject(faults.lost_answer(calls=1))
    with pytest.raises(ConnectionClosedError):
        send(client, a_record())
    assert [billed.quantity for billed in sandbox.bill()] == ["17"]
    answer = send(client, a_record())
    assert answer["Results"][0]["MeteringRecordId"] == sandbox.bill()[0].metering_record_id
    assert [call.outcome for call in sandbox.calls()] == ["lost_answer", "ok"]


def test_the_first_records_come_back_unprocessed_and_unbilled(sandbox: Sandbox, client: Any) -> None:
    sandbox.inject(faults.unprocessed(3, calls=1))
    records = some_records(10)
    answer = send(client, *records)
    assert answer["UnprocessedRecords"] == records[:3]
    assert [result["UsageRecord"] for result in answer["Results"]] == records[3:]
    assert len(sandbox.bill()) == 7
    assert statuses(send(client, *answer["UnprocessedRecords"])) == ["Success"] * 3
    assert len(sandbox.bill()) == 10


def test_records_of_a_dimension_come_back_unprocessed(sandbox: Sandbox, client: Any) -> None:
    sandbox.inject(faults.unprocessed(dimensions=["dimension-01", "dimension-03"]))
    answer = send(client, *some_records(4))
    assert [record["Dimension"] for record in answer["UnprocessedRecords"]] == ["dimension-01", "dimension-03"]
    assert [billed.dimension for billed in sandbox.bill()] == ["dimension-00", "dimension-02"]


def test_all_records_come_back_unprocessed_where_nothing_is_named(sandbox: Sandbox, client: Any) -> None:
    sandbox.inject(faults.unprocessed())
    answer = send(client, *some_records(4))
    assert (answer["Results"], len(answer["UnprocessedRecords"])) == ([], 4)
    assert sandbox.bill() == []


def test_a_fault_may_wait_for_a_dimension(sandbox: Sandbox, client: Any) -> None:
    sandbox.inject(faults.error("Strange", dimension="dimension-02"))
    assert refusal(client, *some_records(3)) == "Strange"
    assert statuses(send(client, *some_records(2))) == ["Success"] * 2


def test_a_fault_may_wait_for_a_license_or_a_product(sandbox: Sandbox, client: Any) -> None:
    sandbox.inject(faults.error("First", license_arn=OTHER_LICENSE), faults.error("Second", product_code=PRODUCT))
    assert refusal(client, a_record(), a_record(LicenseArn=OTHER_LICENSE)) == "First"
    assert refusal(client, a_legacy_record(), ProductCode=PRODUCT) == "Second"
    assert statuses(send(client, a_record(LicenseArn=LICENSE))) == ["Success"]


def test_a_fault_that_waits_counts_only_the_calls_it_waits_for(sandbox: Sandbox, client: Any) -> None:
    sandbox.inject(faults.error("Strange", calls=[1, 2], dimension="call-9"))
    outcomes(client, 3)
    record = a_record(Dimension="call-9")
    assert [refusal(client, record), refusal(client, record)] == ["Strange", "Strange"]
    assert statuses(send(client, record)) == ["Success"]


def test_several_faults_strike_one_call_together(sandbox: Sandbox, client: Any) -> None:
    sandbox.inject(faults.unprocessed(1), faults.unprocessed(dimensions=["dimension-02"]), faults.lost_answer())
    with pytest.raises(ConnectionClosedError):
        send(client, *some_records(4))
    assert [billed.dimension for billed in sandbox.bill()] == ["dimension-01", "dimension-03"]


def test_new_faults_replace_the_old_ones_and_count_afresh(sandbox: Sandbox, client: Any) -> None:
    sandbox.inject(faults.error("Strange", calls="from 2"))
    assert outcomes(client, 2) == ["Success", "Strange"]
    sandbox.inject(faults.error("Other", calls=1))
    assert outcomes(client, 2) == ["Other", "Success"]
    sandbox.inject()
    assert outcomes(client, 2) == ["Success", "Success"]


@pytest.mark.usefixtures("over_http")
def test_a_caller_that_gives_up_waiting_is_billed_all_the_same(sandbox: Sandbox) -> None:
    impatient = metering(sandbox.url, config=Config(read_timeout=0.05))
    sandbox.inject(faults.latency(0.3))
    with pytest.raises(ReadTimeoutError):
        send(impatient, a_record())
    impatient.close()
    while not sandbox.calls() or sandbox.calls()[0].outcome is None:
        pass
    assert [call.outcome for call in sandbox.calls()] == ["ok"]
    assert [billed.quantity for billed in sandbox.bill()] == ["17"]


def test_a_waiting_call_is_in_the_log_and_holds_up_neither_other_calls_nor_the_end() -> None:
    with ThreadPoolExecutor(1) as pool:
        with Sandbox(now=NOW) as sandbox:
            slow, quick = metering(sandbox.url), metering(sandbox.url)
            sandbox.inject(faults.latency(600, dimension="slow"))
            waiting = pool.submit(_outcome, slow, a_record(Dimension="slow"))
            while not sandbox.calls():
                assert not waiting.done()
            assert _outcome(quick, a_record()) == "Success"
            assert [call.outcome for call in sandbox.calls()] == [None, "ok"]
            assert [billed.dimension for billed in sandbox.bill()] == ["api_calls"]
        assert waiting.result() == "closed"
    slow.close()
    quick.close()


@pytest.mark.parametrize("way", sorted(WAYS))
def test_an_odd_answer_comes_after_the_bill(sandbox: Sandbox, client: Any, way: str) -> None:
    sandbox.inject(faults.odd_answer(way, calls=1))
    told: Any = None
    with suppress(AttributeError):  # so the SDK takes a list
        told = send(client, a_record(), a_record(Dimension="second"))
    odd = (told or {}).get("Results", [])
    assert [record.dimension for record in sandbox.bill()] == ["api_calls", "second"]
    echoes = [(each or {}).get("UsageRecord", {}) for each in odd]
    whole = [echo for echo in echoes if (echo.get("Timestamp"), echo.get("LicenseArn")) == (HOUR, LICENSE)]
    assert len(whole) < 2
    assert statuses(send(client, a_record())) == ["Success"]
