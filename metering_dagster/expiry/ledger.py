"""The ledger's files of a sweep: one for each hour in which something ended.

Belongs here: opening and closing them, one at a time. Does not: what is told (sweep), the files themselves (ledger).
"""

from collections.abc import Callable
from typing import Self

from metering_dagster.errors import MeteringError
from metering_dagster.ledger.entries import Entry
from metering_dagster.ledger.files import LedgerFile


class SweepLedger:
    """Tells of one hour after another. A place that cannot be written ends no sweep: `fault` says so afterwards."""

    def __init__(self, open_file: Callable[[str], LedgerFile]) -> None:
        """`open_file` makes the file of an hour."""
        self._open_file = open_file
        self._file: LedgerFile | None = None
        self.fault: str | None = None
        """Why a file is missing, if one is: the first of them."""
        self.files = 0
        """Files that were written."""

    def tell(self, bucket: str, entry: Entry) -> None:
        """Add what ended in this hour; hours come one after the other, and none comes twice."""
        if self._file is None or self._file.bucket != bucket:
            self._close()
            self._file = self._open_file(bucket)
        self._file.tell(entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """What was done is told, also where the sweep broke off."""
        self._close()

    def _close(self) -> None:
        if self._file is None:
            return
        try:
            self.files += self._file.close() is not None
        except MeteringError as fault:
            self.fault = self.fault or str(fault)
        self._file = None
