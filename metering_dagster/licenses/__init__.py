"""The lifecycle of licences, from the marketplace's events to the subscribers table.

Belongs here: what each event does to a subscriber's row, the queue that brings the events, who writes the rows.
Does not: the usage of a licence (metering), which reads the same table and writes nothing to it.
"""
