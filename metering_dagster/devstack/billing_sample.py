"""Sample billing data: two months of a company that pays for three clouds, as its collector ingested them. Pure.

Belongs here: the tenants, the costs of each day, the times of its ingests. Does not: later ingests of the same days
(billing_reingest), writing rows to a database (billing_db).

`generate` is pure: the same `now` and seed make the same sample, and a day costs the same in all of them.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache

DEFAULT_SEED = 2026
DAYS = 62
"""The days of the sample, today included, which is ingested tomorrow night."""
AZURE, AWS, GCP = "azure-enterprise", "aws-organization", "gcp-billing"
"""The integrations."""
WEEKEND = {"Compute": 0.62, "Container": 0.71, "Databases": 0.9, "Functions": 0.45, "Notebooks": 0.2}
"""The share of a working day's cost on a weekend's day, by a word in the service. Others cost the same every day."""
YEARLY_GROWTH = 0.3
ACTIVE = 0.93
"""The probability that a line has a cost on a day."""
REFUNDED = 0.004
"""The probability that this cost is a refund."""
MICRO = Decimal("0.000001")
CLOSING_DAY = 5
"""The day of the next month in whose night the whole month is ingested once more, in both tables."""


@dataclass(frozen=True)
class Fact:
    """Row of `cmdb_cost_facts`: the cost of a resource group's service on a day."""

    scope_id: str
    integration_id: str
    resource_group: str | None
    """As this service spells it: Azure's services differ in upper and lower case."""
    service: str
    day: date
    amount: Decimal
    currency: str
    fetched_at: datetime
    """The first ingest; frozen."""
    updated_at: datetime
    """The last ingest."""


@dataclass(frozen=True)
class Daily:
    """Row of `cmdb_cloud_billing_daily`: the cost of a tenant on a day, in the currency of its bill."""

    scope_id: str
    day: date
    amount: Decimal
    currency: str
    fetched_at: datetime
    """The last ingest."""
    updated_at: datetime
    """The first ingest; frozen."""


@dataclass(frozen=True)
class Subscribed:
    """Row of `cmdb_billing_subscriptions`."""

    id: str
    integration_id: str
    external_id: str
    name: str
    provider: str
    is_resource_group: bool = False
    enabled: bool = True

    def claims(self, fact: Fact) -> bool:
        """Judge whether the fact belongs to this subscription, enabled or not."""
        if not self.is_resource_group:
            return fact.scope_id == self.id
        group = fact.resource_group or ""
        return fact.integration_id == self.integration_id and group.lower() == self.external_id.lower()


@dataclass(frozen=True)
class SampleTenant:
    """Subscription, account or project of one of the clouds."""

    scope_id: str
    name: str
    integration_id: str
    currency: str
    minute: int
    """The minute of its ingest in a night."""


@dataclass(frozen=True)
class _Job:
    """Job that fills one of the tables; the two are independent."""

    begins: time
    nights: tuple[int, ...]
    """The nights after a day in which it ingests the day's rows."""


_FACTS_JOB, _DAILY_JOB = _Job(time(1, 20), (1, 3, 6)), _Job(time(3, 5), (1, 2))


@dataclass(frozen=True)
class _Line:
    """Costs of a resource group's service, day by day."""

    tenant: SampleTenant
    resource_group: str | None
    service: str
    usual: float
    """The cost of a working day."""
    currency: str
    monthly: bool = False
    """True where it is charged on the 1st alone."""


@dataclass(frozen=True)
class BillingCast:
    """Tenants, subscriptions and services of a seed: the same at any time."""

    tenants: tuple[SampleTenant, ...]
    subscriptions: tuple[Subscribed, ...]
    lines: tuple[_Line, ...]
    two_currencies: SampleTenant
    shared_group: str
    """The resource group that two subscriptions name."""


@dataclass(frozen=True)
class BillingSample:
    """Content of the three tables."""

    now: datetime
    facts: tuple[Fact, ...]
    daily: tuple[Daily, ...]
    subscriptions: tuple[Subscribed, ...]


_AZURE_TENANTS = (
    ("Shop Production", "EUR", ("shop-web-prod", "shop-checkout-prod", "shop-search-prod", "shop-data-prod")),
    ("Shop Test", "EUR", ("shop-web-test", "shop-checkout-test", "shop-load-test")),
    ("Data Platform", "EUR", ("lakehouse-prod", "streaming-prod", "notebooks", "reports-prod")),
    ("Workplace", "EUR", ("identity", "intranet-prod", "print-services")),
    ("Stores UK", "GBP", ("stores-uk-prod", "stores-uk-pos")),
    ("Shared Services", "EUR", ("hub-network", "backup", "monitoring", "build-agents")),
)
_AWS_TENANTS = (("retail-prod", "Retail Production"), ("retail-dev", "Retail Development"), ("ml-lab", "ML Lab"))
_GCP_TENANTS = (
    ("analytics-prod-7c41", "Analytics Production"),
    ("maps-prod-19fe", "Maps"),
    ("sandbox-83d0", "Sandbox (given up)"),
)
EVERYWHERE = "NetworkWatcherRG"
"""A resource group that Azure makes in every subscription: its cell has rows of several tenants."""
_AZURE_SERVICES = (
    ("Virtual Machines Compute", 8, 260), ("Container Apps", 3, 90), ("Storage", 1, 60), ("Functions", 0.05, 4),
    ("Azure SQL Databases", 6, 180), ("Bandwidth", 0.2, 25), ("Key Vault", 0.01, 0.6), ("Log Analytics", 0.5, 40),
)  # fmt: skip
_AWS_SERVICES = (
    ("AmazonEC2 Compute", 40, 700), ("AmazonS3", 5, 90), ("AmazonRDS Databases", 20, 260), ("AWSKMS", 0.02, 1),
    ("AWSLambda Functions", 0.1, 9), ("AmazonECS Container", 8, 150), ("AmazonSageMaker Notebooks", 2, 120),
    ("AmazonCloudFront", 1, 60), ("AmazonCloudWatch", 1, 30), ("AWSDataTransfer", 1, 50),
)  # fmt: skip
_GCP_SERVICES = (
    ("Compute Engine", 10, 240), ("BigQuery", 8, 320), ("Cloud Storage", 2, 40), ("Cloud Run Functions", 0.2, 12),
    ("Networking", 0.4, 30), ("Cloud Logging", 0.3, 18), ("Vertex AI Notebooks", 1, 90),
)  # fmt: skip


def generate(now: datetime, seed: int = DEFAULT_SEED) -> BillingSample:
    """Generate the days up to that of `now`, with the ingests before `now`."""
    cast, today = cast_of(seed), now.astimezone(UTC).date()
    facts: list[Fact] = []
    daily: list[Daily] = []
    for back in range(DAYS - 1, -1, -1):
        day = today - timedelta(days=back)
        of_the_day = list(_facts(cast, day, now, seed))
        facts += of_the_day
        daily += _daily(cast, day, of_the_day, now)
    return BillingSample(now, tuple(facts), tuple(daily), cast.subscriptions)


@cache
def cast_of(seed: int = DEFAULT_SEED) -> BillingCast:
    """Return tenants, subscriptions and services of this seed."""
    rng = random.Random(f"{seed}/billing")
    tenants: list[SampleTenant] = []
    subscriptions: list[Subscribed] = []
    lines: list[_Line] = []
    for name, currency, workloads in _AZURE_TENANTS:
        tenant = SampleTenant(_guid(rng), name, AZURE, currency, rng.randrange(60))
        tenants.append(tenant)
        groups = [f"rg-{workload}" for workload in workloads]
        subscriptions += [_group(rng, group, f"{name}: {group[3:]}") for group in groups]
        for group in [*groups, EVERYWHERE]:
            lines += _lines(rng, tenant, group, _AZURE_SERVICES, 1 if group == EVERYWHERE else rng.randint(4, 7))
    for integration, clouds in ((AWS, _AWS_TENANTS), (GCP, _GCP_TENANTS)):
        for scope_id, name in clouds:
            tenants.append(SampleTenant(scope_id, name, integration, "USD", rng.randrange(60)))
            services = _AWS_SERVICES if integration == AWS else _GCP_SERVICES
            lines += _lines(rng, tenants[-1], None, services, rng.randint(6, len(services)))
    two_currencies = tenants[2]
    lines += [_Line(two_currencies, f"rg-{_AZURE_TENANTS[2][2][0]}", "Marketplace: analytics license", 55.0, "USD")]
    lines += [line for tenant in tenants for line in _monthly(rng, tenant)]
    shared = "rg-monitoring"
    subscriptions += [
        _group(rng, EVERYWHERE, "Network watching, all of Azure"),
        _group(rng, shared.upper(), "Monitoring, as the operations team asks for it"),
        Subscribed(_guid(rng), AZURE, _guid(rng), "Bought last week", "azure"),
    ]
    of_tenants = [_of_tenant(tenant) for tenant in tenants]
    return BillingCast(tuple(tenants), (*of_tenants, *subscriptions), tuple(lines), two_currencies, shared)


def _guid(rng: random.Random) -> str:
    text = rng.randbytes(16).hex()
    return "-".join((text[:8], text[8:12], f"4{text[13:16]}", f"a{text[17:20]}", text[20:]))


def _of_tenant(tenant: SampleTenant) -> Subscribed:
    return Subscribed(
        tenant.scope_id, tenant.integration_id, tenant.scope_id, tenant.name, tenant.integration_id.split("-")[0],
        enabled="given up" not in tenant.name,
    )  # fmt: skip


def _group(rng: random.Random, group: str, name: str) -> Subscribed:
    return Subscribed(_guid(rng), AZURE, group, name, "azure", is_resource_group=True)


def _lines(
    rng: random.Random,
    tenant: SampleTenant,
    group: str | None,
    services: Sequence[tuple[str, float, float]],
    count: int,
) -> Iterator[_Line]:
    for name, least, most in rng.sample(services, count):
        spelled = None if group is None else rng.choice((group, group, group.upper(), group.title()))
        yield _Line(tenant, spelled, name, rng.uniform(least, most), tenant.currency)


def _monthly(rng: random.Random, tenant: SampleTenant) -> Iterator[_Line]:
    """Generate the lines charged on the 1st: they belong to no resource group, and credits are negative."""
    for service, least, most in (("Support plan", 90, 400), ("Reservations", 300, 2400), ("Tax", 200, 900)):
        yield _Line(tenant, None, service, rng.uniform(least, most), tenant.currency, monthly=True)
    yield _Line(tenant, None, "Credit: commitment", -rng.uniform(50, 700), tenant.currency, monthly=True)


def _facts(cast: BillingCast, day: date, now: datetime, seed: int) -> Iterator[Fact]:
    rng = random.Random(f"{seed}/billing/{day}")
    growth = max(0.1, 1 + YEARLY_GROWTH * (day - date(2026, 1, 1)).days / 365)
    for place, line in enumerate(cast.lines):
        happens, is_refund, noise = rng.random() < ACTIVE, rng.random() < REFUNDED, rng.gauss(1, 0.06)
        stamps = _ingested(_FACTS_JOB, line.tenant, place, day, now)
        if stamps is None or (day.day != 1 if line.monthly else not happens):
            continue
        share = growth * noise * (1.0 if line.monthly else _rhythm(line.service, day)) * (-0.4 if is_refund else 1)
        amount = Decimal(line.usual * share).quantize(MICRO)
        first, last = stamps
        yield Fact(line.tenant.scope_id, line.tenant.integration_id, line.resource_group, line.service, day, amount,
                   line.currency, fetched_at=first, updated_at=last)  # fmt: skip


def _rhythm(service: str, day: date) -> float:
    return next((share for word, share in WEEKEND.items() if word in service), 1.0) if day.weekday() >= 5 else 1.0


def _daily(cast: BillingCast, day: date, facts: Sequence[Fact], now: datetime) -> Iterator[Daily]:
    """Add up the facts by tenant; facts in another currency than the tenant's are left out."""
    for place, tenant in enumerate(cast.tenants):
        stamps = _ingested(_DAILY_JOB, tenant, place, day, now)
        amounts = [f.amount for f in facts if f.scope_id == tenant.scope_id and f.currency == tenant.currency]
        if stamps is not None and amounts:
            first, last = stamps
            yield Daily(tenant.scope_id, day, sum(amounts, Decimal()), tenant.currency,
                        fetched_at=last, updated_at=first)  # fmt: skip


def _ingested(
    job: _Job, tenant: SampleTenant, place: int, day: date, now: datetime
) -> tuple[datetime, datetime] | None:
    """Return the first and last ingest of a day's row, up to `now`; None before the first."""
    closing = (day.replace(day=28) + timedelta(days=4)).replace(day=CLOSING_DAY)
    turn = timedelta(minutes=tenant.minute, milliseconds=place * 37, microseconds=place * 7919 % 1000)
    dates = [*(day + timedelta(days=night) for night in job.nights), closing]
    past = [stamp for each in dates if (stamp := datetime.combine(each, job.begins, UTC) + turn) <= now]
    return (min(past), max(past)) if past else None
