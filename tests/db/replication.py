"""A PostgreSQL that replicates synchronously to a standby, which can take over."""

from urllib.parse import quote

import psycopg

from tests.db.postgres import Postgres

_REPLICATED = ("wal_level=replica", "max_wal_senders=4", "hot_standby=on")


class Primary(Postgres):
    """A server whose commits wait for its standby, once it has one."""

    def options(self) -> tuple[str, ...]:
        return (*super().options(), *_REPLICATED)

    def wait_for_standby(self) -> None:
        """Let commits wait until the standby has them."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")


class Standby(Postgres):
    def __init__(self, primary: Primary) -> None:
        self._primary = primary
        super().__init__(primary.program)

    def options(self) -> tuple[str, ...]:
        return (*super().options(), *_REPLICATED)

    def _create(self) -> None:
        host = str(self._primary.socket.parent)
        self.run(*self._command("pg_basebackup"), "-U", "test", "-h", host, "-R", "-c", "fast")

    def promote(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")


def url_of_both(url: str, primary: Postgres, standby: Postgres) -> str:
    """The URL of a database, for clients that find the one of the servers that takes writes."""
    one, other = (quote(str(server.socket.parent), safe="") for server in (primary, standby))
    return f"{url.replace(one, f'{one},{other}')}&target_session_attrs=read-write"
