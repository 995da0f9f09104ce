"""The environment: what is missing is named by the run, what is malformed by the loading, all of it at once."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from metering_dagster.core.addresses import is_loopback
from metering_dagster.core.errors import SettingsError
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.settings import Mode, Settings, SettingsWarning, read_settings

TABLES = {"USAGE_TABLE": "usage", "AGGREGATED_USAGE_TABLE": "aggregated", "SUBSCRIBERS_TABLE": "subscribers"}
TOPIC = "arn:aws:sns:eu-west-1:123412341234:alerts"
WEBHOOK = "https://hooks.example.com/services/T0KEN"
ON_LOOPBACK = {"AWS_ENDPOINT_URL": "http://127.0.0.1:4566"}
QUEUE = "https://sqs.us-east-1.amazonaws.com/111122223333/marketplace-events"
FROZEN = {"METERING_NOW": "2026-01-31T10:30:00Z"}


def test_an_empty_environment_loads_with_the_defaults():
    assert read_settings({}) == Settings()
    assert (Settings().lock_hours, Settings().quantities) == (1, Quantities.DECIMAL)
    assert Settings().subscribers_table_region == "us-east-1"


def test_an_empty_value_counts_as_not_set():
    assert read_settings({"USAGE_TABLE": "", "METERING_MODE": " ", "METERING_LOCK_HOURS": "\t"}) == Settings()


def test_every_setting_is_read():
    settings = read_settings({
        **TABLES, "METERING_MODE": "dry-run", "SUBSCRIBERS_TABLE_REGION": "eu-west-1", "PRODUCT_CODE": "prod",
        "METERING_LOCK_HOURS": " 6 ", "METERING_QUANTITIES": "integer", "METERING_LEDGER_URI": "s3://b/ledger",
        "AWS_REGION": "eu-central-1", "METERING_CRON": "*/5 * * * *", "METERING_DEFAULT_STATUS": "running",
        "MARKETPLACE_EVENTS_QUEUE_URL": QUEUE, "METERING_EVENTS_SECONDS": "5",
        "METERING_ALERTS_TOPIC_ARN": TOPIC, "METERING_ALERTS_WEBHOOK_URL": WEBHOOK,
        "METERING_UI_URL": "https://dagster.example.com/here/",
        "METERING_FLUSH_SECONDS": "5", "METERING_FINALIZE_SECONDS": "7",
    })  # fmt: skip
    assert settings == Settings(
        usage_table="usage",
        aggregated_usage_table="aggregated",
        subscribers_table="subscribers",
        mode=Mode.DRY_RUN,
        subscribers_table_region="eu-west-1",
        region="eu-central-1",
        product_code="prod",
        lock_hours=6,
        quantities=Quantities.INTEGER,
        ledger_uri="s3://b/ledger",
        cron="*/5 * * * *",
        flush_seconds=5,
        finalize_seconds=7,
        running=True,
        events_queue_url=QUEUE,
        events_seconds=5,
        alerts_topic_arn=TOPIC,
        alerts_webhook_url=WEBHOOK,
        ui_url="https://dagster.example.com/here",
    )


def test_one_table_for_raw_rows_and_aggregates_is_refused():
    settings = read_settings({**TABLES, "METERING_MODE": "live", "AGGREGATED_USAGE_TABLE": TABLES["USAGE_TABLE"]})
    with pytest.raises(SettingsError, match="name the same table"):
        settings.require()


@pytest.mark.parametrize(("name", "value"), [
    ("METERING_CRON", "hourly"), ("METERING_DEFAULT_STATUS", "on"), ("METERING_FLUSH_SECONDS", "0"),
    ("METERING_FINALIZE_SECONDS", "3601"),
])  # fmt: skip
def test_malformed_schedules_are_named(name, value):
    with pytest.raises(SettingsError, match=f"{name}='{value}'"):
        read_settings({name: value})


@pytest.mark.parametrize("url", [
    "events", "sqs.us-east-1.amazonaws.com/111122223333/events", "https://sqs.us-east-1.amazonaws.com/events",
    "arn:aws:sqs:us-east-1:111122223333:events", "https:///111122223333/events",
    f"{QUEUE}?Action=x", f"{QUEUE} {QUEUE}",
])  # fmt: skip
def test_a_malformed_url_of_the_queue_is_named_without_its_account(url):
    with pytest.raises(SettingsError, match=r"MARKETPLACE_EVENTS_QUEUE_URL=.*must be the URL of an SQS queue") as error:
        read_settings({"MARKETPLACE_EVENTS_QUEUE_URL": url})
    assert "111122223333" not in str(error.value)


@pytest.mark.parametrize("name", ["METERING_LEDGER_URI", "BILLING_CHANGES_URI"])
@pytest.mark.parametrize("uri", [
    "gs://bucket/x", "http://host/x", "hdfs://host/x", "file:///somewhere", "S3://bucket/x", "s3:/bucket/x", "s3://",
    "s3:///x", "s3://bucket/x?endpoint_override=elsewhere", "s3://bucket/x#y", "://x",
])  # fmt: skip
def test_a_place_that_is_no_folder_and_not_on_s3_is_refused(name, uri):
    with pytest.raises(SettingsError, match=f"{name}=.*must be a folder or s3://BUCKET/PREFIX"):
        read_settings({name: uri})


def test_the_keys_in_a_places_uri_are_refused_and_not_repeated():
    with pytest.raises(SettingsError, match="with no user") as error:
        read_settings({"METERING_LEDGER_URI": "s3://AKIAKEY:s3cr3t@bucket/ledger"})
    assert "s3cr3t" not in str(error.value)


@pytest.mark.parametrize("name", ["METERING_LEDGER_URI", "BILLING_CHANGES_URI"])
@pytest.mark.parametrize("uri", ["a/b", "./s3", "a:b", "..", "~/ledger", ".metering/ledger"])
def test_a_place_that_hangs_on_a_working_directory_is_refused(name, uri):
    with pytest.raises(SettingsError, match=f"{name}=.*from the root on.*each process has a working directory"):
        read_settings({name: uri})


@pytest.mark.parametrize("url", ["sqlite:///billing.db", "sqlite:///./b.db", "sqlite+pysqlite:///b.db", "sqlite://"])
def test_a_database_file_that_hangs_on_a_working_directory_is_refused(url):
    with pytest.raises(SettingsError, match=r"BILLING_DATABASE_URL=.*sqlite:////absolute/path"):
        read_settings({"BILLING_DATABASE_URL": url})


@pytest.mark.parametrize("uri", ["s3://bucket", "s3://bucket/", "s3://my.bucket/a/b c", "/a/b", "/a:b"])
def test_a_place_is_taken_as_it_is(uri):
    assert read_settings({"METERING_LEDGER_URI": uri}).ledger_uri == uri


@pytest.mark.parametrize("url", [QUEUE, f"{QUEUE}.fifo", "http://127.0.0.1:4566/000000000000/events"])
def test_a_url_of_a_queue_is_taken_as_it_is(url):
    assert read_settings({"MARKETPLACE_EVENTS_QUEUE_URL": url}).events_queue_url == url


@pytest.mark.parametrize("text", ["0", "-5", "1.5", "often"])
def test_an_interval_is_a_whole_number_of_seconds(text):
    with pytest.raises(SettingsError, match="METERING_EVENTS_SECONDS"):
        read_settings({"METERING_EVENTS_SECONDS": text})


@pytest.mark.parametrize(("name", "value", "words"), [
    ("METERING_ALERTS_TOPIC_ARN", "arn:aws:sqs:eu-west-1:123412341234:alerts", "must be the ARN of an SNS topic"),
    ("METERING_ALERTS_TOPIC_ARN", "alerts", "must be the ARN of an SNS topic"),
    ("METERING_ALERTS_WEBHOOK_URL", "http://hooks.example.com/T0KEN", "must begin with https"),
    ("METERING_ALERTS_WEBHOOK_URL", "ftp://hooks.example.com/T0KEN", "must be a URL that begins with https"),
    ("METERING_ALERTS_WEBHOOK_URL", "https://me:T0KEN@hooks.example.com/", "must not carry a user"),
    ("METERING_ALERTS_WEBHOOK_URL", "https://hooks.example.com/T0KEN /", "must be a URL without blanks"),
    ("METERING_ALERTS_WEBHOOK_URL", "https://hooks.example.com:T0KEN/", "valid host and port"),
    ("METERING_UI_URL", "dagster.example.com", "must be a URL that begins with https"),
    ("METERING_UI_URL", "https://dagster.example.com/?a=b", "must be the address of the UI alone"),
])  # fmt: skip
def test_where_alerts_go_is_checked_and_not_repeated(name, value, words):
    with pytest.raises(SettingsError, match=words) as refused:
        read_settings({name: value})
    assert "T0KEN" not in str(refused.value)
    assert "123412341234" not in str(refused.value)


def test_a_webhook_is_a_secret_and_not_in_what_settings_show():
    assert "T0KEN" not in repr(read_settings({"METERING_ALERTS_WEBHOOK_URL": WEBHOOK}))


def test_a_webhook_on_loopback_may_be_plain_http():
    url = "http://127.0.0.1:8080/x"
    settings = read_settings({**FROZEN, **ON_LOOPBACK, "METERING_ALERTS_WEBHOOK_URL": url})
    assert settings.alerts_webhook_url == url


@pytest.mark.parametrize(("text", "hours"), [("0", 1), ("-3", 1), ("20", 20), ("48", 20)])
def test_the_lock_is_clamped(text, hours):
    assert read_settings({"METERING_LOCK_HOURS": text}).lock_hours == hours


@pytest.mark.parametrize("mode", list(Mode))
def test_there_are_three_modes(mode):
    assert read_settings({"METERING_MODE": mode.value}).mode is mode


def test_all_that_is_malformed_is_named_at_once():
    with pytest.raises(SettingsError) as error:
        read_settings({"METERING_MODE": "Live", "METERING_LOCK_HOURS": "1.5", "METERING_QUANTITIES": "float"})
    for words in (
        "METERING_MODE='Live': must be one of live, dry-run, shadow",
        "METERING_LOCK_HOURS='1.5': must be a whole number",
        "METERING_QUANTITIES='float': must be one of decimal, integer",
    ):
        assert words in str(error.value)


def test_all_that_is_missing_is_named_at_once():
    with pytest.raises(SettingsError, match="AGGREGATED_USAGE_TABLE, SUBSCRIBERS_TABLE, METERING_MODE"):
        read_settings({"USAGE_TABLE": "usage"}).require()


def test_settings_that_name_tables_and_mode_are_enough():
    settings = read_settings({**TABLES, "METERING_MODE": "live"})
    assert settings.require() is settings


@pytest.mark.parametrize("instant", ["2026-01-31T10:30:00Z", "2026-01-31T16:00:00+05:30"])
def test_the_clock_is_frozen_where_every_endpoint_is_on_loopback(instant):
    settings = read_settings({"METERING_NOW": instant, **ON_LOOPBACK})
    assert settings.now() == datetime(2026, 1, 31, 10, 30, tzinfo=UTC)
    assert settings.now().tzinfo is UTC


def test_a_clock_that_is_not_frozen_goes_in_utc():
    assert Settings().now().tzinfo is UTC


@pytest.mark.parametrize(("text", "words"), [
    ("yesterday", "must be an ISO-8601 instant"),
    ("2026-01-31T10:30:00", "must name its zone"),
    ("9999-01-01T00:00:00Z", "must not be later than the real time"),
])  # fmt: skip
def test_an_instant_that_is_none_or_naive_or_in_the_future_is_malformed(text, words):
    with pytest.raises(SettingsError, match=words):
        read_settings({"METERING_NOW": text, **ON_LOOPBACK})


@pytest.mark.parametrize(("endpoints", "named"), [
    ({}, "AWS_ENDPOINT_URL_DYNAMODB"),
    ({"AWS_ENDPOINT_URL_DYNAMODB": "http://127.0.0.1:1"}, "AWS_ENDPOINT_URL_MARKETPLACE_METERING"),
    ({**ON_LOOPBACK, "AWS_ENDPOINT_URL_DYNAMODB": "https://dynamodb.example.com"}, "AWS_ENDPOINT_URL_DYNAMODB"),
    ({**ON_LOOPBACK, "AWS_ENDPOINT_URL_MARKETPLACE_METERING": "http://[::1"}, "AWS_ENDPOINT_URL_MARKETPLACE_METERING"),
    ({**ON_LOOPBACK, "METERING_LEDGER_URI": "s3://b/l", "AWS_ENDPOINT_URL_S3": "https://s3.example.com"},
     "AWS_ENDPOINT_URL_S3"),
    ({"AWS_ENDPOINT_URL_DYNAMODB": "http://127.0.0.1:1", "AWS_ENDPOINT_URL_MARKETPLACE_METERING": "http://127.0.0.1:1",
      "MARKETPLACE_EVENTS_QUEUE_URL": QUEUE}, "AWS_ENDPOINT_URL_SQS"),
    ({**ON_LOOPBACK, "METERING_ALERTS_TOPIC_ARN": TOPIC, "AWS_ENDPOINT_URL_SNS": "https://sns.example.com"},
     "AWS_ENDPOINT_URL_SNS"),
    ({**ON_LOOPBACK, "METERING_ALERTS_WEBHOOK_URL": WEBHOOK}, "METERING_ALERTS_WEBHOOK_URL"),
])  # fmt: skip
def test_a_frozen_clock_is_refused_beside_an_endpoint_that_is_not_on_loopback(endpoints, named):
    with pytest.raises(SettingsError, match=f"METERING_NOW is refused unless {named} is on loopback"):
        read_settings({**FROZEN, **endpoints})


def test_an_endpoint_that_is_not_in_use_does_not_matter_to_a_frozen_clock():
    assert read_settings({**FROZEN, **ON_LOOPBACK, "AWS_ENDPOINT_URL_S3": "https://s3.example.com"}).frozen_now


@pytest.mark.parametrize(("url", "loopback"), [
    ("http://127.0.0.1:4566", True), ("http://127.8.9.1", True), ("http://[::1]:80/x", True),
    ("http://localhost", True), ("https://LOCALHOST:1", True), ("http://localhost.example.com", False),
    ("http://10.0.0.1", False),
    ("http://127.0.0.1.example.com", False), ("http://127.0.0.1@example.com", False), ("127.0.0.1:4566", False),
    ("", False), ("http://[::1", False), ("http://0.0.0.0", False),
])  # fmt: skip
def test_loopback_is_this_machine_alone(url, loopback):
    assert is_loopback(url) is loopback


@pytest.mark.case("horizon")
@pytest.mark.parametrize("days", ["0", "93", "x", "-1", "1.5"])
def test_a_horizon_is_1_to_92_days(days):
    with pytest.raises(SettingsError, match="BILLING_HORIZON_DAYS"):
        read_settings({"BILLING_HORIZON_DAYS": days})


def test_the_billing_databases_password_is_never_printed():
    url = "postgresql://seller:hush-hush@db/billing"
    with pytest.raises(SettingsError, match="BILLING_DATABASE_URL") as refused:
        read_settings({"BILLING_DATABASE_URL": url})
    assert "hush" not in str(refused.value)
    assert "hush" not in repr(read_settings({"BILLING_DATABASE_URL": url.replace("postgresql", "mysql")}))


@pytest.mark.case("slow_cron")
@pytest.mark.parametrize("cron", [
    "30 5 * * *", "0 9-17 * * *", "0 */2 * * *", "0 * 1 * *", "0 * * * 1-5", "0 * * 1-11 *", "0 * */2 * *",
    "0 0-22 * * *", "0 * 1-30 * *", "0 * * feb *", "0 * * * mon-sat", "0 * 1-31 * */2",
])  # fmt: skip
def test_a_cron_slower_than_hourly_is_refused(cron):
    with pytest.raises(SettingsError, match=r"METERING_CRON=.*must tick at least once in every hour of every day"):
        read_settings({"METERING_CRON": cron})


@pytest.mark.parametrize("cron", [
    "0 * * * *", "*/5 * * * *", "7 * * * *", "* * * * *", "1,31 * * * *", "0 0-23 1-31 1-12 0-6", "0 */1 * * *",
    "5 0-11,12-23 * * *", "0 * * jan-dec sun-sat", "0 * * * 1-7", "0 * 1-31 * 1-5", "0 22-21 * * *",
])  # fmt: skip
def test_a_cron_of_every_hour_is_taken_as_it_is(cron):
    assert read_settings({"METERING_CRON": cron}).cron == cron


@pytest.mark.parametrize(
    "cron", ["@daily", "@hourly", "* * * * * *", "60 * * * *", "0 24 * * *", "h * * * *", "*-5 * * * *"]
)
def test_a_cron_that_is_none_is_refused(cron):
    with pytest.raises(SettingsError, match=r"METERING_CRON=.*must be a cron expression of five fields"):
        read_settings({"METERING_CRON": cron})


@pytest.mark.parametrize(("name", "meant"), [
    ("METERING_LOCK_HOUR", "METERING_LOCK_HOURS"), ("METERING_LOCKHOURS", "METERING_LOCK_HOURS"),
    ("METERING_HOURS_LOCK", "METERING_LOCK_HOURS"), ("METERING_QUANTITY", "METERING_QUANTITIES"),
    ("METERING_LEDGER_URL", "METERING_LEDGER_URI"), ("METERING_MDOE", "METERING_MODE"),
    ("METERING_FLUSH_SECOND", "METERING_FLUSH_SECONDS"), ("metering_mode", "METERING_MODE"),
    ("BILLING_DATABASE_URI", "BILLING_DATABASE_URL"), ("METERING_DATABASE_URL", "BILLING_DATABASE_URL"),
    ("BILLING_LEDGER_URI", "METERING_LEDGER_URI"), ("METRING_LOCK_HOURS", "METERING_LOCK_HOURS"),
    ("METERING_LATEUSAGE", "METERING_LATE_USAGE"), ("BILLING_HORIZON_DAY", "BILLING_HORIZON_DAYS"),
])  # fmt: skip
def test_a_name_that_is_close_to_a_setting_is_refused_and_its_value_not_repeated(name, meant):
    with pytest.raises(SettingsError, match=f"{name} is no setting; {meant} is") as refused:
        read_settings({name: "s3cr3t", "METERING_LOCK_HOURS": "x"})
    assert "METERING_LOCK_HOURS='x'" in str(refused.value)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize("name", ["METERING_OWNER", "BILLING_API_KEY", "METERING_X", "METERING_EXECUTOR"])
def test_another_unknown_name_is_warned_of_and_its_value_not_repeated(name):
    with pytest.warns(SettingsWarning, match=f"{name} is set and is no setting of this version") as warned:
        assert read_settings({name: "s3cr3t"}) == Settings()
    assert [str(warning.message).count("s3cr3t") for warning in warned] == [0]


@pytest.mark.parametrize(("name", "value"), [
    ("METERING_LOCK_HOUR", " "), ("BILLING_TEST_DATABASE_URL", "mysql://h/d"), ("OWNER_MODE", "x"), ("MODE", "x"),
    ("METERINGS", "x"), ("METERING_UI_SERVICE_HOST", "10.0.0.7"), ("METERING_UI_SERVICE_PORT_HTTP", "80"),
    ("METERING_UI_PORT", "tcp://10.0.0.7:80"), ("BILLING_DATABASE_PORT_3306_TCP_ADDR", "10.0.0.8"),
    ("AWS_REGIONS", "x"),
])  # fmt: skip
def test_other_names_are_nobodys_business(name, value):
    assert read_settings({name: value}) == Settings()


@pytest.mark.parametrize("name", ["METERING_LATE_USAGE", "METERING_KEY_PREFIX", "METERING_FIRST_HOUR"])
def test_a_name_whose_meaning_is_to_come_is_refused(name):
    with pytest.raises(SettingsError, match=f"{name} is set, and this version does not implement it"):
        read_settings({name: "carry"})


def loaded(*command: str) -> subprocess.CompletedProcess[str]:
    """A process of its own with an unknown name in its environment, with Python's usual filters of warnings."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("METERING_", "BILLING_"))}
    return subprocess.run(
        [sys.executable, *command], env=ours | {"METERING_OWNER": "s3cr3t"}, capture_output=True, text=True, check=False
    )


def test_definitions_load_beside_an_unknown_name_and_say_so_once():
    done = loaded("-c", "from metering_dagster.definitions import defs; print(len(defs.schedules))")
    assert done.stderr.count("SettingsWarning: METERING_OWNER is set and is no setting of this version") == 1
    assert int(done.stdout) > 23
    assert "s3cr3t" not in done.stderr


def test_a_command_says_it_in_words_alone():
    done = loaded("-m", "metering_dagster.cli", "status")
    assert (done.stdout, done.returncode) == ("", 2)
    assert done.stderr.splitlines()[0] == (
        "metering-dagster: METERING_OWNER is set and is no setting of this version. It was ignored. "
        "docs/settings.md names them all."
    )
    assert "Not set: USAGE_TABLE" in done.stderr
