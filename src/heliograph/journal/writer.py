"""A journal in segments, written by a thread of its own: a router never waits for it.

Whatever happens to the disk, the router goes on. What cannot be written waits, as far as there is
room for it in memory, and is tried again; what finds no room is counted, and its count is journaled
as `journal_lost` once that is possible.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heliograph.journal.arrow import Origin, one_by_one, size_of, table_of
from heliograph.journal.events import Event, Hasher, Journal, JournalCounts, Many
from heliograph.journal.identity import JournalIdentity
from heliograph.journal.segments import Full, Sealed, SegmentWriter, new_boot, recover

__all__ = ["JournalSettings", "JournalWriter"]

logger = logging.getLogger(__name__)

CAPACITY = 50_000
"""Events that wait in memory."""
MAX_BATCH = 10_000
RETRY_INTERVAL = 1.0
TELL_INTERVAL = 60.0
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Times in seconds. `max_bytes` are of sealed segments."""

    sync_interval: float = 0.05
    seal_after: float = 0.5
    seal_bytes: int = 16 * MEBIBYTE
    max_bytes: int = 1024 * MEBIBYTE
    refuse_new: bool = False
    """At `max_bytes`: write nothing more, instead of removing the oldest."""


class _Waiter(NamedTuple):
    """For all that was noted before it."""

    noted: int
    loop: asyncio.AbstractEventLoop
    event: asyncio.Event


class JournalWriter(Journal):
    """Segments of one router, in a folder of its own in `directory`."""

    def __init__(
        self,
        directory: Path,
        identity: JournalIdentity,
        part: str,
        settings: JournalSettings | None = None,
    ) -> None:
        self.settings = settings or JournalSettings()
        self.written = 0
        self.lost = 0
        self.removed_events = 0
        self.removed_segments = 0
        self.is_failing = False
        self.directory = directory / identity.router
        self._identity = identity
        self._part = part
        self._hasher = Hasher(identity.key)
        self._sealed = Sealed(self.directory)
        self._segment: SegmentWriter | None = None
        self._origin: Origin | None = None
        self._next_seq = 1
        self._retry_at = 0.0
        self._told_at = float("-inf")
        self._unsaid = 0
        """Lost, and not yet said in the journal."""
        self._queue: deque[Event | Many] = deque()
        # What the router's thread counts, and what the journal's does: neither needs a lock.
        self._noted = 0
        self._taken = 0
        self._refused = 0
        """Not noted, because there was no room. The router's thread counts it."""
        self._refused_seen = 0
        self._durable = 0
        """Of those taken, how many are on disk, or lost."""
        self._waiters: deque[_Waiter] = deque()
        self._is_woken = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def __call__(self, kind: str, /, at: float | None = None, **columns: Any) -> None:
        if self._noted - self._taken >= CAPACITY:
            self._refused += 1
            return
        self._noted += 1
        self._queue.append((kind, time.time() if at is None else at, time.monotonic_ns(), columns))
        if not self._is_woken:
            self._is_woken = True
            self._wake.set()

    def many(self, kind: str, count: int, /, **columns: Any) -> None:
        if self._noted - self._taken + count > CAPACITY:
            self._refused += count
            return
        if count:
            self._noted += count
            self._queue.append(Many(kind, time.time(), time.monotonic_ns(), count, columns))
            if not self._is_woken:
                self._is_woken = True
                self._wake.set()

    @property
    def backlog(self) -> int:
        return self._noted - self._taken

    async def synced(self) -> None:
        if self._durable >= self._noted:
            return
        waiter = _Waiter(self._noted, asyncio.get_running_loop(), asyncio.Event())
        self._waiters.append(waiter)
        # If the thread has looked at them for the last time meanwhile, one of these says so.
        if self._durable < waiter.noted and not self.is_failing and self._thread.is_alive():
            await waiter.event.wait()

    def counts(self) -> JournalCounts:
        lost = self.lost + self._refused - self._refused_seen
        removed, size = self.removed_events, self._sealed.bytes
        return JournalCounts(self.written, lost, removed, size, self.is_failing)

    def close(self, grace: float = 10.0) -> None:
        """Write what is left, as far as that is possible."""
        self._closing.set()
        self._wake.set()
        self._thread.join(grace)

    # On the thread.

    def _run(self) -> None:
        while True:
            self._wait()
            closing = self._closing.is_set()
            # Before the queue is looked at, so that what comes later wakes us again.
            self._is_woken = False
            self._wake.clear()
            self._try_step(closing)
            if closing:
                if self.is_failing:  # perhaps only the directory is gone
                    self._try_step(closing)
                self._end()
            self._tell_waiters(closing)
            if closing:
                return

    def _tell_waiters(self, closing: bool) -> None:
        """A router does not wait for a journal that cannot be written."""
        waiters = self._waiters
        while waiters and (closing or self.is_failing or waiters[0].noted <= self._durable):
            waiter = waiters.popleft()
            with contextlib.suppress(RuntimeError):  # its loop is closed
                waiter.loop.call_soon_threadsafe(waiter.event.set)

    def _wait(self) -> None:
        """For events, and then a moment for more; or until there is something to seal or retry."""
        segment = self._segment
        if self.is_failing:
            self._closing.wait(max(self._retry_at - time.monotonic(), 0.0))
            return
        timeout = None
        if segment is not None and segment.count:
            due_at = segment.began_at + self.settings.seal_after
            timeout = max(due_at - time.monotonic(), 0.0)
        if self._wake.wait(timeout):
            interval = self.settings.sync_interval
            self._closing.wait(interval if timeout is None else min(timeout, interval))

    def _try_step(self, closing: bool) -> None:
        try:
            self._step(time.monotonic(), closing)
        except Exception:
            logger.exception("the journal failed in an unexpected way")
            self._abandon()

    def _step(self, now: float, closing: bool) -> None:
        if self.is_failing and now < self._retry_at and not closing:
            return
        try:
            segment = self._ready()
            if self.is_failing:
                self._seal(segment)
                self._works_again()
            self._write(segment, now, None if closing else self._noted)
            self._durable = self._taken
            if closing or self._is_due(segment, time.monotonic()):
                self._seal(segment)
        except OSError as exc:
            self._fails(exc)

    def _ready(self) -> SegmentWriter:
        """The directory is made, and what an earlier run left is sealed, when that is possible."""
        if self._segment is not None:
            if self.is_failing:
                self._make_directory()
                self._sealed.scan()
                self._check_room()
            return self._segment
        self._make_directory()
        boot = new_boot(self._sealed.scan())
        saved = recover(self.directory)
        if saved:
            logger.info("the journal of a run that was killed is saved: %d events", saved)
        self._sealed.scan()
        self._check_room()
        self._origin = Origin(self._identity.router, self._part, boot)
        self._segment = SegmentWriter(self.directory, boot)
        return self._segment

    def _make_directory(self) -> None:
        """Not its parents: what is missing there is perhaps not mounted."""
        self.directory.parent.mkdir(mode=0o755, exist_ok=True)
        self.directory.mkdir(mode=0o755, exist_ok=True)

    def _write(self, segment: SegmentWriter, now: float, until: int | None) -> None:
        """Up to so many that were noted: what keeps coming must not keep those who wait waiting."""
        queue = self._queue
        while (queue and (until is None or self._taken < until)) or (
            self._refused != self._refused_seen
        ):
            # Before the queue is looked at: what is refused comes after what was in it.
            refused = self._refused - self._refused_seen
            events: list[Event | Many] = []
            count = 0
            while queue and count < MAX_BATCH:
                events.append(queue.popleft())
                count += size_of(events[-1])
            emptied = not queue
            self._taken += count
            if events:
                self._append(segment, events, now)
            if emptied and refused:
                self._refused_seen += refused
                self._lose(refused)
                self._next_seq += refused
            self._say_lost(segment, now)
            if self._is_due(segment, time.monotonic()):
                self._seal(segment)

    def _say_lost(self, segment: SegmentWriter, now: float) -> None:
        if self._unsaid:
            count, self._unsaid = self._unsaid, 0
            columns = {"count": count, "reason": "overflow"}
            event: Event = "journal_lost", time.time(), time.monotonic_ns(), columns
            self._append(segment, [event], now)

    def _append(self, segment: SegmentWriter, events: list[Event | Many], now: float) -> None:
        assert self._origin is not None  # noqa: S101
        first_seq = self._next_seq
        self._next_seq += sum(map(size_of, events))
        try:
            batch = table_of(events, self._origin, first_seq, self._hasher)
        except Exception:
            if len(events) == 1 and not isinstance(events[0], Many):
                logger.exception("an event %s could not be put into columns", events[0][0])
                self._lose(1)
                return
            self._next_seq = first_seq
            for event in one_by_one(events):
                self._append(segment, [event], now)
            return
        segment.append(batch, now)

    def _is_due(self, segment: SegmentWriter, now: float) -> bool:
        return segment.count > 0 and (
            segment.bytes >= self.settings.seal_bytes
            or now >= segment.began_at + self.settings.seal_after
        )

    def _seal(self, segment: SegmentWriter) -> None:
        count = segment.count
        path = segment.seal()
        if path is None:
            return
        self.written += count
        self._sealed.add(path)
        self._check_room()

    def _check_room(self) -> None:
        most = self.settings.max_bytes
        if self._sealed.bytes <= most:
            return
        if self.settings.refuse_new:
            self._sealed.scan()  # whoever reads them may have removed some
            if self._sealed.bytes > most:
                raise Full(0, "it takes as much disk as [journal] max_megabytes allows")
            return
        segments, events = self._sealed.remove_oldest(most)
        self.removed_segments += segments
        self.removed_events += events
        now = time.monotonic()
        if segments and now > self._told_at + TELL_INTERVAL:
            self._told_at = now
            logger.warning(
                "the oldest segments of the journal are removed, %d so far: see [journal]"
                " max_megabytes",
                self.removed_segments,
            )

    # When it fails.

    def _fails(self, exc: OSError) -> None:
        self._retry_at = time.monotonic() + RETRY_INTERVAL
        if not self.is_failing:
            self.is_failing = True
            logger.error(
                "the journal in %s cannot be written, and the router goes on without: %s",
                self.directory.parent,
                exc.strerror or type(exc).__name__,
            )

    def _works_again(self) -> None:
        self.is_failing = False
        logger.warning("the journal is written again; %d events of it are lost", self.lost)

    def _lose(self, count: int) -> None:
        self.lost += count
        self._unsaid += count

    def _abandon(self) -> None:
        """The segment cannot be written though the disk can: begin another."""
        segment = self._segment
        if segment is not None:
            self._lose(segment.count)
            segment.abandon()
        self._durable = self._taken  # lost: nobody shall wait for it

    def _end(self) -> None:
        segment = self._segment
        left = self.backlog + self._refused - self._refused_seen
        left += 0 if segment is None else segment.count_unsynced
        if left:
            self.lost += left
            logger.error("%d events could not be journaled", left)
