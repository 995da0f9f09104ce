"""Billing by simulation, a few seeds of it; `make simulate-billing` has more."""

import pytest

from tests.billing_changes.simulation import failures
from tests.mariadb import Server

SEEDS = 50
AT_A_TIME = 10


@pytest.mark.services
@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_every_ingest_is_reported_and_nothing_that_was_never_written(mariadb: Server, first: int):
    found = failures(mariadb, range(first, first + AT_A_TIME))
    wrong = {f"seed {seed}": said for seed, said in found if said}
    assert not wrong
