"""Every case of the collection that concerns billing changes has its test."""

from pathlib import Path

from tests.metering.test_cases_all import BILLING, MARK


def test_each_case_has_its_test():
    marked = {name for file in Path(__file__).parents[1].rglob("test_*.py") for name in MARK.findall(file.read_text())}
    assert marked >= BILLING
