"""The embedded stack: AWS on loopback, the marketplace sandbox, sample usage.

Belongs here: what a machine without an AWS account needs to see the project work. Does not: anything the pipeline
itself imports; only the command line and the tests come here.
"""
