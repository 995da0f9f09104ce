"""A collector of billing data at work while somebody watches: days are ingested again now and then.

Belongs here: when, and what is made up for after a pause. Does not: which rows (billing_reingest), SQL (billing_db).
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
    """The one that fills the sample's database."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self._rng = random.Random()
        self._again_at = time.monotonic() + AGAIN_SECONDS

    @property
    def url(self) -> str:
        """Return what `BILLING_DATABASE_URL` has to be."""
        return billing_db.url_of(self.database)

    def make_up(self) -> None:
        """The sample at the first start; later the nights that were missed since."""
        billing_db.fill(self.database, generate(datetime.now(UTC)))

    def ingest(self) -> None:
        """Now and then a day of a tenant again, and whatever last night brought; most times nothing."""
        if time.monotonic() < self._again_at:
            return
        self._again_at = time.monotonic() + AGAIN_SECONDS
        now = datetime.now(UTC)
        sample = generate(now)
        billing_db.fill(self.database, sample)
        billing_db.write_again(self.database, again(sample, now, self._rng))
