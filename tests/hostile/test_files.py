"""Any file in the place of one of ours: it is refused in words that name it, and billing goes on.

Belongs here: damaged and foreign files of the ledger, of reported days and of consumers. Does not: what a good one
holds (tests/ledger/test_files.py, tests/billing_changes/test_day_files.py).
"""

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metering_dagster.billing_changes.feed import acknowledge, new_for
from metering_dagster.billing_changes.rules.cells import Cell, Side, Signal
from metering_dagster.billing_changes.rules.day_diff import CellChange, DayReport
from metering_dagster.billing_changes.stores.day_files import DayFiles, Replacement
from metering_dagster.core.errors import MeteringError
from metering_dagster.ledger.rules.entries import Entry, EntryKind, EntryOutcome
from metering_dagster.ledger.services.hour_summary import standing_of_hour
from metering_dagster.ledger.stores.files import Ledger
from metering_dagster.reporting.services.daily_report import lines_of_hour
from metering_dagster.settings import Settings
from tests.billing_changes.filling import tenant
from tests.hostile.broken import DEEP, TEXTS, broken_text
from tests.hostile.effort import examples
from tests.hostile.secrets import ACCOUNT, LICENSE, assert_nothing_leaks
from tests.items import HOUR

DAY = date(2026, 11, 20)
AT = datetime(2026, 11, 21, 9, tzinfo=UTC)


def _parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


FOREIGN = [
    b"", b"PAR1", b"PAR1PAR1", b"hello", b"\x00" * 100, _parquet(a=[1]), _parquet(kind=[1], at=["x"]),
    _parquet(kind=["record"], outcome=["Success"], license_arn=[None], at=[1]),
]  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """The file cut short, with bytes in it changed, or another one."""
    how = draw(st.sampled_from(["cut", "bytes", "foreign", "any"]))
    if how == "cut":
        return good[: draw(st.integers(0, len(good) - 1))]
    if how == "bytes":
        content = bytearray(good)
        for _ in range(draw(st.integers(1, 4))):
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
        return bytes(content)
    return draw(st.sampled_from(FOREIGN)) if how == "foreign" else draw(st.binary(max_size=60))


def _ledger(folder: Path) -> tuple[Ledger, Path]:
    ledger = Ledger(str(folder))
    with ledger.file(HOUR, "run-op", "live", "run") as file:
        for number in range(3):
            file.tell(Entry(EntryKind.RECORD, EntryOutcome.SUCCESS, LICENSE, ACCOUNT, f"d{number}", Decimal("1.5")))
        file.tell(
            Entry(
                EntryKind.ROW, EntryOutcome.REJECTED, LICENSE, ACCOUNT, "d", None, "MissingQuantity", f"{ACCOUNT}#d#x"
            )
        )
    return ledger, Path(str(file.written))


def _day_files(folder: Path) -> tuple[DayFiles, Path]:
    files = DayFiles(str(folder), Settings())
    side = Side(1, unstamped=0, newest=AT, stamps=5, amounts=(("EUR", Decimal("1.5")),))
    row = CellChange(
        Cell(tenant("t1"), DAY, daily=side, facts=None), last_ingested_at=AT, amounts_before=None,
        signals=(Signal.DAILY,), touched=True, changed=True, vanished=False, reported_at=AT,
    )  # fmt: skip
    files.replace(Replacement(DayReport(DAY, read_at=AT, since=None, state="0" * 12, newest=AT, rows=(row,)), None))
    return files, Path(files.uri_of(DAY))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ledger, Path]:
    return _ledger(tmp_path_factory.mktemp("ledger"))


@pytest.fixture(scope="module")
def day_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[DayFiles, Path]:
    return _day_files(tmp_path_factory.mktemp("days"))


GOOD: dict[str, bytes] = {}


def _good(path: Path) -> bytes:
    return GOOD.setdefault(str(path), path.read_bytes())


@examples(100)
@given(data=st.data())
def test_a_damaged_file_of_the_ledger_is_read_or_refused_in_words(ledger, data):
    ours, path = ledger
    path.write_bytes(data.draw(damaged(_good(path))))
    _read_or_refused(ours, path)


@pytest.mark.parametrize("content", FOREIGN)
def test_a_foreign_file_in_the_ledger_is_refused_in_words(ledger, content):
    ours, path = ledger
    _good(path)
    path.write_bytes(content)
    assert _read_or_refused(ours, path) == 3


def _read_or_refused(ledger: Ledger, path: Path) -> int:
    refused = 0
    for read in (standing_of_hour, lines_of_hour, lambda ledger, hour: ledger.read_hour(hour)):
        try:
            read(ledger, HOUR)
        except MeteringError as error:
            said = str(error)
            refused += 1
        else:
            continue
        assert str(path.parent.parent) in said
        assert_nothing_leaks(said)
    return refused


@examples(80)
@given(data=st.data())
@example(data=None)
def test_a_damaged_file_of_a_day_is_read_or_refused_in_words(day_files, data):
    files, path = day_files
    path.write_bytes(_good(path) if data is None else data.draw(damaged(_good(path))))
    for read in (files.read, files.table):
        try:
            assert read(DAY) is not None
        except MeteringError as error:
            said = str(error)
        else:
            continue
        assert str(path) in said
        assert data is not None


STANDING = {
    "version": 1, "name": "w", "marks": {"2026-11-20": ["2026-11-21T09:00:00.000000Z", "g1"]},
    "complete_until": "2026-11-21T08:00:00.000000Z", "acknowledged": ["0123456789ab"],
    "offers": [{"marks": {"2026-11-20": ["2026-11-21T09:00:00.000000Z", "g2"]}, "complete_until": None}],
}  # fmt: skip
BEAT = {
    "version": 1, "looked": "2026-11-21T09:00:00.000000Z", "complete_until": None, "first_day": "2026-11-01",
    "waiting": ["2026-11-20"],
}  # fmt: skip


@examples(60)
@given(standing=broken_text(STANDING) | TEXTS, beat=broken_text(BEAT) | st.none())
@example(standing=DEEP, beat=None)
def test_damaged_words_of_consumers_are_refused_and_left_alone(day_files, standing, beat):
    files, path = day_files
    path.write_bytes(_good(path))
    folder = Path(files.uri)
    (folder / "_consumers").mkdir(exist_ok=True)
    (folder / "_looked.json").unlink(missing_ok=True)
    document = folder / "_consumers" / "w.json"
    document.write_text(standing, errors="surrogatepass")
    if beat is not None:
        (folder / "_looked.json").write_text(beat, errors="surrogatepass")
    settings = Settings(billing_changes_uri=str(folder))
    before = document.read_bytes()
    try:
        answer = new_for("w", settings=settings)
        assert acknowledge("w", str(answer.meta.token), settings=settings) in (True, False)
    except MeteringError as error:
        said = str(error)
    else:
        return
    assert "consumer w" in said or "w.json" in said or "_looked.json" in said
    assert document.read_bytes() == before
