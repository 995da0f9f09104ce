"""Where an engine is known to answer otherwise than DynamoDB: said at the test, and noticed once it is no longer so."""

import pytest


def deviates(request: pytest.FixtureRequest, engine: str, how: str) -> None:
    """On this engine the test fails, for this reason; where it passes after all, that is a failure."""
    if engine in request.node.callspec.params.values():
        request.applymarker(pytest.mark.xfail(strict=True, reason=f"{engine} {how}"))
