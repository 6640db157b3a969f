"""A database with two threads: one writes, one reads.

Writes are functions that take a transaction. All that wait while one transaction commits share the
next, so that durability costs one disk sync for many of them. If one of them fails, each is run
again alone, so a function must be safe to run twice and must do nothing but use its transaction.
"""

import asyncio
import logging
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from heliograph.db.dialects import Dialect, Guard, Transaction, check_store, open_dialect
from heliograph.db.errors import (
    DatabaseError,
    DatabaseFenced,
    DatabaseLost,
    DatabaseNewer,
    DatabaseOwned,
)
from heliograph.opening import Closing

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_GROUP = 1000
RETRY_DELAYS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LIMITED_DELAY = 0.2
CLOSE_TIMEOUT = 3.0
"""Seconds to wait for an unreachable database at shutdown."""
STALLED_TIMEOUT = 10.0
"""Seconds to wait at shutdown for a database that does not answer."""
STATEMENT_TIMEOUT = 60.0
"""Maximum seconds for one statement of PostgreSQL, which may be blocked by a lock."""
SMALL_PROBE, LARGE_PROBE = 16, 1 << 20
MARKERS_KEPT = 86_400.0
"""Seconds to keep the markers of writers that may be gone."""
_FORGET_MARKERS = "DELETE FROM write_probe WHERE id < 0 AND filler < ?"


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of a schema, with the placeholders of `dialects`. Never changed once released."""

    name: str
    sql: str


@dataclass(slots=True)
class _Operation:
    function: Callable[[Transaction], object]
    future: asyncio.Future[Any]  # of what the function returns
    result: object = None
    error: Exception | None = None


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
        self._retries = _RetryBudget(retry_for)
        owner = f"heliograph {secrets.token_hex(16)}" if exclusive or joined else None
        loop = asyncio.get_running_loop()
        self._writer = _Worker(url, loop, self._retries, writes=True, owner=owner, shared=shared)
        self._reader = _Worker(url, loop, self._retries, writes=False)

    @classmethod
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
        repeated if it took effect.
        """
        if exclusive:
            await asyncio.to_thread(check_store, url)
        database = cls(url, retry_for, exclusive=exclusive, shared=shared)
        try:
            if not shared:
                await database.write(lambda tx: None)  # lock before the schema changes
            await asyncio.to_thread(
                _retry_while_lost, lambda: migrate(url, migrations), _nothing, database._retries
            )
            if shared:
                before = _marker(time.time() - MARKERS_KEPT)
                await database.write(lambda tx: tx.execute(_FORGET_MARKERS, (before,)))
        except BaseException:
            await database.close()
            raise
        return database

    @classmethod
    async def join(
        cls,
        url: str,
        migrations: Sequence[Migration],
        check: Callable[[Transaction], None],
        *,
        retry_for: float = 30.0,
    ) -> "Database":
        """Open a PostgreSQL database that several processes of one router write, one at a time.

        `check` may raise before the schema changes. Raises `DatabaseOwned` if a process has the
        database open exclusively.
        """
        database = cls(url, retry_for, shared=True, joined=True)
        try:
            await asyncio.to_thread(
                _retry_while_lost,
                lambda: _migrate_joined(url, migrations, check),
                _nothing,
                database._retries,
            )
            await database.write(lambda tx: None)
        except BaseException:
            await database.close()
            raise
        return database

    def set_guard(self, guard: Guard) -> None:
        """Check in every transaction of a joined database that this process may write."""
        self._writer.guard = guard

    def write(self, function: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        """Run a function; the future has its result once it is durable."""
        return self._writer.submit(function)

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

    async def close(self) -> None:
        """Finish what was submitted, then close; work fails if the database does not come back."""
        self.limit_wait()
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._reader.stop)


class _RetryBudget:
    """The time to wait for an unreachable database."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = math.inf
        self._limited = threading.Event()

    def limit_wait(self, seconds: float) -> None:
        self._end = min(self._end, time.monotonic() + seconds)
        self._limited.set()

    def allows(self, delay: float, deadline: float) -> bool:
        """Return True if there is time for another attempt."""
        return time.monotonic() + self._shortened(delay) <= min(deadline, self._end)

    def wait(self, delay: float) -> None:
        if self._limited.is_set():
            time.sleep(self._shortened(delay))
        else:
            self._limited.wait(delay)

    def _shortened(self, delay: float) -> float:
        return min(delay, LIMITED_DELAY) if self._limited.is_set() else delay


class _Worker:
    """One thread with one connection.

    Its attributes are what the thread needs to reconnect and to find what it committed.
    """

    def __init__(
        self,
        url: str,
        loop: asyncio.AbstractEventLoop,
        retries: _RetryBudget,
        *,
        writes: bool,
        owner: str | None = None,
        shared: bool = False,
    ) -> None:
        self._url = url
        self._loop = loop
        self._retries = retries
        self._owner = owner
        self._writes = writes
        self._shared = shared
        self._number = -1 - secrets.randbits(62)
        self._marker: bytes | None = None
        self.guard: Guard | None = None
        self._jobs: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._dialect: Dialect | None = None
        self._done = 0
        self.has_failed = False
        """True if a transaction failed since this was last reset."""
        name = "database-writer" if writes else "database-reader"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Operation(function, future))
        return future

    def stop(self) -> None:
        """Finish the queue, but abandon a database that does not answer."""
        self._jobs.put(None)
        done = -1
        while self._thread.is_alive() and done < self._done:
            done = self._done
            self._thread.join(STALLED_TIMEOUT)
        if self._thread.is_alive():
            logger.error("the database does not answer: its pending work is abandoned")

    def _run(self) -> None:
        running = True
        while running:
            job = self._jobs.get()
            group: list[_Operation] = []
            while job is not None:
                group.append(job)
                if len(group) == MAX_GROUP:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            else:
                running = False
            if group:
                self._run_group(group)
                self._done += 1
                with suppress(RuntimeError):  # the loop was closed meanwhile
                    self._loop.call_soon_threadsafe(_settle, group)
        self._disconnect()

    def _run_group(self, group: list[_Operation]) -> None:
        """Run a group in one transaction; if any fails, run each in its own."""
        try:
            self._attempt(group)
        except (DatabaseLost, DatabaseOwned, DatabaseFenced) as exc:
            self.has_failed = True
            for job in group:
                job.error = exc
        except Exception as exc:
            self.has_failed = self.has_failed or isinstance(exc, DatabaseError)
            if len(group) == 1:
                group[0].error = exc
                return
            for job in group:
                self._run_group([job])

    def _attempt(self, group: list[_Operation]) -> None:
        self._marker = None
        _retry_while_lost(lambda: self._transact(group), self._disconnect, self._retries)

    def _transact(self, group: list[_Operation]) -> None:
        dialect = self._connected()
        try:
            if self._writes and not self._begin(dialect):
                self._roll_back(dialect)
                return
            transaction = Transaction(dialect)
            for job in group:
                job.result = job.function(transaction)
            if self._writes:
                dialect.commit()
        except BaseException:
            if self._writes:
                self._roll_back(dialect)
            raise

    def _begin(self, dialect: Dialect) -> bool:
        """Begin a transaction, or return False if the last attempt had committed unanswered."""
        if not self._shared:
            dialect.begin()
            return True
        marker = _marker(time.time())
        is_new = dialect.begin_shared(self._number, marker, self._marker, self.guard)
        self._marker = marker
        return is_new

    def _roll_back(self, dialect: Dialect) -> None:
        try:
            dialect.rollback()
        except DatabaseError:
            self._disconnect()

    def _connected(self) -> Dialect:
        if self._dialect is None:
            self._dialect = open_dialect(
                self._url, read_only=not self._writes, statement_timeout=STATEMENT_TIMEOUT
            )
            if self._owner is not None:
                self._lock(self._dialect, self._owner)
        return self._dialect

    def _lock(self, dialect: Dialect, owner: str) -> None:
        try:
            if self._shared:
                dialect.lock_with_others(owner)
            else:
                dialect.lock_exclusively(owner)
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        dialect, self._dialect = self._dialect, None
        if dialect is not None:
            try:
                dialect.close()
            except Exception as exc:
                logger.debug("closing a lost database: %s", type(exc).__name__)


def _retry_while_lost(
    action: Callable[[], None], after_loss: Callable[[], None], retries: _RetryBudget
) -> None:
    """Run an action, with retries for a time while the database is unreachable."""
    deadline = time.monotonic() + retries.seconds
    for delay in chain(RETRY_DELAYS, repeat(RETRY_DELAYS[-1])):
        try:
            action()
            return
        except DatabaseLost as exc:
            after_loss()
            if not retries.allows(delay, deadline):
                raise
            logger.warning("the database was lost (%s): retrying in %.2g s", exc, delay)
            retries.wait(delay)


def _probe(transaction: Transaction, size: int) -> None:
    """Write random bytes: SQLite does not write what is unchanged."""
    transaction.execute(
        "INSERT INTO write_probe (id, filler) VALUES (1, ?)"
        " ON CONFLICT (id) DO UPDATE SET filler = excluded.filler",
        (secrets.token_bytes(size),),
    )


def _marker(now: float) -> bytes:
    """Return a unique marker of a transaction; markers sort by time."""
    return int(now).to_bytes(8) + secrets.token_bytes(16)


def _nothing() -> None:
    return None


def _back_up(url: str, target: Path) -> None:
    dialect = open_dialect(url, read_only=True)
    try:
        dialect.backup(target)
    finally:
        dialect.close()


def _settle(jobs: list[_Operation]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)


def _migrate_joined(
    url: str, migrations: Sequence[Migration], check: Callable[[Transaction], None]
) -> None:
    dialect = open_dialect(url)
    try:
        dialect.lock_with_others(f"heliograph {secrets.token_hex(16)}")
        check(Transaction(dialect))
        migrate(url, migrations)
    finally:
        dialect.close()


def migrate(url: str, migrations: Sequence[Migration]) -> None:
    """Bring the schema up to date. Safe to interrupt: each step is one transaction."""
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
        if unknown:
            raise DatabaseNewer(
                "a later version of Heliograph made this database: upgrade, or restore a backup"
            )
        for migration in migrations:
            if migration.name not in done:
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
