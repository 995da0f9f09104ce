"""The ledger's files, in a folder and on S3 (the emulator's)."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import boto3
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metering_dagster.core.errors import DamagedFileError, SettingsError, UnreachableError
from metering_dagster.devstack.stack import LocalStack
from metering_dagster.ledger.rules.entries import Entry, EntryKind, EntryOutcome, HourSummary, standing_of
from metering_dagster.ledger.services.hour_summary import standing_of_hour
from metering_dagster.ledger.stores import files
from metering_dagster.ledger.stores.files import Ledger
from metering_dagster.reporting.services.daily_report import lines_of_hour

HOUR = "2026-11-28T10"


def an_entry(number: int = 0, quantity: str | None = "4.25") -> Entry:
    amount = None if quantity is None else Decimal(quantity)
    return Entry(
        EntryKind.RECORD.value, EntryOutcome.SUCCESS.value, f"license-{number}", "account", "api-calls", amount
    )


@pytest.fixture(params=["folder", "s3"])
def ledger(
    request: pytest.FixtureRequest, tmp_path: Path, emulator: LocalStack, monkeypatch: pytest.MonkeyPatch
) -> Ledger:
    if request.param == "folder":
        return Ledger(str(tmp_path / "ledger"))
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)
    endpoint = emulator.environment()["AWS_ENDPOINT_URL_S3"]
    bucket = f"ledger-{tmp_path.name}".lower().replace("_", "-")[:60].strip("-")
    client = boto3.client("s3", endpoint_url=endpoint, region_name=emulator.region)
    client.create_bucket(Bucket=bucket)
    client.close()
    return Ledger(f"s3://{bucket}/some/prefix", endpoint, emulator.region)


def tell_and_fail(ledger: Ledger) -> None:
    with ledger.file(HOUR, "run-1", "live", "run-1") as file:
        file.tell(an_entry())
        raise RuntimeError("the table is gone")


def told(ledger: Ledger, *entries: Entry, name: str = "run-1") -> str | None:
    file = ledger.file(HOUR, name, "live", "run-1")
    for entry in entries:
        file.tell(entry)
    return file.close()


def test_what_was_told_is_read_back_exactly(ledger: Ledger) -> None:
    entry = an_entry(quantity="9999999999.999999")
    told(ledger, entry)
    (found,) = ledger.read_hour(HOUR)
    assert found.at is not None
    assert (found.license_arn, found.quantity) == (entry.license_arn, entry.quantity)


def test_runs_never_write_over_each_other(ledger: Ledger) -> None:
    told(ledger, an_entry(1), name="run-1")
    told(ledger, an_entry(2), name="run-2")
    assert {entry.license_arn for entry in ledger.read_hour(HOUR)} == {"license-1", "license-2"}
    assert len(ledger.files_of(HOUR)) == 2


def test_a_run_with_nothing_to_tell_leaves_no_file(ledger: Ledger) -> None:
    assert told(ledger) is None
    assert ledger.files_of(HOUR) == []
    assert ledger.read_hour(HOUR) == []


def test_more_entries_than_are_held_in_memory(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BUFFER", 10)
    told(ledger, *(an_entry(number) for number in range(35)))
    assert len(ledger.read_hour(HOUR)) == 35


def test_the_standing_of_an_hour_read_batch_by_batch_is_that_of_all_its_entries(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BUFFER", 7)
    refused = [replace(an_entry(number), outcome="CustomerNotSubscribed") for number in range(0, 30, 3)]
    row = Entry(
        EntryKind.ROW.value, EntryOutcome.LATE.value, "l", "a", "d", Decimal(5), sort_key="k", late_by=Decimal(2)
    )
    told(ledger, *(an_entry(number) for number in range(30, 60)), *refused, row, name="run-1")
    told(ledger, *(an_entry(number) for number in range(0, 15, 3)), name="run-2")
    told(ledger, *(an_entry(number) for number in range(0, 15, 3)), name="run-3")  # told again, counted once
    standing = standing_of_hour(ledger, HOUR)
    assert standing == standing_of(ledger.read_hour(HOUR))
    assert (standing.not_subscribed, standing.outcomes["Success"], standing.late) == (5, 35, Decimal(2))
    assert standing.billed == {"api-calls": Decimal("148.75")}


def test_many_threads_tell_one_file(ledger: Ledger) -> None:
    with ledger.file(HOUR, "run-1", "live", "run-1") as file, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: file.tell(an_entry(number)), range(200)))
    assert len({entry.license_arn for entry in ledger.read_hour(HOUR)}) == 200


def test_what_was_done_is_told_though_the_run_fails(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError):
        tell_and_fail(ledger)
    assert len(ledger.read_hour(HOUR)) == 1


@pytest.mark.parametrize("quantity", ["0.0000001", "1E+40", None])
def test_a_quantity_that_no_record_could_hold_is_left_open(ledger: Ledger, quantity: str | None) -> None:
    told(ledger, an_entry(quantity=quantity))
    assert ledger.read_hour(HOUR)[0].quantity is None


def test_pandas_reads_the_whole_ledger_in_one_line(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    told(ledger, an_entry(1), an_entry(2))
    frame = pd.read_parquet(ledger.uri)
    assert list(frame["quantity"]) == [Decimal("4.250000")] * 2
    assert list(frame["hour"].astype(str)) == [HOUR] * 2
    assert set(frame["mode"]) == {"live"}


def test_an_unfinished_file_is_no_part_of_the_ledger(tmp_path: Path) -> None:
    """A killed run leaves what it had written under another name, which no reader takes for a file of the ledger."""
    root = tmp_path / "ledger"
    killed = (
        "import os, signal; from decimal import Decimal; from metering_dagster.ledger.stores import files;"
        "from metering_dagster.ledger.rules.entries import Entry; files.BUFFER = 1;"
        f"file = files.Ledger({str(root)!r}).file({HOUR!r}, 'run-1', 'live', 'run-1');"
        "file.tell(Entry('record', 'Success', 'l', 'a', 'd', Decimal(1)));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -9
    assert [path.suffix for path in root.rglob("*.p*")] == [".part"]
    assert Ledger(str(root)).read_hour(HOUR) == []


def test_a_place_that_cannot_be_written_is_told_once_everything_is_done(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    file = Ledger(str(tmp_path / "file" / "ledger")).file(HOUR, "run-1", "live", "run-1")
    for number in range(3):
        file.tell(an_entry(number))
    with pytest.raises(UnreachableError, match="METERING_LEDGER_URI"):
        file.close()


def test_the_error_that_came_first_is_the_one_that_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    ledger = Ledger(str(tmp_path / "file" / "ledger"))
    with pytest.raises(RuntimeError, match="the table is gone") as failed:
        tell_and_fail(ledger)
    assert "METERING_LEDGER_URI" in failed.value.__notes__[0]


@pytest.mark.parametrize("scheme", ["gopher", "gs", "http", "hdfs", "abfs", "file", "S3"])
def test_a_ledger_uri_of_an_unknown_kind_is_named_and_nobody_is_called(scheme: str) -> None:
    ledger = Ledger(f"{scheme}://somewhere/ledger")
    with pytest.raises(SettingsError, match="METERING_LEDGER_URI"):
        ledger.read_hour(HOUR)
    with pytest.raises(SettingsError, match="METERING_LEDGER_URI"):
        told(ledger, an_entry())


def odd_places(folder: Path) -> list[str]:
    """Paths that no file system takes, or this one does not now."""
    (folder / "file").write_text("in the way")
    (folder / "loop").symlink_to(folder / "loop")
    names = ["x" * 300, "x/" * 3000, "file", "file/ledger", "loop", "loop/ledger", "a\x00b", "\ud800"]
    return [*(f"{folder}/{name}" for name in names), "/proc/nowhere/ledger", "/dev/null/ledger"]


def test_a_place_that_the_system_refuses_is_told_in_words(tmp_path: Path) -> None:
    for place in odd_places(tmp_path):
        with pytest.raises(UnreachableError, match=r"METERING_LEDGER_URI(?s:.*)Mend the place"):
            told(Ledger(place), an_entry())
        with suppress(UnreachableError):  # nothing lies there, or that cannot be looked up
            assert Ledger(place).read_hour(HOUR) == []
        with suppress(UnreachableError):
            assert standing_of_hour(Ledger(place), HOUR) == HourSummary()


def test_a_working_directory_that_is_gone_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for use in (lambda ledger: ledger.read_hour(HOUR), lambda ledger: told(ledger, an_entry())):
        with pytest.raises(UnreachableError, match="METERING_LEDGER_URI"):
            use(Ledger("ledger"))


@pytest.mark.parametrize("raised", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")])
def test_any_refusal_of_the_system_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: OSError
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(Path, "glob", refuse)
    with pytest.raises(UnreachableError, match=f"METERING_LEDGER_URI.*{raised.strerror}"):
        Ledger(str(tmp_path)).read_hour(HOUR)


def test_an_s3_that_takes_calls_and_answers_none_is_told_of_after_three_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setattr(files, "_S3_ANSWER_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ledger = Ledger("s3://bucket/ledger", f"http://127.0.0.1:{silent.getsockname()[1]}", "us-east-1")
        with pytest.raises(UnreachableError, match="METERING_LEDGER_URI"):
            ledger.read_hour(HOUR)
        silent.setblocking(False)
        calls = 0
        with suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                calls += 1
        assert calls == 3


def test_the_readmes_lines_read_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb

    readme = (Path(__file__).parents[2] / "README.md").read_text()
    lines = [line.strip() for line in readme.splitlines() if line.strip().startswith(("pd.read_parquet", "duckdb.sql"))]
    assert len(lines) == 2
    told(Ledger(str(tmp_path / ".metering" / "demo" / "ledger")), an_entry(1), an_entry(2))
    monkeypatch.chdir(tmp_path)
    for line in lines:
        assert len(eval(line, {"pd": pd, "duckdb": duckdb})) == 2


def rewritten(path: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """The file as another version would have written it."""
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def an_older_one(table: pa.Table, *missing: str) -> pa.Table:
    return table.drop_columns(list(missing))


def a_newer_one(table: pa.Table) -> pa.Table:
    more = table.append_column("color", pa.array(["red"] * table.num_rows))
    return more.set_column(0, "kind", more["kind"].dictionary_encode())


LOCAL = pytest.mark.parametrize("ledger", ["folder"], indirect=True)


@pytest.mark.case("old_ledger_file")
@LOCAL
@pytest.mark.parametrize("missing", files._schema().names)
def test_a_file_of_an_older_and_of_a_newer_version_are_read_beside_ours(ledger: Ledger, missing: str) -> None:
    for number, name in enumerate(("older", "newer", "ours")):
        row = Entry(
            EntryKind.ROW.value, EntryOutcome.LATE.value, "l", "a", "d", Decimal(5), sort_key="k", late_by=Decimal(2)
        )
        told(ledger, an_entry(number), row, name=name)
    older, newer, _ = sorted(ledger.files_of(HOUR), key=lambda path: ("older" not in path, "newer" not in path))
    rewritten(older, lambda table: an_older_one(table, missing))
    rewritten(newer, a_newer_one)

    table = ledger.table_of_hour(HOUR)
    assert table is not None
    assert table.schema == files._schema()
    assert table.num_rows == 6
    assert table[missing].null_count >= 2
    entries = ledger.read_hour(HOUR)
    assert len(entries) == 6
    if missing in {"mode", "run_id", "at", "reason", "sort_key", "rows", "metering_record_id", "customer_identifier"}:
        standing = standing_of_hour(ledger, HOUR)
        assert standing == standing_of(entries)
        assert standing.billed == {"api-calls": Decimal("12.75")}
        assert (standing.late_rows, standing.late) == (3, Decimal(6))
    assert standing_of_hour(ledger, HOUR).outcomes["Success"] >= 2
    assert {line.kind for line in lines_of_hour(ledger, HOUR)} >= {"record", "row"}


@LOCAL
def test_an_entry_without_an_instant_is_older_than_any_other(ledger: Ledger) -> None:
    told(ledger, replace(an_entry(1), outcome="CustomerNotSubscribed"), name="run-2")
    told(ledger, an_entry(1), name="run-1")
    (path,) = (path for path in ledger.files_of(HOUR) if "run-2" in path)
    rewritten(path, lambda table: an_older_one(table, "at"))
    assert standing_of_hour(ledger, HOUR).outcomes == {"Success": 1}
    assert [line.outcome for line in lines_of_hour(ledger, HOUR)] == ["Success"]


@LOCAL
@pytest.mark.parametrize(("change", "words"), [
    (lambda table: pa.table({"name": ["x"], "reason": ["y"]}), "it has other columns"),
    (lambda table: table.set_column(4, "dimension", pa.array([7])), "its column dimension is int64, not string"),
    (lambda table: table.set_column(5, "quantity", pa.array([4.5])), "its column quantity is double"),
    (lambda table: table.set_column(6, "at", pa.array([1])), "its column at is int64"),
    (lambda table: table.append_column("kind", table["kind"]), "its column kind is there twice"),
    (lambda table: table.set_column(5, "quantity", pa.array([Decimal("0.0000001")])), "a value of the wrong type"),
])  # fmt: skip
def test_a_file_that_is_none_of_the_ledger_is_damaged_and_named(ledger: Ledger, change, words: str) -> None:
    told(ledger, an_entry())
    (path,) = ledger.files_of(HOUR)
    rewritten(path, change)
    for read in (ledger.read_hour, ledger.table_of_hour, lambda bucket: standing_of_hour(ledger, bucket)):
        with pytest.raises(DamagedFileError, match=words) as damaged:
            read(HOUR)
        assert path in str(damaged.value)


def test_the_ledger_is_for_its_user_alone(tmp_path: Path) -> None:
    """It names buyers in full, whatever the umask; a folder that was there before stays as it is."""
    (tmp_path / "data").mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        told(Ledger(str(tmp_path / "data" / "metering" / "ledger")), an_entry())
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").rglob("*")}
    assert modes == {"metering": 0o700, "ledger": 0o700, f"hour={HOUR}": 0o700, "run-1.parquet": 0o600}
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o755
