"""Resource groups under collations that tell case apart, and under those that do not, on MariaDB."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest

from metering_dagster.billing_changes.rules.cells import Signal, cells_of, key_of
from metering_dagster.billing_changes.stores.billing_tables import METADATA
from tests.billing_changes.conftest import filled_by_hand, fresh_database
from tests.billing_changes.filling import BillingTables, resource_group, tenant
from tests.mariadb import Server

pytestmark = [pytest.mark.services, pytest.mark.case("resource_group_case")]

DAY = date(2026, 11, 20)
TEN = datetime(2026, 11, 20, 10, tzinfo=UTC)
ELEVEN = TEN + timedelta(hours=1)
COLLATIONS = ["utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_nopad_bin", "utf8mb4_uca1400_as_ci"]


@pytest.fixture(params=COLLATIONS)
def collated(request: pytest.FixtureRequest, mariadb: Server) -> Iterator[BillingTables]:
    """The tables in a database whose columns have that collation."""
    with fresh_database(mariadb) as url, filled_by_hand(url) as tables:
        for table in METADATA.tables:
            tables.run(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {request.param}")
        yield tables


@pytest.fixture
def spelt(collated: BillingTables) -> BillingTables:
    """A resource group in several spellings and neighbors that some collations take for the same."""
    collated.run("ALTER TABLE cmdb_cost_facts DROP KEY uq_cost_facts")
    spellings = ["rg-prod", "RG-Prod", "RG-PROD  ", "rg-próđ", "rg-prod\U0001f680", "rg-prode"]
    for number, spelling in enumerate(spellings):
        collated.run(
            "INSERT INTO cmdb_cost_facts (scope_id, integration_id, resource_group, service, date, amount, currency, "
            f"updated_at) VALUES ('t1', 'azure', '{spelling}', 's{number}', '{DAY}', 1, 'USD', "
            f"'2026-11-20 1{number}:00:00')"
        )
    return collated


def owners(billing: BillingTables) -> tuple[dict[str, int], dict[str, int]]:
    """How many facts each subscription has, as the poll and as the exact look find it."""
    with billing.database().reading() as reading:
        claims = reading.claims()
        since = cells_of(reading.pieces_since(dict.fromkeys(Signal, TEN), DAY), claims).values()
        exactly = cells_of(reading.pieces_of([DAY], claims, amounts=True), claims).values()
    return tuple(
        {cell.subscription.id: cell.facts.rows for cell in cells if cell.facts is not None}
        for cells in (since, exactly)
    )  # type: ignore[return-value]


def test_each_spelling_in_case_is_found_and_no_neighbor(spelt):
    spelt.subscribe(resource_group("rg-Prod", id="prod"), resource_group("RG-PRÓĐ", id="accents"),
                    resource_group("rg-PROD\U0001f680", id="rocket"), tenant("t1"))  # fmt: skip
    assert owners(spelt) == ({"prod": 3, "accents": 1, "rocket": 1, "t1": 6},) * 2


def test_a_spelling_that_only_the_subscription_has_is_enough(spelt):
    spelt.subscribe(resource_group("rG-pRoD", id="prod"))
    assert owners(spelt) == ({"prod": 3},) * 2


@pytest.mark.parametrize("other", ["rg-\U0001f681", "RG-\U0001f680", "rg-é", "rg-\U0001f680-"])
def test_names_that_differ_in_one_character_are_two_in_tables_made_by_our_ddl(billing_mariadb, other):
    names = ["rg-\U0001f680", other]
    for name in names:
        billing_mariadb.fact("t1", DAY, TEN, group=name)
        billing_mariadb.daily(name, DAY, TEN)
    claimed = [resource_group(name, id=f"g{number}") for number, name in enumerate(names)]
    billing_mariadb.subscribe(*claimed, *(tenant(name) for name in names))
    keys = {key_of(name) for name in names}
    for found in owners(billing_mariadb):
        assert {found[one.id] for one in claimed} == {2 // len(keys)}


def test_a_tenant_is_found_in_each_spelling_in_case(spelt):
    spelt.run("UPDATE cmdb_cost_facts SET scope_id = 'T1' WHERE service = 's1'")
    spelt.subscribe(tenant("t1"))
    assert owners(spelt) == ({"t1": 6},) * 2


def test_a_column_of_an_older_character_set_is_read(billing_mariadb):
    # ASCII only: MariaDB 10.11 finds no accents of latin1 columns by row constructors (each pair alone it does find).
    billing_mariadb.run(
        "ALTER TABLE cmdb_cost_facts MODIFY resource_group VARCHAR(255) CHARACTER SET latin1",
        "ALTER TABLE cmdb_cost_facts MODIFY currency CHAR(3) CHARACTER SET latin1",
    )
    billing_mariadb.subscribe(resource_group("RG-CAFE", id="cafe"))
    billing_mariadb.fact("t1", DAY, TEN, group="rg-cafe")
    assert owners(billing_mariadb) == ({"cafe": 1},) * 2
