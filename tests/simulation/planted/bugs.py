"""Ten bugs, as somebody might write them into the product: each a line or two of its source, exchanged.

Belongs here: what each one changes. Does not: how it is put in (edits), how it is found (hunt). On a good day the bill
comes out right with most of them: they need trouble to do harm, or an eye on every single step to be seen.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from metering_dagster.core import hours
from metering_dagster.core.aws import dynamodb
from metering_dagster.licenses.rules import lifecycle
from metering_dagster.metering.rules import aggregate_group, run_decision
from metering_dagster.metering.services import submission
from metering_dagster.metering.stores import aggregated_table, metering_api, record_ends, usage_table
from tests.simulation.planted.edits import Edit

Bug = Callable[[], Edit]


def write_back_before_the_call() -> Edit:
    """Records are written down as `Success` just before the call that bills them, so that nobody sends them twice."""
    return Edit(submission.Submitter._run, {
        "            outcome = self.marketplace.send(batch)\n":
        "            self._record([_end(a, RecordStatus.SUCCESS) for a in batch.records], batch.records)\n"
        "            outcome = self.marketplace.send(batch)\n",
    })  # fmt: skip


def unconditional_clean_up() -> Edit:
    """Counted rows become `Aggregated` whatever stands there by then: without any condition."""
    return Edit(usage_table.UsageTable._end_action, {
        "names = _CONTENT + _IDENTITY if end.status is RawStatus.REJECTED else _CONTENT":
        "names = _CONTENT + _IDENTITY if end.status is RawStatus.REJECTED else _CONTENT\n"
        "        names = () if end.status is RawStatus.AGGREGATED else names",
        '        return {"Update": action}':
        "        if end.status is RawStatus.AGGREGATED:\n"
        '            del action["ConditionExpression"]\n'
        '        return {"Update": action}',
    })  # fmt: skip


def billable_at_24_hours() -> Edit:
    """An hour is billable while it is at most 24 hours back, where it must be less: `<=` for `<`."""
    return Edit(hours.is_billable, {"0 <= offset <= LAST_OFFSET": "0 <= offset <= LAST_OFFSET + 1"})


def one_page_read() -> Edit:
    """Of a Query the first answer is read, and its `LastEvaluatedKey` is not looked at."""
    return Edit(dynamodb.answers, {"        if not last:\n            return\n": "        return\n"})


def fault_of_the_service_taken_for_a_refusal() -> Edit:
    """`InternalServiceErrorException` counts among the codes by which the service refuses a record."""
    return Edit(metering_api._trouble, {
        "if code in _REFUSED_CODES:": 'if code in _REFUSED_CODES | {"InternalServiceErrorException"}:',
    })  # fmt: skip


def expiry_without_a_condition() -> Edit:
    """A record becomes `SubmissionExpired` whatever stands there by then: without any condition."""
    return Edit(record_ends._end_unit, {
        "    named = {\n":
        "    if end.status is RecordStatus.EXPIRED:\n"
        '        conditions, sent = [], {name: sent[name] for name in (":status", ":now", ":reason")}\n'
        "    named = {\n",
        '"ConditionExpression": " AND ".join(conditions),':
        '**({"ConditionExpression": " AND ".join(conditions)} if conditions else {}),',
    })  # fmt: skip


def counted_rows_forgotten() -> Edit:
    """What a commit counted is not looked up: of a group committed before, only its total is known."""
    return Edit(aggregated_table.AggregatedTable.committed, {
        "for key in (_key(group), _commit_key(group))]": "for key in (_key(group),)]",
    })  # fmt: skip


def hold_ended_too_early() -> Edit:
    """A bad row holds its group in the visit that rejects it, and no longer in the next one."""
    return Edit(
        aggregate_group._weighed, {"if (commit.bad or standing) and not last_call:": "if commit.bad and not last_call:"}
    )


def repeated_event_moves_the_expiry() -> Edit:
    """A license that is deprovisioning already gets its expiry from the latest event, and keeps no earlier one."""
    return Edit(lifecycle._deprovisioned, {"if stored is not None and stored <= expiry:": "if stored == expiry:"})


def probe_error_taken_for_nothing_to_do() -> Edit:
    """A tick whose look at the hour failed goes by the zeros that came of it."""
    return Edit(run_decision.decide, {"    if pending.failure:\n": "    if False:\n"})


BUGS: Mapping[str, Bug] = MappingProxyType({bug.__name__: bug for bug in (
    write_back_before_the_call, unconditional_clean_up, billable_at_24_hours, one_page_read,
    fault_of_the_service_taken_for_a_refusal, expiry_without_a_condition, counted_rows_forgotten, hold_ended_too_early,
    repeated_event_moves_the_expiry, probe_error_taken_for_nothing_to_do,
)})  # fmt: skip
"""By name, in the order of the issue."""
