"""The environment of processes on the embedded stack.

Belongs here: variables removed from the caller's environment, and those added. Does not: reading settings.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metering_dagster.devstack.stack import LocalStack

_OF_A_DEPLOYMENT = ("METERING_", "AWS_", "BILLING_", "MARKETPLACE_")


def environment_on(stack: "LocalStack", home: Path, ours: Mapping[str, str], **settings: str) -> dict[str, str]:
    """Return `ours` with the stack's settings and these, in mode live, without variables of another deployment."""
    return environment_with(home, ours, **(stack.environment() | {"METERING_MODE": "live"} | settings))


def environment_with(home: Path, ours: Mapping[str, str], **settings: str) -> dict[str, str]:
    """Return `ours` with these settings alone, without variables of another deployment."""
    kept = {
        name: value
        for name, value in ours.items()
        if not name.startswith(_OF_A_DEPLOYMENT) and name not in ("PRODUCT_CODE", "DAGSTER_HOME")
    }
    return kept | {"DAGSTER_HOME": str(home)} | settings


@contextmanager
def using_environment(environment: Mapping[str, str]) -> Iterator[None]:
    """Give this process that environment while the block runs."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ |= environment
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before
