"""Locks that exclude tasks of this process and of others, by name. The kernel frees a dead one's.

All names share one file: a name stands for one byte of it, far beyond its end, that is locked with
an open-file-description lock. Two names may meet in one byte: then one waits without need. Never
take one while holding another.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path

FIRST_WAIT = 0.005
LONGEST_WAIT = 0.1


class Locks:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._local: dict[str, tuple[asyncio.Lock, int]] = {}

    def close(self) -> None:
        os.close(self._descriptor)

    @contextlib.asynccontextmanager
    async def hold(self, name: str, within: float | None = None) -> AsyncIterator[None]:
        """Raises TimeoutError if it cannot be had in time."""
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(within):
                await stack.enter_async_context(self._hold_here(name))
                stack.callback(self._set, name, fcntl.F_UNLCK)
                await self._hold_everywhere(name)
            yield

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
        while not self._set(name, fcntl.F_WRLCK):
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT)

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
