"""SQLite and PostgreSQL behind one small interface, used from one thread at a time.

SQL is written once, with `?` for parameters; in definitions `{blob}` is the type of bytes,
`{serial}` that of a number which is a primary key, and `{updated}` stands after a table whose rows
are updated in columns that no index has.
"""

import fcntl
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from heliograph.db.errors import DatabaseBusy, DatabaseError, DatabaseMisnamed, DatabaseOwned

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
        """`sql` says `IN {in}` for the values, all of one type, before other parameters."""
        return self._dialect.query_in(sql, values, others) if values else []


class Dialect(Protocol):
    """One open connection."""

    def execute(self, sql: str, parameters: Sequence[Any]) -> None: ...

    def many(self, sql: str, rows: Sequence[Row]) -> None: ...

    def query(self, sql: str, parameters: Sequence[Any]) -> list[Row]: ...

    def query_in(self, sql: str, values: Sequence[Any], others: Sequence[Any]) -> list[Row]: ...

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
    raise DatabaseMisnamed(
        "a store URL is sqlite:///relative/path, sqlite:////absolute/path or postgresql://..."
    )


OWNED = "another router uses this database: stop it, or give each a database of its own"

# Only a key of exactly this type is SQLite's own row number, which needs no index beside the table.
_SQLITE_WORDS = {"{blob}": "BLOB", "{serial}": "INTEGER", "{updated}": ""}


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

    def query_in(self, sql: str, values: Sequence[Any], others: Sequence[Any]) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(values), MAX_IN):
            chunk = values[start : start + MAX_IN]
            text = sql.replace("{in}", f"({', '.join('?' * len(chunk))})")
            rows += self.query(text, (*chunk, *others))
        return rows

    def begin(self) -> None:
        self.execute("BEGIN IMMEDIATE", ())

    def commit(self) -> None:
        self.execute("COMMIT", ())

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK", ())

    def define(self, sql: str) -> None:
        for statement in statements(sql, _SQLITE_WORDS):
            self.execute(statement, ())

    def own(self, owner: str) -> None:
        """By a file beside it: SQLite's own locks would keep readers out, too."""
        path = self._path.with_name(f"{self._path.name}.lock")
        try:
            self._lock = path.open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise DatabaseOwned(f"{self._path}: {OWNED}") from exc
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
        from heliograph.db.postgres import PostgresDialect
    except ImportError as exc:
        raise DatabaseError("PostgreSQL needs psycopg: install heliograph[postgresql]") from exc
    return PostgresDialect(url, read_only=read_only)


def statements(sql: str, words: dict[str, str]) -> Iterable[str]:
    for word, meaning in words.items():
        sql = sql.replace(word, meaning)
    return [statement for statement in map(str.strip, sql.split(";")) if statement]
