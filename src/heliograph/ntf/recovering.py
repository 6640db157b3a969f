"""What the router journals besides what happens: what it found owed, and counts now and then."""

import asyncio
import logging

from heliograph.db.errors import DatabaseError
from heliograph.journal.events import NO_JOURNAL
from heliograph.ntf import debts
from heliograph.ntf.chronicle import Chronicle
from heliograph.ntf.store import Store

logger = logging.getLogger(__name__)

COUNTS_INTERVAL = 60.0
PAGE = 1_000
MAX_BACKLOG = 10_000
"""Events that wait to be journaled, before old debts make way for what happens now."""


async def tell_recovered(chronicle: Chronicle, store: Store, through: int) -> None:
    """What an earlier run left owed: if its last events are lost, all the others are settled."""
    if chronicle.journal is NO_JOURNAL:
        return
    count = 0
    after: debts.Place | None = debts.FIRST
    while after is not None:
        try:
            owed, after = await store.owed_page(after, PAGE)
        except DatabaseError as exc:
            logger.error("what is owed cannot be read, trying again: %s", exc)
            await asyncio.sleep(1.0)
            continue
        count += len(owed)
        chronicle.recovered(owed)
        await chronicle.journal.drained(MAX_BACKLOG)
    chronicle.all_recovered(count, through)


async def tell_counts(chronicle: Chronicle) -> None:
    while chronicle.journal is not NO_JOURNAL:
        await asyncio.sleep(COUNTS_INTERVAL)
        chronicle.tell_counts()
