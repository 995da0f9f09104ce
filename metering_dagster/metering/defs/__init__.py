"""The Dagster definitions of this room."""
