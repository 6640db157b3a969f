"""The interface through which a program records events."""

import asyncio
from dataclasses import dataclass

from heliograph.journal.events import EventColumns, JournalEvent

__all__ = ["NO_JOURNAL", "Journal", "JournalCounts"]


@dataclass(frozen=True, slots=True)
class JournalCounts:
    """Events in sealed segments, lost, and removed unread; bytes of disk used."""

    written: int
    lost: int
    removed: int
    bytes: int
    failing: bool


class Journal:
    """A journal that discards events; `journal.storage.writer` has one that stores them."""

    def record(self, event: JournalEvent, at: float | None = None) -> None:
        """Record an event, at Unix time `at` or now. Never blocks, never raises."""

    def record_columns(self, columns: EventColumns) -> None:
        """Record many events of one kind, at a fraction of the cost of `record`."""

    def hash_of(self, column: str, value: bytes) -> str | None:
        """Return the hash that stands for a value in a column, None if nothing is stored."""
        return None

    def counts(self) -> JournalCounts | None:
        """Return the counts, None if nothing is stored."""
        return None

    @property
    def backlog(self) -> int:
        """Number of events that are not yet written."""
        return 0

    async def synced(self) -> None:
        """Wait until all recorded events are on disk, or writing failed."""

    async def drained(self, limit: int) -> None:
        """Wait until at most `limit` events are queued."""
        while self.backlog > limit:  # noqa: ASYNC110 - the writer is a thread
            await asyncio.sleep(0.05)


NO_JOURNAL = Journal()
