"""What a person, or a program in his place, does around the metering: set up its tables, see how it stands.

Belongs here: use cases of the command line on real deployments, and what they say. Does not: metering itself, anything
of the embedded stack, Dagster.
"""
