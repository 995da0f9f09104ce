"""The endings in a sample: usage that was not metered in time, and a buyer who leaves. Pure.

Belongs here: their rows, and the lifecycle event of the leaving buyer. Does not: metering them (demo), the ordinary day
(sample).
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from metering_dagster.core.hours import hour_at_offset
from metering_dagster.devstack.sample import DEFAULT_SEED, SampleKind, SampleRow, Stream, cast_of, row_at, subscriber_of

STALE_OFFSETS = (25, 30)
STALE_GROUPS, STALE_ROWS = 3, 4
NOTICE = timedelta(minutes=10)
"""The time from the flush of the buyer's last usage to the rehearsal's instant."""
SINCE_EVENT = timedelta(minutes=55)
"""The time from the license's deprovisioning to that flush: its window closes five minutes after the flush."""


@dataclass(frozen=True)
class Departure:
    """Buyer who leaves: the license, its usage to the last minute, the event."""

    subscriber: Mapping[str, Any]
    rows: tuple[SampleRow, ...]
    flushed_at: datetime
    deprovisioned_at: datetime

    @property
    def license_arn(self) -> str:
        """Return the ARN of the license that ends."""
        return str(self.subscriber["licenseArn"])

    def event(self) -> str:
        """Return the lifecycle event as EventBridge delivers it, in JSON."""
        return json.dumps({
            "detail-type": "License Deprovisioned - Manufacturer",
            "time": f"{self.deprovisioned_at:%Y-%m-%dT%H:%M:%SZ}",
            "detail": {
                "acceptor": {"accountId": self.subscriber["customerAWSAccountId"]},
                "agreement": {"id": self.subscriber["agreementId"]},
                "license": {"arn": self.license_arn},
                "product": {"code": self.subscriber["productCode"]},
            },
        })  # fmt: skip


def departure(now: datetime, seed: int = DEFAULT_SEED) -> Departure:
    """Generate a leaving buyer with usage in three hours: the hour of the flush, and the two before it."""
    rng = random.Random(f"{seed}/departure")
    stream = next(each for each in cast_of(seed).streams if each.license.customer_identifier is None)
    arn, account = (
        f"arn:aws:license-manager::{rng.randrange(10**11, 10**12)}:license:l-{rng.randbytes(16).hex()}",
        str(rng.randrange(10**11, 10**12)),
    )
    held = replace(stream.license, arn=arn, account=account, agreement=f"agmt-{rng.randbytes(12).hex()}")
    leaving = Stream(held, stream.dimension, stream.peak, allocated=False)
    flushed_at = now - NOTICE
    ago = [timedelta(hours=hours, seconds=second) for hours in (2, 1, 0) for second in (40, 20, 1)]
    seconds = sorted({(flushed_at - each).replace(microsecond=0) for each in ago})
    rows = tuple(row_at(rng, leaving, second.astimezone(UTC), flushed_at) for second in seconds)
    return Departure(subscriber_of(held, now), rows, flushed_at, (flushed_at - SINCE_EVENT).replace(microsecond=0))


def stale_rows(now: datetime, seed: int = DEFAULT_SEED) -> tuple[SampleRow, ...]:
    """Generate usage of hours that left their window unmetered."""
    rng = random.Random(f"{seed}/stale")
    streams = [each for each in cast_of(seed).streams if each.license.customer_identifier is None]
    rows = []
    for offset in STALE_OFFSETS:
        for stream in rng.sample(streams, STALE_GROUPS):
            for second in sorted(rng.sample(range(3600), STALE_ROWS)):
                row = row_at(rng, stream, hour_at_offset(now, offset) + timedelta(seconds=second), now)
                rows.append(replace(row, kind=SampleKind.STALE))
    return tuple(rows)
