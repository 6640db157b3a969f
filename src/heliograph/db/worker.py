"""The threads of a database: each runs submitted functions in groups, and reconnects."""

import asyncio
import logging
import math
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, TypeVar

from heliograph.db.dialects import Dialect, Guard, Transaction, open_dialect
from heliograph.db.errors import (
    DatabaseConflict,
    DatabaseError,
    DatabaseFenced,
    DatabaseLost,
    DatabaseOwned,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_GROUP = 1000
MAX_CONFLICTS = 10
"""Attempts of a transaction that conflicts with those of other processes."""
RETRY_DELAYS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LIMITED_DELAY = 0.2
STALLED_TIMEOUT = 10.0
"""Seconds to wait at shutdown for a database that does not answer."""
STATEMENT_TIMEOUT = 60.0
"""Maximum seconds for one statement of PostgreSQL, which may be blocked by a lock."""


@dataclass(slots=True)
class _Operation:
    function: Callable[[Transaction], object]
    future: asyncio.Future[Any]  # of what the function returns
    concurrent: bool = False
    result: object = None
    error: Exception | None = None


class RetryBudget:
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


class DatabaseWorker:
    """One thread with one connection.

    Its attributes are what the thread needs to reconnect and to find what it committed.
    """

    def __init__(
        self,
        url: str,
        loop: asyncio.AbstractEventLoop,
        retries: RetryBudget,
        *,
        writes: bool,
        owner: str | None = None,
        shared: bool = False,
        snapshots: bool = False,
        autocommit: bool = False,
        statement_timeout: float = STATEMENT_TIMEOUT,
    ) -> None:
        """With `snapshots`, the statements of a function that reads see one state.

        With `autocommit`, each statement is a transaction, so no stopped process leaves one open.
        """
        self._url = url
        self._loop = loop
        self._retries = retries
        self._owner = owner
        self._writes = writes
        self._shared = shared
        self._in_transactions = (writes or snapshots) and not autocommit
        self._statement_timeout = statement_timeout
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

    def submit(
        self, function: Callable[[Transaction], T], *, concurrent: bool = False
    ) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Operation(function, future, concurrent and self.guard is not None))
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
        job = self._jobs.get()
        while job is not None:
            group, following = self._gather(job)
            self._run_group(group)
            self._done += 1
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(_resolve_futures, group)
            job = following[0] if following else self._jobs.get()
        self._disconnect()

    def _gather(self, job: _Operation) -> tuple[list[_Operation], list[_Operation | None]]:
        """Return a group that begins with a job, and what was taken from the queue after it."""
        group = [job]
        while not job.concurrent and len(group) < MAX_GROUP:
            try:
                following = self._jobs.get_nowait()
            except queue.Empty:
                break
            if following is None or following.concurrent:
                return group, [following]
            group.append(following)
        return group, []

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
        for attempt in range(1, MAX_CONFLICTS + 1):
            self._marker = None
            try:
                retry_while_lost(lambda: self._transact(group), self._disconnect, self._retries)
                return
            except DatabaseConflict:
                if attempt == MAX_CONFLICTS:
                    raise
                time.sleep(0.01 * random.random())  # noqa: S311  jitter

    def _transact(self, group: list[_Operation]) -> None:
        dialect = self._connected()
        try:
            if self._in_transactions and not self._begin(dialect, group[0]):
                self._roll_back(dialect)
                return
            transaction = Transaction(dialect)
            for job in group:
                job.result = job.function(transaction)
            if self._in_transactions:
                dialect.commit()
        except BaseException:
            if self._in_transactions:
                self._roll_back(dialect)
            raise

    def _begin(self, dialect: Dialect, first: _Operation) -> bool:
        """Begin a transaction, or return False if the last attempt had committed unanswered."""
        if not self._writes:
            dialect.begin_snapshot()
            return True
        if not self._shared:
            dialect.begin()
            return True
        marker = new_marker(time.time())
        if self.guard is None:
            is_new = dialect.begin_shared(self._number, marker, self._marker)
        else:
            is_new = dialect.begin_joined(
                marker, self._marker, self.guard, in_order=not first.concurrent
            )
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
                self._url,
                read_only=not self._writes,
                statement_timeout=self._statement_timeout,
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


def retry_while_lost(
    action: Callable[[], None], after_loss: Callable[[], None], retries: RetryBudget
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
            logger.warning("the database cannot be reached (%s): retrying in %.2g s", exc, delay)
            retries.wait(delay)


def new_marker(now: float) -> bytes:
    """Return a unique marker of a transaction; markers sort by time."""
    return int(now).to_bytes(8) + secrets.token_bytes(16)


def _resolve_futures(jobs: list[_Operation]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)
