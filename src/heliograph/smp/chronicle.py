"""What the messaging router tells its journal: which event, with which columns.

Nonces go in as they are; the journal writes hashes of them. See `heliograph.journal.schema`.
"""

import asyncio
import logging
from collections.abc import Iterable

from heliograph.db.errors import DatabaseError
from heliograph.journal.chronicle import RouterChronicle
from heliograph.journal.events import NO_JOURNAL, Journal
from heliograph.smp.records import Notification
from heliograph.smp.store import Store

logger = logging.getLogger(__name__)

COUNTS_INTERVAL = 60.0
PAGE = 1_000
MAX_BACKLOG = 10_000
"""Events that wait to be journaled, before old notifications make way for what happens now."""


class Chronicle(RouterChronicle):
    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)

    def started(self) -> None:
        self.journal("router_started")

    def stored(self, notification: Notification) -> None:
        self.journal("notification_stored", notification=notification.nonce)

    def delivered(self, notification: Notification) -> None:
        self.journal("notification_delivered", notification=notification.nonce)

    def removed(self, nonces: Iterable[bytes]) -> None:
        for nonce in nonces:
            self.journal("notification_removed", notification=nonce)

    def expired(self, nonces: Iterable[bytes]) -> None:
        for nonce in nonces:
            self.journal("notification_expired", notification=nonce)

    async def tell_recovered(self, store: Store, before: int) -> None:
        """What waits since an earlier run: if its last events are lost, all others are settled."""
        if self.journal is NO_JOURNAL:
            return
        count, after = 0, -1
        while True:
            try:
                found = await store.waiting(after, before, PAGE)
            except DatabaseError as exc:
                logger.error("notifications cannot be read, trying again: %s", exc)
                await asyncio.sleep(1.0)
                continue
            for _, nonce in found:
                self.journal("notification_stored", notification=nonce, reason="recovered")
            count += len(found)
            if len(found) < PAGE:
                break
            after = found[-1][0]
            await self.journal.drained(MAX_BACKLOG)
        self.journal("router_recovered", count=count)

    async def keep_counting(self) -> None:
        while self.journal is not NO_JOURNAL:
            await asyncio.sleep(COUNTS_INTERVAL)
            self.tell_counts()
