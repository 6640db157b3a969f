"""A phone's own store: settings that app and extension share, and its chats.

Both processes may have it open at once: nothing is cached in memory, and every read-modify-write
happens in one transaction.
"""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseBusy
from heliograph.device.badge import Badge
from heliograph.device.schema import MIGRATIONS
from heliograph.opening import Closing, opening

T = TypeVar("T")

FILE = "device.db"
BUSY_TIMEOUT = 30.0
BUSY_RETRY_INTERVAL = 0.02
PUSHES_KEPT = 2000
BADGE = "badge"


class DeviceStore(Closing):
    """An open store. Create it with `DeviceStore.open`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    @opening
    async def open(cls, directory: Path) -> "DeviceStore":
        file = directory / FILE
        file.touch(mode=0o600)
        deadline = time.monotonic() + BUSY_TIMEOUT
        while True:
            try:
                return cls(await Database.open(f"sqlite:///{file.absolute()}", MIGRATIONS))
            except DatabaseBusy:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(BUSY_RETRY_INTERVAL * (1 + random.random()))  # noqa: S311

    async def close(self) -> None:
        await self._database.close()

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """Run a write transaction; wait while the other process writes."""
        return await self._retry_while_busy(lambda: self._database.write(function))

    async def read(self, function: Callable[[Transaction], T]) -> T:
        return await self._retry_while_busy(lambda: self._database.read(function))

    async def get(self, name: str) -> str | None:
        return await self.read(lambda tx: get_setting(tx, name))

    async def set(self, name: str, value: str) -> None:
        await self.write(lambda tx: set_setting(tx, name, value))

    async def change_badge(self, by: int) -> int:
        """Change the badge by a difference, and return it."""
        return await self.write(lambda tx: change_badge(tx, by))

    async def see_push(self, push_id: str, at: int) -> bool:
        """Return whether a push is new: a provider's record may be read twice."""

        def see(tx: Transaction) -> bool:
            if tx.query("SELECT 1 FROM pushes WHERE push_id = ?", (push_id,)):
                return False
            tx.execute("INSERT INTO pushes (push_id, at) VALUES (?, ?)", (push_id, at))
            tx.execute(
                "DELETE FROM pushes WHERE rowid <= (SELECT MAX(rowid) FROM pushes) - ?",
                (PUSHES_KEPT,),
            )
            return True

        return await self.write(see)

    async def has_seen_push(self, push_id: str) -> bool:
        sql = "SELECT 1 FROM pushes WHERE push_id = ?"
        return bool(await self.read(lambda tx: tx.query(sql, (push_id,))))

    async def _retry_while_busy(self, submit: Callable[[], "asyncio.Future[T]"]) -> T:
        deadline = time.monotonic() + BUSY_TIMEOUT
        while True:
            try:
                return await submit()
            except DatabaseBusy:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(BUSY_RETRY_INTERVAL * (1 + random.random()))  # noqa: S311


def get_setting(tx: Transaction, name: str) -> str | None:
    rows = tx.query("SELECT value FROM settings WHERE name = ?", (name,))
    return str(rows[0][0]) if rows else None


def set_setting(tx: Transaction, name: str, value: str) -> None:
    tx.execute(
        "INSERT INTO settings (name, value) VALUES (?, ?)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


def change_badge(tx: Transaction, by: int) -> int:
    badge = Badge(int(get_setting(tx, BADGE) or 0)).change(by)
    set_setting(tx, BADGE, str(badge.count))
    return badge.count
