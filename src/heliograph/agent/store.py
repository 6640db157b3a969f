"""The agent's store, in a file or at a PostgreSQL server; two processes may have it open at once.

Nothing is cached in memory, so neither process reads stale state. Whatever both might do at once
happens in one transaction, or under one of `locks`.
"""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from heliograph.agent.errors import AgentError, StoreInUse
from heliograph.agent.keys import Cost, Lock, Passphrase, Vault, new_lock, unlock
from heliograph.agent.schema import MIGRATIONS
from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseBusy, DatabaseError
from heliograph.db.locks import Locks, open_locks
from heliograph.opening import Closing, opening

T = TypeVar("T")

FILE = "agent.db"
OPEN_TIMEOUT = 30.0
BUSY_TIMEOUT = 60.0
BUSY_RETRY_INTERVAL = 0.05


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class AgentStore(Closing):
    """An open store. Create it with `AgentStore.open`."""

    def __init__(self, database: Database, locks: Locks, vault: Vault) -> None:
        self.database = database
        self.locks = locks
        self.vault = vault
        self._closed = False

    @classmethod
    @opening
    async def open(
        cls,
        place: Path | str,
        passphrase: str | None = None,
        *,
        cost: Cost | None = None,
        must_be_new: bool = False,
    ) -> "AgentStore":
        """Open a file, the file in a directory, or a URL as of routers; create what is missing.

        Raises `PassphraseError` if the passphrase does not fit, and `StoreInUse` if `must_be_new`
        and there is one already.
        """
        secret = None if passphrase is None else Passphrase(passphrase)
        url, name = _locate(place)
        locks: Locks | None = None
        database: Database | None = None
        try:
            locks = open_locks(url)
            # One process at a time: switching to WAL and migrations must not run concurrently.
            async with locks.hold("open", OPEN_TIMEOUT):
                database = await Database.open(url, MIGRATIONS, shared=True)
                await database.read(lambda tx: None)
                lock, vault = await _lock_of(database, secret, cost or Cost())
                if vault is None and must_be_new:
                    raise StoreInUse(f"{name} belongs to another agent: give each its own")
                if vault is None:
                    vault = await asyncio.to_thread(unlock, lock, secret)
        except BaseException as exc:
            if database is not None:
                await database.close()
            if locks is not None:
                locks.close()
            if isinstance(exc, TimeoutError):
                raise StoreInUse(f"{name}: another process took too long to open it") from exc
            if isinstance(exc, DatabaseError):
                raise AgentError(f"{name}: {str(exc).removeprefix(f'{name}: ')}") from exc
            raise
        return cls(database, locks, vault)

    async def close(self) -> None:
        """Finish submitted transactions, then close."""
        self._closed = True
        try:
            async with self.locks.hold("open", OPEN_TIMEOUT):
                await self.database.close()
        except (TimeoutError, DatabaseError):
            await self.database.close()
        finally:
            self.locks.close()

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a write transaction; wait while the other process writes."""
        return await self._retry_while_busy(lambda: self.database.write(function))

    async def read(self, function: Callable[[Transaction], T]) -> T:
        return await self._retry_while_busy(lambda: self.database.read(function))

    async def data_version(self) -> int:
        """Return a number that changes with every write, by this or the other process."""
        return await self.read(lambda tx: tx.data_version())

    async def _retry_while_busy(self, submit: Callable[[], "asyncio.Future[T]"]) -> T:
        deadline = time.monotonic() + BUSY_TIMEOUT
        while True:
            if self._closed:
                raise AgentError("the agent is closed: open it again")
            try:
                return await submit()
            except DatabaseBusy as exc:
                if time.monotonic() > deadline:
                    raise StoreInUse(
                        "another process has locked the store for too long: try again, or end it"
                    ) from exc
            await asyncio.sleep(BUSY_RETRY_INTERVAL * (1 + random.random()))  # noqa: S311


def _locate(place: Path | str) -> tuple[str, str]:
    """Return the URL of a store, and its name in error messages, which contains no password."""
    if isinstance(place, str) and "://" in place:
        return place, "the store"
    path = Path(place)
    file = path / FILE if path.is_dir() or not path.suffix else path
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise AgentError(f"{file}: {exc.strerror}") from exc
    return f"sqlite:///{file}", str(file)


async def _lock_of(
    database: Database, passphrase: Passphrase | None, cost: Cost
) -> tuple[Lock, Vault | None]:
    """Return the store's lock; for a new store, create the lock and return its vault too."""
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
