"""How long sealed segments stay, and how much disk they take."""

import logging

from heliograph.journal.storage.segments import Full, Removed, Sealed
from heliograph.journal.storage.settings import JournalSettings

__all__ = ["Retention"]

logger = logging.getLogger(__name__)

WARN_INTERVAL = 60.0
CLEAN_INTERVAL = 3600.0
"""Seconds between removals of old acknowledged segments."""
SCAN_INTERVAL = 60.0
"""Seconds between looks at what other processes have sealed and removed."""


class Retention:
    """Removes segments that are old or too much, and counts those that no pipeline has read."""

    def __init__(self, sealed: Sealed, settings: JournalSettings) -> None:
        self.removed = Removed()
        self._sealed = sealed
        self._settings = settings
        self._warned_at = float("-inf")
        self._clean_at = float("-inf")
        self._scan_at = float("-inf")

    def enforce(self, now: float, unix_time: float) -> None:
        """Make room for another segment at the steady time `now`; raise `Full` if it must not."""
        if self._settings.is_shared and now >= self._scan_at:
            self._scan_at = now + SCAN_INTERVAL
            self._sealed.scan()
        if now >= self._clean_at:
            self._clean_at = now + CLEAN_INTERVAL
            self._sealed.remove_acknowledged(unix_time - self._settings.keep_acknowledged)
        most = self._settings.max_bytes
        if self._sealed.bytes <= most:
            return
        if self._settings.refuse_new:
            self._sealed.scan()  # a reader may have removed some
            self._sealed.remove_oldest(most, unread=False)
            if self._sealed.bytes > most:
                raise Full(0, "it takes as much disk as [journal] max_megabytes allows")
            return
        # A little more than needed, so that not every seal has to look at all segments.
        removed = self._sealed.remove_oldest(most - most // 20)
        segments, events = self.removed
        self.removed = Removed(segments + removed.segments, events + removed.events)
        if removed.segments and now > self._warned_at + WARN_INTERVAL:
            self._warned_at = now
            logger.warning(
                "the oldest segments of the journal are removed though no pipeline acknowledged"
                " them, %d so far: see [journal] max_megabytes",
                self.removed.segments,
            )
