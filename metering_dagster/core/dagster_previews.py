"""Dagster's previews that this project uses knowingly, without their warnings at each loading.

Each run's process loads the definitions again, so a warning would come out many times a day. Where a preview is used,
its place says what for; the locked version of Dagster is the one it was tried with.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg


@contextmanager
def used_knowingly() -> Iterator[None]:
    """Leave out the warnings of what is used in this block: previews and betas of Dagster, and no others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield
