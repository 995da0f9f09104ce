"""What a step says to Dagster beyond its outputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dagster as dg

from metering_dagster.core.errors import MeteringError


@contextmanager
def raise_as_dagster_failure() -> Iterator[None]:
    """Turn a `MeteringError` of this block into the run's failure: its words alone, retried where that can help."""
    try:
        yield
    except MeteringError as error:
        raise dg.Failure(str(error), allow_retries=error.retryable) from None


def log_check_evaluation(context: dg.OpExecutionContext, evaluation: dg.AssetCheckEvaluation) -> None:
    """Record the result of a check for a partition that need not be the run's own.

    `log_event` takes it, though its annotation lists no check evaluations.
    """
    log: Any = context
    log.log_event(evaluation)
