"""The age-out: what can no longer be billed comes to its end, hour by hour, in seven shards.

Belongs here: the sweep of a shard, its asset, job, schedules and ticks. Does not: which hours a shard owns (hours), how
rows and records are stored (metering).
"""
