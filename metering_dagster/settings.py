"""The environment, read once (design: names that are fixed).

Belongs here: every setting with its meaning, default and check. Does not: the AWS SDK's own settings, but for the
endpoints that a frozen clock must know.

Definitions load with an empty environment. A malformed setting fails the loading; a missing one fails the run or tick
that needs it, naming all that are missing.
"""

import re
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from metering_dagster.core.addresses import is_loopback
from metering_dagster.core.cron import ticks_every_hour
from metering_dagster.core.errors import SettingsError
from metering_dagster.core.hours import clamp_lock
from metering_dagster.core.masking import shown_value
from metering_dagster.core.quantity_kind import Quantities
from metering_dagster.core.setting_names import is_of_kubernetes, is_ours, meant

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
"""Characters of a malformed value that its message repeats."""
_FIRST_YEAR = 2000
"""Of a frozen clock: in the calendar's first hours there are no 23 offsets."""
_NOT_YET = ("METERING_FIRST_HOUR", "METERING_KEY_PREFIX", "METERING_LATE_USAGE")
"""Reserved names without a meaning yet. Whoever sets one expects it to decide what is billed, or whose items are."""
_OF_TESTS = ("BILLING_TEST_DATABASE_URL",)
"""Names beside which nothing is mistyped: only this project's tests read them."""


class SettingsWarning(UserWarning):
    """A name in the environment that looks like a setting and is none."""


class Mode(StrEnum):
    """`METERING_MODE`: how far a run goes (domain: modes)."""

    LIVE = "live"
    DRY_RUN = "dry-run"
    SHADOW = "shadow"


class DefaultStatus(StrEnum):
    """`METERING_DEFAULT_STATUS`."""

    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Settings:
    """The settings of one deployment; None where a setting that has no default is not set."""

    usage_table: str | None = None
    aggregated_usage_table: str | None = None
    subscribers_table: str | None = None
    mode: Mode | None = None
    subscribers_table_region: str = "us-east-1"
    """Lifecycle events exist only there."""
    region: str | None = None
    """`AWS_REGION`, which other SDKs read and Python's does not; None: by the SDK's own chain."""
    product_code: str | None = None
    """The product of licenses whose subscriber row names none."""
    lock_hours: int = 1
    quantities: Quantities = Quantities.DECIMAL
    ledger_uri: str | None = None
    """A folder or `s3://`; None: beside Dagster's storage."""
    cron: str = "0 * * * *"
    """`METERING_CRON`: when the schedules of the offsets and of the age-out tick, in UTC."""
    events_queue_url: str | None = None
    """`MARKETPLACE_EVENTS_QUEUE_URL`: the SQS queue that brings the marketplace's lifecycle events."""
    events_seconds: int = 60
    """`METERING_EVENTS_SECONDS`: how often the sensor looks into that queue."""
    flush_seconds: int = 300
    """`METERING_FLUSH_SECONDS`: how often it is looked whether deprovisioning licenses have usage to be flushed."""
    finalize_seconds: int = 900
    """`METERING_FINALIZE_SECONDS`: how often it is looked whether a flush window is over."""
    running: bool = False
    """`METERING_DEFAULT_STATUS`: whether schedules and sensors run before anybody has switched them on."""
    alerts_topic_arn: str | None = None
    """The SNS topic that hears of failures; the topic's own Region and account count."""
    alerts_webhook_url: str | None = field(default=None, repr=False)
    """Who hears of failures over HTTP. A secret: whoever knows it can post."""
    ui_url: str | None = None
    """Where people reach Dagster's UI, without a slash at its end: the base of links; None: links are paths."""
    billing_database_url: str | None = field(default=None, repr=False)
    """Where the billing tables are. A secret: it holds a password."""
    billing_changes_uri: str | None = None
    """A folder or `s3://`, for what is reported of each day; None: beside Dagster's storage."""
    billing_horizon_days: int = 32
    """How many days back an ingest is detected; what is older is not, and every answer says so."""
    billing_overlap_minutes: int = 60
    """How far before its mark the watermark looks again: longer than the longest ingest transaction."""
    billing_quiet_seconds: int = 120
    """For how long nothing of a day must have moved before its run is asked for."""
    billing_changes_seconds: int = 60
    """How often it is looked whether billing data was ingested again."""
    frozen_now: datetime | None = None
    """`METERING_NOW`: the clock of a rehearsal. Billing data goes by the clock of its own database."""
    endpoints: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The AWS SDK's own endpoint settings that are set, by name. Their URLs may hold passwords."""

    def now(self) -> datetime:
        """Return the instant that the hour policy goes by, in UTC."""
        return self.frozen_now or datetime.now(UTC)

    def require(self) -> "Settings":
        """Return these settings, if a run can work with them; else `SettingsError` with all that are missing."""
        missing = [name for name, value in (
            ("USAGE_TABLE", self.usage_table), ("AGGREGATED_USAGE_TABLE", self.aggregated_usage_table),
            ("SUBSCRIBERS_TABLE", self.subscribers_table), ("METERING_MODE", self.mode),
        ) if value is None]  # fmt: skip
        if missing:
            raise SettingsError(
                f"Not set: {', '.join(missing)}. Nothing was read or written. "
                "Set them in the environment of the code location and of its runs (METERING_MODE is one of "
                f"{', '.join(Mode)})."
            )
        if self.usage_table == self.aggregated_usage_table:
            raise SettingsError(
                f"USAGE_TABLE and AGGREGATED_USAGE_TABLE name the same table, {shown_value(str(self.usage_table))}. "
                "Nothing was read or written. Raw rows and aggregates need a table each."
            )
        if self.subscribers_table in (self.usage_table, self.aggregated_usage_table):
            raise SettingsError(
                f"SUBSCRIBERS_TABLE names a table of usage, {shown_value(str(self.subscribers_table))}. Nothing was "
                "read or written. Subscribers need a table of their own."
            )
        return self


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read and check the environment; an empty value counts as not set. All that is malformed is named at once.

    Raises `SettingsError` also for a name that is close to a setting's. Issues a `SettingsWarning` for each other name
    that begins as ours do and is unknown.
    """
    faults: list[str] = []
    known = {*_NOT_YET, *_OF_TESTS}

    def read(name: str, parse: Callable[[str], T], default: T, show: Callable[[str], str] = shown_value) -> T:
        known.add(name)
        text = environment.get(name, "").strip()
        if not text:
            return default
        try:
            return parse(_printable(text))
        except ValueError as error:
            faults.append(f"{name}={show(text)}: {error}")
            return default

    settings = Settings(
        usage_table=read("USAGE_TABLE", str, None),
        aggregated_usage_table=read("AGGREGATED_USAGE_TABLE", str, None),
        subscribers_table=read("SUBSCRIBERS_TABLE", str, None),
        mode=read("METERING_MODE", _one_of(Mode), None),
        subscribers_table_region=read("SUBSCRIBERS_TABLE_REGION", str, Settings.subscribers_table_region),
        region=read("AWS_REGION", str, None),
        product_code=read("PRODUCT_CODE", str, None),
        lock_hours=clamp_lock(read("METERING_LOCK_HOURS", _whole_number, Settings.lock_hours)),
        quantities=read("METERING_QUANTITIES", _one_of(Quantities), Settings.quantities),
        ledger_uri=read("METERING_LEDGER_URI", _place, None),
        cron=read("METERING_CRON", _cron, Settings.cron),
        events_queue_url=read("MARKETPLACE_EVENTS_QUEUE_URL", _queue_url, None),
        events_seconds=read("METERING_EVENTS_SECONDS", _seconds, Settings.events_seconds),
        flush_seconds=read("METERING_FLUSH_SECONDS", _seconds, Settings.flush_seconds),
        finalize_seconds=read("METERING_FINALIZE_SECONDS", _seconds, Settings.finalize_seconds),
        running=read("METERING_DEFAULT_STATUS", _one_of(DefaultStatus), DefaultStatus.STOPPED) is DefaultStatus.RUNNING,
        alerts_topic_arn=read("METERING_ALERTS_TOPIC_ARN", _topic_arn, None),
        alerts_webhook_url=read("METERING_ALERTS_WEBHOOK_URL", _webhook_url, None, lambda _: "****"),
        ui_url=read("METERING_UI_URL", _ui_url, None),
        billing_database_url=read("BILLING_DATABASE_URL", _database_url, None, lambda _: "****"),
        billing_changes_uri=read("BILLING_CHANGES_URI", _place, None),
        billing_horizon_days=read("BILLING_HORIZON_DAYS", horizon_days, Settings.billing_horizon_days),
        billing_overlap_minutes=read("BILLING_OVERLAP_MINUTES", _minutes, Settings.billing_overlap_minutes),
        billing_quiet_seconds=read("BILLING_QUIET_SECONDS", _quiet_seconds, Settings.billing_quiet_seconds),
        billing_changes_seconds=read("BILLING_CHANGES_SECONDS", _seconds, Settings.billing_changes_seconds),
        frozen_now=read("METERING_NOW", past_instant, None),
        endpoints={name: value for name, value in environment.items() if name.startswith("AWS_ENDPOINT_URL") and value},
    )
    if settings.frozen_now is not None:
        faults += _frozen_clock_faults(settings)
    faults += _check_names(environment, known)
    if faults:
        raise SettingsError(f"Malformed settings, nothing was read or written: {'; '.join(faults)}.")
    return settings


def _check_names(environment: Mapping[str, str], known: Collection[str]) -> list[str]:
    """Return what is wrong with the names that are set beside the known ones; warns of those that are unknown
    and ours.
    """
    is_set = {name: value.strip() for name, value in environment.items() if value.strip()}
    faults = [
        f"{name} is set, and this version does not implement it: unset it, or run the version that does"
        for name in _NOT_YET
        if name in is_set
    ]
    for name, value in sorted(is_set.items()):
        if name in known or is_of_kubernetes(name, value):
            continue
        other = meant(name, known)
        if other is not None:
            faults.append(f"{_shown_name(name)} is no setting; {other} is: correct the name, or choose another one")
        elif is_ours(name):
            warnings.warn(
                f"{_shown_name(name)} is set and is no setting of this version. It was ignored. "
                "docs/settings.md names them all.",
                SettingsWarning,
                stacklevel=3,
            )
    return faults


def _shown_name(name: str) -> str:
    return shown_value(name)[1:-1] if name.isidentifier() else shown_value(name)


def _printable(text: str) -> str:
    """No setting means control characters, or bytes that are no UTF-8; they would come out wherever it is named."""
    if not text.isprintable():
        raise ValueError("must not hold control characters, or bytes that are no UTF-8")
    return text


def _one_of(kind: type[E]) -> Callable[[str], E]:
    def parse(text: str) -> E:
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"must be one of {', '.join(member.value for member in kind)}") from None

    return parse


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):  # Python itself refuses those of thousands of digits
        raise ValueError("must be a whole number")
    return int(text)


def _from_to(least: int, most: int, unit: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = _whole_number(text)
        if not least <= number <= most:
            raise ValueError(f"must be {least} to {most} {unit}")
        return number

    return parse


def horizon_days(text: str) -> int:
    """Return a horizon in days; ValueError unless it is a whole number from 1 to 92 (domain: the billing-changes
    signal).
    """
    return _from_to(1, 92, "days")(text)


_seconds = _from_to(1, 3600, "seconds")  # a flush window is an hour long
_minutes = _from_to(1, 1440, "minutes")
_quiet_seconds = _from_to(0, 900, "seconds")  # after 15 minutes a day is asked for in any case
_DATABASES = ("mysql", "mysql+pymysql", "mariadb", "mariadb+pymysql", "sqlite", "sqlite+pysqlite")


def _database_url(text: str) -> str:
    scheme, found, place = text.partition("://")
    if not found or scheme not in _DATABASES or (scheme.startswith("sqlite") and not place.startswith("//")):
        raise ValueError("must be mysql+pymysql://USER:PASSWORD@HOST:PORT/DATABASE or sqlite:////absolute/path")
    return text


def _place(text: str) -> str:
    """Return a folder, or a prefix of S3; of a URI's other parts some would be taken for a key and some for a
    secret.
    """
    has_scheme = "://" in text or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text)
    if has_scheme and not re.fullmatch(r"s3://[^/?#@:\s]+(/[^?#]*)?", text):
        raise ValueError("must be a folder or s3://BUCKET/PREFIX, with no user and no options")
    if not has_scheme and not text.startswith("/"):
        raise ValueError(
            "must be a folder or s3://BUCKET/PREFIX, the folder from the root on, such as /var/lib/metering: "
            "each process has a working directory of its own"
        )
    return text


def _queue_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/\s?#]+/[0-9]+/[A-Za-z0-9_-]+(\.fifo)?", text):
        raise ValueError("must be the URL of an SQS queue, such as https://sqs.us-east-1.amazonaws.com/ACCOUNT/NAME")
    return text


def _cron(text: str) -> str:
    try:
        is_hourly = ticks_every_hour(text)
    except ValueError:
        raise ValueError("must be a cron expression of five fields, such as 0 * * * *") from None
    if not is_hourly:
        raise ValueError(
            "must tick at least once in every hour of every day, such as 7 * * * * or */5 * * * *: "
            "usage of the hours between would be lost"
        )
    return text


def _topic_arn(text: str) -> str:
    if not re.fullmatch(r"arn:aws[a-zA-Z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?", text):
        raise ValueError("must be the ARN of an SNS topic, arn:aws:sns:REGION:ACCOUNT:NAME")
    return text


def _url(text: str) -> SplitResult:
    """Return the parts of an http or https URL; none of the errors repeats it."""
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError("must be a URL without blanks or characters beyond ASCII")
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        raise ValueError("must be a URL with a valid host and port") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        raise ValueError("must be a URL that begins with https:// (or http://) and a host")
    if "@" in url.netloc:
        raise ValueError("must not carry a user or password")
    return url


def _webhook_url(text: str) -> str:
    if _url(text).scheme == "http" and not is_loopback(text):
        raise ValueError("must begin with https://; http:// is for loopback only")
    return text


def _ui_url(text: str) -> str:
    url = _url(text)
    if url.query or url.fragment:
        raise ValueError("must be the address of the UI alone, such as https://dagster.example.com")
    return text.rstrip("/")


def past_instant(text: str) -> datetime:
    """Return `METERING_NOW` as an instant in UTC; ValueError where it is none, names no zone, or has not come yet."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be an ISO-8601 instant such as 2026-11-28T10:30:00Z") from None
    if instant.tzinfo is None:
        raise ValueError("must name its zone, such as the Z of 2026-11-28T10:30:00Z")
    if instant.year < _FIRST_YEAR:
        raise ValueError(f"must not be earlier than the year {_FIRST_YEAR}")
    if instant > datetime.now(UTC):
        raise ValueError("must not be later than the real time")
    return instant.astimezone(UTC)


def _frozen_clock_faults(settings: Settings) -> list[str]:
    """Return the faults of a frozen clock, which must never meet real services: each endpoint must be on loopback."""
    in_use = ["AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_MARKETPLACE_METERING"]
    if (settings.ledger_uri or "").startswith("s3://"):
        in_use.append("AWS_ENDPOINT_URL_S3")
    if settings.events_queue_url is not None:
        in_use.append("AWS_ENDPOINT_URL_SQS")
    if settings.alerts_topic_arn is not None:
        in_use.append("AWS_ENDPOINT_URL_SNS")
    faults = []
    for name in in_use:
        url = settings.endpoints.get(name) or settings.endpoints.get("AWS_ENDPOINT_URL")
        if url is None or not is_loopback(url):
            faults.append(
                f"METERING_NOW is refused unless {name} is on loopback (it is {shown_value(url) if url else 'not set'})"
            )
    if settings.alerts_webhook_url is not None and not is_loopback(settings.alerts_webhook_url):
        faults.append("METERING_NOW is refused unless METERING_ALERTS_WEBHOOK_URL is on loopback, or not set")
    return faults
