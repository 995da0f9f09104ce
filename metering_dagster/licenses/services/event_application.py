"""Apply what the queue brings: receive, write the rows, delete what is durably applied.

Belongs here: the order of these, what is left in the queue and why, when to stop. Does not: what an event does to a row
(lifecycle), any request.

What is left comes back once its visibility time-out is over, and goes to the dead-letter queue when it has been
received too often. A receive counts towards that, so nothing is received before it is known that the table can be
written.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from metering_dagster.core.aws.dynamodb import CONFLICT_ATTEMPTS, pause
from metering_dagster.core.errors import MeteringError, UnreachableError
from metering_dagster.core.masking import digest, mask
from metering_dagster.licenses.rules import lane
from metering_dagster.licenses.rules.lifecycle import change_of, concerns, creates
from metering_dagster.licenses.rules.lifecycle_event import EventKind, LifecycleEvent, Unreadable, parse_event

if TYPE_CHECKING:
    from metering_dagster.licenses.stores.events_queue import EventsQueue, Message
    from metering_dagster.licenses.stores.subscriber_rows import Subscribers

USED_PART = 0.8
"""Of the visibility time-out, counted from the first receive: no message comes back within the run that received it.

And of the time that a run of the job is given, where that is less.
"""


class Effect(Enum):
    """The result of one event."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    """The rows were already as it wants them."""
    IGNORED = "ignored"
    NOBODY = "nobody"
    """There is no row that it is about, and it makes none."""


@dataclass
class ApplicationReport:
    """The report of one run on the queue."""

    received: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    applied: int = 0
    unchanged: int = 0
    ignored: int = 0
    deleted: int = 0
    left: list[str] = field(default_factory=list)
    """In words, each message that is left to the queue's redelivery because of what it says."""
    refused: list[str] = field(default_factory=list)
    """In words, each message that is left because a store refused it."""
    not_reached: int = 0
    """Messages that were received when the time was up."""
    notes: list[str] = field(default_factory=list)
    fault: MeteringError | None = None
    """What ended the run before the queue was empty, or the last refusal of a store."""


def apply_events(
    queue: "EventsQueue", subscribers: "Subscribers", *, clock: Callable[[], float] = time.monotonic
) -> ApplicationReport:
    """Go through the queue until it is empty or the time is up; errors of the stores stand in the report.

    May run beside others like it and be killed anywhere: an event that was applied and not deleted changes nothing the
    next time.
    """
    report = ApplicationReport()
    try:
        state = queue.state()
        subscribers.try_write()
        seconds = USED_PART * min(state.visibility_seconds, lane.MOST_SECONDS)
        until = clock() + seconds
        while messages := queue.receive():
            report.received += len(messages)
            done = _apply_batch(messages, subscribers, report, lambda: clock() < until)
            kept = queue.delete(done)
            report.deleted += len(done) - len(kept)
            report.notes += kept
            if clock() >= until:
                report.notes.append(
                    f"{seconds:.0f} s of the queue's visibility time-out of {state.visibility_seconds} s are used; "
                    "what is still waiting is for the next run"
                )
                break
            if report.refused and not done:
                break  # whatever else is received would be refused too, and be the closer to the dead-letter queue
        if report.left and not state.has_dead_letters:
            report.notes.append(
                "the queue has no dead-letter queue (RedrivePolicy): what cannot be applied comes back until it expires"
            )
    except MeteringError as error:
        report.fault = error
    return report


def _apply_batch(
    messages: "list[Message]", subscribers: "Subscribers", report: ApplicationReport, has_time: Callable[[], bool]
) -> "list[Message]":
    """Apply each by itself; those that may be deleted. At least the first is tried."""
    done = []
    for number, message in enumerate(messages):
        if number and not has_time():
            report.not_reached += len(messages) - number
            break
        event = parse_event(message.body)
        if isinstance(event, Unreadable):
            report.by_kind["unreadable"] += 1
            report.left.append(f"message {message.id}: {event.words}")
            continue
        report.by_kind[event.kind.value] += 1
        try:
            effect = apply_event(subscribers, event)
        except MeteringError as error:
            report.refused.append(f"message {message.id}, {event.kind.value} of {_named(event)}")
            report.fault = error
            continue
        if effect is Effect.NOBODY:
            report.left.append(f"message {message.id}: {event.kind.value} of {_named(event)}, of which no row is known")
            continue
        report.applied += effect is Effect.APPLIED
        report.unchanged += effect is Effect.UNCHANGED
        report.ignored += effect is Effect.IGNORED
        done.append(message)
    return done


def apply_event(
    subscribers: "Subscribers", event: LifecycleEvent, *, wait: Callable[[int], None] = lambda n: time.sleep(pause(n))
) -> Effect:
    """Bring the rows that the event is about to what it wants, each on the condition that it is what was read.

    Where another writer was faster, all is read and decided again. `UnreachableError` where that never ends.
    """
    if event.kind is EventKind.CREATED:
        return Effect.IGNORED
    has_written = False
    for attempt in range(CONFLICT_ATTEMPTS):
        if attempt:
            wait(attempt)
        about = [
            found
            for found in subscribers.rows_of(event)
            if (concerns(found.row, event) if found.row is not None else creates(event))
        ]
        if not about:
            return Effect.APPLIED if has_written else Effect.NOBODY
        wanted = [(found, change) for found in about if (change := change_of(found.row, event)) is not None]
        written = [subscribers.write(found, change) for found, change in wanted]
        has_written = has_written or any(written)
        if all(written):
            return Effect.APPLIED if has_written else Effect.UNCHANGED
    raise UnreachableError(
        f"The row of {_named(event)} changed each of the {CONFLICT_ATTEMPTS} times it was read. "
        "The event is still in the queue; the next run tries again."
    )


def _named(event: LifecycleEvent) -> str:
    """Return whom the event is about, masked."""
    named = {"license": event.license_arn, "agreement": event.agreement_id}
    return ", ".join(f"{what} {mask(name)} ({digest(name)})" for what, name in named.items() if name)
