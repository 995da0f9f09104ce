"""The readers of JSON members of unknown shape. Pure.

Belongs here: whether a value is a structure or a string. Does not: whether its content is acceptable (rules.py,
quantities.py).
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from metering_dagster.devstack.sandbox.errors import Code, RefusedError


def structure(value: Any, what: str, members: AbstractSet[str]) -> Mapping[str, Any]:
    """Return a JSON object that has only the API's own members. Raises `RefusedError` for any other value."""
    if not isinstance(value, dict):
        raise RefusedError(Code.VALIDATION, f"{what} must be a structure.")
    if not value.keys() <= members:
        raise RefusedError(Code.VALIDATION, f"{what} has a member that the API does not know.")
    return value


def text(record: Mapping[str, Any], name: str) -> str | None:
    """Return a string member; None where it is absent or null. Raises `RefusedError` for any other value."""
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise RefusedError(Code.VALIDATION, f"{name} must be a string.")
    return value
