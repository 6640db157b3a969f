"""A database on threads of its own: one that writes, one that reads.

Writing is by functions of a transaction. All that wait while one transaction commits share the
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
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from heliograph.db.dialects import Dialect, Transaction, open_dialect
from heliograph.db.errors import DatabaseError, DatabaseLost, DatabaseNewer, DatabaseOwned

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_GROUP = 1000
RETRY_DELAYS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
HURRIED_DELAY = 0.2
CLOSE_TIMEOUT = 3.0
"""So long a lost database may keep a process from stopping."""
STALLED_TIMEOUT = 10.0
"""And one that does not answer what it was asked before."""


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

    def __init__(self, url: str, retry_for: float = 30.0, *, exclusive: bool = False) -> None:
        self._url = url
        self._patience = _Patience(retry_for)
        owner = f"heliograph {secrets.token_hex(16)}" if exclusive else None
        loop = asyncio.get_running_loop()
        self._writer = _Worker(url, loop, self._patience, writes=True, owner=owner)
        self._reader = _Worker(url, loop, self._patience, writes=False)

    @classmethod
    async def open(
        cls,
        url: str,
        migrations: Sequence[Migration],
        *,
        retry_for: float = 30.0,
        exclusive: bool = False,
    ) -> "Database":
        """An `exclusive` one has no other of its kind: `DatabaseOwned` if there is one."""
        database = cls(url, retry_for, exclusive=exclusive)
        try:
            await database.write(lambda tx: None)  # before the schema changes under another's feet
            await asyncio.to_thread(
                _persistently, lambda: migrate(url, migrations), _nothing, database._patience
            )
        except BaseException:
            await database.close()
            raise
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

    def hurry(self, seconds: float = CLOSE_TIMEOUT) -> None:
        """From now on, wait no longer than this for a database that is lost."""
        self._patience.hurry(seconds)

    async def close(self) -> None:
        """Finish what was submitted, then close; it fails if the database does not come back."""
        self.hurry()
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._reader.stop)


class _Patience:
    """How long to wait for a database that is lost."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = math.inf
        self._hurried = threading.Event()

    def hurry(self, seconds: float) -> None:
        self._end = min(self._end, time.monotonic() + seconds)
        self._hurried.set()

    def allows(self, delay: float, deadline: float) -> bool:
        """Whether there is time for another attempt."""
        return time.monotonic() + self._shortened(delay) <= min(deadline, self._end)

    def wait(self, delay: float) -> None:
        if self._hurried.is_set():
            time.sleep(self._shortened(delay))
        else:
            self._hurried.wait(delay)

    def _shortened(self, delay: float) -> float:
        return min(delay, HURRIED_DELAY) if self._hurried.is_set() else delay


class _Worker:
    """One thread with one connection."""

    def __init__(
        self,
        url: str,
        loop: asyncio.AbstractEventLoop,
        patience: _Patience,
        *,
        writes: bool,
        owner: str | None = None,
    ) -> None:
        self._url = url
        self._loop = loop
        self._patience = patience
        self._owner = owner
        self._writes = writes
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._dialect: Dialect | None = None
        self._done = 0
        name = "database-writer" if writes else "database-reader"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[Transaction], T]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(function, future))
        return future

    def stop(self) -> None:
        """Finish; but what gets no answer for long is left, as if this process were killed."""
        self._jobs.put(None)
        done = -1
        while self._thread.is_alive() and done < self._done:
            done = self._done
            self._thread.join(STALLED_TIMEOUT)
        if self._thread.is_alive():
            logger.error("the database does not answer: leaving what it was asked to do")

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
                self._done += 1
                with suppress(RuntimeError):  # the loop did not wait for us
                    self._loop.call_soon_threadsafe(_settle, group)
        self._disconnect()

    def _run_group(self, group: list[_Job]) -> None:
        """All in one transaction; if any fails, each in its own."""
        try:
            self._attempt(group)
        except (DatabaseLost, DatabaseOwned) as exc:
            for job in group:
                job.error = exc
        except Exception as exc:
            if len(group) == 1:
                group[0].error = exc
                return
            for job in group:
                self._run_group([job])

    def _attempt(self, group: list[_Job]) -> None:
        _persistently(lambda: self._transact(group), self._disconnect, self._patience)

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
            if self._owner is not None:
                self._own(self._dialect, self._owner)
        return self._dialect

    def _own(self, dialect: Dialect, owner: str) -> None:
        try:
            dialect.own(owner)
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


def _persistently(
    action: Callable[[], None], after_loss: Callable[[], None], patience: _Patience
) -> None:
    """Do something, again and again for a time if the database is lost."""
    deadline = time.monotonic() + patience.seconds
    for delay in chain(RETRY_DELAYS, repeat(RETRY_DELAYS[-1])):
        try:
            action()
            return
        except DatabaseLost as exc:
            after_loss()
            if not patience.allows(delay, deadline):
                raise
            logger.warning("the database was lost (%s): trying again in %.2g s", exc, delay)
            patience.wait(delay)


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
