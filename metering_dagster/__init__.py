"""Meters SaaS usage to AWS Marketplace hour by hour, as partitioned Dagster assets."""
