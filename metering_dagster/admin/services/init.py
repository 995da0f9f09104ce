"""Create the tables and indexes that are missing, and say what differs in those that are there.

Belongs here: the order of looking, creating and waiting, and what two of us at once mean. Does not: what differs
(table_plan), how it is printed (words), the requests that create (dynamodb).

Nothing that exists is changed. A table that was not there when we looked is ours to complete, its TTL included.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from metering_dagster.admin.services.table_plan import (
    Described,
    Difference,
    indexes_of,
    plan,
    throughput_of,
    ttl_difference,
)
from metering_dagster.core.aws import dynamodb
from metering_dagster.core.aws.dynamodb import IndexShape, TableShape
from metering_dagster.core.errors import SettingsError, TableError, UnreachableError
from metering_dagster.core.masking import mask_text
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from metering_dagster.core.aws.clients import Clients
    from metering_dagster.settings import Settings

Progress = Callable[[str, int, int], None]
"""Told what is being done, and how many steps of how many are behind."""

TTL_ATTRIBUTE = "ttl"
_UNTOUCHED = "Nothing that existed was changed; init can be run again."
_LONGEST_PAUSE = 1.0
_TOLD_EVERY = 30.0
"""Seconds after which a wait is told again though nothing has changed."""
_TTL_SETTLES = 2.0
"""Whoever has just created the table switches its TTL on a moment later."""
_APPEARS_WITHIN = 30.0
"""DescribeTable may deny a table for a moment after CreateTable has answered."""
_RIVALRY_ATTEMPTS = 20
_RIVALS = frozenset({"ResourceInUseException", "LimitExceededException"})
"""Somebody else is creating this, or as much as DynamoDB creates at a time: wait and look again."""
_LOST = frozenset({"DELETING", "ARCHIVING", "ARCHIVED", "INACCESSIBLE_ENCRYPTION_CREDENTIALS"})


@dataclass(frozen=True)
class Target:
    """A table that must be there."""

    shape: TableShape
    name: str
    client: "DynamoDBClient"
    ttl: bool = False
    """Whether its items expire by `ttl`."""


@dataclass
class TableReport:
    """The result of `init` for one table."""

    target: Target
    created: bool = False
    """By us; False where somebody else was faster."""
    indexes: list[str] = field(default_factory=list)
    """Those that we added to a table that was there."""
    throughput: dict[str, int] | None = None
    """What each of these was given; None on demand."""
    differs: list[Difference] = field(default_factory=list)


def bring_up(
    settings: "Settings", clients: "Clients", progress: Progress, sleep: Callable[[float], None] = time.sleep
) -> list[TableReport]:
    """Have all three tables as they are needed. All are looked at before the first is created."""
    targets = _targets(settings, clients)
    looked = [(target, _describe(target)) for target in targets]
    reports = []
    for number, (target, found) in enumerate(looked):
        reports.append(_Work(target, partial(_tell, progress, target, number, len(targets)), sleep).bring_up(found))
    progress("all looked at", len(targets), len(targets))
    return reports


def _targets(settings: "Settings", clients: "Clients") -> list[Target]:
    names = _names(settings)
    here = clients.dynamodb()
    there = clients.dynamodb(settings.subscribers_table_region)
    usage, aggregated, subscribers = (str(name) for name in names.values())
    targets = [
        Target(usage_table.SHAPE, usage, here),
        Target(aggregated_table.SHAPE, aggregated, here, ttl=True),
        Target(subscribers_table.SHAPE, subscribers, there),
    ]
    if len({(target.name, target.client.meta.region_name) for target in targets}) < len(targets):
        raise SettingsError(
            f"{', '.join(names)} must name three tables, but name {usage}, {aggregated}, {subscribers}. "
            "Nothing was read or written."
        )
    return targets


def _names(settings: "Settings") -> dict[str, str | None]:
    """Return the tables' names by their settings. The mode is of no account here."""
    names = {
        "USAGE_TABLE": settings.usage_table,
        "AGGREGATED_USAGE_TABLE": settings.aggregated_usage_table,
        "SUBSCRIBERS_TABLE": settings.subscribers_table,
    }
    missing = [setting for setting, name in names.items() if name is None]
    if missing:
        raise SettingsError(f"Not set: {', '.join(missing)}. Nothing was read or written. Name the tables there.")
    return names


def _tell(progress: Progress, target: Target, done: int, total: int, what: str) -> None:
    progress(f"{target.shape.title} {target.name}: {what}", done, total)


class _Explained:
    """A block whose errors of the AWS SDK come out as `MeteringError`s, with DynamoDB's own reason for a refusal."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        target = self.target
        if isinstance(error, ClientError) and _code(error) in ("ResourceNotFoundException", "ValidationException"):
            where = dynamodb.place(target.client, target.name, target.shape)
            said = mask_text(error.response["Error"].get("Message", ""))
            raise TableError(
                f"DynamoDB refuses {error.operation_name} on {where}: {_code(error)}: {said}. {_UNTOUCHED}"
            ) from error
        if isinstance(error, (BotoCoreError, ClientError)):
            raise dynamodb.explain(error, target.client, target.name, target.shape, _UNTOUCHED) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _describe(target: Target) -> Described | None:
    """Return the table as DynamoDB describes it, or None; one that is about to go is an error."""
    with _Explained(target):
        try:
            found: Any = target.client.describe_table(TableName=target.name)["Table"]
        except target.client.exceptions.ResourceNotFoundException:
            return None
    if found["TableStatus"] in _LOST:
        where = dynamodb.place(target.client, target.name, target.shape)
        raise TableError(f"{where} is {found['TableStatus']}. {_UNTOUCHED} Wait until it is gone, or mend it.")
    return found  # type: ignore[no-any-return]


class _Work:
    """One table, from what was found to what is needed."""

    def __init__(self, target: Target, tell: Callable[[str], None], sleep: Callable[[float], None]) -> None:
        self.target, self.tell, self.sleep = target, tell, sleep
        self.report = TableReport(target)

    def bring_up(self, found: Described | None) -> TableReport:
        """Create what is missing, one thing after the other, and look at the rest."""
        self.tell("looking")
        is_new = found is None or found["TableStatus"] == "CREATING"
        if found is None:
            self._create_table()
        found = self._settled()
        attempts = 0
        while missing := plan(found, self.target.shape).missing:
            attempts += 1
            if attempts > _RIVALRY_ATTEMPTS:
                raise UnreachableError(f"{self._place()} does not get its index {missing[0].name}. {_UNTOUCHED}")
            self._create_index(missing[0], found)
            found = self._settled()
        self.report.differs += plan(found, self.target.shape).differs
        if self.target.ttl:
            self._look_at_ttl(is_new)
        return self.report

    def _place(self) -> str:
        return dynamodb.place(self.target.client, self.target.name, self.target.shape)

    def _create_table(self) -> None:
        self.tell("creating it, paid on demand")
        for _ in range(_RIVALRY_ATTEMPTS):
            self.report.created = self._request(
                lambda: dynamodb.create_table(self.target.client, self.target.name, self.target.shape)
            )
            if self.report.created or _describe(self.target) is not None:
                return
        raise UnreachableError(f"{self._place()} cannot be created: others are being created. {_UNTOUCHED}")

    def _create_index(self, index: IndexShape, found: Described) -> None:
        throughput = throughput_of(found)
        self.tell(f"adding its index {index.name}, {price(throughput)}")
        try:
            is_ours = self._request(
                lambda: dynamodb.create_index(self.target.client, self.target.name, index, throughput)
            )
        except TableError:
            if index.name not in indexes_of(self._settled()):  # else a rival has added it since we looked
                raise
            return
        if is_ours:
            self.report.indexes.append(index.name)
            self.report.throughput = throughput

    def _request(self, create: Callable[[], None]) -> bool:
        """Ask for it; False, after a pause, where a rival is in the way: look again."""
        with _Explained(self.target):
            try:
                create()
            except ClientError as error:
                if _code(error) not in _RIVALS:
                    raise
                self.tell("waiting for somebody else who is creating")
                self.sleep(_LONGEST_PAUSE)
                return False
        return True

    def _settled(self) -> Described:
        """Return the table once it is active, with its indexes: nothing can be added to it before."""
        waited, told, said = 0.0, 0.0, ""
        pause = 0.1
        while True:
            found = _describe(self.target)
            state = _unsettled(found)
            if found is not None and not state:
                return found
            if found is None and waited > _APPEARS_WITHIN:
                raise UnreachableError(f"{self._place()} does not appear, though it was created. {_UNTOUCHED}")
            if state != said or waited - told >= _TOLD_EVERY:
                self.tell(f"{state}, {waited:.0f} s" if waited >= 1 else state)
                told, said = waited, state
            self.sleep(pause)
            waited += pause
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _look_at_ttl(self, is_new: bool) -> None:
        difference = self._ttl()
        if difference is None:
            return
        if is_new:
            self.tell("switching its TTL on")
            try:
                with _Explained(self.target):
                    self.target.client.update_time_to_live(
                        TableName=self.target.name,
                        TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL_ATTRIBUTE},
                    )
            except TableError:
                if self._ttl() is not None:  # else a rival was faster
                    raise
            return
        self.tell("looking at its TTL again")
        self.sleep(_TTL_SETTLES)
        difference = self._ttl()
        self.report.differs += [difference] if difference else []

    def _ttl(self) -> Difference | None:
        with _Explained(self.target):
            answer: Any = self.target.client.describe_time_to_live(TableName=self.target.name)
        return ttl_difference(answer["TimeToLiveDescription"], self.target.name, TTL_ATTRIBUTE)


def _unsettled(found: Described | None) -> str:
    """Return what the table is still waiting for, in words; empty once it and all its indexes stand."""
    if found is None:
        return "being created"
    busy = [
        f"its index {name} is {index['IndexStatus']}{' (filling)' if index.get('Backfilling') else ''}"
        for name, index in indexes_of(found).items()
        if index.get("IndexStatus", "ACTIVE") in ("CREATING", "UPDATING")
    ]
    if found["TableStatus"] != "ACTIVE":
        busy.insert(0, f"it is {found['TableStatus']}")
    return ", ".join(busy)


def price(throughput: dict[str, int] | None) -> str:
    """Return how an index that is added to a table is paid for."""
    if throughput is None:
        return "paid on demand: filling it, each write of an item in it, storage"
    read, write = throughput["ReadCapacityUnits"], throughput["WriteCapacityUnits"]
    return (
        f"with {read} read and {write} write units of its own, as the table has; they cost as long as it stands, "
        "and auto scaling is not set up for it"
    )
