"""The files of what is reported: exact, readable by others, and clear where they are damaged."""

import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import boto3
import duckdb
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering_dagster.billing_changes.defs import column_schemas
from metering_dagster.billing_changes.rules.day_diff import DayReport
from metering_dagster.billing_changes.stores.day_files import DayFiles, Replacement, StoredDay
from metering_dagster.billing_changes.stores.day_parquet import schema
from metering_dagster.core.errors import DamagedFileError, ReplacedMeanwhileError, SettingsError
from metering_dagster.devstack.stack import LocalStack
from metering_dagster.settings import Settings
from tests.billing_changes.day_reports import DAY, ELEVEN, EPOCH, TEN, TWELVE, a_cell, a_report, a_side, a_subscription


@pytest.fixture
def files(tmp_path: Path) -> DayFiles:
    return DayFiles(str(tmp_path / "changes"), Settings())


@pytest.fixture(params=["folder", "s3"])
def files_anywhere(
    request: pytest.FixtureRequest, files: DayFiles, emulator: LocalStack, tmp_path: Path, monkeypatch
) -> DayFiles:
    if request.param == "folder":
        return files
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)
    name = f"day-files-{tmp_path.name}".lower().replace("_", "-")[:60].strip("-")
    client = boto3.client("s3")
    client.create_bucket(Bucket=name)
    client.close()
    return DayFiles(f"s3://{name}/changes/", Settings())


def a_rich_report() -> DayReport:
    """With everything that a file must hold: several currencies, no stamp, long sums, a vanished cell."""
    group = a_subscription("rg:1", is_resource_group=True, external_id="rg-prod; 'é' \U0001f9be", name="")
    cells = [
        a_cell(a_side(TEN, EUR="-0.000001", USD="99999999999999.999999"), facts=a_side(ELEVEN, rows=20_000)),
        a_cell(a_side(None), subscription=a_subscription("t2")),
        a_cell(facts=a_side(TEN + timedelta(microseconds=1), **{"": "1.1234567"}), subscription=group),
    ]
    gone = a_cell(subscription=a_subscription("t3"))
    return a_report(*cells, at=TWELVE + timedelta(microseconds=7), before=a_report(*cells[:2], gone))


def put(files: DayFiles, report: DayReport, replaces: str | None = None) -> str:
    return files.replace(Replacement(report, replaces))


def test_a_report_is_read_back_exactly(files_anywhere: DayFiles):
    report = a_rich_report()
    generation = put(files_anywhere, report)
    assert files_anywhere.read(DAY) == StoredDay(report, generation)
    assert files_anywhere.generations() == {DAY: generation}


def test_a_report_without_rows_is_a_file(files: DayFiles):
    put(files, a_report())
    assert files.read(DAY).report == a_report()


def test_of_a_day_that_was_never_reported_there_is_nothing(files_anywhere: DayFiles):
    assert files_anywhere.read(DAY) is None
    assert files_anywhere.table(DAY) is None
    assert files_anywhere.generations() == {}
    assert files_anywhere.document("_looked") is None


def test_a_slower_run_leaves_the_faster_ones_file(files_anywhere: DayFiles):
    put(files_anywhere, a_report(a_cell(), at=TWELVE))
    with pytest.raises(ReplacedMeanwhileError, match=r"day=2026-11-20/cells\.parquet"):
        put(files_anywhere, a_report(a_cell(), at=ELEVEN))
    assert files_anywhere.read(DAY).report.read_at == TWELVE


def test_days_are_listed_in_their_order_and_nothing_else_is(files: DayFiles, tmp_path: Path):
    for number in (2, 0, 1):
        put(files, replace(a_report(), day=DAY + timedelta(days=number)))
    files.replace_document("_consumers/warehouse", {}, None)
    (tmp_path / "changes" / "day=tomorrow").mkdir()
    (tmp_path / "changes" / "day=tomorrow" / "cells.parquet").touch()
    assert list(files.generations()) == [DAY + timedelta(days=number) for number in range(3)]


def test_documents_are_replaced_by_whoever_has_read_them(files_anywhere: DayFiles):
    one = files_anywhere.replace_document("_consumers/warehouse", {"marks": {"2026-11-20": "x"}}, None)
    found = files_anywhere.document("_consumers/warehouse")
    assert (found.content, found.generation) == ({"marks": {"2026-11-20": "x"}}, one)
    two = files_anywhere.replace_document("_consumers/warehouse", {"marks": {}}, one)
    with pytest.raises(ReplacedMeanwhileError):
        files_anywhere.replace_document("_consumers/warehouse", {"marks": {"y": 1}}, one)
    assert files_anywhere.document("_consumers/warehouse").generation == two


STAMPS = st.timedeltas(timedelta(0), timedelta(days=365 * 8000)).map(lambda since: EPOCH + since)
SUMS = st.decimals(min_value=-(10**20), max_value=10**20, places=6)


@settings(max_examples=40)
@given(st.lists(st.tuples(SUMS, SUMS, st.integers(1, 10**6), STAMPS),
                max_size=4))  # fmt: skip
def test_any_amounts_and_stamps_are_read_back_exactly(tmp_path_factory: pytest.TempPathFactory, found):
    files = DayFiles(str(tmp_path_factory.mktemp("changes")), Settings())
    cells = [
        a_cell(a_side(stamp, rows, EUR=str(amount), USD=str(other)), subscription=a_subscription(id))
        for id, (amount, other, rows, stamp) in zip("abcd", found, strict=False)
    ]
    report = a_report(*cells)
    put(files, report)
    assert files.read(DAY).report == report


def test_all_days_are_read_as_one_table_by_pandas_and_duckdb(files: DayFiles, tmp_path: Path):
    put(files, a_rich_report())
    put(files, replace(a_report(), day=DAY + timedelta(days=1)))
    files.replace_document("_consumers/warehouse", {}, None)
    frame = pd.read_parquet(tmp_path / "changes")
    assert len(frame) == len(a_rich_report().rows)
    touched = duckdb.sql(f"""
        SELECT subscription_id, amount, reported_at FROM read_parquet('{tmp_path}/changes/day=*/cells.parquet')
        WHERE vanished""").fetchall()
    assert [(id, amount) for id, amount, _ in touched] == [("t3", None)]


def test_amounts_are_exact_decimals_for_others(files: DayFiles):
    put(files, a_report(a_cell(a_side(EUR="12.34"))))
    assert files.table(DAY)["amount"].to_pylist() == [Decimal("12.340000")]


def test_the_columns_that_dagster_shows_are_those_of_the_files():
    assert [column.name for column in column_schemas.BILLING_CHANGES.columns] == schema().names


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet", b"PAR1" + bytes(5_000) + b"PAR1"])
def test_a_damaged_file_is_named_with_what_to_do(files: DayFiles, tmp_path: Path, content: bytes):
    put(files, a_rich_report())
    path = tmp_path / "changes" / "day=2026-11-20" / "cells.parquet"
    path.write_bytes(content)
    for use in (files.read, files.table):
        with pytest.raises(DamagedFileError, match=r"day=2026-11-20/cells\.parquet.*delete it") as caught:
            use(DAY)
        assert not caught.value.retryable
    assert path.read_bytes() == content


def test_one_wrong_byte_among_the_values_is_not_taken_for_a_value(files: DayFiles, tmp_path: Path):
    report = a_rich_report()
    put(files, report)
    path = tmp_path / "changes" / "day=2026-11-20" / "cells.parquet"
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    damaged = 0
    for position in range(4, footer, 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            assert files.read(DAY).report == report, position
        except DamagedFileError:
            damaged += 1
    assert damaged > (footer - 4) // 7 // 2


def test_whatever_is_wrong_in_the_footer_is_told_in_words(files: DayFiles, tmp_path: Path):
    put(files, a_rich_report())
    path = tmp_path / "changes" / "day=2026-11-20" / "cells.parquet"
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for position in range(footer, len(whole), 31):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        with suppress(DamagedFileError):
            files.read(DAY)


def test_somebody_elses_parquet_is_damaged(files: DayFiles, tmp_path: Path):
    folder = tmp_path / "changes" / "day=2026-11-20"
    folder.mkdir(parents=True)
    pd.DataFrame({"a": [1]}).to_parquet(folder / "cells.parquet")
    with pytest.raises(DamagedFileError, match="other columns"):
        files.read(DAY)


def test_the_file_of_another_day_is_not_taken_for_this_ones(files: DayFiles, tmp_path: Path):
    put(files, a_rich_report())
    (tmp_path / "changes" / "day=2026-11-20").rename(tmp_path / "changes" / "day=2026-11-21")
    with pytest.raises(DamagedFileError, match="it is the file of 2026-11-20"):
        files.read(date(2026, 11, 21))


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_document_is_named(files: DayFiles, tmp_path: Path, content: str):
    files.replace_document("_looked", {}, None)
    (tmp_path / "changes" / "_looked.json").write_text(content)
    with pytest.raises(DamagedFileError, match=r"_looked\.json"):
        files.document("_looked")


def test_a_place_that_is_neither_folder_nor_s3_is_refused():
    with pytest.raises(SettingsError, match=r"'gs://bucket'.*Name a folder or s3://"):
        DayFiles("gs://bucket", Settings()).read(DAY)


def test_writing_and_reading_a_day_imports_no_pandas(tmp_path: Path):
    """pandas costs 0.3 s in every run."""
    code = f"""
import sys
from datetime import date, datetime, UTC
from metering_dagster.billing_changes.stores.day_files import DayFiles, Replacement
from metering_dagster.billing_changes.stores.day_parquet import schema
from metering_dagster.billing_changes.rules.day_diff import DayReport
from metering_dagster.settings import Settings
assert "pyarrow" not in sys.modules
files = DayFiles({str(tmp_path)!r}, Settings())
files.replace(Replacement(DayReport(date(2026, 11, 20), datetime.now(UTC), None, "", None, ()), None))
assert files.read(date(2026, 11, 20))
print(sorted({{"pandas", "boto3", "sqlalchemy", "dagster"}} & set(sys.modules)))
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said == "[]\n"


def test_a_day_is_named_by_its_uri(files: DayFiles, tmp_path: Path):
    assert files.uri_of(date(2026, 1, 2)) == f"{tmp_path}/changes/day=2026-01-02/cells.parquet"
