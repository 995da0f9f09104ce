"""The daily report of the ledger."""
