"""One deployment as a Dagster resource: from the settings to tables and API, made when a run first needs them.

Belongs here: wiring. Does not: rules, requests. It imports the AWS SDK where it is used, for each run's process imports
everything again, and the UI needs none of it.
"""

import time
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from metering_dagster.core.errors import CallerError, MeteringError, TableError, UnreachableError
from metering_dagster.ledger.stores.files import Ledger, default_uri
from metering_dagster.metering.rules.flush_window import LicenseScope, Windows, buyers_of
from metering_dagster.metering.services.tables import Slice, Tables
from metering_dagster.settings import Mode, Settings

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from metering_dagster.core.aws.clients import Clients
    from metering_dagster.metering.services.aggregation_report import Tell
    from metering_dagster.metering.services.submission import Submitter
    from metering_dagster.metering.stores.hour_regions import HourRegions
    from metering_dagster.metering.stores.metering_api import Marketplace
    from metering_dagster.metering.stores.pending_index import PendingIndex
    from metering_dagster.metering.stores.rate_limiter import Quota
    from metering_dagster.metering.stores.subscribers_table import SubscribersTable


_WINDOWS_HOLD_SECONDS = 10.0
"""How long the open flush windows are taken for granted: a run's steps follow one another, and windows last an hour."""


@dataclass(frozen=True)
class Probe:
    """The sparse indexes of the two tables in which something may be pending, and who is deprovisioning."""

    rows: "PendingIndex"
    aggregates: "PendingIndex"
    subscribers: "SubscribersTable"


class Deployment:
    """The tables and the API that the settings name. Nothing is connected before it is used."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._windows: tuple[float, Windows | None, MeteringError | None] = (-inf, None, None)
        """When the open flush windows were asked for, which they are, and why that is not known, if it is not."""
        self._urgent = False

    @property
    def mode(self) -> Mode:
        """Return how far a run goes; `SettingsError` where a needed setting is missing."""
        mode = self.settings.require().mode
        assert mode is not None  # require() has looked
        return mode

    @cached_property
    def clients(self) -> "Clients":
        """Return the AWS clients, of one session."""
        from metering_dagster.core.aws.clients import Clients

        return Clients(self.settings)

    @cached_property
    def tables(self) -> Tables:
        """Return the three tables and what holds for every visit."""
        from metering_dagster.metering.stores.aggregated_table import AggregatedTable
        from metering_dagster.metering.stores.subscribers_table import SubscribersTable
        from metering_dagster.metering.stores.usage_table import UsageTable

        settings, mode = self.settings, self.mode
        client = self.clients.dynamodb()
        usage = UsageTable(client, str(settings.usage_table))
        return Tables(
            usage=usage,
            aggregated=AggregatedTable(client, str(settings.aggregated_usage_table), usage, settings.quantities),
            subscribers=SubscribersTable(
                self.clients.dynamodb(settings.subscribers_table_region), str(settings.subscribers_table)
            ),
            quantities=settings.quantities,
            clock=settings.now,
            writes=mode is not Mode.SHADOW,
        )

    @cached_property
    def probe(self) -> "Probe":
        """Return what a tick looks at, with short time-outs."""
        region = self.settings.subscribers_table_region
        return self._probe(self.clients.probe(), self.clients.probe(region))

    @cached_property
    def indexes(self) -> "Probe":
        """Return the same for a run, which has more time."""
        return self._probe(self.tables.usage.client, self.tables.subscribers.client)

    def _probe(self, client: "DynamoDBClient", elsewhere: "DynamoDBClient") -> "Probe":
        from metering_dagster.metering.stores import aggregated_table, usage_table
        from metering_dagster.metering.stores.pending_index import PendingIndex
        from metering_dagster.metering.stores.subscribers_table import SubscribersTable

        settings = self.settings.require()
        return Probe(
            rows=PendingIndex(client, str(settings.usage_table), usage_table.SHAPE),
            aggregates=PendingIndex(client, str(settings.aggregated_usage_table), aggregated_table.SHAPE),
            subscribers=SubscribersTable(elsewhere, str(settings.subscribers_table)),
        )

    @cached_property
    def marketplace(self) -> "Marketplace":
        """Return the Metering API of the SDK's own Region."""
        from metering_dagster.metering.stores.metering_api import Marketplace

        # The slot is waited for last of all: what comes before the send takes longer on a busy machine than a slot.
        return Marketplace(self.clients.metering(), self.settings.quantities, self._await_slot)

    @cached_property
    def quota(self) -> "Quota":
        """This process' share of the quota of that Region."""
        from metering_dagster.metering.stores.rate_limiter import Quota

        aggregated = self.tables.aggregated
        return Quota(aggregated.client, aggregated.name, self.marketplace.region)

    @cached_property
    def hour_regions(self) -> "HourRegions":
        """To which Region each hour belongs, as far as this process has asked."""
        from metering_dagster.metering.stores.aggregated_table import SHAPE
        from metering_dagster.metering.stores.hour_regions import HourRegions

        aggregated = self.tables.aggregated
        return HourRegions(aggregated.client, aggregated.name, SHAPE)

    def _await_slot(self) -> None:
        self.quota.wait(urgent=self._urgent)

    def submitter(self, tell: "Tell | None" = None, *, urgent: bool = False) -> "Submitter":
        """Return one visit's submission; in dry-run mode it calls nothing. `tell` hears of every record that ended.

        `urgent`: its calls go before those of others. It holds for all calls of this deployment from now on; a process
        has one for each run.
        """
        from metering_dagster.metering.services.aggregation_report import ignore
        from metering_dagster.metering.services.submission import Submitter

        self._urgent = urgent
        return Submitter(
            self.tables,
            self.marketplace,
            self.settings.product_code,
            sends=self.mode is Mode.LIVE,
            tell=tell or ignore,
            regions=self.hour_regions,
        )

    def ledger(self, storage_directory: str) -> Ledger:
        """Return the ledger, at the place that the settings name or else beside Dagster's storage."""
        uri = self.settings.ledger_uri or default_uri(storage_directory)
        endpoints = self.settings.endpoints
        endpoint = endpoints.get("AWS_ENDPOINT_URL_S3") or endpoints.get("AWS_ENDPOINT_URL")
        return Ledger(uri, endpoint, self.settings.region)

    def slice_of(self, hour: datetime, whose: LicenseScope = LicenseScope.ALL) -> tuple[Slice, str | None]:
        """Return the slice of an hour with the open flush windows in it; and why they are not known, if they are not.

        Without them the hour goes on: nobody is urgent, and no last call comes early. A flush does not: it would know
        nobody, and raises what kept the subscribers table from being read.
        """
        asked, expiries, unknown = self._windows
        if time.monotonic() - asked > _WINDOWS_HOLD_SECONDS:
            expiries, unknown = None, None
            try:
                expiries = self.tables.subscribers.deprovisioning()
            except (UnreachableError, CallerError, TableError) as error:
                unknown = error
            self._windows = (time.monotonic(), expiries, unknown)
        if whose is not LicenseScope.DEPROVISIONING:
            return Slice(hour, None, expiries), str(unknown) if unknown else None
        if unknown is not None:
            raise unknown
        return Slice(hour, buyers_of(hour, self.settings.now(), expiries or {}), expiries), None
