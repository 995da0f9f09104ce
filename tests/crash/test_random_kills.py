"""Kills at random moments of time, and the whole bill judged: `make crash-test`, in short."""

from pathlib import Path

import pytest

from tests.crash.conductor import crash_test

pytestmark = pytest.mark.services

PROJECT = Path(__file__).resolve().parents[2]
KILLS, SEED = 10, 6


def test_ten_kills_at_random_moments_cost_no_unit(emulator, tmp_path, record_property):
    said: list[str] = []
    verdict, conductor = crash_test(emulator, tmp_path, PROJECT, seed=SEED, kills=KILLS, say=said.append)
    figures = conductor.figures
    record_property("kills within a call", str(dict(figures.within_a_call)))
    assert verdict.differences == [], said
    assert figures.killed >= KILLS
    totals = verdict.totals
    assert all(totals[name] > 0 for name in ("billed", "rejected", "late", "expired")), totals
    assert conductor.town.ended, "no license ended"
