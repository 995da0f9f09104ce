"""The ledger's files, in a folder and on S3: what a reader sees and when, whoever else writes."""

from dataclasses import replace

import pytest

from metering_dagster.core.errors import UnreachableError
from metering_dagster.ledger.stores.files import Ledger
from tests.ledger.test_files import HOUR, an_entry, ledger, told

__all__ = ["ledger"]
NEXT_HOUR = "2026-11-28T11"


def test_a_file_is_seen_whole_or_not_at_all(ledger):
    file = ledger.file(HOUR, "run-1", "live", "run-1")
    for number in range(3):
        file.tell(an_entry(number))
        assert ledger.read_hour(HOUR) == []
    uri = file.close()
    assert uri == f"{ledger.uri}/hour={HOUR}/run-1.parquet"
    assert len(ledger.read_hour(HOUR)) == 3


def test_an_hour_is_read_without_its_neighbors(ledger):
    told(ledger, an_entry(1))
    with ledger.file(NEXT_HOUR, "run-1", "live", "run-1") as file:
        file.tell(an_entry(2))
    with ledger.file(f"{HOUR}0", "run-1", "live", "run-1") as file:
        file.tell(an_entry(3))
    assert [entry.license_arn for entry in ledger.read_hour(HOUR)] == ["license-1"]
    assert [entry.license_arn for entry in ledger.read_hour(NEXT_HOUR)] == ["license-2"]
    assert ledger.read_hour("2026-11-28T12") == []


def test_a_file_of_the_same_name_replaces_the_first_and_no_other(ledger):
    told(ledger, an_entry(1), an_entry(2), name="run-1")
    told(ledger, an_entry(3), name="run-2")
    told(ledger, an_entry(4), name="run-1")
    assert sorted(entry.license_arn for entry in ledger.read_hour(HOUR)) == ["license-3", "license-4"]


def test_files_come_in_the_order_of_their_names_and_entries_as_they_were_told(ledger):
    for name in ("run-2", "run-10", "run-1"):
        told(ledger, *(replace(an_entry(number), reason=name) for number in range(3)), name=name)
    read = [(entry.reason, entry.license_arn) for entry in ledger.read_hour(HOUR)]
    assert read == [(name, f"license-{number}") for name in ("run-1", "run-10", "run-2") for number in range(3)]


def test_texts_of_any_characters_are_kept(ledger):
    odd = "a#b/ü\U0001f600\n\t\"'\\ "
    told(ledger, replace(an_entry(), dimension=odd, reason="", sort_key=""))
    (entry,) = ledger.read_hour(HOUR)
    assert (entry.dimension, entry.reason, entry.sort_key) == (odd, "", "")


def test_a_bucket_that_is_not_there_is_told_in_words(emulator, monkeypatch):
    for name, value in emulator.environment().items():
        monkeypatch.setenv(name, value)
    nowhere = Ledger("s3://no-such-bucket/x", emulator.dynamodb_url, emulator.region)
    file = nowhere.file(HOUR, "run-1", "live", "run-1")
    file.tell(an_entry())
    with pytest.raises(UnreachableError, match="METERING_LEDGER_URI"):
        file.close()
