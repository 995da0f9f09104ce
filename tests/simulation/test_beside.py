"""The judge's own figures for rows beside an aggregate of others, on the cases' numbers.

Belongs here: what becomes of which row, and what it states to be late. Does not: the product's rule (its tests).
"""

from decimal import Decimal

import pytest

from tests.simulation.beside import verdict
from tests.simulation.books import GroupBook, Row, Total, Version

NAME = ("l", "1", "d", "2026-06-01T10")
MADE, NOW = 100.0, 1000.0


def a_row(at: float, number: str | None, status: str | None = None, late_by: str = "0") -> Version:
    version = Version(at, filed=NAME[3], number=None if number is None else Decimal(number), stamp=at)
    if status is not None:
        version.ended_at, version.status, version.late_by = at + 1, status, Decimal(late_by)
    return version


def ends(total: str | None, *versions: Version, stamped: bool = True) -> list[tuple[str, str]]:
    group = GroupBook(NAME, {f"k{n}": Row(NAME, n, [version]) for n, version in enumerate(versions)})
    number = None if total is None else Decimal(total)
    found = verdict(group, Total(MADE, Decimal(0), None, stamped=stamped, number=number), NOW)
    return [(status, str(late)) for status, late in found.values()]


@pytest.mark.parametrize(("total", "rows", "expected"), [
    ("8", [a_row(1, "5"), a_row(2, "3")], [("Aggregated", "0"), ("Aggregated", "0")]),
    ("8", [a_row(1, "5", "Aggregated"), a_row(2, "3")], [("Aggregated", "0")]),
    ("5", [a_row(1, "5"), a_row(200, "1")], [("Aggregated", "0"), ("LateUsage", "1")]),
    ("5", [a_row(1, "5", "Aggregated"), a_row(200, "1", "LateUsage", "1"), a_row(300, "2")], [("LateUsage", "2")]),
    ("5", [a_row(200, "1")], [("LateUsage", "-4")]),
    ("5", [a_row(200, "8")], [("LateUsage", "3")]),
    ("5", [a_row(200, "2")], [("LateUsage", "-3")]),
    ("5", [a_row(1, "4"), a_row(2, "3"), a_row(3, "1")], [("LateUsage", "3"), ("LateUsage", "0"), ("LateUsage", "0")]),
    ("1", [a_row(1, "4"), a_row(2, "3"), a_row(3, "1")], [("LateUsage", "4"), ("LateUsage", "3"), ("LateUsage", "0")]),
    (None, [a_row(1, "4"), a_row(2, "3")], [("LateUsage", "4"), ("LateUsage", "3")]),
    ("8", [a_row(1, "5"), a_row(2, None), a_row(3, "3"), a_row(4, "9", "RejectedClientSide")],
     [("Aggregated", "0")] * 2),
])  # fmt: skip
def test_one_figure_says_what_is_late_and_who_bears_it(total, rows, expected):
    assert ends(total, *rows) == expected


def test_without_a_stamp_of_the_total_nothing_is_explained():
    rows = [a_row(1, "5"), a_row(200, "1")]
    assert ends("5", *rows, stamped=False) == [("LateUsage", "1"), ("LateUsage", "0")]
