"""Very many resource groups: few queries, each along an index."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import Engine

from benchmarks.billing import Step, explain, filled, measure, ratios
from benchmarks.billing_rows import DAYS, FULL, GROUPS
from metering_dagster.billing_changes.rules.cells import Signal, cells_of
from metering_dagster.billing_changes.stores.database import Database
from tests.billing_changes.filling import queries_of, resource_group
from tests.mariadb import Server

DAY = date(2026, 11, 20)
TEN = datetime(2026, 11, 20, 10, tzinfo=UTC)
ALONG_AN_INDEX = {"range", "ref", "eq_ref", "const"}
SUBSCRIPTIONS = "cmdb_billing_subscriptions"


@pytest.mark.case("many_resource_groups")
def test_1500_groups_are_asked_for_by_some_15_queries(billing):
    billing.subscribe(*(resource_group(f"rg-{number}") for number in range(1_500)))
    billing.fact("t1", DAY, TEN, group="RG-7")
    database = billing.database()
    with database.reading() as reading:
        claims = reading.claims()
        with queries_of(database) as queries:
            cells = cells_of(reading.pieces_of([DAY], claims, amounts=True), claims)
        with queries_of(database) as polled:
            reading.pieces_since(dict.fromkeys(Signal, TEN), DAY)
    assert [cell.subscription.external_id for cell in cells.values()] == ["rg-7"]
    assert len(queries) <= 1 + 16  # the spellings that there are, and then a hundred at a time
    assert len(polled) == 2
    assert all(" OR " not in query and "WHERE" in query for query, _ in queries)


@pytest.fixture(scope="module")
def a_tenth(mariadb: Server) -> Iterator[tuple[Database, Engine]]:
    """A tenth of the benchmark's rows, with all of its resource groups, tenants and days."""
    with filled(mariadb, FULL // 10, f"billing_test_tenth_{datetime.now(UTC):%H%M%S%f}") as both:
        yield both


def steps_of(database: Database, engine: Engine, days: int) -> list[Step]:
    """How MariaDB executes everything that is asked of a horizon of so many days."""
    with queries_of(database) as queries, database.reading() as reading:
        today = reading.now.date()
        first = today - timedelta(days=days)
        claims = reading.claims()
        for start in (reading.now - timedelta(hours=1), reading.now - timedelta(hours=8)):
            reading.pieces_since(dict.fromkeys(Signal, start), first)
        for amounts in (False, True):
            reading.pieces_of([today, first], claims, amounts=amounts)
        reading.checksums(first)
        reading.invalid_stamps(today)
        reading.days_with_invalid_stamps(first, reading.now)
        reading.groups_of(today)
        reading.tenants_of(today)
    with engine.connect() as connection:
        return [step for query, parameters in queries for step in explain(connection, query, parameters)]


@pytest.mark.services
@pytest.mark.case("many_resource_groups")
@pytest.mark.parametrize("days", [1, 32, DAYS - 1])
def test_every_query_of_the_cells_goes_along_an_index(a_tenth, days):
    steps = steps_of(*a_tenth, days)
    assert len(steps) > GROUPS / 100
    # Where all days are asked for and a cell has a few rows only, MariaDB walks the whole of a covering index.
    whole = {"index"} if days == DAYS - 1 else set()
    along = [step for step in steps if step.kind in ALONG_AN_INDEX | whole and step.index]
    scans = [step for step in steps if step not in along and step.table != SUBSCRIPTIONS]
    assert scans == []
    assert {step.index for step in steps if step.table != SUBSCRIPTIONS} - {"uq_cloud_billing_daily"} == {
        "ix_cost_facts_moved",
        "ix_cost_facts_scope",
        "ix_cost_facts_group",
        "ix_cloud_billing_daily_moved",
        "ix_cloud_billing_daily_scope",
    }


@pytest.mark.services
def test_looking_for_changes_is_much_cheaper_than_the_window_again(a_tenth):
    # A tenth of the rows with all of the groups: what is saved is less than in the benchmark's full size.
    figures = measure(*a_tenth, say=lambda figure: None)
    poll, reconcile = ratios(figures)
    assert poll > 20
    assert reconcile > 1.5
    assert figures["poll, few changes"].queries == 3
    assert figures["reconcile: checksums"].queries < 30
    assert figures["reconcile: checksums"].answers == 92
