"""The billing part of a rehearsal judges what is reported, and says it so that anybody can follow."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from metering_dagster.cli.demo_output import billing_json, billing_text
from metering_dagster.devstack import billing_demo
from metering_dagster.devstack.billing_demo import BillingRehearsal, ReportedCell, rehearse_billing
from metering_dagster.devstack.billing_reingest import ExpectedChange, reingest
from metering_dagster.devstack.demo_state import DemoState

DAY = date(2026, 11, 20)
CHANGED = ReportedCell(
    DAY, "a", "Shop", ExpectedChange.CHANGED, {"EUR": Decimal("1234.5")}, {"EUR": Decimal("1000"), "USD": Decimal(7)}
)
GONE = ReportedCell(DAY, "b", "Maps", ExpectedChange.VANISHED, {"USD": Decimal("-0.000001")}, {})
DONE = BillingRehearsal(days=32, cells=400, moved=(CHANGED, GONE), wrong=(), runs=33, failures=())


def test_what_moved_is_told_with_what_it_was_and_how_much_need_not_be_pulled_again():
    lines = [line.split() for line in billing_text(DONE).splitlines()]
    assert ["2026-11-20", "Shop", "changed", "1,234.50", "EUR", "1,000.00", "EUR", "+", "7.00", "USD"] in lines
    assert ["2026-11-20", "Maps", "vanished", "-0.00", "USD", "nothing"] in lines
    assert "2 of 400 cells moved: 99.5% need not be pulled again." in billing_text(DONE)
    assert "NOT RIGHT" not in billing_text(DONE)


def test_json_has_exact_amounts():
    told = billing_json(DONE)
    assert (told["good"], told["cells"]) == (True, 400)
    assert told["moved"][0]["now"] == {"EUR": "1000", "USD": "7"}
    assert told["moved"][1] == {
        "date": "2026-11-20", "subscription_id": "b", "name": "Maps", "move": "vanished",
        "before": {"USD": "-0.000001"}, "now": {},
    }  # fmt: skip


@pytest.mark.parametrize("what", ["wrong", "failures"])
def test_what_is_not_right_is_said(what):
    bad = replace(DONE, **{what: ("2026-11-20 Maps: not reported, due was touched",)})
    assert not bad.is_good
    assert "Maps: not reported" in billing_text(bad)
    assert "NOT RIGHT" in billing_text(bad)


def test_with_nothing_in_the_window_nothing_is_claimed():
    assert BillingRehearsal(0, 0, (), (), 0, ()).spared == 0.0


@pytest.mark.services  # it takes some 20 s
def test_only_exactly_what_was_ingested_again_is_good(tmp_path, monkeypatch):
    def with_other_expectations(sample, now):
        later = reingest(sample, now)
        unexpected, mistaken, *_ = sorted(later.due)
        due = {key: move for key, move in later.due.items() if key != unexpected} | {mistaken: ExpectedChange.TOUCHED}
        return replace(later, due=due | {(mistaken[0], "nobody"): ExpectedChange.CHANGED})

    monkeypatch.setattr(billing_demo, "reingest", with_other_expectations)
    home = tmp_path / "home"
    home.mkdir()
    done = rehearse_billing(home, DemoState(tmp_path), lambda *_: None)
    assert done.failures == ()
    assert not done.is_good
    said = "\n".join(done.wrong)
    assert "changed, due was nothing" in said
    assert "vanished, due was touched" in said
    assert "nobody: not reported, due was changed" in said
