"""The life of a licence beside its usage: deprovisioning, the flush of what it used last, its end.

Belongs here: flush windows, their hours, closing them. Does not: how an hour is metered (metering), which imports
nothing from here.
"""
