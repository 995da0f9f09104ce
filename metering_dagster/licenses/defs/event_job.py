"""The job that applies the marketplace's lifecycle events.

Belongs here: the job, its op, what a person reads of a run. Does not: applying (event_application), when it runs
(event_sensor).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.core.errors import MeteringError
from metering_dagster.core.masking import markdown_list
from metering_dagster.licenses.rules import lane
from metering_dagster.licenses.services.connections import events_queue_of, subscribers_of
from metering_dagster.metering.services.deployment import Deployment

if TYPE_CHECKING:
    from metering_dagster.licenses.services.event_application import ApplicationReport

RUN_TAGS = lane.tags(priority=100)
_SHOWN = 20


@dg.op(
    out=dg.Out(dg.Nothing),
    description="Receive the queue's lifecycle events, write them to the subscribers table, delete what is applied.",
    tags={"dagster/kind": "aws"},
)
def apply_events(context: dg.OpExecutionContext, metering: dg.ResourceParam[Deployment]) -> None:
    """Apply what waits in the queue. What cannot be applied stays there, and the run says so."""
    try:
        queue, subscribers = events_queue_of(metering), subscribers_of(metering)
    except MeteringError as error:
        raise dg.Failure(str(error), allow_retries=False) from None
    from metering_dagster.licenses.services import event_application

    report = event_application.apply_events(queue, subscribers)
    shown = _metadata(metering.mode.value, report)
    for words in (*report.left[:_SHOWN], *report.notes[:_SHOWN]):
        context.log.warning(words)
    if report.fault is not None:
        raise dg.Failure(_failure(report, report.fault), metadata=shown, allow_retries=False)
    context.add_output_metadata(shown)


@dg.job(
    tags={**RUN_TAGS, "dagster/max_retries": "0"},
    description=(
        "Apply the marketplace's lifecycle events to the subscribers table. Events may arrive twice, late and in any "
        "order. The queue moves an event that cannot be applied to its dead-letter queue."
    ),
)
def apply_marketplace_events() -> None:
    """Apply the marketplace's lifecycle events."""
    apply_events()


def _failure(report: "ApplicationReport", fault: MeteringError) -> str:
    """Return the store's own words, and how far the run came."""
    done = f"{report.applied} events were applied and {report.unchanged} had been before."
    if not report.refused:
        return f"{fault} {done}"
    return f"{fault} {len(report.refused)} events were left in the queue for this; {done}"


def _metadata(mode: str, report: "ApplicationReport") -> dict[str, dg.MetadataValue]:
    counts = {
        "received": report.received, "applied": report.applied, "unchanged": report.unchanged,
        "ignored": report.ignored, "deleted": report.deleted, "left": len(report.left),
        "refused": len(report.refused), "not_reached": report.not_reached,
    }  # fmt: skip
    shown: dict[str, dg.MetadataValue] = {"mode": dg.MetadataValue.text(mode)}
    shown |= {name: dg.MetadataValue.int(count) for name, count in counts.items()}
    if report.by_kind:
        records = [dg.TableRecord({"event": kind, "messages": n}) for kind, n in sorted(report.by_kind.items())]
        shown["events"] = dg.MetadataValue.table(records)
    return shown | _list("left_messages", report.left) | _list("refused_messages", report.refused) | _list(
        "notes", report.notes
    )  # fmt: skip


def _list(name: str, words: Sequence[str]) -> dict[str, dg.MetadataValue]:
    """Return the first of them as a list; nothing where there are none."""
    if not words:
        return {}
    more = [f"and {len(words) - _SHOWN} more"] if len(words) > _SHOWN else []
    return {name: dg.MetadataValue.md(markdown_list([*words[:_SHOWN], *more]))}
