"""Watch journals without Spark: is there something to read, and is it time to?

While nothing is sealed, a look costs one system call for each router.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from heliograph.pipeline import source
from heliograph.pipeline.tables.offsets import read_account, read_offsets
from heliograph.pipeline.vocabulary import ACCOUNT_AGAIN, OVERDUE

LARGE_BYTES = 32 << 20
"""Size from which segments are read at once: to start Spark costs little beside it."""


class Watcher:
    """Decides when a batch is due: `every` seconds after the last one, if there is something."""

    def __init__(self, place: Path | str, journals: Sequence[str], every: float) -> None:
        self._place = place
        self._journals = journals
        self._every = every
        self._due_at = float("-inf")
        self._again_at = float("-inf")
        self._seen: dict[str, int] = {}

    def due(self, now: float) -> int | None:
        """Return how many bytes a batch should read at the monotonic time `now`, None for none.

        Raises `StartError`.
        """
        if any("://" in journal for journal in self._journals):
            return LARGE_BYTES if now >= self._due_at else None  # only Spark can list it
        if now >= self._again_at:
            self._again_at = now + ACCOUNT_AGAIN
            outcomes = read_account(self._place).get("outcomes", {})
            if any(outcomes.get(outcome) for outcome in OVERDUE):
                return 0  # nothing to read, but what is overdue by now is to be found
        changed = self._changes()
        if changed == self._seen:
            return None
        offsets = read_offsets(self._place)
        waiting = [
            item.size
            for journal in self._journals
            for item in source.list_segments(journal, None)
            if not source.is_ingested(item, offsets)
        ]
        if not waiting:
            self._seen = changed
            return None
        size = sum(waiting)
        return size if now >= self._due_at or size >= LARGE_BYTES else None

    def ran(self, now: float) -> None:
        """Set when the next batch is due: one ended now."""
        self._due_at = now + self._every
        self._again_at = now + ACCOUNT_AGAIN

    def _changes(self) -> dict[str, int]:
        """Return when the folder of each router changed last."""
        found = {}
        for journal in self._journals:
            try:
                for entry in os.scandir(journal):
                    if entry.name[0] not in "._":
                        found[entry.path] = entry.stat().st_mtime_ns
            except FileNotFoundError as exc:
                raise source.no_journal(journal) from exc
        return found
