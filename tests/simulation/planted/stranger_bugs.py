"""Bugs in what the product does about others: another pipeline's leftovers, aggregates that are gone, other modes.

Belongs here: what each one changes, and which situation a world must draw to show it. Does not: the other bugs (bugs,
more_bugs), how they are put in (edits).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from metering_dagster.core import hours
from metering_dagster.core.aws import dynamodb
from metering_dagster.expiry.services import sweep
from metering_dagster.licenses.rules import lifecycle
from metering_dagster.metering.rules import aggregate_group, foreign_aggregate, metering_response, raw_row
from metering_dagster.metering.services import aggregation, deployment, lost_commits, submission
from metering_dagster.metering.stores import hour_regions, identities
from tests.simulation.planted.edits import Edit


def healing_left_out_at_the_last_visit() -> Edit:
    """At an hour's last visit nobody looks whether its commits still have their aggregates."""
    return Edit(aggregation.aggregate, {
        "if part.buyers is None and not report.closed and hours.is_last_call(part.hour, tables.clock()):": "if False:",
    })  # fmt: skip


def healing_left_out_where_a_row_waits() -> Edit:
    """A row that waits is settled by its group's commit, and that its aggregate is gone is not noticed."""
    return Edit(aggregation._settle, {
        "step.lost, step.counted = committed.lost, committed.counted":
        "step.lost, step.counted = None, committed.counted",
    })  # fmt: skip


def healed_with_what_stands_there_now() -> Edit:
    """A record is put back with what the group's rows add up to now, and not as the commit made it."""
    return Edit(lost_commits.restore, {
        "    now = tables.clock()\n":
        "    now = tables.clock()\n"
        "    from dataclasses import replace\n"
        "    from decimal import Decimal\n"
        "    rows = list(rows)\n"
        "    there = sum((r.quantity for r in rows if isinstance(r.quantity, Decimal)), Decimal(0))\n"
        "    lost = replace(lost, quantity=there, allocations=None)\n",
    })  # fmt: skip


def others_rows_judged_by_our_contract() -> Edit:
    """Beside another pipeline's aggregate a number that is a text is rejected, as everywhere else."""
    return Edit(foreign_aggregate._reason_against, {
        "if readable_number(row.quantity) is not None:": "if not isinstance(row.quantity, str | bool | None):",
    })  # fmt: skip


def stated_lateness_forgotten() -> Edit:
    """What the late rows of such a group state already is stated again by the next one."""
    return Edit(foreign_aggregate.settle_others, {
        "figure = EXACT.subtract(EXACT.subtract(used, billed), total(each.stated_late for each in late_before))":
        "figure = EXACT.subtract(used, billed)",
    })  # fmt: skip


def good_rows_left_rejected() -> Edit:
    """Rows that another pipeline's stricter rule rejected stay so, though the group is judged anew."""
    return Edit(aggregate_group.judge_group, {"    if revived:\n": "    if False:\n"})


def restored_rows_not_counted_again() -> Edit:
    """Where aggregate and commit are gone, only what waits is aggregated, and not what was called counted."""
    return Edit(aggregation._step, {"    if _looks_committed(visit):\n": "    if False:\n"})


def empty_allocations_rejected() -> Edit:
    """An empty list of allocations is taken for a malformed one."""
    return Edit(raw_row.judge, {"row.allocations not in (None, [])": "row.allocations is not None"})


def unprocessed_keys_forgotten() -> Edit:
    """Of a batch that is read in part, the rest is not asked for again."""
    return Edit(dynamodb.batch_get, {'wanted = left.get("Keys", [])': "wanted = []"})


def dry_run_sends() -> Edit:
    """In dry-run mode the service is called all the same."""
    return Edit(deployment.Deployment.submitter, {"sends=self.mode is Mode.LIVE": "sends=self.mode is not Mode.SHADOW"})


def shadow_writes() -> Edit:
    """In shadow mode groups are committed."""
    return Edit(
        aggregation._write_commits,
        {"        if tables.writes:\n            return": "        if True:\n            return"},
    )


def former_agreements_end_stays() -> Edit:
    """What was said of a license's former agreement, such as its end, is kept when another one follows."""
    return Edit(lifecycle._updated, {"row = _without_agreement(row)": "pass"})


def identity_not_claimed() -> Edit:
    """Whether another group holds the identity of a legacy record is not looked at before it is sent."""
    return Edit(identities.Identities.claim, {
        "waiting = sorted((a for a in aggregates if a.key.is_legacy), key=lambda a: a.key)":
        "waiting: list[Aggregate] = []",
    })  # fmt: skip


def region_not_looked_at() -> Edit:
    """An hour is sent in whatever Region the deployment is told now."""
    return Edit(hour_regions.HourRegions.claim, {"return self._known[bucket]": "return region"})


def answers_matched_by_position() -> Edit:
    """Which record a result is about is told by its place in the answer, whatever it echoes."""
    return Edit(metering_response._matched, {"        (place,) = one.fits\n": "        place = one.place\n"})


def astray_not_scanned() -> Edit:
    """A sweep looks where hours are filed, and nowhere else."""
    return Edit(sweep.sweep, {"    if whole:\n        sweep_unreachable(tables, tell, report)\n": ""})


def expired_on_a_months_last_day() -> Edit:
    """What the coming grace opens again is expired before it."""
    return Edit(hours.is_expirable, {" or reopens_at(hour, now) is not None:": ":"})


def rejected_within_the_first_hour() -> Edit:
    """A record that is refused with its hour's beginning is not sent again with its last second."""
    return Edit(submission.Submitter._fail, {
        "if failure.code == OUT_OF_BOUNDS and batch.instant is None:": "if False:",
    })  # fmt: skip


STRANGERS: Mapping[str, Callable[[], Edit]] = MappingProxyType({bug.__name__: bug for bug in (
    healing_left_out_at_the_last_visit, healing_left_out_where_a_row_waits, healed_with_what_stands_there_now,
    others_rows_judged_by_our_contract, stated_lateness_forgotten, good_rows_left_rejected,
    restored_rows_not_counted_again, empty_allocations_rejected, unprocessed_keys_forgotten, dry_run_sends,
    shadow_writes,
    former_agreements_end_stays, identity_not_claimed, region_not_looked_at, answers_matched_by_position,
    astray_not_scanned, expired_on_a_months_last_day, rejected_within_the_first_hour,
)})  # fmt: skip
NEEDS: Mapping[str, frozenset[str]] = MappingProxyType({
    "healing_left_out_at_the_last_visit": frozenset({"deleted"}),
    "healing_left_out_where_a_row_waits": frozenset({"deleted"}),
    "healed_with_what_stands_there_now": frozenset({"deleted"}),
    "others_rows_judged_by_our_contract": frozenset({"others"}),
    "stated_lateness_forgotten": frozenset({"others"}),
    "good_rows_left_rejected": frozenset({"stamps"}),
    "restored_rows_not_counted_again": frozenset({"restored"}),
    "empty_allocations_rejected": frozenset({"odd_rows"}),
    "unprocessed_keys_forgotten": frozenset({"unprocessed_keys"}),
    "dry_run_sends": frozenset({"dry_run"}),
    "shadow_writes": frozenset({"shadow"}),
    "former_agreements_end_stays": frozenset({"moved"}),
    "identity_not_claimed": frozenset({"twins"}),
    "region_not_looked_at": frozenset({"region"}),
    "answers_matched_by_position": frozenset({"odd_answers"}),
    "astray_not_scanned": frozenset({"pending_is_no_hour"}),
    "expired_on_a_months_last_day": frozenset({"month_end"}),
    "rejected_within_the_first_hour": frozenset({"first_partial_hour"}),
})  # fmt: skip
"""The situations that a world must draw: only such worlds are lived through for it."""
