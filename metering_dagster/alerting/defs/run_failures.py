"""Failed runs: which are new and ours, and why each of them failed, in a person's words.

Belongs here: reading Dagster's record of a run. Does not: remembering (cursor), sending (delivery).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.alerting.rules.alert_text import Alert
from metering_dagster.core.errors import MeteringError
from metering_dagster.core.masking import license_in

if TYPE_CHECKING:
    from dagster_shared.error import SerializableErrorInfo

PAGE = 200
UNDECIDED_SECONDS = 60.0
"""So long after a failure Dagster may still be about to write down whether it retries the run."""
_NO_CAUSE = "Dagster does not say why. See the run."
_INTERRUPTED = frozenset({"DagsterExecutionInterruptedError", "KeyboardInterrupt"})
"""How a step ends that was told to: why it was told is the cause."""
_WILL_RETRY = "dagster/will_retry"


@dataclass(frozen=True)
class FailedRun:
    """A run that failed."""

    run: dg.DagsterRun
    failed: float
    """When, in seconds since 1970."""


@dataclass(frozen=True)
class CodeLocation:
    """A code location, by which ours is told from others of the same instance; None where there is none."""

    location: str | None
    repository: str | None

    @staticmethod
    def of(run: dg.DagsterRun) -> "CodeLocation":
        """Return where the run's job is from."""
        if run.remote_job_origin is None:
            return CodeLocation(None, None)
        origin = run.remote_job_origin.repository_origin
        return CodeLocation(origin.code_location_origin.location_name, origin.repository_name)


def failed_runs(instance: dg.DagsterInstance, after: float, seen: Mapping[str, float]) -> Iterator[FailedRun]:
    """Yield the runs that failed after this instant and are not among `seen`, in the order in which that was stored."""
    wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_timestamp=after)
    cursor, has_more = None, True
    while has_more:
        page = instance.fetch_run_status_changes(wanted, limit=PAGE, cursor=cursor, ascending=True)
        cursor, has_more = page.cursor, page.has_more
        when: dict[str, float] = {}
        for record in page.records:
            if record.event_log_entry.run_id not in seen:
                when.setdefault(record.event_log_entry.run_id, record.event_log_entry.timestamp)
        runs = {run.run_id: run for run in instance.get_runs(dg.RunsFilter(run_ids=[*when]))} if when else {}
        yield from (FailedRun(runs[run_id], failed) for run_id, failed in when.items() if run_id in runs)


def is_settled(failed: FailedRun, now: float, retries_enabled: bool) -> bool:
    """Return whether the failure stands: neither is the run retried, nor may that still be decided."""
    decided = failed.run.tags.get(_WILL_RETRY)
    if decided is None:
        # A failure may be stamped by a clock that is ahead: far ahead, it would never be told.
        return not retries_enabled or abs(now - failed.failed) >= UNDECIDED_SECONDS
    return decided.lower() != "true"


def alert_of_run(instance: dg.DagsterInstance, run: dg.DagsterRun, ui_url: str | None) -> Alert:
    """Return what is told of a failed run."""
    events = [
        entry.dagster_event
        for entry in instance.all_logs(
            run.run_id, of_type={dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
        )
        if entry.dagster_event is not None
    ]
    cause, about = cause_of(events), _about(run.tags)
    job = "a materialization by hand" if run.job_name.startswith("__") else run.job_name
    return Alert(
        key=run.run_id,
        subject=f"Metering: {job} failed" + (f" for {about}" if about else ""),
        cause=cause,
        link=link(ui_url, f"/runs/{run.run_id}"),
        hour=about,
        lane=_lane(run.tags),
        job=job,
        license=license_in(cause),
        run_id=run.run_id,
    )


def link(ui_url: str | None, path: str) -> str:
    """Return where in the UI; the path alone where its address is not known."""
    return f"{ui_url or ''}{path}"


def _about(tags: Mapping[str, str]) -> str | None:
    """Return the run's partition in a person's words."""
    shard = tags.get("metering/shard")
    first, last = tags.get("dagster/asset_partition_range_start"), tags.get("dagster/asset_partition_range_end")
    if shard is not None:
        return f"shard {shard}"
    if first is not None and last is not None:
        return f"{first} to {last}"
    return tags.get("dagster/partition")


def _lane(tags: Mapping[str, str]) -> str:
    by_hand = "by hand, in a backfill" if "dagster/backfill" in tags else "by hand"
    return tags.get("metering/lane", by_hand)


def cause_of(events: Sequence[dg.DagsterEvent]) -> str:
    """Return why a run failed, from its failure events: the words of the first step that failed, else of the run
    itself.

    A step that was only told to stop is not the cause; then the run's own event says who stopped it, and why.
    """
    steps = [event for event in events if event.is_step_failure and not _is_interrupted(event)]
    if steps:
        others = len(steps) - 1
        return _of_step(steps[0]) + (f" (Other steps that failed: {others}.)" if others else "")
    ends = [event for event in events if event.is_run_failure]
    # Who stopped a run may write down a failure of its own beside that of the interrupted worker.
    ends.sort(key=_is_interrupted)
    return _of_run(ends[0]) if ends else _NO_CAUSE


def _is_interrupted(event: dg.DagsterEvent) -> bool:
    return any(error.cls_name in _INTERRUPTED for error in _chain(_error_of(event)))


def _error_of(event: dg.DagsterEvent) -> "SerializableErrorInfo | None":
    """Return the error that the event carries; None of a run that was ended from outside. Whoever does that may give
    the event anything to carry: Dagster looks at that of steps alone.
    """
    from dagster_shared.error import SerializableErrorInfo

    error = getattr(event.event_specific_data, "error", None)
    return error if isinstance(error, SerializableErrorInfo) else None


def _of_run(event: dg.DagsterEvent) -> str:
    words = "" if _is_interrupted(event) else _of_error(_error_of(event))
    return words or (event.message or "").strip() or _NO_CAUSE


def _of_step(event: dg.DagsterEvent) -> str:
    data = event.step_failure_data
    said = data.user_failure_data.description if data.user_failure_data is not None else None
    return said or _of_error(data.error) or (event.message or "").strip() or _NO_CAUSE


def _of_error(error: "SerializableErrorInfo | None") -> str:
    """Return the deepest of our own errors, which are written to be read; else the deepest of all; never a
    traceback.
    """
    chain = _chain(error)
    ours = [found for found in chain if found.cls_name in _family(MeteringError)]
    if ours:
        return re.sub(r"^[\w.]+: ", "", ours[-1].message.strip())
    return chain[-1].message.strip() if chain else ""


def _chain(error: "SerializableErrorInfo | None") -> "list[SerializableErrorInfo]":
    found = []
    while error is not None:
        found.append(error)
        error = error.cause
    return found


def _family(root: type[Exception]) -> set[str]:
    return {root.__name__}.union(*(_family(kind) for kind in root.__subclasses__()))
