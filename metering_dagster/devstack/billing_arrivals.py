"""The collector of billing data while `metering-dagster dev` runs: it ingests days again now and then.

Belongs here: the times of ingests, and the catch-up after a pause. Does not: which rows (billing_reingest), SQL
(billing_db).
"""

import random
import time
from datetime import UTC, datetime
from pathlib import Path

from metering_dagster.devstack import billing_db
from metering_dagster.devstack.billing_reingest import again
from metering_dagster.devstack.billing_sample import generate

AGAIN_SECONDS = 150.0


class Collector:
    """Collector that fills the sample's database."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self._rng = random.Random()
        self._again_at = time.monotonic() + AGAIN_SECONDS

    @property
    def url(self) -> str:
        """Return the `BILLING_DATABASE_URL` of the sample's database."""
        return billing_db.url_of(self.database)

    def catch_up(self) -> None:
        """Load the sample at the first start; later the nights since the last start."""
        billing_db.fill(self.database, generate(datetime.now(UTC)))

    def ingest(self) -> None:
        """Ingest a tenant's day again, and the last night's new rows, every `AGAIN_SECONDS`; else do nothing."""
        if time.monotonic() < self._again_at:
            return
        self._again_at = time.monotonic() + AGAIN_SECONDS
        now = datetime.now(UTC)
        sample = generate(now)
        billing_db.fill(self.database, sample)
        billing_db.write_again(self.database, again(sample, now, self._rng))
