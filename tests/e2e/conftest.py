"""One marketplace and one Dagster for each module; after each test the whole bill is what it ought to be."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.marketplace import Marketplace, running_marketplace

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def marketplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Marketplace]:
    with running_marketplace(tmp_path_factory.mktemp("marketplace"), PROJECT) as running:
        yield running


@pytest.fixture(autouse=True)
def _the_bill_is_right(marketplace: Marketplace) -> Iterator[None]:
    yield
    marketplace.check()
