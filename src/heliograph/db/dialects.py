"""SQLite and PostgreSQL behind one small interface, used from one thread at a time.

SQL is written once, with `?` for parameters; in definitions `{blob}` is the type of bytes,
`{serial}` that of a number which is a primary key, `{identity}` that of a primary key which the
database numbers in ascending order, and `{updated}` stands after a table whose rows are updated in
columns that no index has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from heliograph.db.errors import DatabaseError, DatabaseUrlError
from heliograph.db.sql import Guard, Row
from heliograph.db.sqlite import SqliteDialect, check_file

__all__ = ["Dialect", "Guard", "Row", "Transaction", "open_dialect"]


class Transaction:
    """The operations of a transaction. Functions must not keep a reference to it."""

    def __init__(self, dialect: "Dialect") -> None:
        self._dialect = dialect

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> None:
        self._dialect.execute(sql, parameters)

    def define(self, sql: str) -> None:
        """Run definitions, with the placeholders of schemas."""
        self._dialect.define(sql)

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        """Execute one statement for many rows."""
        if rows:
            self._dialect.many(sql, rows)

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        return self._dialect.query(sql, parameters)

    def query_in(self, sql: str, values: Sequence[object], *others: object) -> list[Row]:
        """Query with `IN {in}` for the values, all of one type, before other parameters."""
        return self._dialect.query_in(sql, values, others) if values else []

    def lock(self, sql: str, values: Sequence[object]) -> None:
        """Lock rows by a query with `IN {in}`, if other processes may write at the same time."""
        if values:
            self._dialect.lock(sql, values)

    def locking(self, clause: str) -> str:
        """Return a locking clause to append to a query, if other processes may write."""
        return clause if self.is_joined else ""

    @property
    def is_joined(self) -> bool:
        """Return whether other processes may write at the same time."""
        return self._dialect.is_joined

    def data_version(self) -> int:
        """Return a number that changes with every write of a shared database."""
        return self._dialect.data_version()


class Dialect(Protocol):
    """One open connection."""

    @property
    def is_joined(self) -> bool:
        """Return whether other processes of this router write while a transaction runs."""

    def execute(self, sql: str, parameters: Sequence[object]) -> None: ...

    def many(self, sql: str, rows: Sequence[Row]) -> None: ...

    def query(self, sql: str, parameters: Sequence[object]) -> list[Row]: ...

    def query_in(
        self, sql: str, values: Sequence[object], others: Sequence[object]
    ) -> list[Row]: ...

    def lock(self, sql: str, values: Sequence[object]) -> None: ...

    def begin(self) -> None: ...

    def begin_shared(self, writer: int, marker: bytes, previous: bytes | None) -> bool:
        """Begin a transaction once those of other processes have ended, and store its marker.

        Return False if the previous attempt of this writer, by its marker, has committed.
        """

    def begin_joined(
        self, marker: bytes, previous: bytes | None, guard: "Guard", *, in_order: bool
    ) -> bool:
        """Begin a transaction of a guarded process, and store its marker.

        With `in_order`, wait for those of others that are in order, too. The first query, or the
        commit, raises `DatabaseFenced` if the guard's row is gone.
        """

    def data_version(self) -> int: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def define(self, sql: str) -> None:
        """Run definitions, with the placeholders replaced for this dialect."""

    def lock_exclusively(self, owner: str) -> None:
        """Lock the database against other owners until closed; raise `DatabaseOwned` if one has it.

        `owner` distinguishes the connections of this process from those of others.
        """

    def lock_with_others(self, owner: str) -> None:
        """Lock the database against an exclusive owner, not against others that lock it so."""

    def lock_migrations(self) -> None:
        """Wait until no other process changes the schema; the lock ends with the connection."""

    def begin_snapshot(self) -> None:
        """Begin a transaction that reads one state, whatever others commit meanwhile.

        For connections that were opened read-only.
        """

    def columns(self) -> dict[str, list[tuple[str, int]]]:
        """Return the columns of each table, each with its place in the primary key, or 0."""

    def backup(self, target: Path) -> None: ...

    def close(self) -> None: ...


def open_dialect(
    url: str, *, read_only: bool = False, statement_timeout: float | None = None
) -> Dialect:
    """Connect to `sqlite:///path` or `postgresql://...`."""
    file = sqlite_file(url)
    if file is not None:
        return SqliteDialect(file, read_only=read_only)
    return _postgres(url, read_only=read_only, statement_timeout=statement_timeout)


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite URL; None if it is PostgreSQL's. Raises `DatabaseUrlError`."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        # Three slashes before a relative path, four for an absolute one, as is customary.
        return Path(rest[1:])
    if scheme in ("postgresql", "postgres"):
        return None
    raise DatabaseUrlError(
        "a store URL is sqlite:///relative/path, sqlite:////absolute/path or postgresql://..."
    )


def check_store(url: str) -> None:
    """Raise `DatabaseError` if the store is a file that is empty or damaged."""
    file = sqlite_file(url)
    if file is not None:
        check_file(file)


def _postgres(url: str, *, read_only: bool, statement_timeout: float | None) -> Dialect:
    try:
        from heliograph.db.postgres import PostgresDialect
    except ImportError as exc:
        raise DatabaseError("PostgreSQL needs psycopg: install heliograph[postgresql]") from exc
    return PostgresDialect(url, read_only=read_only, statement_timeout=statement_timeout)
