"""The kind of quantity that is sent (domain: what metering is). Pure."""

from decimal import Decimal
from enum import StrEnum


class Quantities(StrEnum):
    """`METERING_QUANTITIES`: which of the API's two kinds of quantity is sent."""

    DECIMAL = "decimal"
    INTEGER = "integer"

    @property
    def limit(self) -> Decimal:
        """Return the largest quantity of one record."""
        return Decimal("9999999999.999999") if self is Quantities.DECIMAL else Decimal(2147483647)
