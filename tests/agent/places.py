"""Where the agents of a test have their stores: in directories, or in schemas of PostgreSQL.

A module whose tests run with both says `pytestmark = BOTH_STORES`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.db.postgres import shared_postgres

BOTH_STORES = pytest.mark.usefixtures("store_kind")

_urls: dict[Path, str] | None = None
"""The schema of each directory, while a test runs with PostgreSQL."""
_free: list[str] = []
"""Schemas with tables and no rows: to create the tables takes long."""


def place_of(directory: Path) -> Path | str:
    """Return what `Agent.open` gets for the agent of a directory."""
    if _urls is None:
        return directory
    if directory not in _urls:
        _urls[directory] = _free.pop() if _free else shared_postgres().new_url()
    return _urls[directory]


@contextmanager
def stores_in_postgres() -> Iterator[None]:
    global _urls
    _urls = {}
    try:
        yield
    finally:
        used, _urls = list(_urls.values()), None
        for url in used:
            _empty(url)
            _free.append(url)


def stored_bytes(directory: Path) -> bytes:
    """Return everything that an agent has stored."""
    place = place_of(directory)
    if isinstance(place, Path):
        files = (file for file in place.iterdir() if file.suffix != ".lock")
        return b"".join(file.read_bytes() for file in files)
    with psycopg.connect(place, client_encoding="utf8") as connection:
        found = [
            row
            for table in _tables(connection)
            for row in connection.execute(
                sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)), binary=True
            )
        ]
    values = (value for row in found for value in row)
    return b"\n".join(
        bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
        for value in values
    )


def _empty(url: str) -> None:
    with psycopg.connect(url, client_encoding="utf8") as connection:
        tables = [sql.Identifier(name) for name in _tables(connection) if name != "migrations"]
        if tables:
            connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(tables)))


def _tables(connection: "psycopg.Connection[tuple[object, ...]]") -> list[str]:
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    return [str(name) for (name,) in rows]
