"""SQLite, in WAL mode: a commit is on disk when it returns."""

import fcntl
import glob
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from heliograph.db.errors import DatabaseBusy, DatabaseError, DatabaseOwned
from heliograph.db.sql import MAX_IN, OWNED, Guard, Row, statements

# Only a key of exactly this type is SQLite's own row number, which needs no separate index.
_SQLITE_WORDS = {
    "{blob}": "BLOB",
    "{serial}": "INTEGER",
    "{identity}": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "{updated}": "",
}


_COLUMNS = (
    "SELECT t.name, c.name, c.pk FROM sqlite_master t, pragma_table_info(t.name) c"
    " WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%' ORDER BY t.name, c.cid"
)

# Without an adapter, sqlite3 searches for one at every bytes parameter.
sqlite3.register_adapter(bytes, bytes)


def _create_private(path: Path) -> None:
    """Create a file that only its owner can read. SQLite gives its -wal and -shm the same mode."""
    if not path.exists():
        path.touch(mode=0o600)


MAX_CHECKED_BYTES = 256 * 1024 * 1024
"""Size up to which a file is checked for damage before it is used: about a second."""


def check_file(path: Path) -> None:
    """Raise `DatabaseError` if an existing file is empty or damaged; a missing one is fine."""
    try:
        size = path.stat().st_size
    except OSError:
        return
    if size == 0:
        raise DatabaseError(
            f"{path} is empty: restore a backup, or delete the file to start with an empty store"
        )
    if size > MAX_CHECKED_BYTES:
        return
    try:
        with closing(sqlite3.connect(path)) as connection:
            [[found]] = connection.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.OperationalError as exc:
        raise DatabaseError(f"{path}: {exc}") from exc
    except sqlite3.DatabaseError as exc:
        found = str(exc)
    if found != "ok":
        raise DatabaseError(f"{path} is damaged ({found}): keep a copy, and restore a backup")


_ONE_PROCESS = "SQLite is for one process: several need PostgreSQL"


class SqliteDialect:
    is_joined = False

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._lock: IO[bytes] | None = None
        if not path.parent.is_dir():
            # Not created: a volume that is not mounted must not become an empty store.
            raise DatabaseError(f"{path.parent} does not exist: create or mount it")
        try:
            _create_private(path)
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
        except OSError as exc:
            raise DatabaseError(f"{path}: {exc.strerror}") from exc
        except sqlite3.Error as exc:
            raise DatabaseError(f"{path}: {exc}") from exc

    def execute(self, sql: str, parameters: Sequence[object]) -> None:
        with self._errors():
            self._connection.execute(sql, parameters)

    def many(self, sql: str, rows: Sequence[Row]) -> None:
        with self._errors():
            self._connection.executemany(sql, rows)

    def query(self, sql: str, parameters: Sequence[object]) -> list[Row]:
        with self._errors():
            return self._connection.execute(sql, parameters).fetchall()

    def query_in(self, sql: str, values: Sequence[object], others: Sequence[object]) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(values), MAX_IN):
            chunk = values[start : start + MAX_IN]
            text = sql.replace("{in}", f"({', '.join('?' * len(chunk))})")
            rows += self.query(text, (*chunk, *others))
        return rows

    def begin(self) -> None:
        self.execute("BEGIN IMMEDIATE", ())

    def begin_shared(self, writer: int, marker: bytes, previous: bytes | None) -> bool:
        self.begin()  # SQLite allows one writer at a time, and answers every commit
        return True

    def begin_joined(
        self, marker: bytes, previous: bytes | None, guard: Guard, *, in_order: bool
    ) -> bool:
        raise DatabaseError(_ONE_PROCESS)

    def lock(self, sql: str, values: Sequence[object]) -> None:
        """Do nothing: SQLite allows one writer at a time."""

    def data_version(self) -> int:
        [[version]] = self.query("PRAGMA data_version", ())
        return int(version)

    def commit(self) -> None:
        self.execute("COMMIT", ())

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK", ())

    def define(self, sql: str) -> None:
        for statement in statements(sql, _SQLITE_WORDS):
            self.execute(statement, ())

    def lock_exclusively(self, owner: str) -> None:
        """Lock a file beside the database: SQLite's own locks would exclude readers too."""
        path = self._path.with_name(f"{self._path.name}.lock")
        try:
            _create_private(path)
            self._lock = path.open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise DatabaseOwned(f"{self._path}: {OWNED}") from exc
        except OSError as exc:
            raise DatabaseError(f"{path}: {exc}") from exc

    def lock_with_others(self, owner: str) -> None:
        raise DatabaseError(_ONE_PROCESS)

    def lock_migrations(self) -> None:
        """Do nothing: a file has one owner."""

    def begin_snapshot(self) -> None:
        self.execute("BEGIN", ())
        self.query("SELECT 1 FROM sqlite_master", ())  # it begins with the first read

    def columns(self) -> dict[str, list[tuple[str, int]]]:
        found: dict[str, list[tuple[str, int]]] = {}
        for table, column, position in self.query(_COLUMNS, ()):
            found.setdefault(table, []).append((column, position))
        return found

    def backup(self, target: Path) -> None:
        """Copy in one step, because a writer between two steps would restart the copy.

        Only its owner can read the copy, even while unfinished; a failed copy is removed.
        """
        unfinished = target.with_name(f"{target.name}.unfinished")
        try:
            unfinished.unlink(missing_ok=True)
            _create_private(unfinished)
            with self._errors(), closing(sqlite3.connect(unfinished)) as copy:
                self._connection.backup(copy)
            unfinished.replace(target)
        except OSError as exc:
            raise DatabaseError(f"{target}: {exc.strerror}") from exc
        finally:
            for leftover in target.parent.glob(f"{glob.escape(unfinished.name)}*"):
                leftover.unlink(missing_ok=True)

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
