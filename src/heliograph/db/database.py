"""A database on threads of its own: one that writes, one that reads.

Writing is by functions of a transaction. All that wait while one transaction commits share the
next, so that durability costs one disk sync for many of them. If one of them fails, each is run
again alone, so a function must be safe to run twice and must do nothing but use its transaction.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from heliograph.db.dialects import Dialect, Transaction, open_dialect
from heliograph.db.errors import DatabaseError, DatabaseLost, DatabaseNewer

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_GROUP = 1000
RETRY_DELAYS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of a schema, in the words of `dialects`. Never changed once released."""

    name: str
    sql: str


@dataclass(slots=True)
class _Job:
    function: Callable[[Transaction], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class Database:
    """An open database with its schema in place. Make one by `Database.open`."""

    def __init__(self, url: str, retry_for: float = 30.0) -> None:
        self._url = url
        loop = asyncio.get_running_loop()
        self._writer = _Worker(url, loop, retry_for=retry_for, writes=True)
        self._reader = _Worker(url, loop, retry_for=retry_for, writes=False)

    @classmethod
    async def open(
        cls, url: str, migrations: Sequence[Migration], *, retry_for: float = 30.0
    ) -> "Database":
        await asyncio.to_thread(_migrate_persistently, url, migrations, retry_for)
        database = cls(url, retry_for)
        await database.write(lambda tx: None)
        return database

    def write(self, function: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        """Run a function; the result is there once it is durable."""
        return self._writer.submit(function)

    def read(self, function: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        """Run a function that only reads what was committed before."""
        return self._reader.submit(function)

    async def backup(self, target: Path) -> None:
        """A consistent copy, while running. A connection of its own: reads need not wait for it."""
        await asyncio.to_thread(_back_up, self._url, target)

    async def close(self) -> None:
        """Finish what was submitted, then close."""
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._reader.stop)


class _Worker:
    """One thread with one connection."""

    def __init__(
        self, url: str, loop: asyncio.AbstractEventLoop, *, retry_for: float, writes: bool
    ) -> None:
        self._url = url
        self._loop = loop
        self._retry_for = retry_for
        self._writes = writes
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._dialect: Dialect | None = None
        name = "database-writer" if writes else "database-reader"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(function, future))
        return future

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        running = True
        while running:
            job = self._jobs.get()
            group: list[_Job] = []
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
                self._loop.call_soon_threadsafe(_settle, group)
        self._disconnect()

    def _run_group(self, group: list[_Job]) -> None:
        """All in one transaction; if any fails, each in its own."""
        try:
            self._attempt(group)
        except DatabaseLost as exc:
            for job in group:
                job.error = exc
        except Exception as exc:
            if len(group) == 1:
                group[0].error = exc
                return
            for job in group:
                self._run_group([job])

    def _attempt(self, group: list[_Job]) -> None:
        _persistently(lambda: self._transact(group), self._disconnect, self._retry_for)

    def _transact(self, group: list[_Job]) -> None:
        dialect = self._connected()
        dialect.begin() if self._writes else None
        try:
            transaction = Transaction(dialect)
            for job in group:
                job.result = job.function(transaction)
            if self._writes:
                dialect.commit()
        except BaseException:
            if self._writes:
                self._roll_back(dialect)
            raise

    def _roll_back(self, dialect: Dialect) -> None:
        try:
            dialect.rollback()
        except DatabaseError:
            self._disconnect()

    def _connected(self) -> Dialect:
        if self._dialect is None:
            self._dialect = open_dialect(self._url, read_only=not self._writes)
        return self._dialect

    def _disconnect(self) -> None:
        dialect, self._dialect = self._dialect, None
        if dialect is not None:
            try:
                dialect.close()
            except Exception as exc:
                logger.debug("closing a lost database: %s", type(exc).__name__)


def _persistently(
    action: Callable[[], None], after_loss: Callable[[], None], retry_for: float
) -> None:
    """Do something, again and again for a time if the database is lost."""
    deadline = time.monotonic() + retry_for
    for delay in chain(RETRY_DELAYS, repeat(RETRY_DELAYS[-1])):
        try:
            action()
            return
        except DatabaseLost as exc:
            after_loss()
            if time.monotonic() + delay > deadline:
                raise
            logger.warning("the database was lost (%s): trying again in %.2g s", exc, delay)
            time.sleep(delay)


def _nothing() -> None:
    return None


def _back_up(url: str, target: Path) -> None:
    dialect = open_dialect(url, read_only=True)
    try:
        dialect.backup(target)
    finally:
        dialect.close()


def _settle(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)


def _migrate_persistently(url: str, migrations: Sequence[Migration], retry_for: float) -> None:
    """The database may be starting too."""
    _persistently(lambda: migrate(url, migrations), _nothing, retry_for)


def migrate(url: str, migrations: Sequence[Migration]) -> None:
    """Bring the schema up to date. Safe to interrupt: each step is one transaction."""
    dialect = open_dialect(url)
    try:
        dialect.begin()
        dialect.define("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, at BIGINT)")
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
