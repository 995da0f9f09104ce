"""What cannot work fails with one message: what, where, what was left untouched, what to do. And nothing is changed."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.config import Config

from metering_dagster.core.aws import clients
from metering_dagster.core.aws.dynamodb import TableShape, create_table
from metering_dagster.devstack.sandbox import faults
from metering_dagster.metering.stores import aggregated_table, subscribers_table, usage_table
from tests.items import HOUR, LICENSE, OTHER_LICENSE, a_subscriber, a_usage, an_aggregate, some_usage
from tests.replier import Replier
from tests.world import World

SHAPES = {
    "usage": usage_table.SHAPE,
    "aggregated": aggregated_table.SHAPE,
    "subscribers": subscribers_table.SHAPE,
}
ESSENTIAL = ["usage", "aggregated"]


@pytest.fixture
def one_attempt(monkeypatch) -> None:
    """The SDK tries once: its back-off is not what is tested."""
    once = Config(retries={"mode": "standard", "total_max_attempts": 1})
    monkeypatch.setattr(clients, "_TABLES", clients._TABLES.merge(once))


@pytest.fixture
def busy_world(world) -> World:
    """A world with something to do in every step."""
    world.put(*some_usage("1", "2"), a_usage(3, {"S": "abc"}, dimension="bad"), an_aggregate("5", dimension="direct"))
    return world


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def fails_untouched(world: World, *words: str, hour: str = HOUR, retries: bool = False, **how) -> str:
    """The run fails with these words, and nothing has changed in any table; the message."""
    before = world.dump()
    outcome = world.meter(hour, **how)
    assert not outcome.success
    assert outcome.metadata == {}
    missing = [word for word in words if word not in outcome.message]
    assert not missing, outcome.message
    assert outcome.allows_retries is retries
    assert world.dump() == before
    assert world.calls() == []
    return outcome.message


@pytest.mark.parametrize("kind", ESSENTIAL)
def test_a_table_that_is_not_there_is_named(busy_world, kind):
    setting = {"usage": "usage_table", "aggregated": "aggregated_usage_table"}[kind]
    busy_world.configure(**{setting: "nowhere"})
    fails_untouched(
        busy_world, f"{SHAPES[kind].title} nowhere ({SHAPES[kind].setting})", "us-east-1", "http://127.0.0.1:",
        "there is no such table", "still pending", "Create or mend the table",
    )  # fmt: skip


def replaced(world: World, kind: str, shape: TableShape) -> None:
    """A table of another shape in the place of ours."""
    name = f"{world.names[kind]}-odd"
    create_table(world.client, name, shape)
    world.names[kind] = name
    setting = {"usage": "usage_table", "aggregated": "aggregated_usage_table", "subscribers": "subscribers_table"}[kind]
    world.configure(**{setting: name})


@pytest.mark.parametrize("kind", ESSENTIAL)
def test_a_missing_index_is_named(busy_world, kind):
    replaced(busy_world, kind, replace(SHAPES[kind], indexes=()))
    fails_untouched(busy_world, SHAPES[kind].setting, "its index metering_pending is missing", "Create or mend")


@pytest.mark.parametrize("kind", ESSENTIAL)
def test_an_index_with_other_keys_is_named(busy_world, kind):
    index = replace(SHAPES[kind].indexes[0], hash_key="somethingElse")
    replaced(busy_world, kind, replace(SHAPES[kind], indexes=(index,)))
    fails_untouched(busy_world, "the key of its index metering_pending is not ['meteringPending', 'licenseArn']")


@pytest.mark.parametrize("kind", ESSENTIAL)
def test_a_wrong_key_schema_is_named(world, kind):
    replaced(world, kind, replace(SHAPES[kind], range_key="somethingElse"))
    other = "aggregated" if kind == "usage" else "usage"
    if other == "usage":
        world.put(a_usage(0, "1"))
    else:
        item = {
            name: {"S": HOUR if name == "meteringPending" else LICENSE} for name in ("meteringPending", "licenseArn")
        }
        world.client.put_item(TableName=world.names["usage"], Item=item | {"somethingElse": {"S": "x"}})
    outcome = world.meter()
    assert not outcome.success
    assert (
        f"its key is ['licenseArn', 'somethingElse'], not ['licenseArn', '{SHAPES[kind].range_key}']" in outcome.message
    )
    assert not outcome.allows_retries
    assert world.calls() == []


def test_a_subscribers_table_that_is_not_there_costs_calls_and_no_usage(world):
    world.configure(subscribers_table="nowhere", product_code="product-one")
    world.sandbox.configure(licenses={LICENSE: "product-one", OTHER_LICENSE: "product-two"})
    world.put(an_aggregate("1"), an_aggregate("2", license=OTHER_LICENSE, dimension="other"))
    outcome = world.meter()
    assert outcome.success
    assert "the subscribers table nowhere (SUBSCRIBERS_TABLE)" in outcome.said
    assert "there is no such table" in outcome.metadata["metered_usage"]["notes"]
    assert [(call.records, call.outcome) for call in world.calls()] == [(1, "ok")] * 2


def test_a_subscribers_table_without_its_index_is_told(world):
    replaced(world, "subscribers", replace(SHAPES["subscribers"], indexes=SHAPES["subscribers"].indexes[1:]))
    world.put(a_subscriber(productCode="product"), a_usage(0, "1"))
    outcome = world.meter()
    assert outcome.success
    assert "its index deprovisioning-pending-index is missing" in outcome.said
    assert world.billed() == {"api_calls": "1"}


@pytest.mark.usefixtures("one_attempt")
def test_an_unreachable_endpoint_is_named_and_may_be_tried_again(busy_world, monkeypatch, closed_port):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", closed_port)
    fails_untouched(
        busy_world, "cannot be reached", closed_port, "AWS_ENDPOINT_URL_DYNAMODB", "still pending", retries=True
    )


def test_an_unreachable_marketplace_leaves_everything_pending(busy_world, monkeypatch, closed_port):
    monkeypatch.setenv("AWS_ENDPOINT_URL_MARKETPLACE_METERING", closed_port)
    outcome = busy_world.meter()
    assert f"2 records of {HOUR} are left" in outcome.message
    assert closed_port in outcome.message
    assert "next tick sends them again" in outcome.message
    assert busy_world.record_statuses() == {"pending": 2}


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize(("code", "message", "words"), [
    ("ExpiredTokenException", "The security token included in the request is expired", ["Renew the credentials"]),
    ("UnrecognizedClientException", "The security token included in the request is invalid.", ["Renew"]),
    ("AccessDeniedException", f"User is not authorized to perform: dynamodb:Query on {LICENSE} 444455556666",
     ["allow dynamodb:Query"]),
])  # fmt: skip
def test_dynamodb_refuses_the_caller(busy_world, monkeypatch, code, message, words):
    with Replier(code, message) as replier:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", replier.url)
        said = fails_untouched(busy_world, code, "Query", "USAGE_TABLE", replier.url, "still pending", *words)
    assert LICENSE not in said
    assert "444455556666" not in said


@pytest.mark.usefixtures("one_attempt")
def test_a_throttled_table_may_be_tried_again(busy_world, monkeypatch):
    with Replier("ProvisionedThroughputExceededException", "Slow down") as replier:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", replier.url)
        fails_untouched(busy_world, "ProvisionedThroughputExceededException", "The next run tries again", retries=True)


def test_the_marketplace_refuses_expired_credentials_without_rejecting_anything(busy_world):
    busy_world.sandbox.inject(faults.error("ExpiredTokenException"))
    outcome = busy_world.meter()
    for word in ("ExpiredTokenException", "BatchMeterUsage", "us-east-1", "renew the credentials", "2 records"):
        assert word in outcome.message
    assert not outcome.allows_retries
    assert busy_world.record_statuses() == {"pending": 2}


def test_no_credentials_at_all(busy_world, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    fails_untouched(busy_world, "No usable AWS credentials", "USAGE_TABLE", "Set or renew the credentials")


def test_no_region(busy_world, monkeypatch, tmp_path):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    fails_untouched(busy_world, "No dynamodb client can be made", "Nothing was read or written", "AWS_REGION")


def test_a_malformed_endpoint(busy_world, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "not a url")
    fails_untouched(busy_world, "No dynamodb client can be made", "Nothing was read or written", "AWS_ENDPOINT_URL")


def test_all_missing_settings_are_named_at_once(busy_world):
    busy_world.configure(usage_table=None, aggregated_usage_table=None, subscribers_table=None, mode=None)
    fails_untouched(
        busy_world, "Not set: USAGE_TABLE, AGGREGATED_USAGE_TABLE, SUBSCRIBERS_TABLE, METERING_MODE",
        "Nothing was read or written", "live, dry-run, shadow",
    )  # fmt: skip


@pytest.mark.parametrize("service", ["DYNAMODB", "MARKETPLACE_METERING"])
def test_a_frozen_clock_never_meets_the_real_services(world, monkeypatch, service):
    world.put(an_aggregate("1"))
    monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", "https://service.example")
    outcome = world.meter()
    assert "METERING_NOW is refused" in outcome.message
    assert "https://service.example" in outcome.message
    assert "Unset METERING_NOW, or name local endpoints" in outcome.message
    assert not outcome.allows_retries
    assert world.record_statuses() == {"pending": 1}
    assert world.calls() == []


@pytest.mark.parametrize(("hour", "words"), [
    ("2026-11-28T11", ["still open for late usage until 2026-11-28T14:00Z", "METERING_LOCK_HOURS=3", "ignore_lock"]),
    ("2026-11-28T12", ["is the current hour", "It opens at 2026-11-28T15:00Z"]),
])  # fmt: skip
def test_an_open_hour_is_refused_and_told_when_it_opens(world, hour, words):
    world.configure(lock_hours=3)
    world.put(a_usage(0, "1", hour=hour), an_aggregate("2", hour=hour, dimension="direct"))
    fails_untouched(world, *words, "Nothing was read or written", hour=hour)


def test_a_future_hour_is_refused(world):
    outcome = world.meter("2026-11-28T13", partitions_until="2026-11-28T15:00:00Z")
    assert "2026-11-28T13 lies in the future" in outcome.message
    assert not outcome.allows_retries


def test_ignore_lock_opens_a_locked_hour(world):
    world.configure(lock_hours=3)
    world.put(a_usage(0, "1", hour="2026-11-28T11"))
    assert world.meter("2026-11-28T11", ignore_lock=True).success
    assert [record.hour for record in world.bill()] == ["2026-11-28T11"]
    world.judge()


def test_ignore_lock_never_opens_the_current_hour(world):
    world.put(a_usage(0, "1", hour="2026-11-28T12"))
    fails_untouched(world, "is the current hour", hour="2026-11-28T12", ignore_lock=True)


@pytest.mark.parametrize("ignore_lock", [False, True])
def test_an_hour_past_its_window_with_something_pending_fails_and_touches_nothing(world, ignore_lock):
    past = "2026-11-27T12"
    world.put(*some_usage("1", "2", hour=past), an_aggregate("3", hour=past, dimension="direct"))
    fails_untouched(
        world, f"{past} can no longer be billed", "2026-11-28T12:00Z", "2 raw rows and 1 aggregates", "age-out",
        hour=past, ignore_lock=ignore_lock,
    )  # fmt: skip


def test_an_hour_that_the_months_grace_opens_again_says_when_and_touches_nothing(world):
    world.at("2026-11-30T21:00:00Z")
    waiting = "2026-11-29T20"
    world.put(a_usage(0, "1", hour=waiting))
    fails_untouched(
        world, f"The window of {waiting} closed at 2026-11-30T20:00Z", "opens again at 2026-12-01T00:00Z, until",
        "2026-12-01T02:00Z", "1 raw rows and 0 aggregates", "nothing expires them before", hour=waiting,
    )  # fmt: skip


def test_an_hour_past_its_window_with_nothing_pending_is_green_and_says_so(world):
    past = "2026-11-27T12"
    world.put(a_usage(0, "1", hour=past, filed=None, meteringStatus="Aggregated"))
    before = world.dump()
    outcome = world.meter(past)
    assert outcome.success
    for asset in ("pending_usage", "aggregated_usage", "metered_usage"):
        assert "can no longer be billed" in outcome.metadata[asset]["closed"]
    assert world.dump() == before


def test_the_last_billable_hour_is_still_metered(world):
    world.put(a_usage(0, "1", hour="2026-11-27T13"))
    assert world.meter("2026-11-27T13").success
    assert len(world.bill()) == 1


def test_an_hour_with_nothing_in_it_is_green(world):
    outcome = world.meter()
    assert outcome.success
    assert outcome.metadata["metered_usage"]["records"] == 0
    assert set(outcome.metadata) == {"pending_usage", "aggregated_usage", "metered_usage"}


def test_no_tag_of_a_run_names_a_buyer(busy_world):
    outcome = busy_world.meter()
    assert outcome.tags["dagster/partition"] == HOUR
    assert outcome.tags["metering/lane"] == "regular"
    assert not [tag for tag in outcome.tags.values() if tag in busy_world.secrets]


def test_what_a_run_says_of_a_buyer_is_masked(busy_world):
    said = busy_world.meter().said  # `meter` has looked through all of it for the whole names
    assert busy_world.secrets == {LICENSE, "444455556666"}
    assert "license ****cdef, account ****6666" in said


def test_the_steps_of_an_hour_hand_nothing_on(busy_world, instance):
    assert busy_world.meter(instance=instance).success
    kept = Path(instance.storage_directory())
    assert not [file for file in kept.rglob("*") if file.is_file() and file.name in ("result", "hour", "planned")]


def test_words_of_others_are_masked_too(world):
    world.put(an_aggregate("1", dimension="d"))
    with (
        Replier("InvalidLicenseException", f"{LICENSE} of 444455556666") as replier,
        pytest.MonkeyPatch.context() as env,
    ):
        env.setenv("AWS_ENDPOINT_URL_MARKETPLACE_METERING", replier.url)
        assert world.meter().success
    assert world.aggregate(dimension="d")["meteringStatusReason"] == "InvalidLicenseException"
