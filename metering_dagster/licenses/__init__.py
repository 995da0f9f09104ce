"""The life of a license: the marketplace's events, the flush of what it used last, its end.

Belongs here: what each event does to a subscriber's row, the queue that brings the events, flush windows and their
closing. Does not: how an hour is metered (metering), which imports nothing from here.
"""
