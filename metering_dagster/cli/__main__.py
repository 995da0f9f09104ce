"""`python -m metering_dagster.cli`, for who starts it by an interpreter of his own."""

from metering_dagster.cli.main import main

main()
