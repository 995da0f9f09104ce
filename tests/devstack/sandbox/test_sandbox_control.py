"""Steering the sandbox, what it remembers of calls, and requests that are none."""

import http.client
import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest

from metering_dagster.devstack.sandbox import ControlError, Sandbox, SandboxClient, faults
from tests.devstack.sandbox.sandbox_calls import (
    HOUR,
    LICENSE,
    NOW,
    OTHER_LICENSE,
    PRODUCT,
    a_legacy_record,
    a_record,
    hours_before,
    metering,
    refusal,
    send,
    statuses,
)

TARGET = "AWSMPMeteringService.BatchMeterUsage"
SIGNED = "AWS4-HMAC-SHA256 Credential=AKID/20261120/eu-west-1/aws-marketplace/aws4_request, SignedHeaders=host"
GOOD = {"UsageRecords": [{**a_record(), "Timestamp": HOUR.timestamp()}]}


def ask(
    sandbox: Sandbox, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection(urlsplit(sandbox.url).netloc, timeout=30)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def meter(sandbox: Sandbox, body: bytes, **headers: str) -> tuple[int, str]:
    """Status and code of a request made by hand."""
    named = {"Authorization": SIGNED, "X-Amz-Target": TARGET} | {
        key.replace("_", "-"): each for key, each in headers.items()
    }
    status, _, answer = ask(sandbox, "POST", "/", body, {key: each for key, each in named.items() if each})
    return status, json.loads(answer).get("__type", "ok")


def test_the_region_is_read_from_the_signature(sandbox: Sandbox) -> None:
    assert meter(sandbox, json.dumps(GOOD).encode()) == (200, "ok")
    assert meter(sandbox, json.dumps(GOOD).encode(), Authorization="Bearer nothing") == (200, "ok")
    assert [billed.region for billed in sandbox.bill()] == ["eu-west-1", "us-east-1"]


def test_an_unsigned_request_is_refused(sandbox: Sandbox) -> None:
    refused = meter(sandbox, json.dumps(GOOD).encode(), Authorization="")
    assert refused == (403, "MissingAuthenticationTokenException")
    assert sandbox.bill() == []


@pytest.mark.parametrize("target", ["", "AWSMPMeteringService.MeterUsage", "batchmeterusage"])
def test_another_operation_is_refused(sandbox: Sandbox, target: str) -> None:
    assert meter(sandbox, json.dumps(GOOD).encode(), X_Amz_Target=target) == (400, "UnknownOperationException")
    assert sandbox.bill() == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[" * 100_000, b'{"UsageRecords": NaN}', json.dumps(GOOD).replace("api", "\\ud800").encode()],
)
def test_a_body_that_is_not_json_is_refused(sandbox: Sandbox, body: bytes) -> None:
    assert meter(sandbox, body) == (400, "SerializationException")


@pytest.mark.parametrize(
    "request_body",
    [
        [],
        "text",
        {},
        {"UsageRecords": {}},
        {"UsageRecords": ["text"]},
        {**GOOD, "ProductCode": 5},
        {**GOOD, "ClientToken": "t"},
        {"UsageRecords": [{**GOOD["UsageRecords"][0], "Timestamp": "2026-11-20T08:00:00Z"}]},
        {"UsageRecords": [{**GOOD["UsageRecords"][0], "Timestamp": True}]},
        {"UsageRecords": [{**GOOD["UsageRecords"][0], "UsageAllocation": []}]},
        {"UsageRecords": [{**GOOD["UsageRecords"][0], "Dimension": ["api_calls"]}]},
        {"UsageRecords": [{**GOOD["UsageRecords"][0], "UsageAllocations": "17"}]},
        {"UsageRecords": [{**GOOD["UsageRecords"][0], "UsageAllocations": ["17"]}]},
        {"UsageRecords": [{**GOOD["UsageRecords"][0], "UsageAllocations": [{"Tags": {"team": "a"}}]}]},
    ],
)
def test_json_of_another_shape_is_refused(sandbox: Sandbox, request_body: Any) -> None:
    assert meter(sandbox, json.dumps(request_body).encode()) == (400, "ValidationException")
    assert sandbox.bill() == []


def test_every_answer_has_a_request_id_and_the_connection_stays(sandbox: Sandbox) -> None:
    connection = http.client.HTTPConnection(urlsplit(sandbox.url).netloc, timeout=30)
    ids = set()
    for _ in range(2):
        connection.request("POST", "/", json.dumps(GOOD), {"Authorization": SIGNED, "X-Amz-Target": TARGET})
        answer = connection.getresponse()
        ids.add(answer.getheader("x-amzn-RequestId"))
        answer.read()
        assert not answer.will_close
    connection.close()
    assert len(ids - {None}) == 2


def test_a_body_in_chunks_is_refused(sandbox: Sandbox) -> None:
    status, _, _ = ask(sandbox, "POST", "/", b"", {"Transfer-Encoding": "chunked"})
    assert status == 411


def test_the_log_tells_what_each_call_carried_and_how_it_ended(sandbox: Sandbox, client: Any) -> None:
    send(client, a_record(), a_record(LicenseArn=OTHER_LICENSE), a_record(Timestamp=hours_before(NOW, 1)))
    refusal(client, a_legacy_record(Dimension=""), ProductCode=PRODUCT)
    first, second = sandbox.calls()
    assert (first.sequence, first.records, first.licenses, first.region) == (1, 3, 2, "us-east-1")
    assert (first.hours, first.product_code, first.outcome) == (["2026-11-20T08", "2026-11-20T09"], None, "ok")
    assert (second.sequence, second.records, second.licenses, second.product_code) == (2, 1, 0, PRODUCT)
    assert second.outcome == "InvalidUsageDimensionException"
    assert second.monotonic >= first.monotonic
    assert datetime.fromisoformat(second.at) >= datetime.fromisoformat(first.at)
    assert first.bytes > second.bytes > 0


def test_another_process_would_steer_it_by_its_url_alone(sandbox: Sandbox, client: Any) -> None:
    other = SandboxClient(sandbox.url)
    other.inject(faults.unprocessed(1, calls=1))
    other.set_now(NOW)
    assert other.health() == {"status": "ok", "now": NOW.isoformat(), "frozen": True}
    send(client, *[a_record(), a_record(Dimension="other")])
    assert other.bill() == sandbox.bill()
    assert other.calls() == sandbox.calls()


def test_settings_that_are_not_named_stay_as_they_are(sandbox: Sandbox) -> None:
    sandbox.configure(dimensions=["api_calls"], deprovisioned={LICENSE: NOW})
    settings = sandbox.configure(products=[PRODUCT])
    assert (settings["dimensions"], settings["products"]) == (["api_calls"], [PRODUCT])
    assert settings["deprovisioned"] == {LICENSE: NOW.isoformat()}
    assert settings["calls_per_second"] is None


def test_a_reset_leaves_nothing_behind(sandbox: Sandbox, client: Any) -> None:
    send(client, a_record(QuantityAsDecimal="5"))
    sandbox.set_now(datetime(2027, 3, 1, tzinfo=UTC))
    sandbox.configure(dimensions=["nothing"])
    sandbox.inject(faults.drop())
    sandbox.reset()
    assert (sandbox.bill(), sandbox.calls()) == ([], [])
    assert statuses(send(client, a_record())) == ["Success"]
    assert [call.sequence for call in sandbox.calls()] == [1]


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/clock", {}),
        ("/clock", {"now": "noon"}),
        ("/clock", {"now": "2026-11-20T10:30:00"}),
        ("/clock", {"now": 5}),
        ("/clock", {"now": None, "zone": "UTC"}),
        ("/configure", []),
        ("/configure", {"dimension": ["api_calls"]}),
        ("/configure", {"dimensions": "api_calls"}),
        ("/configure", {"dimensions": [1]}),
        ("/configure", {"unsubscribed": None}),
        ("/configure", {"licenses": [LICENSE]}),
        ("/configure", {"licenses": {LICENSE: 1}}),
        ("/configure", {"deprovisioned": {LICENSE: "yesterday"}}),
        ("/configure", {"deprovisioned": [LICENSE]}),
        ("/configure", {"grace_accepts_old_hours": 0}),
        ("/configure", {"calls_per_second": 0}),
        ("/configure", {"calls_per_second": True}),
        ("/faults", {}),
        ("/faults", {"faults": {}}),
        ("/faults", {"faults": ["drop"]}),
        ("/faults", {"faults": [{}]}),
        ("/faults", {"faults": [{"kind": "flood"}]}),
        ("/faults", {"faults": [{"kind": []}]}),
        ("/faults", {"faults": [{"kind": "error"}]}),
        ("/faults", {"faults": [{"kind": "error", "code": "Strange", "status": 200}]}),
        ("/faults", {"faults": [{"kind": "error", "code": ""}]}),
        ("/faults", {"faults": [{"kind": "latency"}]}),
        ("/faults", {"faults": [{"kind": "latency", "seconds": -1}]}),
        ("/faults", {"faults": [{"kind": "drop", "seconds": 1}]}),
        ("/faults", {"faults": [{"kind": "drop", "calls": 0}]}),
        ("/faults", {"faults": [{"kind": "drop", "calls": "sometimes"}]}),
        ("/faults", {"faults": [{"kind": "drop", "calls": "3"}]}),
        ("/faults", {"faults": [{"kind": "drop", "calls": "from two"}]}),
        ("/faults", {"faults": [{"kind": "unprocessed", "count": -1}]}),
        ("/reset", {"all": True}),
    ],
)
def test_steering_that_makes_no_sense_is_refused_and_changes_nothing(
    sandbox: Sandbox, client: Any, path: str, document: Any
) -> None:
    status, _, answer = ask(sandbox, "POST", f"/_sandbox{path}", json.dumps(document).encode(), {})
    assert status == 400
    assert len(json.loads(answer)["message"]) > 10
    assert statuses(send(client, a_record())) == ["Success"]


def test_the_client_tells_what_was_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ControlError, match="unknown settings: dimension; known are dimensions, products"):
        sandbox.configure(dimension=["api_calls"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/_sandbox/nothing", 404), ("GET", "/_sandbox/reset", 404), ("GET", "/", 404)],
)
def test_there_is_nothing_else(sandbox: Sandbox, method: str, path: str, status: int) -> None:
    assert ask(sandbox, method, path, b"", {})[0] == status


def test_a_fault_of_the_sandbox_itself_is_not_kept_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    def broken() -> float:
        raise ZeroDivisionError

    def use_it() -> None:
        with Sandbox(now=NOW, monotonic=broken) as sandbox:
            client = metering(sandbox.url)
            with pytest.raises(Exception, match="Connection was closed"):
                send(client, a_record())
            client.close()

    with pytest.raises(RuntimeError, match="the sandbox failed"):
        use_it()
    assert "ZeroDivisionError" in capfd.readouterr().err
