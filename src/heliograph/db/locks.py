"""Named locks beside a database, between tasks of this process and of others.

The kernel, or the database server, frees those of a dead process. Never take a lock while holding
another.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from heliograph.db.dialects import Dialect, open_dialect, sqlite_file
from heliograph.db.errors import DatabaseError, DatabaseLost

FIRST_WAIT = 0.005
LONGEST_WAIT = 0.1

_KEY = "hashtextextended('heliograph ' || current_schema() || ' ' || CAST(? AS TEXT), 0)"
_LOCK = f"SELECT pg_try_advisory_lock({_KEY})"
_UNLOCK = f"SELECT pg_advisory_unlock({_KEY})"


def open_locks(url: str) -> "Locks":
    """Return the locks of a database. Raises `DatabaseError`."""
    file = sqlite_file(url)
    if file is None:
        return AdvisoryLocks(url)
    return FileLocks(file.with_name(f"{file.name}.lock"))


class Locks(ABC):
    def __init__(self) -> None:
        self._local: dict[str, tuple[asyncio.Lock, int]] = {}

    @contextlib.asynccontextmanager
    async def hold(self, name: str, within: float | None = None) -> AsyncIterator[None]:
        """Hold a lock. Raises TimeoutError if it is not free in time, or `DatabaseError`."""
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(within):
                await stack.enter_async_context(self._hold_here(name))
                stack.callback(self._release, name)
                await self._hold_everywhere(name)
            yield

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    async def _acquire(self, name: str) -> bool:
        """Take a lock if no other process holds it, and return whether it was taken."""

    @abstractmethod
    def _release(self, name: str) -> None:
        """Release a lock, also one whose `_acquire` failed or was cancelled."""

    @contextlib.asynccontextmanager
    async def _hold_here(self, name: str) -> AsyncIterator[None]:
        lock, users = self._local.get(name, (asyncio.Lock(), 0))
        self._local[name] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._local.pop(name)
            if users > 1:
                self._local[name] = lock, users - 1

    async def _hold_everywhere(self, name: str) -> None:
        wait = FIRST_WAIT
        while not await self._acquire(name):
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)


class FileLocks(Locks):
    """Open-file-description locks on one file.

    A name stands for one byte of it, far beyond its end. Two names may share a byte: then one waits
    unnecessarily.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise DatabaseError(f"{path}: {exc.strerror}") from exc

    def close(self) -> None:
        os.close(self._descriptor)

    async def _acquire(self, name: str) -> bool:
        return self._set(name, fcntl.F_WRLCK)

    def _release(self, name: str) -> None:
        self._set(name, fcntl.F_UNLCK)

    def _set(self, name: str, kind: int) -> bool:
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        offset = int.from_bytes(digest) >> 2
        request = struct.pack("hhqqi4x", kind, os.SEEK_SET, offset, 1, 0)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, request)
        except OSError as exc:
            if exc.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True


class AdvisoryLocks(Locks):
    """Advisory locks of PostgreSQL, in a connection and a thread of their own.

    If the connection is lost, so are its locks: another process may take one before its holder here
    has finished.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._dialect: Dialect | None = None
        self._held: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database-locks")

    def close(self) -> None:
        self._thread.submit(self._disconnect)
        self._thread.shutdown(wait=False)

    async def _acquire(self, name: str) -> bool:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._take, name)

    def _release(self, name: str) -> None:
        self._thread.submit(self._give, name)  # after an `_acquire` that may be running

    # In the thread.

    def _take(self, name: str) -> bool:
        try:
            [[taken]] = self._connected().query(_LOCK, (name,))
        except DatabaseLost:  # it may have been lost long ago, while it was idle
            self._disconnect()
            [[taken]] = self._connected().query(_LOCK, (name,))
        if taken:
            self._held.add(name)
        return bool(taken)

    def _give(self, name: str) -> None:
        if name not in self._held:
            return
        self._held.discard(name)
        try:
            self._connected().query(_UNLOCK, (name,))
        except DatabaseError:
            self._disconnect()

    def _connected(self) -> Dialect:
        if self._dialect is None:
            self._dialect = open_dialect(self._url, read_only=True)
        return self._dialect

    def _disconnect(self) -> None:
        dialect, self._dialect = self._dialect, None
        self._held.clear()
        if dialect is not None:
            dialect.close()
