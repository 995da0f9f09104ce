"""A run that fails under the real daemon is heard by whoever listens over HTTP, with nobody touching anything."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.e2e.conftest import PROJECT
from tests.e2e.instance import webserver_and_daemon
from tests.e2e.marketplace import Marketplace, hour_back
from tests.e2e.processes import HOST, until

pytestmark = pytest.mark.services

SENSOR = "run_failures"


@contextmanager
def listening() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address, and what is posted to it."""
    heard: list[dict[str, Any]] = []

    class Hear(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer((HOST, 0), Hear)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/hook", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_refusal_of_the_current_hour_is_heard(marketplace: Marketplace, tmp_path) -> None:
    with listening() as (url, heard):
        environment = marketplace.environment() | {"METERING_ALERTS_WEBHOOK_URL": url}
        with webserver_and_daemon(tmp_path, PROJECT, environment) as dagster:
            dagster.start_sensor(SENSOR)
            first = dagster.sensor_ticks(SENSOR)[0]
            assert first["status"] == "SKIPPED", first
            assert "Watching starts now" in first["skipReason"]
            run = dagster.materialize(hour_back(0))
            assert dagster.run_ended(run) == "FAILURE"
            told = until(lambda: [each for each in heard if each.get("run")] or None, "the failure to be heard")
            ticks = dagster.sensor_ticks(SENSOR, 2)
    assert [each["run"] for each in told] == [run]
    assert (told[0]["hour"], told[0]["link"]) == (hour_back(0), f"/runs/{run}")
    assert "2026-03-18T13:00Z" in told[0]["cause"], "it says when the hour opens"
    assert [each["status"] for each in ticks] == ["SKIPPED"] * len(ticks)
    # Nothing of the last day was metered, and four of its hours have less than four hours left.
    (hours,) = (each for each in heard if not each.get("run"))
    assert hours["subject"].startswith("Metering: 4 hours are not closed")
