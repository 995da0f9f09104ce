"""Cases of the collection of real reports that concern lifecycle events."""

import pytest

from tests.items import ACCOUNT, HOUR, LICENSE, OTHER_LICENSE, a_usage
from tests.licenses.bodies import AGREEMENT, DEPROVISIONED, ENDED, PRODUCT, UPDATED, a_body, of_agreement


@pytest.mark.case("late_license_updated")
def test_a_late_license_updated_refreshes_the_agreement_and_revives_nothing(events):
    events.send(a_body(DEPROVISIONED, "2026-11-28T14:20:00Z"))
    assert events.run().success
    events.send(a_body(UPDATED, "2026-11-28T14:00:00Z"))
    assert events.run().success
    row = events.row()
    assert (row["subscriptionStatus"], row["deprovisioningPendingFlag"]) == ("deprovisioning", "1")
    assert row["deprovisioningExpiry"] == "2026-11-28T15:20:00Z"
    assert (row["agreementId"], row["agreementStatus"], row["productCode"]) == (AGREEMENT, "active", PRODUCT)


@pytest.mark.case("agreement_ended_alone")
def test_an_agreement_that_ends_alone_opens_no_flush_window_and_metering_goes_on(events):
    events.send(a_body(UPDATED, "2026-11-28T10:00:00Z"))
    assert events.run().success
    before = events.row()
    events.send(of_agreement(ENDED, "2026-11-28T11:00:00Z"))
    assert events.run().success
    after = events.row()
    assert after["agreementStatus"] == "inactive"
    assert {name for name in after if after[name] != before.get(name)} <= {
        "agreementStatus", "agreementEventTimes", "updatedAt",
    }  # fmt: skip
    assert events.world.deployment.tables.subscribers.deprovisioning() == {}
    events.world.put(a_usage(0, "3"))
    assert events.world.meter(HOUR).success
    assert [record.quantity for record in events.world.bill()] == ["3"]
    events.world.judge()


@pytest.mark.case("bad_event_body")
def test_a_body_that_is_no_json_is_left_and_the_nine_others_are_applied(events):
    licenses = [f"{LICENSE}{number}" for number in range(9)]
    bodies = [a_body(license=license) for license in licenses]
    events.send(*bodies[:4], "this is no JSON", *bodies[4:])
    outcome = events.run()
    assert outcome.success
    assert (outcome.shown["applied"], outcome.shown["deleted"], outcome.shown["left"]) == (9, 9, 1)
    assert "its body is no JSON" in outcome.shown["left_messages"]
    assert [words for words in outcome.warnings if "its body is no JSON" in words]
    assert [row["licenseArn"] for row in events.rows()] == licenses
    assert events.left() == 1


@pytest.mark.case("detail_type_suffix")
def test_a_suffixed_detail_type_and_an_arn_without_its_prefix_are_understood(events):
    events.send(a_body(f"{DEPROVISIONED} - Manufacturer", license="aws:license-manager::123456789012:license:l-1"))
    outcome = events.run()
    assert outcome.shown["applied"] == 1
    row = events.row("arn:aws:license-manager::123456789012:license:l-1", ACCOUNT)
    assert row["subscriptionStatus"] == "deprovisioning"
    assert "license:l-1" not in outcome.said


def test_a_deprovisioning_without_its_license_is_of_the_licenses_of_its_agreement(events):
    events.send(a_body(), a_body(license=OTHER_LICENSE, agreement="agmt-other"))
    events.run()
    events.send(of_agreement(DEPROVISIONED, "2026-11-28T14:20:00Z"))
    assert events.run().shown["applied"] == 1
    assert events.row()["deprovisioningExpiry"] == "2026-11-28T15:20:00Z"
    assert events.row(OTHER_LICENSE)["subscriptionStatus"] == "active"
