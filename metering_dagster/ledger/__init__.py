"""The record of what each run did, hour by hour, as parquet files that only ever are added.

Belongs here: the files, their columns and where they lie. Does not: what is written into them.
"""
