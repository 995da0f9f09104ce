"""What can be looked up about one hour: Dagster's own record of its runs, and the sparse indexes of the tables.

Belongs here: the looking up, for ticks and for whoever asks whether an hour is closed. Does not: what it means (ticks).
"""

from collections.abc import Mapping

import dagster as dg

from metering_dagster.errors import MeteringError
from metering_dagster.history import UNDER_WAY, last_materialization
from metering_dagster.metering.deployment import Deployment
from metering_dagster.metering.metadata import PENDING_AGGREGATES
from metering_dagster.metering.ticks import LastRun, Pending

METERED, AGGREGATED = dg.AssetKey("metered_usage"), dg.AssetKey("aggregated_usage")


class HourEvidence:
    """One hour's evidence, each thing looked up when it is asked for."""

    def __init__(
        self, instance: dg.DagsterInstance, deployment: Deployment, bucket: str, until: float | None = None
    ) -> None:
        """`until`, by `time.monotonic()`: what could not be counted by then is a look that fails."""
        self.instance, self.deployment, self.bucket, self.until = instance, deployment, bucket, until

    def is_running(self) -> bool:
        """Whether a run of the hour is queued or under way."""
        filters = dg.RunsFilter(tags={"dagster/partition": self.bucket}, statuses=UNDER_WAY)
        return bool(self.instance.get_run_ids(filters, limit=1))

    def last_run(self) -> LastRun | None:
        """The last run of the hour that went through in this mode."""
        found = last_materialization(self.instance, METERED, self.bucket)
        if found is None:
            return None
        ended, shown = found
        if str(shown["mode"].value if "mode" in shown else "") != self.deployment.mode.value:
            return None  # a run of another mode has closed nothing for this one
        held, zero = self._waiting_rows()
        return LastRun(ended, held + zero, _number(shown, PENDING_AGGREGATES), zero_rows=zero)

    def _waiting_rows(self) -> tuple[int, int]:
        """The rows that the last run itself held, and left waiting at zero; whatever else is pending came later."""
        found = last_materialization(self.instance, AGGREGATED, self.bucket)
        return (_number(found[1], "held_rows"), _number(found[1], "zero_rows")) if found else (0, 0)

    def pending(self, expected: LastRun | None) -> Pending:
        """What is pending, counted one beyond what the last run left."""
        rows, aggregates = (expected.pending_rows, expected.pending_aggregates) if expected else (0, 0)
        return self.count(1 + rows, 1 + aggregates)

    def count(self, most_rows: int, most_aggregates: int) -> Pending:
        """What is pending, counted no further than that; a look that fails says why."""
        try:
            probe = self.deployment.probe
            rows = probe.rows.count(self.bucket, most_rows, self.until)
            aggregates = probe.aggregates.count(self.bucket, most_aggregates, self.until)
        except MeteringError as error:
            return Pending(0, 0, str(error))
        return Pending(rows, aggregates)


def _number(shown: Mapping[str, dg.MetadataValue], name: str) -> int:
    found = shown.get(name)
    return int(str(found.value)) if found else 0
