"""The billing side of a deployment: database, files and rules, made from the settings.

Belongs here: wiring, made when a run first needs it. Does not: rules, SQL, files.
"""

from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from metering_dagster.billing_changes.rules.watermark import PollRules
from metering_dagster.core.errors import SettingsError
from metering_dagster.settings import Settings

if TYPE_CHECKING:
    from metering_dagster.billing_changes.stores.database import Database
    from metering_dagster.billing_changes.stores.day_files import DayFiles


class Billing:
    """Billing database of one deployment, and the reports made of it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def rules(self) -> PollRules:
        """Return horizon, overlap and waiting times by the settings."""
        return PollRules(
            horizon=timedelta(days=self.settings.billing_horizon_days),
            overlap=timedelta(minutes=self.settings.billing_overlap_minutes),
            quiet=timedelta(seconds=self.settings.billing_quiet_seconds),
        )

    @cached_property
    def database(self) -> "Database":
        """Return the billing database. Raises `SettingsError` if BILLING_DATABASE_URL is not set."""
        from metering_dagster.billing_changes.stores.database import Database

        if self.settings.billing_database_url is None:
            raise SettingsError(
                "Not set: BILLING_DATABASE_URL. Nothing was read. Name the database of the billing tables, "
                "such as mysql+pymysql://USER:PASSWORD@HOST/DATABASE, in the environment of the code location and of "
                "its runs."
            )
        return Database(self.settings.billing_database_url)

    def files(self, storage_directory: str) -> "DayFiles":
        """Return the files of the reports: at BILLING_CHANGES_URI, else beside Dagster's storage."""
        from metering_dagster.billing_changes.stores.day_files import DayFiles

        uri = self.settings.billing_changes_uri or str(Path(storage_directory).parent / "billing_changes")
        return DayFiles(uri, self.settings)
