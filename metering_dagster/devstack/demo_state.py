"""The files of a rehearsal in `.metering/demo`: tables, bill, ledger, billing data and its reports, and its instant.

Belongs here: their paths, and the settings that point the pipeline at them. Does not: the rehearsal (demo,
billing_demo), the UI on its files (demo_ui).
"""

import json
import shutil
from datetime import datetime
from pathlib import Path

from metering_dagster.core.errors import SettingsError
from metering_dagster.devstack import billing_db

HORIZON_DAYS = 21
"""The horizon of the billing data, shorter than the default: at the first poll each day is a run of half a second."""


class DemoState:
    """Folder of the demo in a project."""

    def __init__(self, root: Path) -> None:
        self.folder = root / ".metering" / "demo"
        self.ledger = self.folder / "ledger"
        self.billing_database = self.folder / "billing.sqlite"
        self.billing_changes = self.folder / "billing_changes"
        self._instant = self.folder / "rehearsed.json"

    def forget(self) -> None:
        """Delete the last rehearsal's files, except tables and bill, which the stack deletes."""
        for file in (self._instant, self.billing_database):
            file.unlink(missing_ok=True)
        for folder in (self.ledger, self.billing_changes):
            shutil.rmtree(folder, ignore_errors=True)

    def remember(self, now: datetime) -> None:
        """Record that a rehearsal of this instant is complete."""
        self._instant.write_text(json.dumps({"now": now.isoformat()}))

    def instant(self) -> datetime:
        """Return the instant of the last complete rehearsal. Raises `SettingsError` if there is none."""
        try:
            return datetime.fromisoformat(json.loads(self._instant.read_text())["now"])
        except FileNotFoundError:
            raise SettingsError(
                f"No demo has run to its end in {self.folder}, so there is nothing to show. Nothing was started. "
                "Run `make demo` first (or `metering-dagster demo`)."
            ) from None

    def settings(self, now: datetime) -> dict[str, str]:
        """Return the settings of metering at this instant, beside those of the stack."""
        return {"METERING_NOW": now.isoformat(), "METERING_LEDGER_URI": str(self.ledger)}

    def billing_settings(self) -> dict[str, str]:
        """Return the settings of the billing part."""
        return {
            "BILLING_DATABASE_URL": billing_db.url_of(self.billing_database),
            "BILLING_CHANGES_URI": str(self.billing_changes),
            "BILLING_HORIZON_DAYS": str(HORIZON_DAYS),
            "BILLING_QUIET_SECONDS": "0",
        }
