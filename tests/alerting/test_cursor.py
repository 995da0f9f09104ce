"""What the sensor remembers."""

from datetime import UTC, datetime

from metering_dagster.alerting.rules.alert_text import Alert
from metering_dagster.alerting.rules.cursor import MOST_WAITING, OVERLAP_SECONDS, AlertCursor, read, write

NOW = 1_800_000_000.0
HOUR_NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
ALERT = Alert("hours-x", "subject", "cause", "/link", hour="2026-11-28T10")


def test_a_cursor_brings_back_what_was_written():
    memory = AlertCursor(NOW, NOW)
    memory.take_failure("run", NOW + 1.25, NOW + 5)
    memory.take_hours(["2026-11-28T10"], ALERT, NOW + 5)
    memory.tell("run", "log")
    again, said = read(write(memory), NOW + 5)
    assert again == memory
    assert write(again) == write(memory)
    assert said == ""


def test_an_alert_is_forgotten_once_every_channel_has_taken_it():
    memory = AlertCursor(NOW, NOW)
    memory.take_failure("run", NOW, NOW)
    memory.tell("run", "log")
    assert memory.forget({"log", "sns"}, NOW, HOUR_NOW) == []
    assert memory.untold("sns", 50) == ["run"]
    memory.tell("run", "sns")
    memory.forget({"log", "sns"}, NOW, HOUR_NOW)
    assert not memory.waiting


def test_runs_are_remembered_as_far_back_as_is_looked_again():
    memory = AlertCursor(0.0, NOW)
    memory.pass_over("old", NOW, NOW)
    memory.pass_over("new", NOW + OVERLAP_SECONDS + 1, NOW + 2 * OVERLAP_SECONDS)
    memory.forget({"log"}, NOW, HOUR_NOW)
    assert set(memory.seen) == {"new"}
    assert memory.look_from == NOW + 1


def test_a_writer_whose_clock_is_ahead_hides_no_later_failure():
    memory = AlertCursor(0.0, NOW)
    memory.take_failure("ahead", NOW + 86_400, NOW + 5)
    assert memory.newest == NOW + 5


def test_reported_hours_are_remembered_for_longer_than_they_can_be_billed():
    memory = AlertCursor(NOW, NOW, hours={"2026-11-26T12", "2026-11-26T13"})
    memory.forget(set(), NOW, HOUR_NOW)
    assert memory.hours == {"2026-11-26T13"}


def test_the_cursor_does_not_grow_without_end():
    memory = AlertCursor(0.0, NOW)
    for number in range(MOST_WAITING):
        assert memory.has_room
        memory.take_failure(f"run-{number}", NOW, NOW)
    assert not memory.has_room
