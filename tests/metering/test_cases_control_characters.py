"""Cases: what others wrote, with characters that a terminal, a log or a page would act on."""

import re

import pytest

from metering_dagster.core.masking import printable
from metering_dagster.devstack.sandbox import faults
from metering_dagster.ledger.stores.files import Ledger
from tests.items import HOUR, a_usage
from tests.world import LAST_CALL

ABC = {"S": "abc"}
NASTY = "wipe\x1b[2J ring\x07 over\r\nline \u202eturned\u200b"
BILLED, HELD, LATE = (f"{name} {NASTY}" for name in ("billed", "held", "late"))
SHOWN = r"wipe\x1b[2J ring\x07 over\r\nline \u202eturned\u200b"
ACTED_ON = re.compile(r"(?<!\\)(\\\\)*\\(u001b|u0007|u202e|u200b|r|nline)|[\u202e\u200b]")
"""In JSON, as an event log is stored; what is escaped for people has one backslash more."""


def assert_nothing_acts(outcome):
    events = "\n".join(line for line in outcome.said.splitlines() if line.startswith("{"))
    found = ACTED_ON.search(events)
    assert events
    assert not found, events[max(0, found.start() - 300) : found.end() + 50]


@pytest.mark.case("control_characters")
def test_control_characters_are_escaped_wherever_people_read_and_stay_in_tables_calls_and_ledger(world):
    world.put(
        a_usage(0, "5", dimension=BILLED), a_usage(0, "1", dimension=HELD), a_usage(1, ABC, dimension=HELD),
        a_usage(0, "2", dimension=LATE),
    )  # fmt: skip
    first = world.meter()
    assert_nothing_acts(first)
    notes = first.metadata["aggregated_usage"]["notes"]
    assert f"held {SHOWN}".replace("\\", "\\\\").replace("[", "\\[") in notes
    assert set(first.metadata["metered_usage"]["dimensions"]) == {f"billed {SHOWN}", f"late {SHOWN}"}

    assert {record.dimension for record in world.bill()} == {BILLED, LATE}
    assert {item["dimension"] for item in world.aggregates()} == {BILLED, LATE}
    told = Ledger(world.settings.ledger_uri).read_hour(HOUR)
    assert {entry.dimension for entry in told} == {BILLED, HELD, LATE}

    world.put(a_usage(7, "3", dimension=LATE))
    world.at(LAST_CALL)
    second = world.meter()
    assert_nothing_acts(second)
    assert f"late {SHOWN}".replace("\\", "\\\\").replace("[", "\\[") in second.metadata["aggregated_usage"]["notes"]
    assert world.row(7, dimension=LATE)["meteringStatus"] == "LateUsage"
    assert printable(LATE) == f"late {SHOWN}"


@pytest.mark.case("control_characters")
def test_the_code_and_the_words_of_a_service_are_escaped_too(world):
    world.put(a_usage(0, "5", dimension=BILLED))
    world.sandbox.inject(faults.error("Odd\x1b[2J\x07Exception", status=400))
    outcome = world.meter()
    assert not outcome.success
    assert_nothing_acts(outcome)
