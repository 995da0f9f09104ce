"""Any environment: settings are read, or refused in words that repeat no secret.

Belongs here: values of the environment, of every setting. Does not: what a good value means (tests/test_settings.py).
"""

import warnings
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metering_dagster.billing_changes.stores.database import Database
from metering_dagster.core import hours
from metering_dagster.core.errors import MeteringError, SettingsError
from metering_dagster.definitions import build_defs
from metering_dagster.settings import SettingsWarning, read_settings
from tests.hostile.effort import examples
from tests.hostile.secrets import ACCOUNT, LICENSE, PASSWORD, assert_nothing_leaks

NAMES = (
    "USAGE_TABLE", "AGGREGATED_USAGE_TABLE", "SUBSCRIBERS_TABLE", "SUBSCRIBERS_TABLE_REGION", "AWS_REGION",
    "PRODUCT_CODE", "METERING_MODE", "METERING_LOCK_HOURS", "METERING_QUANTITIES", "METERING_LEDGER_URI",
    "METERING_CRON", "MARKETPLACE_EVENTS_QUEUE_URL", "METERING_EVENTS_SECONDS", "METERING_FLUSH_SECONDS",
    "METERING_FINALIZE_SECONDS", "METERING_DEFAULT_STATUS", "METERING_ALERTS_TOPIC_ARN", "METERING_ALERTS_WEBHOOK_URL",
    "METERING_UI_URL", "BILLING_DATABASE_URL", "BILLING_CHANGES_URI", "BILLING_HORIZON_DAYS",
    "BILLING_OVERLAP_MINUTES", "BILLING_QUIET_SECONDS", "BILLING_CHANGES_SECONDS", "METERING_NOW",
    "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL_S3",
)  # fmt: skip
URLS = [
    f"https://user:{PASSWORD}@host.example.com/{ACCOUNT}/x", f"mysql+pymysql://user:{PASSWORD}@db:3306/billing",
    f"postgresql://user:{PASSWORD}@db/billing", f"http://{PASSWORD}@127.0.0.1:1", f"mysql://u:{PASSWORD}/3@h@db/x",
    f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/events?x", "https://[::1", "https://h:99999/", "s3://", "://",
]  # fmt: skip
NEAR = [
    *URLS, LICENSE, f"arn:aws:sns:us-east-1:{ACCOUNT}:alerts!", "live", "LIVE", "-1", "+5", "1e3", "٣", "9" * 5000,
    "0 * * * *", "99 99 99 99 99", "* * * * * *", "2026-01-31T10:30:00Z", "0001-01-01T00:00:00+05:00",
    "9999-12-31T23:59:59-12:00", "2026-01-31T24:00:00Z", "2026-02-30T00:00:00Z", "\udcff", "a\x00b", "a\nb", "x" * 9000,
]  # fmt: skip
VALUES = st.sampled_from(NEAR) | st.text(max_size=40) | st.integers().map(str) | st.datetimes().map(str)
ENVIRONMENTS = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=20), VALUES, max_size=6)


def test_every_setting_is_tried():
    read: set[str] = set()

    class Watching(dict[str, str]):
        def get(self, name: str, default: object = None) -> object:  # type: ignore[override]
            read.add(name)
            return default

    read_settings(Watching())
    assert read <= set(NAMES)


@examples(250)
@given(ENVIRONMENTS)
@example({"METERING_NOW": "0001-01-01T00:00:00+05:00"})
@example({"METERING_LOCK_HOURS": "9" * 5000})
@example({"METERING_NOW": "2026-01-31T10:30:00Z", "AWS_ENDPOINT_URL": f"https://user:{PASSWORD}@example.com/{ACCOUNT}"})
@example({"METERING_NOW": "2026-01-31T10:30:00Z", "AWS_ENDPOINT_URL": f"https://user:{PASSWORD}/4@example.com/"})
@example({"METERING_": f"https://user:{PASSWORD}@host.example.com/{ACCOUNT}"})
def test_any_environment_is_read_or_refused_in_words(environment):
    try:
        with warnings.catch_warnings(record=True) as unknown:
            warnings.simplefilter("always", SettingsWarning)
            settings = read_settings(environment)
        assert_nothing_leaks(*(str(each.message) for each in unknown))
    except SettingsError as refused:
        words = str(refused)
        assert len(words) < 400 * (1 + len(environment)), "a long value is not repeated whole"
        assert_nothing_leaks(words)
        assert words.isprintable()
        return
    if environment.keys() <= {name for name in NAMES if name.startswith(("AWS_ENDPOINT", "BILLING_DATABASE"))}:
        assert_nothing_leaks(repr(settings))
    now = settings.now()
    assert now <= datetime.now(UTC)
    for offset in (1, hours.GRACE_LAST_OFFSET, hours.OLDEST_OFFSET):
        assert hours.offset_of(hours.hour_at_offset(now, offset), now) == offset


@examples(60)
@given(name=st.sampled_from(NAMES), value=VALUES)
def test_a_setting_with_what_cannot_be_shown_is_refused(name, value):
    if name.startswith("AWS_ENDPOINT") or not value.strip() or value.strip().isprintable():
        return
    with pytest.raises(SettingsError, match=name):
        read_settings({name: value})


@examples(80)
@given(
    scheme=st.sampled_from(["mysql+pymysql", "mysql", "mariadb", "sqlite", "postgresql", ""]),
    before=st.text("ab:@/?#%[] \\'=&", max_size=6),
    after=st.text("ab:@/?#%[]0 \\'=&", max_size=8),
)
def test_a_password_never_shows_whatever_stands_around_it(scheme, before, after):
    url = f"{scheme}://user:{before}{PASSWORD}{after}@127.0.0.1:1/billing"
    said = []
    try:
        settings = read_settings({"BILLING_DATABASE_URL": url})
        said.append(repr(settings))
        database = Database(str(settings.billing_database_url), connect_timeout=1)
        said.append(database.place)
        with database.reading():
            pass
    except MeteringError as refused:
        said.append(str(refused))
    assert_nothing_leaks(*said)


@pytest.mark.parametrize("cron", ["99 99 99 99 99", "* * 31 2 *", "*/0 * * * *", "0 0 * * abc"])
def test_a_cron_expression_that_is_none_is_a_malformed_setting(cron):
    with pytest.raises(SettingsError, match="METERING_CRON"):
        build_defs(settings=read_settings({"METERING_CRON": cron}))
