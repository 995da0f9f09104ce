"""Any command line and any environment of it: an answer, or words; never a traceback, never a secret.

Belongs here: the arguments of every command, and what stands in its environment. Does not: what a command does with
good ones (tests/test_cli.py), `changes` with any text (tests/test_cli_changes.py).
"""

import pytest
from click.testing import CliRunner, Result
from hypothesis import assume, example, given
from hypothesis import strategies as st

from metering_dagster.cli import main
from metering_dagster.settings import past_instant
from tests.hostile.effort import examples
from tests.hostile.secrets import PASSWORD, assert_nothing_leaks
from tests.hostile.test_raw_rows import good_rows, rows
from tests.hostile.test_settings import NAMES, NEAR
from tests.hostile.tiny_world import TinyWorld
from tests.items import HOUR
from tests.world import World

OPTIONS = [
    "--json",
    "--csv",
    "--days",
    "--port",
    "--since",
    "--horizon",
    "--consumer",
    "--ack",
    "--help",
    "-h",
    "--",
    "-",
]
ANY = st.text(max_size=30) | st.sampled_from(
    ["", "\x00", "\udcff", "x" * 20_000, "-1", "1e400", "9" * 5000, "400", "٣", "2026-11-28", "0001-01-01T00:00:00Z",
     "9999-12-31T23:59:59.999999-23:59", "../../etc/passwd", "a\nb", "\x1b[31m", "2026-11-28T10:00:00+24:00"]
)  # fmt: skip
ARGUMENTS = st.lists(
    st.sampled_from(OPTIONS) | ANY | st.tuples(st.sampled_from(OPTIONS), ANY).map("=".join), max_size=4
)
COMMANDS = [*main.commands, "", "Demo", "nothing"]
STARTING = ("demo", "dev")
"""They would begin to work if nothing were wrong with what they are given."""


def run(*arguments: str, **environment: str) -> Result:
    """In an environment that names nothing but this; it ends in 0, 1 or 2, with words."""
    cleared: dict[str, str | None] = dict.fromkeys([*NAMES, "DAGSTER_HOME"])
    done = CliRunner().invoke(main, [*arguments], env=cleared | environment)
    assert done.exit_code in (0, 1, 2), done.exception
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert "Traceback" not in done.output
    if done.exit_code == 2:
        assert done.stderr.strip()
    return done


@examples(150)
@given(command=st.sampled_from(COMMANDS), arguments=ARGUMENTS)
@example(command="changes", arguments=["--since", "2026-11-28T10:00:00+24:00"])
@example(command="status", arguments=["--days", "9" * 5000])
def test_any_arguments_end_in_an_answer_or_in_words(command, arguments):
    if command in STARTING:
        arguments = ["--port", "70000", *arguments] if command == "dev" else [*arguments, "--nothing"]
    run(command, *arguments)


@examples(100)
@given(
    command=st.sampled_from(["status", "init", "changes", "demo", "dev"]),
    environment=st.dictionaries(
        st.sampled_from([name for name in NAMES if not name.startswith("AWS_ENDPOINT")]), st.sampled_from(NEAR),
        max_size=3,
    ),
)  # fmt: skip
@example(command="demo", environment={"METERING_NOW": "0001-01-01T00:00:00+05:00"})
@example(command="demo", environment={"METERING_NOW": f"https://user:{PASSWORD}@example.com/\n"})
def test_any_environment_ends_in_words_that_repeat_no_secret(command, environment):
    assume(not [value for value in environment.values() if "\x00" in value])  # no environment holds one
    arguments = {"changes": ["--since", "2026-11-28T10:00:00Z"], "dev": ["--port", "70000"]}.get(command, [])
    if command == "demo":
        try:
            past_instant(environment.get("METERING_NOW", "2026-11-28T10:00:00Z").strip() or "2026-11-28T10:00:00Z")
        except ValueError:
            pass
        else:
            return  # it would begin
    unreachable = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"} if command != "changes" else {}
    names_tables = any(name.endswith("_TABLE") for name in environment)
    if names_tables and command in ("status", "init"):
        return  # what is asked of tables that are not there takes seconds, and is tried elsewhere
    done = run(command, *arguments, **environment, **unreachable)
    assert_nothing_leaks(done.output)


@pytest.fixture
def named(world: World) -> dict[str, str]:
    """The environment that names the world's tables."""
    return {
        **world.emulator.environment(), "AWS_ENDPOINT_URL_MARKETPLACE_METERING": world.sandbox.url,
        "USAGE_TABLE": world.names["usage"], "AGGREGATED_USAGE_TABLE": world.names["aggregated"],
        "SUBSCRIBERS_TABLE": world.names["subscribers"], "METERING_MODE": "live",
        "METERING_NOW": "2026-11-28T12:20:00Z",
    }  # fmt: skip


@examples(1, shrink=False)
@given(st.lists(rows(), min_size=5, max_size=15, unique_by=lambda item: repr(item.values)))
def test_the_status_of_tables_with_rows_of_any_kind_names_no_buyer(world: World, named, hostile):
    for item in [*hostile, *good_rows()]:
        model = TinyWorld()
        try:
            model.put(item)
        except model.tables.client().exceptions.ClientError:
            continue
        world.client.put_item(TableName=world.names["usage"], Item=item.values)
    for arguments in (["status", "--days", "0"], ["status", "--json", "--days", "0"], ["init"]):
        done = run(*arguments, **named)
        assert_nothing_leaks(done.output)
        assert HOUR in done.output or arguments == ["init"]
