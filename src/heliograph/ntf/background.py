"""Background work of the router.

It records pushes that are pending since an earlier run, records command counts, and removes tokens
that were never verified and unused messaging routers.
"""

import asyncio
import logging
import time

from heliograph.db.errors import DatabaseError
from heliograph.journal.journal import NO_JOURNAL
from heliograph.ntf.observing.observer import NtfObserver
from heliograph.ntf.observing.traffic import INTERVAL
from heliograph.ntf.store import pending
from heliograph.ntf.store.store import NtfStore

logger = logging.getLogger(__name__)

COUNTS_INTERVAL = 60.0
RETRY_DELAY = 1.0
RECOVERY_PAGE = 1_000
MAX_BACKLOG = 10_000
"""Queued journal events above which recovered pushes wait for current events."""

COLLECTION_INTERVAL = 600.0
COLLECTION_PAGE = 500
"""Tokens removed in one transaction."""
UNUSED_SERVER_TTL = 30 * 86_400.0
"""Seconds that a messaging router without subscriptions is kept, with our service there."""


async def record_recovered(observer: NtfObserver, store: NtfStore, through: int) -> None:
    """Record the pushes that an earlier run left pending.

    If its last events were lost, everything else up to `through` is known to be settled.
    """
    if observer.journal is NO_JOURNAL:
        return
    count = 0
    after: pending.Cursor | None = pending.FIRST_PAGE
    while after is not None:
        try:
            pushes, after = await store.pending_page(after, RECOVERY_PAGE)
        except DatabaseError as exc:
            logger.error("pending pushes cannot be read, retrying: %s", exc)
            await asyncio.sleep(RETRY_DELAY)
            continue
        count += len(pushes)
        observer.pushes.recovered(pushes)
        await observer.journal.drained(MAX_BACKLOG)
    observer.all_recovered(count, through)


async def record_counts(observer: NtfObserver) -> None:
    """Record the numbers of commands and connections once a minute."""
    while observer.journal is not NO_JOURNAL:
        await asyncio.sleep(COUNTS_INTERVAL)
        observer.record_counts()


async def record_traffic(observer: NtfObserver) -> None:
    """Record every few seconds what messaging routers and providers did."""
    while observer.journal is not NO_JOURNAL:
        await asyncio.sleep(INTERVAL)
        observer.record_traffic(time.time())


async def collect(store: NtfStore, observer: NtfObserver, unverified_ttl: float | None) -> None:
    """Remove, every ten minutes, what has been unused or unverified for too long."""
    while True:
        if not store.coordinator.is_leader:
            await asyncio.sleep(COLLECTION_INTERVAL)
            continue
        try:
            if unverified_ttl is not None:
                while removed := await store.collect_unverified(unverified_ttl, COLLECTION_PAGE):
                    observer.unverified_collected(removed)
            await store.servers.collect_unused(UNUSED_SERVER_TTL)
        except DatabaseError as exc:
            logger.error("unused rows cannot be removed, retrying: %s", exc)
        await asyncio.sleep(COLLECTION_INTERVAL)
