"""More bugs that somebody else planted: those of which the judge's excuses, or what it did not look at, hid the harm.

Belongs here: what each one changes. Does not: the ten of the issue (bugs), how they are put in (edits).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from metering_dagster.core import hours
from metering_dagster.licenses.services import event_application
from metering_dagster.metering.rules import aggregate_group, foreign_aggregate, run_decision
from metering_dagster.metering.services import submission
from tests.simulation.planted.edits import Edit


def called_open_for_too_long() -> Edit:
    """A tick says that an hour is still open for late usage until it is nearly closed."""
    return Edit(run_decision.decide, {
        "if hours.is_locked(hour, now, lock_hours):": "if offset <= hours.clamp_lock(lock_hours) + 18:",
    })  # fmt: skip


def called_closed_too_early() -> Edit:
    """A tick says that an hour can no longer be billed three hours before that is so."""
    return Edit(run_decision.decide, {
        "if not hours.is_billable(hour, now):": "if not hours.is_billable(hour, now) or offset >= 21:",
    })  # fmt: skip


def no_grace_at_a_months_end() -> Edit:
    """On the 1st the lock is what it always is: the last hours of the old month are not let go."""
    return Edit(hours.lock_of, {
        "if is_previous_month(hour, now) and GRACE_OPENS <= _into_month(now) < GRACE_CLOSES:": "if False:",
    })  # fmt: skip


def no_last_call_of_what_is_held() -> Edit:
    """A tick asks for no run of an hour in which nothing has changed, not even at its last call."""
    return Edit(run_decision._with_work, {" and not _is_asked_for_in_any_case(hour, now, last)": ""})


def unprocessed_records_forgotten() -> Edit:
    """What the service leaves unprocessed is not sent again in the same run."""
    return Edit(submission.Submitter._run, {
        "                if not outcome.unprocessed:\n                    return None\n":
        "                if outcome.unprocessed:\n"
        '                    self._leave(batch.of(outcome.unprocessed), "left unprocessed")\n'
        "                return None\n",
    })  # fmt: skip


def allocations_dropped() -> Edit:
    """What the rows say of their allocations is left out of the record."""
    return Edit(aggregate_group._fold_allocations, {"if all(u.allocations is None for u in usages):": "if True:"})


def late_rows_taken_for_counted() -> Edit:
    """Rows beside a total that their seller submitted count as a part of it, whatever they add up to."""
    return Edit(foreign_aggregate._bearers, {"if not figure or not open_rows:": "if True:"})


def no_receipt() -> Edit:
    """The receipt of what was billed is not written down."""
    return Edit(submission.Submitter._record_results, {"record_id=result.record_id": 'record_id=""'})


def unreadable_event_deleted() -> Edit:
    """A message that is no event is deleted from the queue, before its dead-letter queue gets it."""
    return Edit(event_application._apply_batch, {
        'report.left.append(f"message {message.id}: {event.words}")\n':
        'report.left.append(f"message {message.id}: {event.words}")\n            done.append(message)\n',
    })  # fmt: skip


MORE: Mapping[str, Callable[[], Edit]] = MappingProxyType({bug.__name__: bug for bug in (
    called_open_for_too_long, called_closed_too_early, no_grace_at_a_months_end, no_last_call_of_what_is_held,
    unprocessed_records_forgotten, allocations_dropped, late_rows_taken_for_counted, no_receipt,
    unreadable_event_deleted,
)})  # fmt: skip
