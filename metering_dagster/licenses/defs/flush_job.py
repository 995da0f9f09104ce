"""The job `flush_deprovisioning`: what deprovisioning licenses used goes through at once (domain: flush).

Belongs here: which hours a run takes, the steps of one of them, the job's lane. Does not: what the steps do (metering's
ops, which the hourly assets share). No license stands in a run's config; the steps hand on nothing but their order.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from metering_dagster.core import hours
from metering_dagster.core.dagster_events import raise_as_dagster_failure
from metering_dagster.licenses.rules import lane
from metering_dagster.metering.defs.ops import aggregate_groups, discover_pending, mapping_key, submit_batches
from metering_dagster.metering.services.deployment import Deployment

TAGS = lane.tags(priority=100)


@dg.op(
    out={
        "hour": dg.DynamicOut(
            dg.Nothing,
            is_required=False,
            description="An hour with something pending of these buyers, named by its key.",
        ),
        "planned": dg.Out(dg.Nothing),
    },
    description="Find the hours in which something is pending of the licenses that are deprovisioning now.",
    tags={"dagster/kind": "dynamodb"},
)
def plan_flush(
    context: dg.OpExecutionContext, metering: dg.ResourceParam[Deployment]
) -> Iterator[dg.DynamicOutput[None] | dg.Output[None]]:
    """Hand on the hours that this flush takes, oldest first."""
    from metering_dagster.licenses.rules.flush_plan import hours_to_flush
    from metering_dagster.licenses.services.flush_search import pending_hours

    with raise_as_dagster_failure():
        mode, now = metering.mode, metering.settings.now()
        windows = metering.tables.subscribers.deprovisioning()
        looked_at = hours_to_flush(now, windows)
        found = pending_hours(metering.indexes, looked_at)
    unreadable = sum(end is None for end in windows.values())
    if unreadable:
        context.log.warning(
            f"The expiry of {unreadable} deprovisioning licenses is no instant: their current hour is not flushed."
        )
    shown = {"mode": mode.value, "windows": len(windows), "unreadable_expiries": unreadable,
             "hours_looked_at": len(looked_at), "hours_with_pending": len(found)}  # fmt: skip
    yield dg.Output(None, "planned", metadata=shown)
    for each in found:
        current = hours.offset_of(each.hour, now) == 0
        yield dg.DynamicOutput(
            None,
            mapping_key=mapping_key(each.bucket),
            output_name="hour",
            metadata={"hour": each.bucket, "buyers": len(each.buyers), "is_current_hour": current},
        )


@dg.graph(
    ins={"hour": dg.GraphIn()},
    description="One hour of the buyers whose flush window is open, lock or no lock.",
)
def flush_hour(hour: object) -> None:
    """The three steps of an hour. Later steps have higher priority: an hour is sent before the next begins."""
    found: Any = discover_pending.tag({"dagster/priority": "1"})(after=hour)
    folded: Any = aggregate_groups.tag({"dagster/priority": "2"})(after=found)
    submit_batches.tag({"dagster/priority": "3"})(after=folded.result)


@dg.job(
    tags=TAGS,
    description=(
        "Bill the usage of deprovisioning licenses before AWS Marketplace stops taking it: every billable hour, locked "
        "or not, and the current hour in the last ten minutes. The run reads which licenses these are."
    ),
)
def flush_deprovisioning() -> None:
    """Each hour in steps of its own: what goes wrong in one stops no other."""
    planned: Any = plan_flush()
    planned.hour.map(flush_hour)
