"""Somebody who hears of alerts over HTTP, on loopback, and can be down."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "T0KEN-in-the-path"


class Webhook:
    """Keeps what is posted while it answers 200."""

    def __init__(self) -> None:
        self.status = 200
        self.location: str | None = None
        self.delay = 0.0
        self.taken: list[dict[str, Any]] = []
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked += 1
                time.sleep(outer.delay)
                if outer.status == 200:
                    assert self.headers["Content-Type"] == "application/json"
                    outer.taken.append(json.loads(body))
                self.send_response(outer.status)
                if outer.location:
                    self.send_header("Location", outer.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hooks/{SECRET}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def runs(self) -> list[dict[str, Any]]:
        """What was taken of failed runs."""
        return [taken for taken in self.taken if "run" in taken]

    @property
    def hours(self) -> list[dict[str, Any]]:
        """What was taken of hours that are not closed."""
        return [taken for taken in self.taken if "run" not in taken]

    def __enter__(self) -> "Webhook":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
