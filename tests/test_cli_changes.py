"""`metering-dagster changes` as a person and a program meet it: output, words, exit codes."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from metering_dagster.billing_changes.rules.feed_response import instant_text
from metering_dagster.cli import main
from metering_dagster.settings import read_settings
from tests.billing_changes.conftest import filled_by_hand
from tests.billing_changes.filling import BillingTables, tenant
from tests.billing_changes.materializing import materialize

ROOT = Path(__file__).resolve().parents[1]
HOUR = timedelta(hours=1)
ACCOUNT = "123412341234"


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BillingTables]:
    """A billing database in SQLite, named by the environment together with a place of reports."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("BILLING_CHANGES_URI", str(tmp_path / "changes"))
    with filled_by_hand(f"sqlite:///{tmp_path / 'billing.db'}") as tables:
        monkeypatch.setenv("BILLING_DATABASE_URL", tables.url)
        yield tables


@pytest.fixture
def since(tables: BillingTables) -> str:
    """An hour ago; two cells have been ingested since, the second one with what nobody should print as it is."""
    now = tables.now()
    day = (now - HOUR).date() - timedelta(days=3)
    tables.subscribe(tenant("t1"), tenant(ACCOUNT, external_id="z\n\x1b[31m;", name='"Quoted", with comma'))
    tables.daily("t1", day, now - HOUR, "12.345678")
    tables.daily(ACCOUNT, day, now - HOUR)
    return instant_text(now - HOUR)


@pytest.fixture
def reported(tables: BillingTables, since: str) -> None:
    """The day of these two cells is materialized."""
    materialize(read_settings(os.environ), datetime.fromisoformat(since).date() - timedelta(days=3))


def changes(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["changes", *arguments])


def refused(*arguments: str) -> str:
    """The words of a command that could not be done."""
    done = changes(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert isinstance(done.exception, SystemExit), "a traceback is nobody's words"
    return done.stderr


def test_the_answer_as_json_has_the_fields_that_were_agreed(since):
    done = changes("--since", since, "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert set(told) == {"rows", "meta"}
    row = told["rows"][0]
    assert set(row) == {"date", "subscription_id", "external_id", "name", "provider", "last_ingested_at", "signals"}
    assert (row["subscription_id"], row["last_ingested_at"]) == ("t1", since)
    assert row["signals"] == ["billing_daily.fetched_at"]
    meta = told["meta"]
    assert (meta["since"], meta["horizon"], meta["changed_cells"]) == (since, 32, 2)
    assert meta["signals"] == ["billing_daily.fetched_at"]
    assert meta["detects"]
    assert meta["does_not_detect"]
    assert datetime.fromisoformat(meta["complete_until"]) == datetime.fromisoformat(meta["read_at"]) - HOUR
    assert told["rows"][1]["subscription_id"] == ACCOUNT, "programs get what they have to pull"


def test_the_answer_as_csv_has_rows_on_one_stream_and_meta_on_the_other(since):
    done = changes("--since", since, "--csv")
    assert done.exit_code == 0
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["subscription_id"], row["name"]) for row in rows] == [
        ("t1", "Tenant t1"), (ACCOUNT, '"Quoted", with comma'),
    ]  # fmt: skip
    assert rows[1]["external_id"] == "z\n\x1b[31m;"
    assert json.loads(done.stderr)["changed_cells"] == 2


def test_the_answer_for_people_is_a_table_with_what_it_does_not_tell(since):
    done = changes("--since", since)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["date", "subscription_id"]
    assert lines[1].index("ext-t1") == lines[0].index("external_id")
    assert ACCOUNT not in done.stdout
    assert "\x1b" not in done.stdout
    assert f"2 cells were ingested again since {since}" in done.stdout
    assert "  cells that were deleted" in lines


FORMULAS = {
    "a": "=cmd|' /C calc'!A0",
    "b": "+1+1",
    "c": "@x",
    "d": "-2+3",
    "e": "\t=1",
    "f": "\r=1",
    "g": "\N{FULLWIDTH EQUALS SIGN}1",
    "h": 'plain "quoted"\nand =broken',
    "i": "carriage\r=return",
    "j": "+1",
    "k": "a=b-c",
}
"""Names by the ids of their tenants."""


@pytest.mark.case("formula_in_csv")
def test_no_cell_of_the_csv_is_a_formula_to_a_spreadsheet_and_json_is_as_it_was(tables):
    now = tables.now()
    day = now.date() - timedelta(days=3)
    tables.subscribe(*(tenant(scope, name=name, external_id=f"{scope}{name}", provider=name)
                       for scope, name in FORMULAS.items()))  # fmt: skip
    for scope in FORMULAS:
        tables.daily(scope, day, now - HOUR)
    since = (now - 2 * HOUR).isoformat()
    text = changes("--since", since, "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(rows) == len(FORMULAS)
    for row in rows:
        name = FORMULAS[row["subscription_id"]]
        assert row["external_id"] == f"{row['subscription_id']}{name}", "nothing begins with a sign here"
        assert row["name"].removeprefix("'") == row["provider"].removeprefix("'") == name
        assert row["name"][0] not in "=@\t\r\N{FULLWIDTH EQUALS SIGN}"
    marked = {row["subscription_id"] for row in rows if row["name"].startswith("'")}
    assert marked == set("abcdefgj")
    # Outside of quotes no carriage return ends a row early.
    assert "\r" not in re.sub(r'"(?:[^"]|"")*"', "", text)
    told = json.loads(changes("--since", since, "--json").stdout)
    assert {row["subscription_id"]: row["name"] for row in told["rows"]} == FORMULAS


@pytest.mark.case("formula_in_csv")
def test_amounts_below_zero_stay_as_they_are_in_the_csv_unless_their_currency_is_none(tables):
    now = tables.now()
    day = now.date() - timedelta(days=3)
    tables.subscribe(tenant("t1"), tenant("t2"))
    tables.fact("t1", day, now - HOUR, "-12.5", service="a", currency="EUR")
    tables.fact("t1", day, now - HOUR, "-3", service="b")
    tables.fact("t2", day, now - HOUR, "-1", currency="+A1")
    materialize(read_settings(os.environ), day)
    done = changes("--consumer", "w", "--csv")
    one, other = csv.DictReader(io.StringIO(done.stdout, newline=""))
    assert one["amounts"] == "-12.500000 EUR, -3.000000 USD"
    assert other["amounts"] == "'-1.000000 +A1"


@pytest.mark.case("no_subscriptions")
def test_nothing_configured_is_an_empty_answer_and_no_error(tables):
    done = changes("--since", "2026-01-01T00:00:00Z", "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert (told["rows"], told["meta"]["changed_cells"], told["meta"]["signals"]) == ([], 0, [])
    assert changes("--since", "2026-01-01T00:00:00Z").output.startswith("0 cells were ingested again")
    assert changes("--since", "2026-01-01T00:00:00Z", "--csv").stdout.count("\n") == 1


@pytest.mark.case("client_zone")
def test_since_is_told_back_in_utc(tables):
    done = changes("--since", "2026-02-01T12:00:00+08:00", "--json")
    assert json.loads(done.stdout)["meta"]["since"] == "2026-02-01T04:00:00.000000Z"


@pytest.mark.parametrize("horizon", ["0", "93", "x"])
@pytest.mark.case("horizon")
def test_a_horizon_that_makes_no_sense_is_refused(tables, horizon):
    words = refused("--since", "2026-02-01T12:00:00Z", "--horizon", horizon)
    assert words.startswith(f"metering-dagster changes: The horizon '{horizon}' must be ")


@pytest.mark.parametrize(
    ("since", "words"),
    [
        ("yesterday", "ISO-8601"),
        ("2026-11-20T10:30:00", "names no zone"),
        ("2999-01-01T00:00:00Z", "in the future"),
        ("\udcff", "ISO-8601"),
    ],
)
def test_a_since_that_makes_no_sense_is_refused(tables, since, words):
    assert words in refused("--since", since)


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("--since", "2026-02-01T12:00:00Z", "--consumer", "w"), ("--ack", "a" * 12),
        ("--consumer", "w", "--horizon", "3"), ("--since", "2026-02-01T12:00:00Z", "--ack", "a" * 12),
        ("--consumer", "w", "--json", "--csv"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_a_matter_of_usage(tables, arguments):
    assert "Error: " in refused(*arguments)


def test_a_database_that_is_not_there_is_told_in_words(monkeypatch, tmp_path):
    monkeypatch.setenv("BILLING_DATABASE_URL", "mysql+pymysql://user:s3cret-pw@127.0.0.1:1/billing")
    words = refused("--since", "2026-02-01T12:00:00Z")
    assert "127.0.0.1:1" in words
    assert "s3cret-pw" not in words
    monkeypatch.setenv("BILLING_DATABASE_URL", f"sqlite:///{tmp_path / 'none.db'}")
    assert "It was not created" in refused("--since", "2026-02-01T12:00:00Z")
    monkeypatch.delenv("BILLING_DATABASE_URL")
    assert "Not set: BILLING_DATABASE_URL" in refused("--since", "2026-02-01T12:00:00Z")


def test_a_consumer_takes_what_is_new_by_its_token(reported):
    told = json.loads(changes("--consumer", "warehouse", "--json").stdout)
    first = told["rows"][0]
    assert (first["amounts"], first["vanished"], len(told["rows"])) == ({"USD": "12.345678"}, False, 2)
    token = told["meta"]["token"]
    assert json.loads(changes("--consumer", "warehouse", "--json").stdout)["meta"]["token"] == token
    assert f"--consumer warehouse --ack {token}" in changes("--consumer", "warehouse").stdout
    taken = changes("--consumer", "warehouse", "--ack", token)
    assert (taken.exit_code, taken.stdout[:24]) == (0, "warehouse has taken what")
    again = changes("--consumer", "warehouse", "--ack", token, "--json")
    assert json.loads(again.stdout) == {"consumer": "warehouse", "token": token, "moved": False}
    assert json.loads(changes("--consumer", "warehouse", "--json").stdout)["rows"] == []
    assert changes("--consumer", "warehouse").stdout.startswith("0 cells are new for warehouse")


@pytest.mark.parametrize("how", [(), ("--json",), ("--csv",)])
def test_a_damaged_day_is_named_and_exits_1(reported, tmp_path, how):
    (path,) = tmp_path.glob("changes/day=*/cells.parquet")
    path.write_bytes(b"damaged")
    done = changes("--consumer", "w", *how)
    assert done.exit_code == 1
    assert str(path) in done.stderr
    if how == ("--json",):
        assert [str(path) in words for words in json.loads(done.stdout)["meta"]["damaged"]] == [True]
    if how == ("--csv",):
        assert json.loads(done.stderr)["complete_until"] is None


def test_a_consumers_csv_has_what_only_reports_tell(reported):
    (row, _) = csv.DictReader(io.StringIO(changes("--consumer", "w", "--csv").stdout))
    assert (row["amounts"], row["vanished"]) == ("12.345678 USD", "False")


def test_a_database_that_is_away_costs_a_consumer_nothing(reported, monkeypatch):
    monkeypatch.setenv("BILLING_DATABASE_URL", "mysql+pymysql://user:s3cret-pw@127.0.0.1:1/billing")
    assert len(json.loads(changes("--consumer", "w", "--json").stdout)["rows"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--consumer", "../w"), "an invalid consumer name"),
        (("--consumer", "_looked"), "an invalid consumer name"),
        (("--consumer", "w", "--ack", "null"), "is an invalid token"),
        (("--consumer", "w", "--ack", "0" * 12), "was never offered"),
    ],
)
def test_names_and_tokens_that_make_no_sense_are_refused(tables, arguments, words):
    assert words in refused(*arguments)


def test_without_a_place_of_reports_both_settings_are_named(tables, monkeypatch):
    monkeypatch.delenv("BILLING_CHANGES_URI")
    words = refused("--consumer", "w")
    assert "BILLING_CHANGES_URI" in words
    assert "DAGSTER_HOME" in words


def test_a_place_that_cannot_be_used_is_told_in_words(tables, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BILLING_CHANGES_URI", str(tmp_path / "file"))
    assert "BILLING_CHANGES_URI" in refused("--consumer", "w")
    monkeypatch.setenv("BILLING_CHANGES_URI", "ftp://elsewhere/")
    assert "BILLING_CHANGES_URI" in refused("--consumer", "w")


ANYTHING = st.text(st.characters(codec="utf-8", exclude_characters="\x00")) | st.text(
    "0123456789abcdef-:TZ+.", max_size=30
)


@effort(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(st.sampled_from(["--since", "--consumer"]), ANYTHING, st.none() | ANYTHING)
def test_whatever_is_asked_for_ends_in_an_answer_or_in_words(tables, option, value, other):
    more = () if other is None else ("--horizon" if option == "--since" else "--ack", other)
    done = changes(option, value, *more)
    assert done.exit_code in (0, 2), done.exception
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_a_real_process_answers_and_exits(tables, since):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "metering_dagster.cli", "changes", *arguments],
            cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = run("--since", since, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)["rows"]) == 2
    wrong = run("--since", "yesterday")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Traceback" not in wrong.stderr
