"""What the steps of an hour tell the ledger, and what it remembers of earlier runs.

Belongs here: which file a step tells in, that an unwritable one stops no billing. Does not: what is told
(ledger_entries), the files themselves (sweep_ledger).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import dagster as dg

from metering_dagster.core.errors import MeteringError
from metering_dagster.ledger.rules.entries import Entry, HourSummary
from metering_dagster.ledger.services.hour_summary import standing_of_hour
from metering_dagster.ledger.stores.files import LedgerFile

if TYPE_CHECKING:
    from metering_dagster.metering.services.deployment import Deployment


def ledger_file(
    context: dg.OpExecutionContext, deployment: "Deployment", hour: str, found_in: str | None = None
) -> LedgerFile:
    """Return the file in which this step tells what ended; a step that is tried again tells in a file of its own.

    `found_in` is the hour that was visited, where that is another one: the run may visit `hour` as well (a flush does).
    """
    again = f"-{context.retry_number}" if context.retry_number else ""
    elsewhere = f"-found-in-{found_in}" if found_in and found_in != hour else ""
    name = f"{context.run_id}-{context.op.name}{again}{elsewhere}"
    ledger = deployment.ledger(context.instance.storage_directory())
    return ledger.file(hour, name, deployment.mode.value, context.run_id)


class Telling:
    """The ledger's files of a step that comes before the submission: where they cannot be written, billing goes on.

    One file; and one more for each other hour whose usage was found under this one, and is lost.
    """

    def __init__(self, context: dg.OpExecutionContext, deployment: "Deployment", hour: str) -> None:
        self.context, self.deployment, self.hour = context, deployment, hour
        self.files: dict[str, LedgerFile] = {}

    def __enter__(self) -> Callable[[Entry], None]:
        """Return who hears of what ended: in shadow mode nobody, for nothing did."""
        return self._tell if self.deployment.tables.writes else lambda _: None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for file in self.files.values():
            try:
                file.close()
            except MeteringError as fault:
                self.context.log.error(str(fault))

    def _tell(self, entry: Entry) -> None:
        hour = entry.bucket or self.hour
        if hour not in self.files:
            self.files[hour] = ledger_file(self.context, self.deployment, hour, self.hour)
        self.files[hour].tell(entry)


def standing_so_far(context: dg.OpExecutionContext, deployment: "Deployment", hour: str) -> HourSummary:
    """Return what all runs of the hour so far left behind; nothing, with a warning, where the ledger cannot be read."""
    try:
        return standing_of_hour(deployment.ledger(context.instance.storage_directory()), hour)
    except MeteringError as error:
        context.log.warning(f"The checks speak of this run alone. {error}")
        return HourSummary()
