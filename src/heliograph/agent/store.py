"""The agent's store: SQLite in a file that two processes may have open at once.

Nothing of it is kept in memory, so neither process can make the other stale. Whatever both might do
at once happens in one transaction, or under one of `locks`.
"""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from heliograph.agent.errors import AgentError, StoreInUse
from heliograph.agent.keys import Cost, Lock, Passphrase, Vault, new_lock, unlock
from heliograph.agent.locks import Locks
from heliograph.agent.ntf_schema import NTF_MIGRATIONS
from heliograph.agent.schema import MIGRATIONS
from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseBusy, DatabaseError

T = TypeVar("T")

FILE = "agent.db"
OPEN_TIMEOUT = 30.0
BUSY_FOR = 60.0
BUSY_WAIT = 0.05


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Store:
    """An open store. Make one by `Store.open`."""

    def __init__(self, database: Database, locks: Locks, vault: Vault) -> None:
        self.database = database
        self.locks = locks
        self.vault = vault
        self._closed = False

    @classmethod
    async def open(
        cls, path: Path, passphrase: str | None = None, *, cost: Cost | None = None
    ) -> "Store":
        """Open the file, or the file in a directory; make it if there is none.

        Raises `PassphraseError` if it cannot be opened so.
        """
        secret = None if passphrase is None else Passphrase(passphrase)
        file, locks = _prepare(path)
        database: Database | None = None
        try:
            # One at a time: SQLite cannot switch to WAL, nor we migrate, beside each other.
            async with locks.hold("open", OPEN_TIMEOUT):
                database = await Database.open(f"sqlite:///{file}", (*MIGRATIONS, *NTF_MIGRATIONS))
                await database.read(lambda tx: None)
                lock, vault = await _lock_of(database, secret, cost or Cost())
                if vault is None:
                    vault = await asyncio.to_thread(unlock, lock, secret)
        except BaseException as exc:
            if database is not None:
                await database.close()
            locks.close()
            if isinstance(exc, TimeoutError):
                raise StoreInUse(f"{file}: another process is opening it for too long") from exc
            if isinstance(exc, DatabaseError):
                raise AgentError(f"{file}: {str(exc).removeprefix(f'{file}: ')}") from exc
            raise
        return cls(database, locks, vault)

    async def close(self) -> None:
        """Finish what was submitted, then close."""
        self._closed = True
        try:
            async with self.locks.hold("open", OPEN_TIMEOUT):
                await self.database.close()
        except TimeoutError:
            await self.database.close()
        finally:
            self.locks.close()

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """As `Database.write`; waits while the other process writes."""
        return await self._patiently(lambda: self.database.write(function))

    async def read(self, function: Callable[[Transaction], T]) -> T:
        return await self._patiently(lambda: self.database.read(function))

    async def data_version(self) -> int:
        """Another number after anybody, here or in the other process, has written."""
        [[version]] = await self.read(lambda tx: tx.query("PRAGMA data_version"))
        return int(version)

    async def _patiently(self, submit: Callable[[], "asyncio.Future[T]"]) -> T:
        deadline = time.monotonic() + BUSY_FOR
        while True:
            if self._closed:
                raise AgentError("the agent is closed")
            try:
                return await submit()
            except DatabaseBusy as exc:
                if time.monotonic() > deadline:
                    raise StoreInUse("another process holds the store for too long") from exc
            await asyncio.sleep(BUSY_WAIT * (1 + random.random()))  # noqa: S311


def _prepare(path: Path) -> tuple[Path, Locks]:
    """The file, and its locks, that only we may read."""
    file = path / FILE if path.is_dir() or not path.suffix else path
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
        return file, Locks(file.with_name(f"{file.name}.lock"))
    except OSError as exc:
        raise AgentError(f"{file}: {exc.strerror}") from exc


async def _lock_of(
    database: Database, passphrase: Passphrase | None, cost: Cost
) -> tuple[Lock, Vault | None]:
    """What the store has, or of a new store what it now has, with its vault."""
    rows = await database.read(
        lambda tx: tx.query("SELECT salt, operations, memory, wrapped_key FROM vault")
    )
    if rows:
        return Lock(*rows[0]), None
    lock, vault = await asyncio.to_thread(new_lock, passphrase, cost)
    values = lock.salt, lock.operations, lock.memory, lock.wrapped_key
    await database.write(
        lambda tx: tx.execute(
            "INSERT INTO vault (id, salt, operations, memory, wrapped_key) VALUES (1, ?, ?, ?, ?)",
            values,
        )
    )
    return lock, vault
