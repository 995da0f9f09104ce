"""`metering-dagster status`: what is pending in both tables, by Query alone, and until when it can be billed."""

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from botocore.config import Config
from click.testing import CliRunner, Result

from metering_dagster.admin.rules.outlook import HourOutlook, Outlook, State
from metering_dagster.admin.services import status
from metering_dagster.admin.services.status import place, survey
from metering_dagster.cli import main
from metering_dagster.cli.admin_output import address, status_text
from metering_dagster.core.aws import clients
from tests.items import ACCOUNT, HOUR, LICENSE, OTHER_LICENSE, a_usage, an_aggregate, some_usage
from tests.world import World

BAD = {"S": "abc"}
PAST_NOW = "2025-11-28T12:20:00Z"
PAST_HOUR = "2025-11-28T10"


def look(world: World, days: int = 2) -> Outlook:
    return survey(world.deployment, days, lambda *_: None)


def only(world: World) -> HourOutlook:
    """The one hour with something pending."""
    (standing,) = look(world).standings
    return standing


@pytest.fixture
def run(world, monkeypatch) -> Callable[..., Result]:
    """The command itself, on the world's tables; its clock is frozen in the past, whenever the test runs."""

    def invoke(*arguments: str, **environment: str) -> Result:
        settings = {
            "USAGE_TABLE": world.names["usage"],
            "AGGREGATED_USAGE_TABLE": world.names["aggregated"],
            "SUBSCRIBERS_TABLE": world.names["subscribers"],
            "METERING_MODE": "live",
            "METERING_NOW": PAST_NOW,
        }
        return CliRunner().invoke(main, ["status", *arguments], env=settings | environment)

    return invoke


# Counting.


def test_rows_and_aggregates_are_counted_by_hour(world):
    world.put(*some_usage("1", "2", "3"), an_aggregate("5", dimension="direct"))
    world.put(a_usage(0, hour="2026-11-28T09"), an_aggregate("5", status="Success"), a_usage(9, filed=None))
    found = look(world)
    assert [(s.bucket, s.pending.rows, s.pending.aggregates) for s in found.standings] == [
        ("2026-11-28T09", 1, 0),
        (HOUR, 3, 1),
    ]


def test_every_page_is_counted(world):
    world.put(*some_usage(*["1"] * 25))
    world.with_pages_of(10)
    assert only(world).pending.rows == 25


def test_hours_further_back_are_counted_as_far_as_asked(world):
    world.put(a_usage(0, hour="2026-11-26T12"), a_usage(0, hour="2026-11-25T12"))
    assert [standing.bucket for standing in look(world).standings] == ["2026-11-26T12"]
    assert [standing.bucket for standing in look(world, days=3).standings] == ["2026-11-25T12", "2026-11-26T12"]


def test_it_reads_by_key_and_index_only_and_writes_nothing(world):
    world.put(*some_usage("1", BAD), a_usage(0, "0", dimension="zero"), an_aggregate("5", dimension="direct"))
    world.put(a_usage(7, BAD, filed=None, meteringStatus="RejectedClientSide"))
    asked: list[tuple[str, dict[str, Any]]] = []
    world.deployment.tables.usage.client.meta.events.register(
        "before-parameter-build.dynamodb", lambda params, model, **_: asked.append((model.name, params))
    )
    before = world.dump()
    look(world)
    assert {name for name, _ in asked} == {"Query", "BatchGetItem"}
    counts = [params for _, params in asked if params.get("Select") == "COUNT"]
    assert len(counts) == 2 * 49
    assert world.dump() == before


# Held and zero.


def test_rows_of_a_group_with_a_rejected_row_are_held(world):
    world.put(*some_usage("1", "2"), a_usage(5, BAD), a_usage(0, "7", dimension="other"))
    world.visit()
    pending = only(world).pending
    assert (pending.rows, pending.held, pending.zero) == (2, 2, 0)


def test_a_bad_row_that_no_visit_has_rejected_yet_holds_nothing_yet(world):
    world.put(*some_usage("1", "2"), a_usage(5, BAD))
    assert only(world).pending.held == 0


def test_a_mended_row_ends_the_hold(world):
    world.put(*some_usage("1", "2"), a_usage(5, BAD))
    world.visit()
    world.put(a_usage(5, "3"))
    assert (only(world).pending.rows, only(world).pending.held) == (3, 0)


def test_a_group_that_was_rejected_as_a_whole_does_not_hold_what_is_written_after(world):
    world.put(a_usage(5, "1", license="arn:nothing", filed=None, meteringStatus="RejectedClientSide",
                      meteringStatusReason="InvalidLicenseArn"))  # fmt: skip
    world.put(a_usage(6, "1", license="arn:nothing"))
    assert only(world).pending.held == 0


def test_rows_of_a_committed_group_are_not_held(world):
    world.put(*some_usage("1", "2"), an_aggregate("3", status="Success"))
    world.put(a_usage(5, BAD, filed=None, meteringStatus="RejectedClientSide"))
    pending = only(world).pending
    assert (pending.rows, pending.held, pending.zero) == (2, 0, 0)


def test_a_longer_dimension_holds_nothing_of_a_shorter_one(world):
    rejected = {"meteringStatus": "RejectedClientSide", "filed": None}
    world.put(a_usage(0, "1"), a_usage(5, BAD, dimension=f"api_calls#{HOUR}", **rejected))
    assert only(world).pending.held == 0


def test_rows_of_a_group_that_sums_to_0_wait(world):
    world.put(*some_usage("0", "0.0"), a_usage(0, "1", dimension="other"))
    pending = only(world).pending
    assert (pending.rows, pending.held, pending.zero) == (3, 0, 2)


def test_rows_filed_under_another_hour_count_where_they_are_filed(world):
    world.put(a_usage(0, "0"), a_usage(1, "0", filed="2026-11-28T09"))
    found = {s.bucket: (s.pending.rows, s.pending.zero) for s in look(world).standings}
    assert found == {"2026-11-28T09": (1, 0), HOUR: (1, 1)}


def test_hours_with_too_many_rows_are_not_judged_and_the_text_says_so(world, monkeypatch):
    monkeypatch.setattr(status, "JUDGED_ROWS", 2)
    world.put(*some_usage("0", "0", "0", hour="2026-11-28T09"), *some_usage("0", "0"))
    found = look(world)
    assert {s.bucket: s.pending.zero for s in found.standings} == {"2026-11-28T09": None, HOUR: 2}
    assert "not told apart in 2026-11-28T09" in status_text(place(world.deployment), found)


# What it means.


def test_states_go_by_the_clock_and_the_lock(world):
    world.configure(lock_hours=3)
    world.put(a_usage(0), a_usage(0, hour="2026-11-28T08"), a_usage(0, hour="2026-11-27T12"))
    assert [standing.state for standing in look(world).standings] == [State.PAST, State.BILLABLE, State.OPEN]


def test_in_the_months_grace_it_looks_29_hours_back(world):
    world.at("2026-12-01T05:20:00Z")
    world.put(a_usage(0, hour="2026-11-30T00"))
    (standing,) = look(world, days=0).standings
    assert (standing.state, standing.is_last_call) == (State.BILLABLE, True)


# The command.


def test_nothing_pending_says_so_and_exits_0(run):
    done = run()
    assert done.exit_code == 0, done.stderr
    assert "nothing is pending" in done.stdout
    assert "looked at: 49 hours, 2025-11-26T12 to 2025-11-28T12" in done.stdout
    assert "not looked at: hours further back" in done.stdout


def test_it_shows_the_hours_and_the_next_cutoff(run, world):
    world.put(*some_usage("1", "2", hour=PAST_HOUR), a_usage(0, "0", dimension="zero", hour=PAST_HOUR))
    world.put(a_usage(0, hour="2025-11-28T12"), an_aggregate("5", hour="2025-11-27T18"))
    done = run()
    assert done.exit_code == 0, done.stdout
    lines = {
        line.split()[0]: line.split(maxsplit=5) for line in done.stdout.splitlines() if line.startswith("2025-11-2")
    }
    assert lines[PAST_HOUR][1:] == ["3", "0", "1", "0", "billable until 2025-11-29T10:00Z"]
    assert lines["2025-11-27T18"][1:] == ["0", "0", "0", "1", "billable until 2025-11-28T18:00Z"]
    assert lines["2025-11-28T12"][1:] == ["1", "0", "0", "0", "open until 2025-11-28T13:00Z"]
    assert "oldest pending hour: 2025-11-27T18" in done.stdout
    assert "next cutoff: 2025-11-28T18:00Z, in 5 h 40 min" in done.stdout
    assert "mode live" in done.stdout
    assert world.emulator.dynamodb_url in done.stdout
    assert LICENSE not in done.output
    assert ACCOUNT not in done.output


def test_what_is_past_its_window_exits_1(run, world):
    world.put(a_usage(0, hour="2025-11-27T12"))
    done = run()
    assert done.exit_code == 1
    assert "PAST its window" in done.stdout
    assert "TOO LATE: 2025-11-27T12 can no longer be billed" in done.stdout


def test_what_the_months_grace_opens_again_waits(run, world):
    world.put(a_usage(0, hour="2025-11-29T20"))
    done = run(METERING_NOW="2025-11-30T21:00:00Z")
    assert done.exit_code == 0
    assert "waits: billable again from 2025-12-01T00:00Z to 2025-12-01T02:00Z" in done.stdout
    assert "TOO LATE" not in done.stdout


@pytest.mark.parametrize(("hour", "code"), [("2025-11-27T13", 1), ("2025-11-27T14", 0)])
def test_what_closes_within_the_hour_exits_1(run, world, hour, code):
    world.put(an_aggregate("5", hour=hour))
    done = run()
    assert done.exit_code == code
    assert ("HURRY" in done.stdout) is bool(code)


def test_its_json_is_for_programs(run, world):
    world.put(*some_usage("0", "0", hour=PAST_HOUR), an_aggregate("5", hour="2025-11-27T12", license=OTHER_LICENSE))
    done = run("--json", "--days", "1")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["hours"] == [
        {"hour": "2025-11-27T12", "rows": 0, "held": 0, "zero": 0, "aggregates": 1, "state": "past",
         "opens_at": None, "closes_at": None, "last_call": False},
        {"hour": PAST_HOUR, "rows": 2, "held": 0, "zero": 2, "aggregates": 0, "state": "billable",
         "opens_at": None, "closes_at": "2025-11-29T10:00:00Z", "last_call": False},
    ]  # fmt: skip
    assert not told["good"]
    assert told["now"] == PAST_NOW
    assert told["mode"] == "live"
    assert told["endpoints"]["dynamodb"] == world.emulator.dynamodb_url
    assert told["oldest_pending"] == "2025-11-27T12"
    assert told["next_cutoff"] == "2025-11-29T10:00:00Z"
    assert told["seconds_to_next_cutoff"] == (21 * 60 + 40) * 60
    assert told["past"] == ["2025-11-27T12"]
    assert told["looked_at"] == {"first": "2025-11-27T12", "last": "2025-11-28T12", "hours": 25}


def test_missing_settings_exit_2_and_are_all_named(run):
    done = run(USAGE_TABLE="", METERING_MODE="")
    assert done.exit_code == 2
    assert "Not set: USAGE_TABLE, METERING_MODE." in done.stderr
    assert done.stdout == ""
    assert isinstance(done.exception, SystemExit)


def test_a_table_that_is_not_there_exits_2(run):
    done = run(AGGREGATED_USAGE_TABLE="nowhere")
    assert done.exit_code == 2
    assert "there is no such table" in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_what_cannot_be_reached_exits_2(run, monkeypatch):
    once = Config(retries={"mode": "standard", "total_max_attempts": 1})
    monkeypatch.setattr(clients, "_TABLES", clients._TABLES.merge(once))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        done = run(AWS_ENDPOINT_URL_DYNAMODB=f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert done.exit_code == 2
    assert "cannot be reached" in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_an_endpoint_shows_without_credentials():
    assert address("https://name:secret@host.example:8443/path?key=secret") == "https://host.example:8443/path"
