"""What goes wrong is seen: failed runs, and hours that are not closed in time, become alerts.

Belongs here: finding both, remembering who has been told, the sensor `run_failures`. Does not: what an alert looks like
and how it is sent (operations), metering itself.
"""
