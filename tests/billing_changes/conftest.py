"""A billing database for each test, on SQLite in `make test` and on MariaDB in `make test-services`."""

import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.billing_changes.filling import BillingTables, engine_for
from tests.mariadb import PrivateServer, Server, running_server

SQLITE, MARIADB = "sqlite", "mariadb"


@pytest.fixture(scope="session")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server to test with, found or started once."""
    with running_server(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@contextmanager
def fresh_database(server: Server, options: str = "") -> Iterator[str]:
    """The URL of a database of its own, dropped afterwards."""
    name = f"billing_test_{uuid.uuid4().hex[:12]}"
    server.run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4 {options}")
    try:
        yield server.url_of(name)
    finally:
        server.run(f"DROP DATABASE {name}")


@contextmanager
def filled_by_hand(url: str) -> Iterator[BillingTables]:
    """The three tables in that database, empty."""
    tables = BillingTables(url, engine_for(url))
    tables.create()
    try:
        yield tables
    finally:
        tables.close()


@pytest.fixture
def billing_sqlite(tmp_path: Path) -> Iterator[BillingTables]:
    """The billing tables in an SQLite file."""
    with filled_by_hand(f"sqlite:///{tmp_path / 'billing.db'}") as tables:
        yield tables


@pytest.fixture
def billing_mariadb(mariadb: Server) -> Iterator[BillingTables]:
    """The billing tables on MariaDB: for `services` tests."""
    with fresh_database(mariadb) as url, filled_by_hand(url) as tables:
        yield tables


@pytest.fixture(params=[SQLITE, pytest.param(MARIADB, marks=pytest.mark.services)])
def billing(request: pytest.FixtureRequest) -> BillingTables:
    """The billing tables, on either engine in turn."""
    return request.getfixturevalue(f"billing_{request.param}")


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[tuple[PrivateServer, BillingTables]]:
    """A server for this test alone, which it may stop, start and set up as it likes, and the tables there."""
    private = PrivateServer(tmp_path / "mariadb")
    private.start()
    try:
        with fresh_database(private.server) as url, filled_by_hand(url) as tables:
            yield private, tables
    finally:
        private.end()


@pytest.fixture
def own_mariadb(restartable: tuple[PrivateServer, BillingTables]) -> tuple[Server, BillingTables]:
    """The same, for tests that change the server's own settings."""
    private, tables = restartable
    return private.server, tables


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port on loopback at which nobody answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])
