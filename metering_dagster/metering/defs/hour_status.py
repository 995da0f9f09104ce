"""What can be looked up about one hour: Dagster's own record of its runs, and the sparse indexes of the tables.

Belongs here: the looking up, for ticks and for whoever asks whether an hour is closed. Does not: what it means
(run_decision).
"""

import dagster as dg

from metering_dagster.core.dagster_history import UNDER_WAY, Metadata, count_of, last_materialization, text_of
from metering_dagster.core.errors import MeteringError
from metering_dagster.metering.defs.metadata import PENDING_AGGREGATES
from metering_dagster.metering.rules.run_decision import LastRun, PendingFound
from metering_dagster.metering.services.deployment import Deployment

METERED, AGGREGATED = dg.AssetKey("metered_usage"), dg.AssetKey("aggregated_usage")


class HourEvidence:
    """One hour's evidence, each thing looked up when it is asked for."""

    def __init__(
        self, instance: dg.DagsterInstance, deployment: Deployment, bucket: str, until: float | None = None
    ) -> None:
        """`until`, by `time.monotonic()`: what could not be counted by then is a look that fails."""
        self.instance, self.deployment, self.bucket, self.until = instance, deployment, bucket, until
        self.doubts: list[str] = []
        """What was found in the event log and not understood, in words for people."""

    def is_running(self) -> bool:
        """Return whether a run of the hour is queued or under way."""
        filters = dg.RunsFilter(tags={"dagster/partition": self.bucket}, statuses=UNDER_WAY)
        return bool(self.instance.get_run_ids(filters, limit=1))

    def last_run(self) -> LastRun | None:
        """Return the last run of the hour that went through in this mode."""
        found = last_materialization(self.instance, METERED, self.bucket)
        if found is None:
            return None
        ended, shown = found
        if text_of(shown, "mode") != self.deployment.mode.value:
            return None  # a run of another mode, or a person who reports one, has closed nothing for this one
        held, zero = self._waiting_rows()
        (aggregates,) = self._counts(METERED, shown, PENDING_AGGREGATES)
        return LastRun(ended, held + zero, aggregates, zero_rows=zero)

    def _waiting_rows(self) -> tuple[int, int]:
        """Return the rows that the last run itself held, and left waiting at zero; whatever else is pending
        came later.
        """
        found = last_materialization(self.instance, AGGREGATED, self.bucket)
        if found is None:
            return 0, 0
        held, zero = self._counts(AGGREGATED, found[1], "held_rows", "zero_rows")
        return held, zero

    def _counts(self, asset: dg.AssetKey, shown: Metadata, *names: str) -> list[int]:
        """Return these counts of the metadata. Where one is none nothing is known to be left: then all that is pending
        is work, and gets a run.
        """
        counts = [count_of(shown, name) for name in names]
        known = [count for count in counts if count is not None]
        if len(known) == len(names):
            return known
        unknown = ", ".join(name for name, count in zip(names, counts, strict=True) if count is None)
        self.doubts.append(
            f"The last materialization of {asset.to_user_string()} of {self.bucket} has no count as its {unknown}, so "
            "no run of this project wrote it. All that is pending in the hour counts as new. Nothing was changed; the "
            "next run of the hour writes it anew."
        )
        return [0] * len(names)

    def pending(self, expected: LastRun | None) -> PendingFound:
        """Return what is pending, counted one beyond what the last run left."""
        rows, aggregates = (expected.pending_rows, expected.pending_aggregates) if expected else (0, 0)
        return self.count(1 + rows, 1 + aggregates)

    def has_commits(self) -> bool:
        """Return whether any group of the hour was committed by us; yes where that cannot be looked up: then a run
        looks.
        """
        from metering_dagster.metering.stores.aggregated_table import has_commits

        try:
            probe = self.deployment.probe.aggregates
            return has_commits(probe.client, probe.table, self.bucket)
        except MeteringError as error:
            self.doubts.append(f"Whether {self.bucket} has commits could not be looked up, so a run looks: {error}")
            return True

    def count(self, most_rows: int, most_aggregates: int) -> PendingFound:
        """Return what is pending, counted no further than that; a look that fails says why."""
        try:
            probe = self.deployment.probe
            rows = probe.rows.count(self.bucket, most_rows, self.until)
            aggregates = probe.aggregates.count(self.bucket, most_aggregates, self.until)
        except MeteringError as error:
            return PendingFound(0, 0, str(error))
        return PendingFound(rows, aggregates)
