"""The command line: `metering-dagster`."""

from metering_dagster.cli.main import main

__all__ = ["main"]
