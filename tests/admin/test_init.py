"""`metering-dagster init`: it creates what is missing, changes nothing that exists, and says what differs."""

import json
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from botocore.config import Config
from click.testing import CliRunner, Result

from metering_dagster.admin.services import init as operations_init
from metering_dagster.admin.services.init import TableReport, bring_up
from metering_dagster.admin.services.table_plan import plan, throughput_of, ttl_difference
from metering_dagster.cli import main
from metering_dagster.core.aws import clients
from metering_dagster.core.aws.clients import Clients
from metering_dagster.core.aws.dynamodb import IndexShape, TableShape, create_table, shape_faults
from metering_dagster.core.errors import SettingsError, TableError, UnreachableError
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table
from metering_dagster.settings import Settings
from tests.items import a_usage
from tests.world import World

SHAPES = {"usage": usage_table.SHAPE, "aggregated": aggregated_table.SHAPE, "subscribers": subscribers_table.SHAPE}
SETTINGS = {"usage": "USAGE_TABLE", "aggregated": "AGGREGATED_USAGE_TABLE", "subscribers": "SUBSCRIBERS_TABLE"}


class Account:
    """An account on the emulator with none of the tables yet, and somebody who runs init in it."""

    def __init__(self, world: World) -> None:
        self.client: Any = world.client
        prefix = uuid.uuid4().hex[:12]
        self.names = {kind: f"{prefix}-{kind}" for kind in SHAPES}
        self.told: list[str] = []
        self.slept: list[float] = []
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._hooks: list[tuple[str, Callable[..., object]]] = []
        self._clients: list[Any] = []

    def close(self) -> None:
        for client in self._clients:
            client.close()

    @property
    def settings(self) -> Settings:
        return Settings(
            usage_table=self.names["usage"],
            aggregated_usage_table=self.names["aggregated"],
            subscribers_table=self.names["subscribers"],
        )

    @property
    def environment(self) -> dict[str, str]:
        return {SETTINGS[kind]: name for kind, name in self.names.items()}

    def on(self, event: str, hook: Callable[..., object]) -> None:
        """Call this on an event of every client that init makes from now on."""
        self._hooks.append((event, hook))

    def init(self) -> dict[str, TableReport]:
        """Run it without waiting; the reports by kind of table."""
        account = self

        class Hooked(Clients):
            def dynamodb(self, region: str | None = None) -> Any:
                client = super().dynamodb(region)
                for event, hook in account._hooks:
                    client.meta.events.register(event, hook)
                client.meta.events.register("before-parameter-build.dynamodb", account._note)
                account._clients.append(client)
                return client

        reports = bring_up(
            self.settings, Hooked(self.settings), lambda what, *_: self.told.append(what), self.slept.append
        )
        return dict(zip(SHAPES, reports, strict=True))

    def _note(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.requests.append((model.name, params))

    def asked(self, operation: str) -> list[dict[str, Any]]:
        """What init asked for by this operation."""
        return [params for name, params in self.requests if name == operation]

    def create(self, kind: str, **changes: Any) -> None:
        """A table as it should be, but for these changes."""
        create_table(self.client, self.names[kind], replace(SHAPES[kind], **changes))

    def without_indexes(self, kind: str, **changes: Any) -> None:
        """A table that has only its keys."""
        shape = SHAPES[kind]
        keys = [(shape.hash_key, "HASH"), (shape.range_key, "RANGE")]
        self.client.create_table(
            TableName=self.names[kind],
            KeySchema=[{"AttributeName": name, "KeyType": kind_of_key} for name, kind_of_key in keys],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in keys],
            **({"BillingMode": "PAY_PER_REQUEST"} | changes),
        )

    def ttl_on(self, attribute: str = "ttl") -> None:
        self.client.update_time_to_live(
            TableName=self.names["aggregated"],
            TimeToLiveSpecification={"Enabled": True, "AttributeName": attribute},
        )

    def create_all(self) -> None:
        for kind in SHAPES:
            self.create(kind)
        self.ttl_on()

    def described(self, kind: str) -> Any:
        return self.client.describe_table(TableName=self.names[kind])["Table"]

    def everything(self) -> list[Any]:
        """All that init could have changed."""
        ttl = self.client.describe_time_to_live(TableName=self.names["aggregated"])["TimeToLiveDescription"]
        return [*(self.described(kind) for kind in SHAPES), ttl]

    def index(self, kind: str, name: str) -> Any:
        return next(index for index in self.described(kind)["GlobalSecondaryIndexes"] if index["IndexName"] == name)

    def run(self, *arguments: str, **environment: str) -> Result:
        """The command itself."""
        return CliRunner().invoke(main, ["init", *arguments], env=self.environment | environment)


@pytest.fixture
def account(world) -> Iterator[Account]:
    ours = Account(world)
    yield ours
    ours.close()


def differences(reports: dict[str, TableReport]) -> str:
    return "; ".join(each.what for report in reports.values() for each in report.differs)


# Creating.


def test_an_empty_account_gets_all_three_tables(account):
    reports = account.init()
    assert all(report.created for report in reports.values())
    assert differences(reports) == ""
    for kind, shape in SHAPES.items():
        assert shape_faults(account.client, account.names[kind], shape) == []
        assert plan(account.described(kind), shape).missing == ()
        assert account.described(kind)["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = account.client.describe_time_to_live(TableName=account.names["aggregated"])["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "ttl")


def test_run_again_it_does_nothing(account):
    account.init()
    before = account.everything()
    account.requests.clear()
    reports = account.init()
    assert {name for name, _ in account.requests} == {"DescribeTable", "DescribeTimeToLive"}
    assert not any(report.created or report.indexes or report.differs for report in reports.values())
    assert account.everything() == before


def test_what_was_created_can_be_metered_in(account, world):
    account.init()
    world.names = account.names
    world.configure(usage_table=account.names["usage"], aggregated_usage_table=account.names["aggregated"],
                    subscribers_table=account.names["subscribers"])  # fmt: skip
    world.put(a_usage(0, "5"))
    world.visit()
    assert list(world.billed().values()) == ["5"]


def test_subscribers_are_created_in_their_own_region(account, monkeypatch):
    regions = []
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    account.on("before-sign.dynamodb.CreateTable", lambda request, region_name, **_: regions.append(region_name))
    account.init()
    assert regions == ["eu-central-1", "eu-central-1", "us-east-1"]


def test_missing_indexes_are_added_one_at_a_time(account):
    account.create_all()
    account.client.delete_table(TableName=account.names["subscribers"])
    account.without_indexes("subscribers")
    reports = account.init()
    wanted = [index.name for index in SHAPES["subscribers"].indexes]
    assert reports["subscribers"].indexes == wanted
    assert not reports["subscribers"].created
    asked = account.asked("UpdateTable")
    assert [len(each["GlobalSecondaryIndexUpdates"]) for each in asked] == [1, 1, 1]
    assert all("ProvisionedThroughput" not in each["GlobalSecondaryIndexUpdates"][0]["Create"] for each in asked)
    assert shape_faults(account.client, account.names["subscribers"], SHAPES["subscribers"]) == []
    between = [name for name, _ in account.requests if name in ("UpdateTable", "DescribeTable")]
    assert "UpdateTable, UpdateTable" not in ", ".join(between), "it is awaited before the next one"


def test_an_index_of_a_provisioned_table_gets_the_tables_own_throughput(account):
    account.without_indexes(
        "usage", BillingMode="PROVISIONED", ProvisionedThroughput={"ReadCapacityUnits": 7, "WriteCapacityUnits": 3}
    )
    reports = account.init()
    units = {"ReadCapacityUnits": 7, "WriteCapacityUnits": 3}
    (asked,) = account.asked("UpdateTable")
    assert asked["GlobalSecondaryIndexUpdates"][0]["Create"]["ProvisionedThroughput"] == units
    assert reports["usage"].throughput == units
    assert any("7 read and 3 write units" in what for what in account.told), "what it costs is said beforehand"


def test_items_are_left_alone(account, world):
    world.names = account.names
    account.without_indexes("usage")
    world.put(a_usage(0, "5"))
    before = world.item(a_usage(0))
    account.init()
    assert world.item(a_usage(0)) == before


# Waiting.


def busy(table: str, times: int, **state: Any) -> Callable[..., None]:
    """DynamoDB says so about this table so often, then what is true."""
    left = [times]

    def hook(parsed: dict[str, Any], **_: Any) -> None:
        if parsed.get("Table", {}).get("TableName") == table and left[0]:
            left[0] -= 1
            parsed["Table"].update(state)

    return hook


def test_a_table_is_awaited_until_it_is_active(account):
    account.on("after-call.dynamodb.DescribeTable", busy(account.names["aggregated"], 3, TableStatus="CREATING"))
    reports = account.init()
    assert reports["aggregated"].created
    assert len(account.slept) == 3
    assert any("CREATING" in what for what in account.told)


def test_an_index_is_awaited_until_it_is_filled_however_long_that_takes(account):
    account.create_all()
    index = account.index("usage", "metering_pending") | {"IndexStatus": "CREATING", "Backfilling": True}
    account.on(
        "after-call.dynamodb.DescribeTable",
        busy(account.names["usage"], 125, TableStatus="UPDATING", GlobalSecondaryIndexes=[index]),
    )
    account.init()
    assert sum(account.slept) > 120
    filling = [what for what in account.told if "CREATING (filling)" in what]
    assert len(filling) == 5, "told every half minute, and not at every look"


def test_a_table_that_is_about_to_go_is_no_table(account):
    account.create_all()
    account.on("after-call.dynamodb.DescribeTable", busy(account.names["usage"], 1, TableStatus="DELETING"))
    with pytest.raises(TableError, match="is DELETING"):
        account.init()


def test_a_table_that_never_appears_is_told(account, monkeypatch):
    monkeypatch.setattr(operations_init.dynamodb, "create_table", lambda *_: None)
    with pytest.raises(UnreachableError, match="does not appear"):
        account.init()


# Two at once.


def once(action: Callable[[], object]) -> Callable[..., None]:
    done = []

    def hook(**_: Any) -> None:
        if not done:
            done.append(True)
            action()

    return hook


def test_a_table_that_a_rival_creates_first_is_taken_as_it_comes(account):
    account.on("before-call.dynamodb.CreateTable", once(lambda: account.create("usage")))
    reports = account.init()
    assert not reports["usage"].created
    assert differences(reports) == ""


def test_an_index_that_a_rival_adds_first_is_taken_as_it_comes(account):
    account.create_all()
    account.client.delete_table(TableName=account.names["usage"])
    account.without_indexes("usage")

    account.on("before-call.dynamodb.UpdateTable", once(lambda: same(account).init()))
    reports = account.init()
    assert reports["usage"].indexes == []
    assert differences(reports) == ""
    assert plan(account.described("usage"), SHAPES["usage"]).missing == ()


def same(account: Account) -> Account:
    """Somebody else in the same account."""
    rival = object.__new__(Account)
    rival.__dict__ |= account.__dict__ | {"_hooks": [], "told": [], "slept": [], "requests": []}
    return rival


@pytest.mark.parametrize("code", ["LimitExceededException", "ResourceInUseException"])
@pytest.mark.parametrize("operation", ["CreateTable", "UpdateTable"])
def test_what_dynamodb_puts_off_is_asked_again(account, operation, code):
    if operation == "UpdateTable":
        account.without_indexes("usage")
    refusals = [2]

    def hook(http_response: Any, parsed: dict[str, Any], **_: Any) -> None:
        """The answer is a refusal, though the emulator has obeyed: so a table or index is there when we look again."""
        if refusals[0]:
            refusals[0] -= 1
            http_response.status_code = 400
            parsed["Error"] = {"Code": code, "Message": "Only 1 online index can be created simultaneously"}

    account.on(f"after-call.dynamodb.{operation}", hook)
    reports = account.init()
    assert differences(reports) == ""
    assert not reports["usage"].created
    assert reports["usage"].indexes == []
    assert any("somebody else" in what for what in account.told)


def test_a_refusal_without_end_is_told(account, monkeypatch):
    def refused(client: Any, *_: Any) -> None:
        raise client.exceptions.LimitExceededException({"Error": {"Code": "LimitExceededException"}}, "CreateTable")

    monkeypatch.setattr(operations_init.dynamodb, "create_table", refused)
    with pytest.raises(UnreachableError, match="others are being created"):
        account.init()
    assert account.slept


def test_two_at_once_create_everything_once_and_find_nothing_wrong(account):
    account.without_indexes("subscribers")
    together = threading.Barrier(2)

    def one() -> dict[str, TableReport]:
        rival = same(account)
        together.wait()
        return rival.init()

    with ThreadPoolExecutor(2) as pool:
        both = [future.result() for future in [pool.submit(one) for _ in range(2)]]
    for kind in ("usage", "aggregated"):
        assert sum(reports[kind].created for reports in both) == 1
    assert sum(len(reports["subscribers"].indexes) for reports in both) == 3
    for kind, shape in SHAPES.items():
        assert plan(account.described(kind), shape).missing == ()
    assert [each.what for reports in both for each in reports["usage"].differs + reports["subscribers"].differs] == []


# What differs.


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("usage", {"range_key": "somethingElse"},
         "its key is [licenseArn, somethingElse], not [licenseArn, customerAWSAccountId_dimension_timestamp]"),
        ("usage", {"indexes": (replace(usage_table.SHAPE.indexes[0], range_key="dimension"),)},
         "the key of its index metering_pending is [meteringPending, dimension], not [meteringPending, licenseArn]"),
        ("usage", {"indexes": (replace(usage_table.SHAPE.indexes[0], include=("dimension",)),)},
         "its index metering_pending does not project customerAWSAccountId"),
        ("usage", {"indexes": (replace(usage_table.SHAPE.indexes[0], include=()),)},
         "its index metering_pending does not project customerAWSAccountId, dimension"),
        ("aggregated", {"indexes": (replace(aggregated_table.SHAPE.indexes[0], include=("quantity",)),)},
         "its index metering_pending does not project all attributes, but INCLUDE"),
    ],
)  # fmt: skip
def test_what_differs_is_said_and_left(account, kind, changes, words):
    account.create_all()
    account.client.delete_table(TableName=account.names[kind])
    account.create(kind, **changes)
    if kind == "aggregated":
        account.ttl_on()
    before = account.everything()
    reports = account.init()
    assert words in differences(reports)
    assert sum(len(report.differs) for report in reports.values()) == 1
    assert account.everything() == before
    done = account.run()
    assert done.exit_code == 1
    assert words in done.stdout
    assert "do: " in done.stdout


def test_a_table_with_another_key_gets_no_index(account):
    account.create_all()
    account.client.delete_table(TableName=account.names["usage"])
    other = IndexShape("other", "a", "b")
    account.create("usage", range_key="somethingElse", indexes=(other,))
    account.init()
    assert account.asked("UpdateTable") == []
    assert [index["IndexName"] for index in account.described("usage")["GlobalSecondaryIndexes"]] == ["other"]


def test_ttl_that_is_off_is_said_with_what_to_do_and_left(account):
    for kind in SHAPES:
        account.create(kind)
    before = account.everything()
    (difference,) = account.init()["aggregated"].differs
    assert "TTL is not on for the attribute ttl" in difference.what
    assert f"update-time-to-live --table-name {account.names['aggregated']}" in difference.todo
    assert account.asked("UpdateTimeToLive") == []
    assert account.everything() == before


def test_a_rival_who_is_about_to_switch_ttl_on_is_waited_for(account):
    for kind in SHAPES:
        account.create(kind)
    account.on("after-call.dynamodb.DescribeTimeToLive", once(account.ttl_on))
    assert differences(account.init()) == ""


def test_ttl_by_another_attribute_differs(account):
    for kind in SHAPES:
        account.create(kind)
    account.ttl_on("expiresAt")
    assert "TTL goes by the attribute expiresAt, not ttl" in differences(account.init())


def test_one_difference_does_not_keep_the_rest_from_being_created(account):
    account.create("usage", range_key="somethingElse")
    reports = account.init()
    assert reports["aggregated"].created
    assert reports["subscribers"].created


# The rules of comparing, by themselves.


def described(shape: TableShape, **changes: Any) -> dict[str, Any]:
    """A table as DynamoDB describes it."""
    names = {shape.hash_key: "S", shape.range_key: "S"}
    indexes = []
    for index in shape.indexes:
        keys = [index.hash_key, *([index.range_key] if index.range_key else [])]
        names |= dict.fromkeys(keys, "S")
        indexes.append(
            {
                "IndexName": index.name,
                "IndexStatus": "ACTIVE",
                "KeySchema": [
                    {"AttributeName": n, "KeyType": t} for n, t in zip(keys, ("HASH", "RANGE"), strict=False)
                ],
                "Projection": {"ProjectionType": "ALL"},
            }
        )
    return {
        "TableStatus": "ACTIVE",
        "KeySchema": [
            {"AttributeName": shape.range_key, "KeyType": "RANGE"},
            {"AttributeName": shape.hash_key, "KeyType": "HASH"},
        ],
        "AttributeDefinitions": [{"AttributeName": n, "AttributeType": t} for n, t in names.items()],
        "GlobalSecondaryIndexes": indexes,
    } | changes


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_wider_projections_are_as_good(shape):
    assert plan(described(shape), shape).differs == ()


def test_no_projection_is_asked_of_indexes_that_only_lead_to_keys():
    shape = subscribers_table.SHAPE
    narrow = replace(shape, indexes=tuple(replace(index, include=()) for index in shape.indexes))
    found = described(narrow)
    for index in found["GlobalSecondaryIndexes"]:
        index["Projection"] = {"ProjectionType": "KEYS_ONLY"}
    assert plan(found, shape).differs == ()


def test_keys_of_another_type_differ():
    shape = usage_table.SHAPE
    found = described(shape)
    found["AttributeDefinitions"][0]["AttributeType"] = "N"
    (difference,) = plan(found, shape).differs
    assert "licenseArn (type N)" in difference.what


def test_an_index_whose_attribute_is_defined_with_another_type_cannot_be_added():
    shape = usage_table.SHAPE
    found = described(shape, GlobalSecondaryIndexes=[])
    found["AttributeDefinitions"] = [
        {"AttributeName": name, "AttributeType": "N" if name == "meteringPending" else "S"}
        for name in ("licenseArn", shape.range_key, "meteringPending")
    ]
    planned = plan(found, shape)
    assert planned.missing == ()
    assert "cannot be added" in planned.differs[0].what
    assert "meteringPending (type N)" in planned.differs[0].what


def test_an_index_that_is_being_deleted_differs():
    shape = aggregated_table.SHAPE
    found = described(shape)
    found["GlobalSecondaryIndexes"][0]["IndexStatus"] = "DELETING"
    planned = plan(found, shape)
    assert planned.missing == ()
    assert "is being deleted" in planned.differs[0].what


def test_throughput_is_that_of_provisioned_tables():
    units = {"ReadCapacityUnits": 5, "WriteCapacityUnits": 6}
    assert throughput_of({"ProvisionedThroughput": units | {"NumberOfDecreasesToday": 0}}) == units
    assert (
        throughput_of({"BillingModeSummary": {"BillingMode": "PROVISIONED"}, "ProvisionedThroughput": units}) == units
    )
    assert throughput_of({"BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"}}) is None


@pytest.mark.parametrize("status", ["ENABLED", "ENABLING"])
def test_ttl_that_is_coming_on_is_on(status):
    assert ttl_difference({"TimeToLiveStatus": status, "AttributeName": "ttl"}, "table", "ttl") is None


# The command.


def test_the_command_exits_0_and_says_what_it_did(account):
    done = account.run()
    assert done.exit_code == 0, done.stderr
    for kind, name in account.names.items():
        assert f"{SETTINGS[kind]} {name}" in done.stdout
    assert "paid on demand" in done.stdout
    assert "creating it" in done.stderr
    again = account.run()
    assert again.exit_code == 0
    assert again.stdout.count("there, as needed") == 3


def test_its_json_is_for_programs(account, monkeypatch):
    monkeypatch.setattr(operations_init, "_TTL_SETTLES", 0.0)
    account.without_indexes("usage")
    done = account.run("--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["good"]
    assert [table["setting"] for table in told["tables"]] == list(SETTINGS.values())
    assert [table["created"] for table in told["tables"]] == [False, True, True]
    assert told["tables"][0]["indexes_added"] == ["metering_pending"]
    account.client.update_time_to_live(
        TableName=account.names["aggregated"],
        TimeToLiveSpecification={"Enabled": False, "AttributeName": "ttl"},
    )
    differs = account.run("--json")
    assert differs.exit_code == 1
    told = json.loads(differs.stdout)
    assert not told["good"]
    assert told["tables"][1]["differs"][0]["do"].startswith("aws dynamodb update-time-to-live")


def test_missing_settings_are_all_named(account):
    done = account.run(USAGE_TABLE="", SUBSCRIBERS_TABLE="")
    assert done.exit_code == 2
    assert "Not set: USAGE_TABLE, SUBSCRIBERS_TABLE." in done.stderr
    assert done.stdout == ""
    assert isinstance(done.exception, SystemExit)


def test_the_mode_is_of_no_account(account):
    assert account.run(METERING_MODE="").exit_code == 0


def test_two_settings_with_one_name_are_refused_before_anything_is_created(account):
    account.names["usage"] = account.names["aggregated"]
    with pytest.raises(SettingsError, match="must name three tables"):
        account.init()
    assert account.requests == []


def test_what_cannot_be_reached_ends_in_words(account, monkeypatch):
    once = Config(retries={"mode": "standard", "total_max_attempts": 1})
    monkeypatch.setattr(clients, "_TABLES", clients._TABLES.merge(once))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        done = account.run(AWS_ENDPOINT_URL_DYNAMODB=f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert done.exit_code == 2
    assert "cannot be reached" in done.stderr
    assert "Nothing that existed was changed" in done.stderr
    assert isinstance(done.exception, SystemExit)


def test_a_refusal_of_dynamodb_ends_in_its_own_words(account):
    account.names["usage"] = "no/table/name"
    done = account.run()
    assert done.exit_code == 2
    assert "metering-dagster init: DynamoDB refuses" in done.stderr
    assert isinstance(done.exception, SystemExit)
