"""HTTP on loopback: one thread for each connection, kept alive. Requests are not logged on the terminal.

Belongs here: bytes, headers, connections. Does not: the meaning of a request (desk.py, control.py).
"""

import re
import socket
import sys
import threading
import uuid
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from metering_dagster.devstack.sandbox.control import PREFIX, control
from metering_dagster.devstack.sandbox.desk import BODY_LIMIT, Arrival, Desk, DeskResponse

HOST = "127.0.0.1"
DEFAULT_REGION = "us-east-1"
CREDENTIAL_SCOPE = re.compile(r"Credential=[^/,\s]+/[0-9]+/([a-z0-9-]+)/[^/,\s]+/aws4_request")
CHUNK = 65_536


class Server(ThreadingMixIn, TCPServer):
    """Server that closes in order: calls in progress are answered first, then the connections end."""

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, port: int, desk: Desk) -> None:
        self.desk = desk
        self.failure: BaseException | None = None
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        super().__init__((HOST, port), Handler)

    @property
    def url(self) -> str:
        """Return the server's URL."""
        return f"http://{HOST}:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a caller that closed its connection; keep and print any other error, which is the sandbox's own."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            self.failure = self.failure or error
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Close all connections, after `serve_forever` has been shut down."""
        self.desk.closing.set()
        with self._open_lock:
            for each in self._open:
                with suppress(OSError):  # the caller was faster
                    each.shutdown(socket.SHUT_RD)
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests hold buyers' data."""

    def _answer(self) -> None:
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True
            self._send(DeskResponse(411, b"Length Required", "text/plain"))
            return
        size = self._size()
        body = self._body(size)
        if body is None:
            self.close_connection = True
        elif self.path.startswith(f"{PREFIX}/"):
            self._send(control(self.server.desk, self.command, self.path, body))
        elif self.command == "POST" and self.path == "/":
            self._send(self.server.desk.take(self._arrival(body, size)))
        else:
            self._send(DeskResponse(404, b"Not Found", "text/plain"))

    def _arrival(self, body: bytes, size: int) -> Arrival:
        authorization = self.headers.get("Authorization")
        scope = CREDENTIAL_SCOPE.search(authorization or "")
        region = scope.group(1) if scope else DEFAULT_REGION
        return Arrival(self.headers.get("X-Amz-Target", ""), bool(authorization), region, body, size)

    def _size(self) -> int:
        length = self.headers.get("Content-Length", "0")
        return int(length) if length.isascii() and length.isdecimal() else 0

    def _body(self, size: int) -> bytes | None:
        """Read the body to its end, but keep at most about `BODY_LIMIT` bytes; None where the caller broke off."""
        kept, read = bytearray(), 0
        while read < size:
            chunk = self.rfile.read(min(CHUNK, size - read))
            if not chunk:
                return None
            read += len(chunk)
            if len(kept) < BODY_LIMIT:
                kept += chunk
        return bytes(kept)

    def _send(self, answer: DeskResponse | None) -> None:
        """Send the whole response at once, or none and end the connection."""
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("x-amzn-RequestId", str(uuid.uuid4()))
        self.end_headers()
        self.wfile.write(answer.body)
