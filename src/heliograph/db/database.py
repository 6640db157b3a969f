"""A database with two threads: one writes, one reads.

Writes are functions that take a transaction. All that wait while one transaction commits share the
next, so that durability costs one disk sync for many of them. If one of them fails, each is run
again alone, so a function must be safe to run twice and must do nothing but use its transaction.

A database that several processes have joined has a third thread, for what must not wait.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from heliograph.db.dialects import Guard, Transaction, check_store, open_dialect
from heliograph.db.errors import DatabaseNewer
from heliograph.db.worker import DatabaseWorker, RetryBudget, new_marker, retry_while_lost
from heliograph.opening import Closing, opening

T = TypeVar("T")

URGENT_TIMEOUT = 2.0
"""Seconds that a write that must not wait may take, also on a connection that is dead."""
CLOSE_TIMEOUT = 3.0
"""Seconds to wait for an unreachable database at shutdown."""
SMALL_PROBE, LARGE_PROBE = 16, 1 << 20
NEWER = "a later version of Heliograph made this database: upgrade, or restore a backup"
MARKERS_KEPT = 86_400.0
"""Seconds to keep the markers of writers that may be gone."""
_FORGET_MARKERS = "DELETE FROM write_probe WHERE id < 0 AND filler < ?"


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of a schema, with the placeholders of `dialects`. Never changed once released.

    A step whose name ends with `_contract` removes what only earlier versions use. Where several
    processes share a database it waits until none of them is an earlier version; they must do
    with all other steps.
    """

    name: str
    sql: str

    @property
    def contracts(self) -> bool:
        return is_contract(self.name)


def is_contract(name: str) -> bool:
    """Return whether versions that do not know a migration cannot use the database after it."""
    return name.endswith("_contract")


class Database(Closing):
    """An open database with an up-to-date schema. Created by `Database.open`."""

    def __init__(
        self,
        url: str,
        retry_for: float = 30.0,
        *,
        exclusive: bool = False,
        shared: bool = False,
        joined: bool = False,
    ) -> None:
        self._url = url
        self._retries = RetryBudget(retry_for)
        owner = f"heliograph {secrets.token_hex(16)}" if exclusive or joined else None
        loop = asyncio.get_running_loop()
        self._writer = DatabaseWorker(
            url, loop, self._retries, writes=True, owner=owner, shared=shared
        )
        self._reader = DatabaseWorker(
            url, loop, self._retries, writes=False, snapshots=shared and not joined
        )
        self._urgent_retries = RetryBudget(retry_for)
        self._urgent = (
            DatabaseWorker(
                url,
                loop,
                self._urgent_retries,
                writes=True,
                autocommit=True,
                statement_timeout=URGENT_TIMEOUT,
            )
            if joined
            else None
        )

    @classmethod
    @opening
    async def open(
        cls,
        url: str,
        migrations: Sequence[Migration],
        *,
        retry_for: float = 30.0,
        exclusive: bool = False,
        shared: bool = False,
    ) -> "Database":
        """Open a database and bring its schema up to date.

        With `exclusive`, raises `DatabaseOwned` if another process has it open so. With `shared`,
        several processes write: one at a time, and a write whose commit was not answered is not
        repeated if it took effect; a function that reads sees one state of the database.
        """
        if exclusive:
            await asyncio.to_thread(check_store, url)
        database = cls(url, retry_for, exclusive=exclusive, shared=shared)
        try:
            if not shared:
                await database.write(lambda tx: None)  # lock before the schema changes
            await asyncio.to_thread(
                retry_while_lost, lambda: migrate(url, migrations), _nothing, database._retries
            )
            if shared:
                before = new_marker(time.time() - MARKERS_KEPT)
                await database.write(lambda tx: tx.execute(_FORGET_MARKERS, (before,)))
        except BaseException:
            await database.close()
            raise
        return database

    @classmethod
    @opening
    async def join(
        cls,
        url: str,
        migrations: Sequence[Migration],
        check: Callable[[Transaction], None],
        *,
        retry_for: float = 30.0,
    ) -> "Database":
        """Open a PostgreSQL database that several processes of one router write.

        `check` may raise before the schema changes. Raises `DatabaseOwned` if a process has the
        database open exclusively.
        """
        database = cls(url, retry_for, shared=True, joined=True)
        try:
            await asyncio.to_thread(
                retry_while_lost,
                lambda: _migrate_joined(url, migrations, check),
                _nothing,
                database._retries,
            )
            before = new_marker(time.time() - MARKERS_KEPT)
            await database.write(lambda tx: tx.execute(_FORGET_MARKERS, (before,)))
            # PostgreSQL may have no room for a third connection: then join nothing.
            await database.write_urgent(lambda tx: tx.query("SELECT 1"))
            database._urgent_retries.seconds = 0.0
        except BaseException:
            await database.close()
            raise
        return database

    def set_guard(self, guard: Guard) -> None:
        """Check in every transaction of a joined database that this process may write."""
        self._writer.guard = guard

    def write(self, function: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        """Run a function; the future has its result once it is durable.

        In a joined database, only one process at a time runs such functions.
        """
        return self._writer.submit(function)

    def write_concurrently(self, function: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        """Run a function concurrently with the writes of other processes.

        In a joined database it has a transaction of its own, and must lock the rows that it reads
        before it writes, always in the same order.
        """
        return self._writer.submit(function, concurrent=True)

    def write_urgent(self, function: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        """Run a function of one statement that waits for no other write of this process.

        It has a connection of its own, and neither the guard nor retries. Only in a joined
        database.
        """
        if self._urgent is None:
            raise TypeError("the database was not joined")
        return self._urgent.submit(function)

    def read(self, function: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        """Run a read-only function on the committed data."""
        return self._reader.submit(function)

    async def check(self) -> None:
        """Raise `DatabaseError` if the database does not accept writes now.

        After a failure the probe is large: a full disk may still have room for a small one.
        """
        if self._writer.has_failed:
            await self.write(partial(_probe, size=LARGE_PROBE))
        await self.write(partial(_probe, size=SMALL_PROBE))
        self._writer.has_failed = False

    async def backup(self, target: Path) -> None:
        """Write a consistent copy while running, through a separate connection."""
        await asyncio.to_thread(_back_up, self._url, target)

    def limit_wait(self, seconds: float = CLOSE_TIMEOUT) -> None:
        """Wait at most this long for an unreachable database, from now on."""
        self._retries.limit_wait(seconds)
        self._urgent_retries.limit_wait(seconds)

    async def close(self) -> None:
        """Finish what was submitted, then close; work fails if the database does not come back."""
        self.limit_wait()
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._reader.stop)
        if self._urgent is not None:
            await asyncio.to_thread(self._urgent.stop)


@contextmanager
def alone(url: str) -> Iterator[None]:
    """Keep routers, which may run on other machines, from a database. Raises `DatabaseOwned`."""
    with closing(open_dialect(url)) as dialect:
        dialect.lock_exclusively(f"heliograph {secrets.token_hex(16)}")
        yield


def _probe(transaction: Transaction, size: int) -> None:
    """Write random bytes: SQLite does not write what is unchanged."""
    transaction.execute(
        "INSERT INTO write_probe (id, filler) VALUES (1, ?)"
        " ON CONFLICT (id) DO UPDATE SET filler = excluded.filler",
        (secrets.token_bytes(size),),
    )


def _nothing() -> None:
    return None


def _back_up(url: str, target: Path) -> None:
    dialect = open_dialect(url, read_only=True)
    try:
        dialect.backup(target)
    finally:
        dialect.close()


def _migrate_joined(
    url: str, migrations: Sequence[Migration], check: Callable[[Transaction], None]
) -> None:
    dialect = open_dialect(url)
    try:
        dialect.lock_with_others(f"heliograph {secrets.token_hex(16)}")
        check(Transaction(dialect))
        migrate(url, migrations, is_joined=True)
    finally:
        dialect.close()


def migrate(url: str, migrations: Sequence[Migration], *, is_joined: bool = False) -> None:
    """Bring the schema up to date. Safe to interrupt: each step is one transaction.

    With `is_joined`, leave out what contracts it: earlier and later versions may run.
    """
    dialect = open_dialect(url)
    try:
        dialect.lock_migrations()
        dialect.begin()
        dialect.define("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, at BIGINT)")
        dialect.define(
            "CREATE TABLE IF NOT EXISTS write_probe (id {serial} PRIMARY KEY, filler {blob})"
        )
        dialect.commit()
        done = {name for (name,) in dialect.query("SELECT name FROM migrations", ())}
        unknown = done - {migration.name for migration in migrations}
        if any(not is_joined or is_contract(name) for name in unknown):
            raise DatabaseNewer(NEWER)
        for migration in migrations:
            if migration.name not in done and not (is_joined and migration.contracts):
                dialect.begin()
                try:
                    dialect.define(migration.sql)
                    dialect.execute(
                        "INSERT INTO migrations (name, at) VALUES (?, ?)",
                        (migration.name, int(time.time())),
                    )
                    dialect.commit()
                except BaseException:
                    dialect.rollback()
                    raise
    finally:
        dialect.close()
