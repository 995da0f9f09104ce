"""Any cursor: a tick goes on from it, or begins anew and says so; it never fails, and it never falls silent.

Belongs here: what the sensors find in the place of their cursor. Does not: what a good one brings back
(tests/alerting/test_cursor.py, tests/billing_changes/test_cursor.py).
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from hypothesis import example, given

from metering_dagster.alerting.rules import cursor as watch_memory
from metering_dagster.alerting.rules.alert_text import Alert
from metering_dagster.billing_changes.rules import cursor as billing_memory
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.definitions import build_defs
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Settings
from tests.billing_changes.conftest import filled_by_hand
from tests.billing_changes.filling import tenant
from tests.hostile.broken import DEEP, broken_text
from tests.hostile.effort import examples

NOW = datetime.now(UTC).replace(microsecond=0)
SECONDS = NOW.timestamp()


def _watch_cursor() -> dict[str, object]:
    memory = watch_memory.AlertCursor(SECONDS - 9000, SECONDS - 60, seen={"run-1": SECONDS - 70}, looked=SECONDS - 10)
    memory.take_failure("run-2", SECONDS - 60, SECONDS)
    alert = Alert("hours", "1 hour is not closed", "because", "/assets", hour="2026-11-28T10")
    memory.take_hours(["2026-11-28T10"], alert, SECONDS)
    found: dict[str, object] = json.loads(watch_memory.write(memory))
    return found


def _billing_cursor() -> dict[str, object]:
    """As a sensor that has looked, asked, and once was away writes it."""
    micros, day = int((NOW - timedelta(minutes=5)).timestamp()) * 1_000_000, f"{NOW - timedelta(days=3):%Y-%m-%d}"
    return {
        "version": 1, "looked": micros, "claims": "0123456789ab", "starts": {"daily": micros, "facts": micros},
        "marks": {"daily": micros}, "summed": micros,
        "days": {day: ["0123456789ab", "ba9876543210", micros // 1_000_000, 1]},
        "pending": {day: [micros, micros, micros, micros, 0, micros, 1, 1]}, "gap": [micros, micros, [day, day]],
    }  # fmt: skip


WATCH, BILLING = _watch_cursor(), _billing_cursor()


@pytest.fixture(scope="module")
def defs() -> dg.Definitions:
    return build_defs(settings=Settings())


@pytest.fixture(scope="module")
def billing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Billing]:
    """A billing database with a day that nobody has reported."""
    folder: Path = tmp_path_factory.mktemp("cursors")
    with filled_by_hand(f"sqlite:///{folder / 'billing.db'}") as tables:
        tables.subscribe(tenant("t1"))
        tables.daily("t1", NOW.date() - timedelta(days=5), tables.now() - timedelta(days=2))
        yield Billing(Settings(billing_database_url=tables.url, billing_changes_uri=str(folder / "changes")))


def test_the_good_cursors_are_good():
    assert watch_memory.read(json.dumps(WATCH), SECONDS)[1] == ""
    assert billing_memory.read(json.dumps(BILLING))[1] == ""


@examples(80)
@given(broken_text(WATCH))
@example(DEEP)
@example(json.dumps({**WATCH, "start": 10**400}))
@example(json.dumps({**WATCH, "start": float("nan")}))
@example(json.dumps({**WATCH, "newest": float("inf")}))
@example(json.dumps({**WATCH, "start": SECONDS + 1e9}))
@example(json.dumps({**WATCH, "waiting": {"k": {"since": SECONDS, "told": [], "alert": dict.fromkeys(
    ("key", "subject", "cause", "link"), 3)}}}))  # fmt: skip
def test_failures_are_watched_from_any_cursor(instance, defs, cursor):
    sensor = defs.resolve_sensor_def("run_failures")
    with dg.build_sensor_context(
        instance=instance, cursor=cursor, sensor_name="run_failures", resources={"metering": Deployment(Settings())}
    ) as context:
        answer = sensor.evaluate_tick(context)
    assert not answer.run_requests
    memory, said = watch_memory.read(answer.cursor, datetime.now(UTC).timestamp())
    assert said == "", "what is written can be read"
    assert memory.look_from <= datetime.now(UTC).timestamp(), "a failure from now on is seen"


@examples(80)
@given(broken_text(BILLING))
@example(DEEP)
@example(json.dumps({**BILLING, "looked": -62135596800_000_000}))
@example(json.dumps({**BILLING, "pending": {"2026-11-28": [None, 0, 253402300799_000_000, None, 0, None, 0, 0]}}))
@example(json.dumps({**BILLING, "pending": {"0001-01-01": [None, 1, 1, None, 0, None, 0, 0]}}))
@example(json.dumps({**BILLING, "gap": [0, 0, ["0001-01-01", "9999-12-31"]]}))
def test_billing_is_looked_at_from_any_cursor(instance, defs, billing, cursor):
    sensor = defs.resolve_sensor_def("billing_changes")
    with dg.build_sensor_context(instance=instance, cursor=cursor, resources={"billing": billing}) as context:
        answer = sensor(context)
    assert isinstance(answer, dg.SensorResult)
    memory, said = billing_memory.read(answer.cursor)
    assert said == "", "what is written can be read"
    assert memory is not None
    assert abs(memory.polled_at - datetime.now(UTC)) < timedelta(hours=1)
