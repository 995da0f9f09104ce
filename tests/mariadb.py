"""A MariaDB or MySQL for the tests: the one named, the one on this machine's port, or a private one.

The tests make databases of their own there, and drop them: what else the server holds is not looked at.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

from tests.e2e.processes import free_port

NAMED = "BILLING_TEST_DATABASE_URL"
HOST, PORT = "127.0.0.1", 3306
START_SECONDS, END_SECONDS, POLL_SECONDS = 60.0, 20.0, 0.05
PORT_ATTEMPTS = 5


@dataclass(frozen=True)
class Server:
    """Where a user who may create databases gets in."""

    url: URL

    def url_of(self, database: str) -> str:
        """Of one of its databases, the password included."""
        return self.url.set(database=database).render_as_string(hide_password=False)

    def run(self, *statements: str) -> None:
        """Run these statements, in no database."""
        engine = create_engine(self.url.set(database=None), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                for statement in statements:
                    connection.execute(text(statement))
        finally:
            engine.dispose()


@contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    """The server to test with. Where there is none the test is skipped with the reason; on CI it fails."""
    named = os.environ.get(NAMED)
    if named:
        yield Server(make_url(named).set(drivername="mysql+pymysql"))
        return
    local = Server(URL.create("mysql+pymysql", "root", "", HOST, PORT))
    if _lets_in(local):
        yield local
        return
    with private_server(folder) as server:
        yield server


@contextmanager
def private_server(folder: Path, *options: str) -> Iterator[Server]:
    """A server of our own, for as long as the context is open; its log is `mariadb.log` in the folder."""
    private = PrivateServer(folder, *options)
    private.start()
    try:
        yield private.server
    finally:
        private.end()


class PrivateServer:
    """A server of our own that can be stopped and started again at the same port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        self.data = folder / "data"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        # The path of a socket is at most 107 characters long, and a folder of pytest's may be longer.
        # A server that starts removes temporary tables from its folder for them: it is not shared either.
        self._socket_folder = tempfile.mkdtemp(prefix="maria-")

    @property
    def server(self) -> Server:
        return Server(URL.create("mysql+pymysql", "root", "", HOST, self.port))

    def start(self) -> None:
        """Start it, on the port that it had."""
        needed = _program_or_skip("mariadbd", "mysqld")
        if not self.data.exists():
            self._install()
        for _ in range(PORT_ATTEMPTS):
            port = self.port or free_port()  # another may take it before the server does: then the next one is tried
            with (self.folder / "mariadb.log").open("ab") as log:
                self._process = subprocess.Popen([needed, *self._command(port)], stdout=log, stderr=log)
            if self._is_up(port):
                self.port = port
                return
            self._stop()
        pytest.fail(f"MariaDB did not start:\n{(self.folder / 'mariadb.log').read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """End the process and wait for it; its data and port stay."""
        self._stop()

    def end(self) -> None:
        """End it for good."""
        self._stop()
        shutil.rmtree(self._socket_folder, ignore_errors=True)
        shutil.rmtree(self.data, ignore_errors=True)

    def _install(self) -> None:
        needed = _program_or_skip("mariadb-install-db", "mysql_install_db")
        self.folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [needed, "--no-defaults", f"--datadir={self.data}", f"--tmpdir={self._socket_folder}",
             "--auth-root-authentication-method=normal", "--skip-test-db", *_as_user()],
            capture_output=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.fail(f"MariaDB's data folder could not be made: {done.stdout!r} {done.stderr!r}")

    def _command(self, port: int) -> list[str]:
        return [
            "--no-defaults", f"--datadir={self.data}", f"--port={port}", f"--bind-address={HOST}",
            f"--socket={self._socket_folder}/s", f"--pid-file={self.data}/pid",
            f"--tmpdir={self._socket_folder}", "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=0", *_as_user(), *self.options,
        ]  # fmt: skip

    def _is_up(self, port: int) -> bool:
        """Whether it came to answer; False where it ended, or took too long."""
        assert self._process is not None
        server = Server(URL.create("mysql+pymysql", "root", "", HOST, port))
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                self._process.wait(timeout=POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if _lets_in(server):
                    return self._process.poll() is None
            else:
                return False
        return False

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


def _as_user() -> list[str]:
    """The server refuses to run as root unless it is told to."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _lets_in(server: Server) -> bool:
    try:
        server.run("SELECT 1")
    except (SQLAlchemyError, pymysql.Error):
        return False
    return True


def program(*names: str) -> str | None:
    """The first of these programs that is here; some systems keep servers where a user's PATH does not look."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/usr/libexec"))
    return next((found for name in names if (found := shutil.which(name, path=path)) is not None), None)


def _program_or_skip(*names: str) -> str:
    found = program(*names)
    if found is not None:
        return found
    reason = (
        f"No MariaDB is to be had: {NAMED} is not set, nobody without a password gets into {HOST}:{PORT}, and there is "
        f"no {names[0]} here."
    )
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
