"""SQLite and PostgreSQL behind one small interface, used from one thread at a time.

SQL is written once, with `?` for parameters; in definitions `{blob}` is the type of bytes, and
`{serial}` that of a number which is a primary key.
"""

import fcntl
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from heliograph.db.errors import DatabaseBusy, DatabaseError, DatabaseLost, DatabaseOwned

Row = tuple[Any, ...]

MAX_IN = 500


class Transaction:
    """What a function of a transaction may do. It must not keep it."""

    def __init__(self, dialect: "Dialect") -> None:
        self._dialect = dialect

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        self._dialect.execute(sql, parameters)

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        """One statement for many rows."""
        if rows:
            self._dialect.many(sql, rows)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        return self._dialect.query(sql, parameters)

    def query_in(self, sql: str, values: Sequence[Any], *others: Any) -> list[Row]:
        """`sql` has `{in}` where the list of values stands, before all other parameters."""
        rows: list[Row] = []
        for start in range(0, len(values), MAX_IN):
            chunk = values[start : start + MAX_IN]
            text = sql.replace("{in}", f"({', '.join('?' * len(chunk))})")
            rows += self._dialect.query(text, (*chunk, *others))
        return rows


class Dialect(Protocol):
    """One open connection."""

    def execute(self, sql: str, parameters: Sequence[Any]) -> None: ...

    def many(self, sql: str, rows: Sequence[Row]) -> None: ...

    def query(self, sql: str, parameters: Sequence[Any]) -> list[Row]: ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def define(self, sql: str) -> None:
        """Run definitions, with the words of this dialect."""

    def own(self, owner: str) -> None:
        """Keep every other process that owns out, until closed; `DatabaseOwned` if there is one.

        `owner` tells the connections of this process from those of others.
        """

    def backup(self, target: Path) -> None: ...

    def close(self) -> None: ...


def open_dialect(url: str, *, read_only: bool = False) -> Dialect:
    """Connect to `sqlite:///path` or `postgresql://...`."""
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        # Three slashes and a relative path, four and an absolute one, as everywhere else.
        return SqliteDialect(Path(rest[1:]), read_only=read_only)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, read_only=read_only)
    raise DatabaseError(
        "a store URL is sqlite:///relative/path, sqlite:////absolute/path or postgresql://..."
    )


_OWNED = "another router uses this database: stop it, or give each a database of its own"
_OWNING_TIMEOUT = 3.0
"""So long PostgreSQL may take to see that a killed process is gone."""
_END_FORMER = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = ? AND pid <> pg_backend_pid()"
)
_LOCK_SCHEMA = "SELECT pg_try_advisory_lock(hashtextextended('heliograph ' || current_schema(), 0))"

# Only a key of exactly this type is SQLite's own row number, which needs no index beside the table.
_SQLITE_WORDS = {"{blob}": "BLOB", "{serial}": "INTEGER"}
_POSTGRES_WORDS = {"{blob}": "BYTEA", "{serial}": "BIGINT"}


# As it is: without this, sqlite3 looks in vain for a way to adapt every bytes it is given.
sqlite3.register_adapter(bytes, bytes)


class SqliteDialect:
    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._lock: IO[bytes] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            for pragma in (
                "journal_mode=WAL",
                "synchronous=FULL",
                "busy_timeout=5000",
                "foreign_keys=ON",
                "cache_size=-65536",
                "wal_autocheckpoint=4000",
            ):
                self._connection.execute(f"PRAGMA {pragma}")
            if read_only:
                self._connection.execute("PRAGMA query_only=ON")
        except (OSError, sqlite3.Error) as exc:
            raise DatabaseError(f"{path}: {exc}") from exc

    def execute(self, sql: str, parameters: Sequence[Any]) -> None:
        with self._errors():
            self._connection.execute(sql, parameters)

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        with self._errors():
            self._connection.executemany(sql, rows)

    def query(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        with self._errors():
            return self._connection.execute(sql, parameters).fetchall()

    def begin(self) -> None:
        self.execute("BEGIN IMMEDIATE", ())

    def commit(self) -> None:
        self.execute("COMMIT", ())

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK", ())

    def define(self, sql: str) -> None:
        for statement in _statements(sql, _SQLITE_WORDS):
            self.execute(statement, ())

    def own(self, owner: str) -> None:
        """By a file beside it: SQLite's own locks would keep readers out, too."""
        path = self._path.with_name(f"{self._path.name}.lock")
        try:
            self._lock = path.open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise DatabaseOwned(f"{self._path}: {_OWNED}") from exc
        except OSError as exc:
            raise DatabaseError(f"{path}: {exc}") from exc

    def backup(self, target: Path) -> None:
        """All in one step, which writers need not wait for: between steps they would restart it."""
        unfinished = target.with_name(f"{target.name}.unfinished")
        unfinished.unlink(missing_ok=True)
        with self._errors(), closing(sqlite3.connect(unfinished)) as copy:
            self._connection.backup(copy)
        unfinished.replace(target)

    def close(self) -> None:
        self._connection.close()
        if self._lock is not None:
            self._lock.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as exc:
            if "locked" in str(exc) or "busy" in str(exc):
                raise DatabaseBusy("another process uses the database") from exc
            raise DatabaseError(str(exc)) from exc
        except sqlite3.Error as exc:
            raise DatabaseError(str(exc)) from exc


def _postgres(url: str, *, read_only: bool) -> Dialect:
    try:
        import psycopg
    except ImportError as exc:
        raise DatabaseError("PostgreSQL needs psycopg: install heliograph[postgresql]") from exc
    return PostgresDialect(psycopg, url, read_only=read_only)


class PostgresDialect:
    def __init__(self, driver: Any, url: str, *, read_only: bool = False) -> None:
        self._driver = driver
        try:
            self._connection = driver.connect(
                url,
                autocommit=True,
                connect_timeout=5,
                prepare_threshold=2,
                client_encoding="utf8",  # whatever that of the database is
            )
        except driver.Error as exc:
            raise DatabaseLost(_without_secrets(exc)) from exc
        if read_only:
            self.execute("SET default_transaction_read_only = on", ())

    def execute(self, sql: str, parameters: Sequence[Any]) -> None:
        with self._errors():
            self._connection.execute(_placeholders(sql), parameters or None)

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        with self._errors(), self._connection.cursor() as cursor:
            cursor.executemany(_placeholders(sql), rows)

    def query(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        with self._errors():
            rows: list[Row] = self._connection.execute(
                _placeholders(sql), parameters or None
            ).fetchall()
            return rows

    def begin(self) -> None:
        self.execute("BEGIN", ())

    def commit(self) -> None:
        self.execute("COMMIT", ())

    def rollback(self) -> None:
        if not self._connection.closed:
            self.execute("ROLLBACK", ())

    def define(self, sql: str) -> None:
        for statement in _statements(sql, _POSTGRES_WORDS):
            self.execute(statement, ())

    def own(self, owner: str) -> None:
        """By an advisory lock on the schema, which the server gives back with the connection."""
        self.execute("SELECT set_config('application_name', ?, false)", (owner,))
        # A connection of ours that broke may still be open on the other side.
        self.query(_END_FORMER, (owner,))
        deadline = time.monotonic() + _OWNING_TIMEOUT
        while not self.query(_LOCK_SCHEMA, ())[0][0]:
            if time.monotonic() > deadline:
                raise DatabaseOwned(_OWNED)
            time.sleep(0.1)

    def backup(self, target: Path) -> None:
        raise DatabaseError("back up PostgreSQL with pg_dump")

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._driver.Error as exc:
            kind = DatabaseLost if self._connection.broken or self._connection.closed else None
            raise (kind or DatabaseError)(_without_secrets(exc)) from exc


def _placeholders(sql: str) -> str:
    return sql.replace("?", "%s")


def _without_secrets(exc: Exception) -> str:
    """The first line: the rest may quote parameters."""
    return (str(exc).splitlines() or [type(exc).__name__])[0]


def _statements(sql: str, words: dict[str, str]) -> Iterable[str]:
    for word, meaning in words.items():
        sql = sql.replace(word, meaning)
    return [statement for statement in map(str.strip, sql.split(";")) if statement]
