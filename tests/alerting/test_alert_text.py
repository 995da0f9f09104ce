"""What an alert says, and that none of its forms names a buyer."""

import json

from metering_dagster.alerting.rules.alert_text import CAUSE_CHARACTERS, Alert, as_json, subject_line, text
from tests.items import ACCOUNT, LICENSE

RUN = "0a1b2c3d-0000-4000-8000-123456789012"


def an_alert(**changes: str | None) -> Alert:
    usual: dict[str, str | None] = {
        "key": RUN, "subject": "Metering: meter_hour failed for 2026-11-28T10", "cause": "The table is gone.",
        "link": f"/runs/{RUN}", "hour": "2026-11-28T10", "lane": "regular", "job": "meter_hour", "license": "****cdef",
        "run_id": RUN,
    }  # fmt: skip
    return Alert(**(usual | changes))


def test_a_person_reads_the_subject_and_a_line_for_each_part():
    assert text(an_alert()).splitlines() == [
        "Metering: meter_hour failed for 2026-11-28T10", "", "hour: 2026-11-28T10", "lane: regular", "job: meter_hour",
        "license: ****cdef", "cause: The table is gone.", f"run: {RUN}", f"link: /runs/{RUN}",
    ]  # fmt: skip


def test_what_is_not_known_is_not_said():
    said = text(an_alert(hour=None, license=None, lane=None))
    assert not [word for word in ("hour:", "license", "lane", "None", "<none>") if word in said]


def test_a_program_reads_the_text_and_each_part_by_name():
    said = as_json(an_alert())
    assert said["text"] == text(an_alert())
    assert (said["hour"], said["run"], said["cause"]) == ("2026-11-28T10", RUN, "The table is gone.")


def test_no_form_names_a_buyer():
    alert = an_alert(
        cause=f"Refused: {LICENSE} of {ACCOUNT}.", subject=f"About {ACCOUNT}", hour=ACCOUNT, license=LICENSE
    )
    said = json.dumps(as_json(alert)) + text(alert) + subject_line(alert)
    assert not [secret for secret in (LICENSE, ACCOUNT) if secret in said]


def test_the_id_of_a_run_stays_whole_though_it_ends_like_an_account():
    assert f"link: /runs/{RUN}" in text(an_alert())


def test_a_subject_is_what_sns_takes():
    line = subject_line(an_alert(subject="Zähler …\nüber " + "x" * 200))
    assert len(line) == 100
    assert line.isascii()
    assert line.isprintable()


def test_a_long_cause_is_cut_and_says_so():
    cause = as_json(an_alert(cause="x" * 300_000))["cause"]
    assert len(cause) == CAUSE_CHARACTERS
    assert cause.endswith("the link has all of it)")


def test_what_a_terminal_would_act_on_is_escaped_and_lines_stay_lines():
    nasty = "wipe\x1b[2J\x07\r"
    alert = an_alert(cause=f"{nasty}\n- next", subject=f"About {nasty}\nbcc: x", hour=nasty, lane=nasty, job=nasty)
    said = text(alert)
    assert r"cause: wipe\x1b[2J\x07\r" in said.splitlines()
    assert "- next" in said.splitlines()
    assert said.replace("\n", "").isprintable()
    assert all(value.replace("\n", "").isprintable() for value in as_json(alert).values())
    assert r"\nbcc" in said.splitlines()[0]
    assert subject_line(alert).isprintable()
