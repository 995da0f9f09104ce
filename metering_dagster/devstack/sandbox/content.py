"""The content of one call, read without judging it: for the log of calls and for faults by content. Pure.

Belongs here: a reading that accepts any JSON. Does not: whether a call is acceptable (rules.py).
"""

from dataclasses import dataclass
from typing import Any

from metering_dagster.devstack.sandbox.rules import bucket, hour_of


@dataclass(frozen=True)
class Content:
    """Content of a request, as far as it can be read."""

    records: int = 0
    product_code: str = ""
    dimensions: frozenset[str] = frozenset()
    licenses: frozenset[str] = frozenset()
    hours: tuple[str, ...] = ()


def content_of(request: Any) -> Content:
    """Read the content of a parsed body, whatever JSON it is."""
    body = request if isinstance(request, dict) else {}
    listed = body.get("UsageRecords")
    records = listed if isinstance(listed, list) else []
    readable = [record for record in records if isinstance(record, dict)]
    hours = {hour for record in readable if (hour := hour_of(record.get("Timestamp")))}
    product_code = body.get("ProductCode")
    return Content(
        records=len(records),
        product_code=product_code if isinstance(product_code, str) else "",
        dimensions=_texts(readable, "Dimension"),
        licenses=_texts(readable, "LicenseArn"),
        hours=tuple(bucket(hour) for hour in sorted(hours)),
    )


def _texts(records: list[dict[str, Any]], name: str) -> frozenset[str]:
    return frozenset(value for record in records if isinstance(value := record.get(name), str))
