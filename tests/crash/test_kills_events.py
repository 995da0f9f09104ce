"""A worker on lifecycle events that is killed loses none: whoever comes next applies each, and no row is set back."""

import random
from collections.abc import Iterator

import pytest

from metering_dagster.devstack.stack import LocalStack
from tests.crash import events_worker as points
from tests.crash.crew import Crew
from tests.crash.events_worker import work_on_events
from tests.items import LICENSE
from tests.licenses.bodies import AMENDED, DEPROVISIONED, ENDED, UPDATED, a_body
from tests.licenses.events_world import EventsWorld
from tests.world import World

pytestmark = pytest.mark.services

LICENSES = [f"{LICENSE}{number}" for number in range(4)]
ANNOUNCEMENTS = 25
"""Of each of two workers on these events, about."""


@pytest.fixture
def events(world: World, emulator: LocalStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventsWorld]:
    """A queue with nothing in it yet."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", emulator.dynamodb_url)
    ours = EventsWorld(world, emulator)
    yield ours
    ours.sqs.close()


def the_lives_of(licenses: list[str]) -> list[str]:
    """More messages than one batch holds, several of each license."""
    return [
        a_body(
            kind,
            f"2026-11-28T{hour:02}:00:00Z",
            license=license,
            agreement=f"of {license[-4:]}",
            end_time=f"20{hour:02}",
        )
        for hour, kind in ((8, UPDATED), (9, AMENDED), (10, DEPROVISIONED), (11, ENDED))
        for license in licenses
    ]


def come_back(events: EventsWorld, crew: Crew) -> None:
    """Let the visibility time-out be over of all that any worker has received."""
    for worker in crew.workers:
        for word, _, received in worker.words:
            if word == points.RECEIPTS:
                events.come_back(received)


def applied_once_and_for_all(events: EventsWorld, crew: Crew) -> None:
    """Let one worker after the other come until the queue is empty; then each row is as its events say."""
    for _ in range(3):  # each receive counts: after five a message would be buried
        come_back(events, crew)
        crew.start(work=work_on_events).end()
        if not events.left():
            break
    assert (events.left(), events.buried()) == (0, 0)
    rows = events.rows()
    assert [row["licenseArn"] for row in rows] == LICENSES
    for row in rows:
        assert (row["subscriptionStatus"], row["deprovisioningPendingFlag"]) == ("deprovisioning", "1")
        assert (row["agreementStatus"], row["endTime"]) == ("inactive", "2009")
        assert row["deprovisioningExpiry"] == "2026-11-28T11:00:00Z"


@pytest.mark.parametrize(("stops_at", "dagster"), [
    ((points.RECEIVED, 1), False), ((points.WRITE_LEAVES, 2), False), ((points.WRITE_ANSWERED, 2), False),
    ((points.WRITE_ANSWERED, 7), False), ((points.DELETE_LEAVES, 1), True), ((points.DELETED, 1), False),
    ((points.RECEIVED, 2), True), ((points.DELETED, 2), True),
], ids=str)  # fmt: skip
def test_killed_anywhere_between_receive_and_delete(events, crew, stops_at, dagster):
    events.send(*the_lives_of(LICENSES))
    victim = crew.start(work=work_on_events, stops_at=stops_at, dagster=dagster)
    assert victim.until_it_stands() == (*stops_at, True)
    victim.kill()
    applied_once_and_for_all(events, crew)


def test_killed_before_the_delete_nothing_changes_the_second_time(events, crew):
    events.send(a_body(UPDATED, license=LICENSE), a_body(DEPROVISIONED, license=LICENSE))
    victim = crew.start(work=work_on_events, stops_at=(points.DELETE_LEAVES, 1))
    victim.until_it_stands()
    victim.kill()
    before = events.rows()
    assert before
    events.world.at("2026-11-28T12:25:00Z")
    come_back(events, crew)
    crew.start(work=work_on_events).end()
    assert events.left() == 0
    assert events.rows() == before, "what was applied was written again"


def test_killed_at_random_points_with_a_rival_beside(events, crew):
    seed = random.randrange(10**9)
    chance = random.Random(seed)
    events.send(*chance.sample(bodies := the_lives_of(LICENSES) * 2, len(bodies)))
    victims = [
        crew.start(work=work_on_events, waits=True, stops_at_any=chance.randint(2, ANNOUNCEMENTS)) for _ in range(2)
    ]
    for victim in victims:
        victim.until_it_stands()
    for victim in victims:
        victim.go()
    story = [str(victim.until_it_stands()) for victim in victims]
    for victim in victims:
        victim.kill()
    try:
        applied_once_and_for_all(events, crew)
    except AssertionError as error:
        error.add_note(f"seed {seed}: {'; '.join(story)}")
        raise
