"""PostgreSQL over TCP: with a password, and with TLS."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from heliograph.crypto.certificates import (
    certificates_to_pem,
    create_web_authority,
    issue_web_leaf,
)
from heliograph.db.database import Database, Migration
from heliograph.db.errors import DatabaseError
from heliograph.runtime.authority import Authority
from tests.db.postgres import Postgres
from tests.keys import fixed_p256_key
from tests.ports import steady_port

MIGRATIONS = [Migration("one", "CREATE TABLE numbers (number INTEGER NOT NULL);")]
PASSWORD = "a/b@c d%:?"
VALID_FROM = 1_700_000_000.0


def tls_installation() -> Path | None:
    """An installation of this machine whose server speaks TLS: the package's does not."""
    paths = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    if found := shutil.which("initdb"):
        paths.append(Path(found).resolve().parent)
    for path in paths:
        config = path / "pg_config"
        if (path / "initdb").exists() and config.exists():
            asked = subprocess.run([config, "--configure"], capture_output=True, text=True)
            if "openssl" in asked.stdout:
                return path.parent
    return None


class TlsPostgres(Postgres):
    """A server that has a certificate for 127.0.0.1, and takes no other connections over TCP."""

    def __init__(self, program: Path, directory: Path) -> None:
        key, server_key = fixed_p256_key("authority"), fixed_p256_key("server")
        self.ca_file = directory / "ca.pem"
        authority = create_web_authority("PostgreSQL", key, VALID_FROM)
        self.ca_file.write_bytes(certificates_to_pem([authority]))
        leaf = issue_web_leaf(authority, key, ["127.0.0.1"], server_key, VALID_FROM)
        self._tls_files = {
            "server.crt": certificates_to_pem([leaf]),
            "server.key": server_key.to_pem(),
        }
        super().__init__(program, port=steady_port())

    def start(self) -> None:
        for name, content in self._tls_files.items():
            file = self._data / name
            file.write_bytes(content)
            file.chmod(0o600)
            if self._user is not None:
                os.chown(file, self._user, self._user)
        rules = self._data / "pg_hba.conf"
        rules.write_text("local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")
        super().start()

    def options(self) -> tuple[str, ...]:
        return (*super().options(), "ssl=on")


def over_tcp(server: Postgres, password: str = PASSWORD, **options: object) -> str:
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in options.items())
    secret = quote(password, safe="")
    return f"postgresql://test:{secret}@127.0.0.1:{server.port}/postgres?{query}"


def set_password(server: Postgres) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute(f"ALTER USER test PASSWORD '{PASSWORD}'")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    server = Postgres(port=steady_port())
    set_password(server)
    yield server
    server.remove()


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsPostgres]:
    program = tls_installation()
    if program is None:
        pytest.skip("no PostgreSQL with TLS is installed on this machine")
    server = TlsPostgres(program, tmp_path_factory.mktemp("tls"))
    set_password(server)
    yield server
    server.remove()


async def count(database: Database) -> int:
    await database.write(lambda tx: tx.execute("INSERT INTO numbers VALUES (1)"))
    [[number]] = await database.read(lambda tx: tx.query("SELECT COUNT(*) FROM numbers"))
    return int(number)


async def refused(url: str) -> str:
    with pytest.raises(DatabaseError) as failure:
        await Database.open(url, MIGRATIONS, retry_for=0.05)
    text = str(failure.value)
    assert PASSWORD not in text
    assert quote(PASSWORD, safe="") not in text
    return text


async def test_a_password_with_special_characters(server: Postgres) -> None:
    async with Database.open(over_tcp(server), MIGRATIONS, exclusive=True) as database:
        assert await count(database) >= 1


async def test_a_wrong_password(server: Postgres) -> None:
    assert "password authentication failed" in await refused(over_tcp(server, "wrong"))


async def test_a_server_without_tls_is_refused_if_tls_is_required(server: Postgres) -> None:
    assert "SSL" in await refused(over_tcp(server, sslmode="require"))


async def test_tls_and_a_password(tls_server: TlsPostgres) -> None:
    url = over_tcp(tls_server, sslmode="verify-full", sslrootcert=tls_server.ca_file)
    async with Database.open(url, MIGRATIONS, exclusive=True) as database:
        sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert await database.read(lambda tx: tx.query(sql)) == [(True,)]
        before = await count(database)
        tls_server.kill()
        tls_server.start()
        assert await count(database) == before + 1  # connected again, with TLS
        assert await database.write(lambda tx: tx.query(sql)) == [(True,)]


async def test_a_certificate_of_somebody_else(tls_server: TlsPostgres, tmp_path: Path) -> None:
    other = Authority(tmp_path).file
    text = await refused(over_tcp(tls_server, sslmode="verify-full", sslrootcert=other))
    assert "certificate verify failed" in text


async def test_a_connection_without_tls(tls_server: TlsPostgres) -> None:
    assert "no encryption" in await refused(over_tcp(tls_server, sslmode="disable"))


async def test_a_wrong_password_over_tls(tls_server: TlsPostgres) -> None:
    text = await refused(over_tcp(tls_server, "wrong", sslmode="require"))
    assert "password authentication failed" in text
