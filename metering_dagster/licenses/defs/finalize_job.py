"""The job `finalize_deprovisioned`: flush windows that are over are closed (domain: finalizing).

Belongs here: what a person reads of a closing, the check that fails for what is lost, the job's lane. Does not: when a
window is over, what is written (closing and what it calls).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.core.dagster_events import log_check_evaluation, raise_as_dagster_failure
from metering_dagster.core.masking import digest, markdown_list, mask
from metering_dagster.licenses.rules import lane
from metering_dagster.metering.rules.quantities import number_text, total
from metering_dagster.metering.services.deployment import Deployment
from metering_dagster.settings import Mode

if TYPE_CHECKING:
    from metering_dagster.licenses.services.finalization import Closing, UnbilledUsage

TAGS = lane.tags(priority=90)
METERED, CHECK = dg.AssetKey("metered_usage"), "all_subscribed"
_SHOWN = 100
"""Lines of a table or list in metadata."""


@dg.op(
    out=dg.Out(dg.Nothing),
    description="Close the flush windows that are over; tell first what is lost by it.",
    tags={"dagster/kind": "dynamodb"},
)
def close_deprovisioned(context: dg.OpExecutionContext, metering: dg.ResourceParam[Deployment]) -> None:
    """Close what is over, and fail the check of each hour in which something is lost.

    Fails where windows that are over stay open.
    """
    with raise_as_dagster_failure():
        if metering.mode is Mode.SHADOW:
            words = "Shadow mode writes to no table: nothing was looked up and nothing was closed."
            context.log.info(words)
            context.add_output_metadata({"mode": metering.mode.value, "closed": 0, "notes": words})
            return
        from metering_dagster.licenses.services.finalization import close_windows, failure_of
        from metering_dagster.licenses.stores.open_windows import ClosingStore

        tables = metering.tables
        store = ClosingStore(tables.subscribers.client, tables.subscribers.name)
        done = close_windows(store, tables, lambda bucket, losses: _tell(context, bucket, losses))
    for words in _warnings(done):
        context.log.warning(words)
    shown, failure = _metadata(metering.mode, done), failure_of(done)
    if failure is not None:
        raise dg.Failure(str(failure), metadata=shown, allow_retries=failure.retryable)
    context.add_output_metadata(shown)


@dg.job(
    tags=TAGS,
    description=(
        "Close the flush windows whose end has come: the license becomes inactive. If usage of it is still pending, "
        "the check all_subscribed of that hour fails."
    ),
)
def finalize_deprovisioned() -> None:
    """One step."""
    close_deprovisioned()


def _tell(context: dg.OpExecutionContext, bucket: str, losses: "Sequence[UnbilledUsage]") -> None:
    """One answer of the check for each hour: in the log of events before anything is written to the tables."""
    lost = number_text(total(loss.quantity for loss in losses))
    rows, records = sum(loss.rows for loss in losses), sum(loss.records for loss in losses)
    words = (
        f"{bucket}: a quantity of {lost} ({rows} raw rows, {records} aggregates) is still pending as flush windows "
        f"close, of {len(losses)} deprovisioned licenses. The hour's own run still sends it, and mostly hears "
        "CustomerNotSubscribed. Only once it has, bill it by other means: before that it may be billed after all. "
        "What kept it from being flushed, the failed runs of flush_deprovisioning say, if there are any."
    )
    context.log.warning(words)
    evaluation = dg.AssetCheckEvaluation(
        asset_key=METERED,
        check_name=CHECK,
        partition=bucket,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description=words,
        metadata={
            "lost_quantity": float(total(loss.quantity for loss in losses)),
            "lost_rows": rows,
            "lost_records": records,
            "losses": _table(losses),
        },
    )
    log_check_evaluation(context, evaluation)


def _warnings(done: "Closing") -> list[str]:
    """Word what a person must know of single windows, the first of each kind."""
    unreadable = [window for window in done.closed if not window.has_readable_expiry]
    words = [
        f"The expiry of {each.name} is no instant: its window closed without it." for each in unreadable[:_SHOWN]
    ] + [
        f"The window of {each.name} was closed or set anew by somebody else meanwhile: nothing was written. If it is "
        "open still, what was told as pending of it is not lost yet."
        for each in done.left_to_others[:_SHOWN]
    ]
    more = sum(max(len(these) - _SHOWN, 0) for these in (unreadable, done.left_to_others))
    return [*words, *([f"{more} more windows like these are not named here."] if more else []), *done.failures.notes]


def _metadata(mode: Mode, done: "Closing") -> dict[str, dg.MetadataValue]:
    shown: dict[str, dg.MetadataValue] = {
        "mode": dg.MetadataValue.text(mode.value),
        "open_windows": dg.MetadataValue.int(done.open),
        "closed": dg.MetadataValue.int(len(done.closed)),
        "still_open": dg.MetadataValue.int(done.still_open),
        "changed_meanwhile": dg.MetadataValue.int(len(done.left_to_others)),
        "lost_quantity": dg.MetadataValue.float(float(total(loss.quantity for loss in done.losses))),
    }
    if done.closed:
        shown["closed_licenses"] = dg.MetadataValue.md(markdown_list(each.name for each in done.closed[:_SHOWN]))
    return shown | ({"losses": _table(done.losses)} if done.losses else {})


def _table(losses: "Sequence[UnbilledUsage]") -> dg.MetadataValue:
    return dg.MetadataValue.table([
        dg.TableRecord({
            "license": mask(loss.buyer[0]), "account": mask(loss.buyer[1]), "digest": digest(*loss.buyer),
            "hour": loss.bucket, "rows": loss.rows, "records": loss.records, "quantity": number_text(loss.quantity),
            "without a quantity": loss.unreadable,
        })
        for loss in losses[:_SHOWN]
    ])  # fmt: skip
