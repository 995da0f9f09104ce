"""The embedded stack: AWS on loopback, the marketplace sandbox, sample data.

Belongs here: everything that shows the project at work without an AWS account. Does not: anything that the pipeline
imports. Only the command line and the tests import this room.
"""
