"""Use cases: the order of reading, deciding and writing, without Dagster."""
