"""Writes the head of a run, and cleans up those of earlier runs: see `heliograph.journal.heads`.

A head that cannot be written fails nothing: the older one claims less, and stays true.
"""

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from heliograph.journal.heads import HEADS, Head, decode_head, write_head
from heliograph.journal.readers import read_acknowledged
from heliograph.journal.storage.segments import Recovered

__all__ = ["HeadWriter"]

logger = logging.getLogger(__name__)


class HeadWriter:
    """Keeps the head of one run of a router in the journal at `journal`."""

    def __init__(self, journal: Path, router: str, part: str) -> None:
        self._journal = journal
        self._head = Head(router, 0, part)
        self._failing = False

    def begin(self, boot: int) -> None:
        """Write that a run has begun; its number is the time at which it did."""
        self._head = replace(self._head, boot=boot, at=boot)
        self._write(self._head)

    def is_behind(self, segment: int) -> bool:
        return self._head.segment != segment

    def renew(self, segment: int, seq: int, at: float | None = None, ended: bool = False) -> None:
        """Write how far the run has sealed; `at` is a time until which that is everything."""
        until = self._head.at if at is None else int(at * 1e6)
        self._head = replace(self._head, segment=segment, seq=seq, at=until, ended=ended)
        self._write(self._head)

    def end(self, segment: int, seq: int, at: float, lost: int) -> None:
        """Write that the run has ended; `lost` events up to `seq` could not be written."""
        self._head = replace(self._head, lost=lost)
        self.renew(segment, seq, at, True)

    def end_earlier(self, live: Collection[int], saved: Iterable[Recovered]) -> None:
        """Write that killed runs have ended, with what was `saved` of them just now."""
        last = {item.boot: item for item in saved}
        for _, head in self._earlier():
            found = last.get(head.boot)
            if head.boot not in live and (found is not None or not head.ended):
                if found is not None:
                    seq = max(head.seq, found.last_seq)
                    head = replace(head, segment=found.number, seq=seq)
                self._write(replace(head, ended=True))

    def remove_acknowledged(self, live: Collection[int] = ()) -> None:
        """Remove the heads of earlier runs of which a pipeline has acknowledged the last segment.

        Until then they are the only evidence of segments that were lost. The head of a run that
        could not write its last events stays: no segment will ever have them.
        """
        acknowledged = read_acknowledged(self._journal / self._head.router)
        for path, head in self._earlier():
            if head.boot in live or head.lost:
                continue
            if not head.seq or acknowledged.has(head.boot, head.segment):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _earlier(self) -> Iterator[tuple[Path, Head]]:
        for path in sorted((self._journal / HEADS).glob(f"{self._head.router}-*.json")):
            with contextlib.suppress(OSError, ValueError):
                head = decode_head(path.read_bytes())
                if not self._head.boot or head.boot < self._head.boot:
                    yield path, head

    def _write(self, head: Head) -> None:
        try:
            write_head(self._journal, head)
            self._failing = False
        except OSError as exc:
            if not self._failing:
                logger.warning("the head of the journal cannot be written: %s", exc.strerror)
            self._failing = True
