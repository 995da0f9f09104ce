"""Any body in the queue: it stays there, in words that name nobody, and the events beside it are applied.

Belongs here: what waits in the queue, through the run that applies it. Does not: which bodies are events
(tests/licenses/test_events.py).
"""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from metering_dagster.licenses.services import event_application
from metering_dagster.licenses.services.connections import events_queue_of, subscribers_of
from tests.hostile.broken import DEEP, broken_text
from tests.hostile.effort import examples
from tests.hostile.secrets import ACCOUNT, LICENSE, OTHER_ACCOUNT, OTHER_LICENSE, assert_nothing_leaks
from tests.hostile.stored import VALUES
from tests.hostile.test_raw_rows import put
from tests.hostile.tiny_world import TinyWorld
from tests.items import a_subscriber
from tests.licenses.bodies import a_body, of_agreement

EVENTS = [
    a_body("License Updated - Manufacturer", license=LICENSE, account=ACCOUNT, end_time="2027-01-01T00:00:00Z"),
    a_body("License Deprovisioned - Manufacturer", license=LICENSE, account=ACCOUNT),
    of_agreement("Purchase Agreement Ended - Proposer", "2026-11-28T12:00:00Z"),
    of_agreement("Purchase Agreement Amended", "2026-11-28T12:00:00Z", end_time="2027-01-01T00:00:00Z"),
]
BODIES = st.one_of([broken_text(json.loads(event)) for event in EVENTS])
STORED = st.dictionaries(st.sampled_from([
    "productCode", "agreementId", "agreementStatus", "subscriptionStatus", "deprovisioningPendingFlag",
    "deprovisioningExpiry", "updatedAt", "agreementEventTimes", "endTime",
]), VALUES, max_size=4)  # fmt: skip


@examples(100)
@given(bodies=st.lists(BODIES, min_size=1, max_size=4), stored=STORED)
@example(bodies=[DEEP, "", "\x00", json.dumps({"detail-type": f"License of {ACCOUNT} {LICENSE}"})], stored={})
def test_a_body_of_any_kind_keeps_no_other_event_from_being_applied(bodies, stored):
    world = TinyWorld()
    row = a_subscriber(LICENSE, ACCOUNT)
    row.values.update(stored)
    put(world, [row])
    good = a_body(license=OTHER_LICENSE, account=OTHER_ACCOUNT, agreement="agmt-good")
    for body in [*bodies[:2], good, *bodies[2:]]:
        world.queues.send("events", body)
    deployment = world.deployment
    report = event_application.apply_events(events_queue_of(deployment), subscribers_of(deployment), clock=lambda: 0.0)
    assert report.fault is None, report.fault
    (applied,) = [item for item in world.items("subscribers") if item["licenseArn"] == OTHER_LICENSE]
    assert applied["subscriptionStatus"] == "active"
    left = world.queues.bodies("events")
    assert good not in left
    assert len(left) == len(report.left), "what is not applied stays in the queue"
    for words in [*report.left, *report.notes, *report.refused]:
        assert words.isprintable()
        assert len(words) < 400
    assert_nothing_leaks(report)
