"""A seller, in a process of its own: it writes usage without a pause, while others meter it and are killed.

Belongs here: what it writes (on time, late, over its own rows, bad and mended rows, finished totals) and its journal.
Does not: whether it is billed rightly (judge). Rows are written down here once more, as the reference pipeline has
them, so that a wrong name in the project shows.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import boto3
from botocore.config import Config

from tests.crash.journal import PENDING, RowKey, Written, note

PAUSE_SECONDS = 0.01
TEAMS = (None, "red", "blue")
LATE_HOURS, VERY_LATE_HOURS = (1, 6), (26, 60)
MENDED_WITHIN_HOURS = 18
OVERWRITTEN_WITHIN_HOURS = 6
GOES_ON = timedelta(minutes=30)
"""How long a buyer whose license has ended still uses something: its last usage has half an hour to be billed."""
DIMENSIONS = ("calls", "gpu#a100", "storage")
FAULTY, IDLE, TOTALS = "exports", "idle", "totals"
"""Dimensions of bad rows, of zeros, of finished totals: what is wrong in one group is not to hold all."""
FAULTS: Mapping[str, Any] = {
    "NonNumericQuantity": {"S": "many"}, "NegativeQuantity": {"N": "-3.5"}, "TooManyDecimals": {"N": "0.1234567"},
    "MissingQuantity": None,
}  # fmt: skip
STOP = "stop"
_WEIGHTS = {
    "on_time": 60, "late": 10, "over": 12, "burst": 1.2, "bad": 2.5, "mend": 1.5, "misfiled": 1, "zero": 1,
    "total": 0.7, "very_late": 0.7,
}  # fmt: skip


@dataclass(frozen=True)
class Contract:
    """Where a seller writes, and for whom."""

    url: str
    usage_table: str
    aggregated_table: str
    buyers: Mapping[str, str]
    """Account by license."""
    journal: Path
    seed: int
    backlog: int = 300
    """Rows that it has before anybody meters."""


@dataclass
class Seller:
    """Its memory: what it wrote last at each key."""

    contract: Contract
    client: Any
    file: IO[str]
    chance: random.Random
    now: datetime
    ended: dict[str, datetime] = field(default_factory=dict)
    rows: dict[RowKey, Written] = field(default_factory=dict)
    recent: list[RowKey] = field(default_factory=list)
    bad: list[RowKey] = field(default_factory=list)
    totals: set[RowKey] = field(default_factory=set)

    def begin(self) -> None:
        """A day of usage that nobody has metered yet, some of it out of its window already."""
        for _ in range(self.contract.backlog):
            back = self.chance.choice([*range(24), *range(24), 25, 30])
            self._put(self._fresh(self.chance.choice(DIMENSIONS), back))
        for back in (1, 3, 20, 21, 22, 23):
            self._bad(back)
            self._put(self._fresh(FAULTY, back))
            self._put(replace(self._fresh(IDLE, back), used="0", team=None))

    def act(self) -> None:
        """Write something."""
        (what,) = self.chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        getattr(self, f"_{what}")()

    def _on_time(self) -> None:
        self._put(self._fresh(self.chance.choice(DIMENSIONS), 0))

    def _late(self) -> None:
        self._put(self._fresh(self.chance.choice(DIMENSIONS), self.chance.randint(*LATE_HOURS)))

    def _very_late(self) -> None:
        self._put(self._fresh(self.chance.choice(DIMENSIONS), self.chance.randint(*VERY_LATE_HOURS)))

    def _zero(self) -> None:
        self._put(replace(self._fresh(IDLE, self.chance.randint(0, 3)), used="0", team=None))

    def _misfiled(self) -> None:
        row = self._fresh(self.chance.choice(DIMENSIONS), 0)
        self._put(row, filed=self._hour(self.chance.randint(1, 5)))

    def _over(self) -> None:
        """Another quantity for a row, or the same row again."""
        old = self.rows[self.chance.choice(self.recent[-400:])]
        if old.fault or self._is_gone(old.license) or self._hours_back(old) > OVERWRITTEN_WITHIN_HOURS:
            return
        self._put(replace(old, used=old.used if self.chance.random() < 0.4 else self._quantity()))

    def _burst(self) -> None:
        """More rows of one group than a transaction holds, in a few requests."""
        template = self._fresh(self.chance.choice(DIMENSIONS), self.chance.randint(0, 1))
        rows = []
        for second in self.chance.sample(range(3600), self.chance.randint(60, 220)):
            row = replace(template, timestamp=_timestamp(template.hour, second), used=self._quantity())
            if row.key not in self.rows:
                rows.append(row)
        for start in range(0, len(rows), 25):
            these = rows[start : start + 25]
            puts = [{"PutRequest": {"Item": _item(row, row.hour)}} for row in these]
            answer = self.client.batch_write_item(RequestItems={self.contract.usage_table: puts})
            assert not answer["UnprocessedItems"]
            for row in these:
                self._remember(row)

    def _bad(self, back: int | None = None) -> None:
        row = self._fresh(FAULTY, self.chance.randint(0, 2) if back is None else back)
        self._put(replace(row, fault=self.chance.choice(list(FAULTS)), team=None))
        self.bad.append(row.key)
        for _ in range(self.chance.randint(0, 2)):
            self._put(replace(self._fresh(FAULTY, 0), license=row.license, account=row.account))

    def _mend(self) -> None:
        """Put a bad row right, or take it away."""
        if not self.bad:
            return
        old = self.rows[self.bad.pop(self.chance.randrange(len(self.bad)))]
        if self._is_gone(old.license) or self._hours_back(old) > MENDED_WITHIN_HOURS:
            return
        if self.chance.random() < 0.7:
            self._put(replace(old, fault=None, used=self._quantity()))
        else:
            key = {"licenseArn": {"S": old.key[0]}, _SORT: {"S": old.key[1]}}
            answer = self.client.delete_item(
                TableName=self.contract.usage_table, Key=key, ReturnValues="ALL_OLD"
            )  # fmt: skip
            self._remember(replace(old, deletes=True, before=_state(answer)))

    def _total(self) -> None:
        row = self._fresh(TOTALS, self.chance.randint(1, 4))
        total = replace(row, timestamp=row.hour, is_total=True, team=None)
        if total.key in self.totals:
            return
        self.totals.add(total.key)
        item = _item(total, total.hour)
        item["account_dimension_hour"] = item.pop(_SORT)
        item["hourBucket"] = item.pop("timestamp")
        self.client.put_item(TableName=self.contract.aggregated_table, Item=item)
        note(self.file, self._dated(total))

    def _put(self, row: Written, filed: str | None = None) -> None:
        answer = self.client.put_item(
            TableName=self.contract.usage_table, Item=_item(row, filed or row.hour), ReturnValues="ALL_OLD"
        )
        self._remember(replace(row, before=_state(answer)))

    def _remember(self, row: Written) -> None:
        row = self._dated(row)
        note(self.file, row)
        if row.key not in self.rows:
            self.recent.append(row.key)
        self.rows[row.key] = row

    def _dated(self, row: Written) -> Written:
        return replace(row, at=self.now.isoformat())

    def _fresh(self, dimension: str, back: int) -> Written:
        """A row of somebody's at a second that has none yet."""
        while True:
            license = self.chance.choice([arn for arn in self.contract.buyers if not self._is_gone(arn)])
            timestamp = _timestamp(self._hour(back), self.chance.randrange(3600))
            account = self.contract.buyers[license]
            row = Written(
                license, account, dimension, timestamp, self._quantity(), "", team=self.chance.choice(TEAMS),
            )  # fmt: skip
            if row.key not in self.rows:
                return row

    def _quantity(self) -> str:
        return str(Decimal(self.chance.randint(1, 40_000_000)).scaleb(-6))

    def _hour(self, back: int) -> str:
        return f"{self.now - timedelta(hours=back):%Y-%m-%dT%H}"

    def _hours_back(self, row: Written) -> int:
        return replace(row, at=self.now.isoformat()).hours_late

    def _is_gone(self, license: str) -> bool:
        return license in self.ended and self.now >= self.ended[license] + GOES_ON


_SORT = "customerAWSAccountId_dimension_timestamp"


def _timestamp(hour: str, second: int) -> str:
    return f"{hour}:{second // 60:02}:{second % 60:02}"


def _state(answer: Mapping[str, Any]) -> str | None:
    """How the row stood that was replaced."""
    old = answer.get("Attributes")
    if not old:
        return None
    return PENDING if "meteringPending" in old else str(old["meteringStatus"]["S"])


def _item(row: Written, filed: str) -> dict[str, Any]:
    item: dict[str, Any] = {
        "licenseArn": {"S": row.license}, _SORT: {"S": row.key[1]}, "customerAWSAccountId": {"S": row.account},
        "dimension": {"S": row.dimension}, "timestamp": {"S": row.timestamp}, "meteringPending": {"S": filed},
        "quantity": FAULTS[row.fault] if row.fault else {"N": row.used},
    }  # fmt: skip
    if item["quantity"] is None:
        del item["quantity"]
    if row.team is not None:
        tags = {"L": [{"M": {"Key": {"S": "team"}, "Value": {"S": row.team}}}]}
        part = {"M": {"AllocatedUsageQuantityAsDecimal": {"S": row.used}, "Tags": tags}}
        item["usageAllocations"] = {"L": [part]}
    return item


def sell(pipe: Connection, contract: Contract, now: datetime) -> None:
    """Write until told to stop. A clock that comes through the pipe is acknowledged: what follows goes by it."""
    client = boto3.client(
        "dynamodb", endpoint_url=contract.url, region_name="us-east-1", aws_access_key_id="local",
        aws_secret_access_key="local", config=Config(proxies={}),
    )  # fmt: skip
    with contract.journal.open("a") as file:
        seller = Seller(contract, client, file, random.Random(contract.seed), now)
        seller.begin()
        pipe.send(len(seller.rows))
        while True:
            if pipe.poll(PAUSE_SECONDS):
                said = pipe.recv()
                if said == STOP:
                    pipe.send(len(seller.rows))
                    said = pipe.recv()  # until it is to go on
                seller.now, seller.ended = said
                pipe.send(len(seller.rows))
            seller.act()
