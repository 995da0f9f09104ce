"""The IO manager: it stores a day of `billing_changes`, and loads it for assets downstream.

Belongs here: the IO manager. Does not: files (stores/day_files).
"""

from datetime import date
from typing import TYPE_CHECKING, Any

import dagster as dg

from metering_dagster.billing_changes.services.deployment import Billing
from metering_dagster.core.errors import MeteringError

if TYPE_CHECKING:
    import pandas as pd

    from metering_dagster.billing_changes.stores.day_files import DayFiles, Replacement


class DayFilesIOManager(dg.IOManager):
    """IO manager that stores a day's report in its file, and loads it as a pandas DataFrame."""

    def __init__(self, files: "DayFiles") -> None:
        self.files = files

    def handle_output(self, context: dg.OutputContext, obj: "Replacement") -> None:
        """Replace the file that the report was compared with."""
        try:
            self.files.replace(obj)
        except MeteringError as error:
            raise dg.Failure(str(error), allow_retries=error.retryable) from None

    def load_input(self, context: dg.InputContext) -> "pd.DataFrame | dict[str, pd.DataFrame]":
        """Load a day as a DataFrame, or several days by their partition keys. Raises `dg.Failure` for a missing day."""
        if not context.has_asset_partitions:
            raise dg.Failure(
                "billing_changes has one table for each day, and no day was named. Nothing was read. Use a partition.",
                allow_retries=False,
            )
        keys = list(context.asset_partition_keys)
        return self._frame(keys[0]) if len(keys) == 1 else {key: self._frame(key) for key in keys}

    def _frame(self, key: str) -> Any:
        try:
            table = self.files.table(date.fromisoformat(key))
        except MeteringError as error:
            raise dg.Failure(str(error), allow_retries=error.retryable) from None
        if table is None:
            raise dg.Failure(
                f"billing_changes has no file of {key} at {self.files.uri}. Nothing was changed. Materialize that day "
                "of billing_changes first.",
                allow_retries=False,
            )
        return table.to_pandas()


class BillingChangesIO(dg.ConfigurableIOManagerFactory[DayFilesIOManager]):
    """One parquet file for each day, at BILLING_CHANGES_URI; a pandas DataFrame downstream."""

    billing: dg.ResourceDependency[Billing]

    def create_io_manager(self, context: dg.InitResourceContext) -> DayFilesIOManager:
        """Return the IO manager on the files of the deployment that `billing` stands for."""
        assert context.instance is not None  # wherever assets are stored or loaded there is one
        return DayFilesIOManager(self.billing.files(context.instance.storage_directory()))
