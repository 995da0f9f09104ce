"""Which cells of cloud-billing data were ingested again, day by day (domain: the billing-changes signal)."""
