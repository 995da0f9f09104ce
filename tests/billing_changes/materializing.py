"""A day reported without Dagster, for tests of what is done with reports."""

from datetime import date

from metering_dagster.billing_changes.rules.cells import cells_of
from metering_dagster.billing_changes.rules.day_diff import report
from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.billing_changes.stores.day_files import Replacement
from metering_dagster.settings import Settings


def materialize(settings: Settings, day: date) -> None:
    """What a run of `billing_changes` does for a day."""
    billing = Billing(settings)
    files = billing.files("")
    found = files.read(day)
    with billing.database.reading() as reading:
        claims = reading.claims()
        cells = cells_of(reading.pieces_of([day], claims, amounts=True), claims)
    done = report(day, cells, claims, reading.now, found.report if found else None)
    files.replace(Replacement(done, found.generation if found else None))
    billing.database.close()
