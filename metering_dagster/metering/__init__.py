"""One hour of usage, from raw rows to billed records.

Belongs here: the rules of rows, groups and batches, the tables and the API they meet, and the hourly assets.
Does not: licenses' lifecycle, age-out, billing data, anything of the embedded stack.
"""
