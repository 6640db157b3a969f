"""Pauses that one process learned of and all keep: of providers, and of hosts that do not answer.

They are rows of the store, in time of the database's clock: a clock that is off shortens none.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from heliograph.db.database import Database
from heliograph.db.dialects import Transaction
from heliograph.db.errors import DatabaseError
from heliograph.ntf.cluster import tables
from heliograph.ntf.push.lanes import Pause
from heliograph.wire.ntf.tokens import PushProvider

__all__ = ["SharedPauses"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
LATE_MS = 10_000
"""A transaction that began this long ago may have committed since the last look."""
MAX_READ = 10_000
PROVIDERS = {kind.text: kind for kind in PushProvider}


class _Row(NamedTuple):
    provider: str
    host: str
    failures: int
    milliseconds: int
    """That the pause still lasts."""


def store(tx: Transaction, rows: Sequence[_Row]) -> None:
    """Add pauses, and remove those that have ended."""
    now = tables.now(tx)
    tx.many(
        "INSERT INTO pauses (provider, host, failures, until, at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (provider, host) DO UPDATE SET failures = excluded.failures,"
        " until = GREATEST(pauses.until, excluded.until), at = excluded.at",
        [
            (row.provider, row.host, row.failures, now + row.milliseconds, now)
            for row in sorted(rows)
        ],
    )
    # Skip what others hold: in any order they might wait for each other.
    tx.execute(
        "DELETE FROM pauses WHERE (provider, host) IN (SELECT provider, host FROM pauses"
        " WHERE until < ? FOR UPDATE SKIP LOCKED)",
        (now,),
    )


def read(tx: Transaction, since: int) -> tuple[int, list[_Row]]:
    """Return the database's time, and the pauses that were added since an earlier one."""
    now = tables.now(tx)
    rows = tx.query(
        "SELECT provider, host, failures, until FROM pauses WHERE at > ? AND until > ?"
        " ORDER BY host LIMIT ?",  # those of a whole provider, which name no host, come first
        (since - LATE_MS, now, MAX_READ),
    )
    return now, [
        _Row(provider, host, failures, until - now) for provider, host, failures, until in rows
    ]


class SharedPauses:
    """Stores the pauses of this process, and calls `keep` with those of others."""

    def __init__(self, database: Database, keep: Callable[[PushProvider, Pause], None]) -> None:
        self._database = database
        self._keep = keep
        self._new: dict[tuple[str, str], Pause] = {}
        self._wake = asyncio.Event()
        self._since = 0

    def add(self, provider: PushProvider, pause: Pause) -> None:
        """Store a pause soon."""
        self._new[provider.text, pause.host] = pause
        self._wake.set()

    async def run(self) -> None:
        """Share pauses until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self._store()
                await self._apply()
            except DatabaseError as exc:
                logger.error("pauses of providers cannot be shared, retrying: %s", exc)
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _store(self) -> None:
        now = time.monotonic()
        pauses = dict(self._new)
        rows = [
            _Row(*key, pause.failures, int((pause.until - now) * 1000))
            for key, pause in pauses.items()
            if pause.until > now
        ]
        if rows:
            await self._database.write_concurrently(lambda tx: store(tx, rows))
        for key, pause in pauses.items():
            if self._new.get(key) is pause:
                del self._new[key]

    async def _apply(self) -> None:
        since = self._since
        self._since, rows = await self._database.read(lambda tx: read(tx, since))
        now = time.monotonic()
        for row in rows:
            if (provider := PROVIDERS.get(row.provider)) is not None:
                self._keep(provider, Pause(row.host, now + row.milliseconds / 1000, row.failures))
