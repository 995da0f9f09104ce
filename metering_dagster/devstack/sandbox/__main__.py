"""`python -m metering_dagster.devstack.sandbox`: a sandbox in a process of its own.

Belongs here: the command line and the signals. Does not: anything that a test in one process needs as well.
"""

import argparse
import json
import signal
import threading

from metering_dagster.devstack.sandbox import Sandbox
from metering_dagster.devstack.sandbox.errors import ControlError
from metering_dagster.devstack.sandbox.world import read_instant


def main() -> None:
    """Print the URL as one line of JSON once the server listens; end at SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m metering_dagster.devstack.sandbox", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="on loopback; 0 takes a free one")
    parser.add_argument("--database", default=":memory:", help="SQLite file of the bill")
    parser.add_argument("--now", default=None, help="freeze the clock at this ISO-8601 instant")
    options = parser.parse_args()
    try:
        now = None if options.now is None else read_instant("--now", options.now)
    except ControlError as error:
        parser.error(str(error))
    ended = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: ended.set())
    with Sandbox(options.database, now=now, port=options.port) as sandbox:
        print(json.dumps({"url": sandbox.url}), flush=True)  # noqa: T201 (the parent process reads it)
        ended.wait()


if __name__ == "__main__":
    main()
