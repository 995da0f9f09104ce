"""The ledger's files of a sweep: one for each hour in which something ended.

Belongs here: opening and closing them, one at a time. Does not: what is told (sweep), the files themselves
(sweep_ledger).
"""

from collections.abc import Callable
from typing import Self

from metering_dagster.core.errors import MeteringError
from metering_dagster.ledger.rules.entries import Entry
from metering_dagster.ledger.stores.files import LedgerFile

NO_HOUR = ""
"""Stands for the hour of what was filed where no Query looks."""


class SweepLedger:
    """Tells of one hour after another. A place that cannot be written ends no sweep: `fault` says so afterwards."""

    def __init__(self, open_file: Callable[[str, str | None], LedgerFile]) -> None:
        """`open_file` makes the file of an hour; of what was found elsewhere, if that is named."""
        self._open_file = open_file
        self._file: LedgerFile | None = None
        self._elsewhere: dict[str, LedgerFile] = {}
        """By hour, the files of what was filed where no Query looks."""
        self.fault: str | None = None
        """Why a file is missing, if one is: the first of them."""
        self.files = 0
        """Files that were written."""

    def tell(self, bucket: str, entry: Entry) -> None:
        """Add what ended in this hour; hours come one after the other, and none comes twice.

        `NO_HOUR` for what was filed where no Query looks: it is told in the hour that the entry names.
        """
        if bucket == NO_HOUR:
            if entry.bucket not in self._elsewhere:
                self._elsewhere[entry.bucket] = self._open_file(entry.bucket, "no-hour")
            self._elsewhere[entry.bucket].tell(entry)
            return
        if self._file is None or self._file.bucket != bucket:
            self._close()
            self._file = self._open_file(bucket, None)
        self._file.tell(entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """What was done is told, also where the sweep broke off."""
        self._close()
        for file in self._elsewhere.values():
            self._close_file(file)

    def _close(self) -> None:
        if self._file is not None:
            self._close_file(self._file)
        self._file = None

    def _close_file(self, file: LedgerFile) -> None:
        try:
            self.files += file.close() is not None
        except MeteringError as fault:
            self.fault = self.fault or str(fault)
