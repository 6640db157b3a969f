"""A journal in segments, written by a thread of its own: a router never waits for it.

A failing disk never stops the router. Events that cannot be written are queued in memory and
retried; those that find no room are counted, and the count is journaled as `journal_lost` once
writing works again.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from heliograph.journal.events import EventColumns, JournalEvent, JournalLost
from heliograph.journal.hashing import Hasher
from heliograph.journal.identity import JournalIdentity
from heliograph.journal.journal import Journal, JournalCounts
from heliograph.journal.readers import is_streamed
from heliograph.journal.storage.arrow import (
    Origin,
    Recorded,
    RecordedColumns,
    one_by_one,
    size_of,
    table_of,
)
from heliograph.journal.storage.heads import HeadWriter
from heliograph.journal.storage.retention import Retention
from heliograph.journal.storage.segments import (
    LiveRuns,
    Sealed,
    SegmentWriter,
    new_boot,
    recover,
)
from heliograph.journal.storage.settings import JournalSettings

__all__ = ["JournalWriter"]

logger = logging.getLogger(__name__)

CAPACITY = 50_000
"""Maximum number of events queued in memory."""
MAX_BATCH = 10_000
RETRY_INTERVAL = 1.0


class _Waiter(NamedTuple):
    """Waits until all events recorded before it are on disk."""

    recorded: int
    loop: asyncio.AbstractEventLoop
    event: asyncio.Event


class JournalWriter(Journal):
    """Writes the segments of one router, in a folder of its own in `directory`.

    It has many attributes because two threads share it: counters of the caller, those of the
    thread, and the segment that is being written.
    """

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
        self.is_failing = False
        self.directory = directory / identity.router
        self._identity = identity
        self._part = part
        self._hasher = Hasher(identity.key)
        self._callers_hasher = Hasher(identity.key)  # the other one is the thread's
        self._sealed = Sealed(self.directory)
        self._retention = Retention(self._sealed, self.settings)
        self._live = LiveRuns(self.directory)
        self._head = HeadWriter(directory, identity.router, part)
        self._segment: SegmentWriter | None = None
        self._origin: Origin | None = None
        self._next_seq = 1
        self._sealed_seq = 0
        self._retry_at = 0.0
        self._beat_at = 0.0
        self._seal_after = self.settings.seal_after
        self._appending = 0
        """Events that the segment will have after the current append; 0 if there is none."""
        self._unreported = 0
        """Number of lost events not yet reported in the journal."""
        self._queue: deque[Recorded | RecordedColumns] = deque()
        # Only one thread changes each counter, the router's or the journal's: no lock is needed.
        self._recorded = 0
        self._taken = 0
        self._refused = 0
        """Events refused because the queue was full, counted by the router's thread."""
        self._refused_seen = 0
        self._durable = 0
        """Number of dequeued events that are on disk, or lost."""
        self._waiters: deque[_Waiter] = deque()
        self._is_woken = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def record(self, event: JournalEvent, at: float | None = None) -> None:
        if self._recorded - self._taken >= CAPACITY:
            self._refused += 1
            return
        self._recorded += 1
        self._queue.append((event, time.time() if at is None else at, time.monotonic_ns()))
        if not self._is_woken:
            self._is_woken = True
            self._wake.set()

    def record_columns(self, columns: EventColumns) -> None:
        count = columns.size
        if self._recorded - self._taken + count > CAPACITY:
            self._refused += count
            return
        if count:
            self._recorded += count
            self._queue.append(RecordedColumns(columns, time.time(), time.monotonic_ns(), count))
            if not self._is_woken:
                self._is_woken = True
                self._wake.set()

    @property
    def backlog(self) -> int:
        return self._recorded - self._taken

    async def synced(self) -> None:
        if self._durable >= self._recorded:
            return
        waiter = _Waiter(self._recorded, asyncio.get_running_loop(), asyncio.Event())
        self._waiters.append(waiter)
        # One of these is False if the thread has released its waiters for the last time.
        if self._durable < waiter.recorded and not self.is_failing and self._thread.is_alive():
            await waiter.event.wait()

    def hash_of(self, column: str, value: bytes) -> str | None:
        hashes = self._callers_hasher.of(column)
        return None if hashes is None else hashes[value]

    def counts(self) -> JournalCounts:
        lost = self.lost + self._refused - self._refused_seen
        removed, size = self._retention.removed.events, self._sealed.bytes
        return JournalCounts(self.written, lost, removed, size, self.is_failing)

    def close(self, grace: float = 10.0) -> None:
        """Write the queued events, as far as possible within `grace` seconds."""
        self._closing.set()
        self._wake.set()
        self._thread.join(grace)
        self._live.release()

    # On the thread.

    def _run(self) -> None:
        while True:
            self._wait()
            closing = self._closing.is_set()
            # Before the queue is read, so that a later event wakes the thread again.
            self._is_woken = False
            self._wake.clear()
            self._try_step(closing)
            if closing:
                if self.is_failing:  # perhaps only the directory is gone
                    self._try_step(closing)
                self._end()
            self._wake_waiters(closing)
            if closing:
                return

    def _wake_waiters(self, closing: bool) -> None:
        """Wake those whose events are on disk; all of them if the journal cannot be written."""
        waiters = self._waiters
        while waiters and (closing or self.is_failing or waiters[0].recorded <= self._durable):
            waiter = waiters.popleft()
            with contextlib.suppress(RuntimeError):  # its loop is closed
                waiter.loop.call_soon_threadsafe(waiter.event.set)

    def _wait(self) -> None:
        """Wait for events, then briefly for more; or until it is time to seal or retry."""
        segment = self._segment
        if self.is_failing:
            self._closing.wait(max(self._retry_at - time.monotonic(), 0.0))
            return
        timeout = None
        if segment is not None:
            due_at = segment.began_at + self._seal_after if segment.count else self._beat_at
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
                self._recovered()
            began = time.time()
            self._write(segment, now, None if closing else self._recorded)
            self._durable = self._taken
            if closing or self._is_due(segment, time.monotonic()):
                self._seal(segment)
            self._renew_head(segment, now, began)
        except OSError as exc:
            self._failed(exc)

    def _renew_head(self, segment: SegmentWriter, now: float, began: float) -> None:
        """Write how far the run has sealed; if all is sealed, also that it is all until `began`."""
        if not segment.count and (self._head.is_behind(segment.sealed) or now >= self._beat_at):
            self._beat_at = now + self.settings.heartbeat
            self._head.renew(segment.sealed, self._next_seq - 1, began)
        elif self._head.is_behind(segment.sealed):
            self._head.renew(segment.sealed, self._sealed_seq)

    def _ready(self) -> SegmentWriter:
        """Return the segment writer; first create the directory and seal logs of earlier runs."""
        if self._segment is not None:
            if self.is_failing:
                self._make_directory()
                self._sealed.scan()
                self._check_room()
            return self._segment
        self._make_directory()
        if self.settings.is_shared:
            with self._live.starting() as live:
                boot = self._recover(live)
                self._live.hold(boot)
                self._head.remove_acknowledged(live)
        else:
            boot = self._recover(set())
            self._head.remove_acknowledged()
        self._sealed.scan()
        self._check_room()
        self._origin = Origin(self._identity.router, self._part, boot)
        self._head.begin(boot)
        self._segment = SegmentWriter(self.directory, boot)
        return self._segment

    def _recover(self, live: set[int]) -> int:
        """Seal what killed runs left, and return the number of this run."""
        boot = new_boot(max(self._sealed.scan(), *live, 0))
        saved = recover(self.directory, live)
        self._head.end_earlier(live, saved)
        if saved:
            events = sum(item.events for item in saved)
            logger.info("recovered %d journal events of a killed run", events)
        return boot

    def _make_directory(self) -> None:
        """Create the directory, but not its parents, which may not be mounted."""
        self.directory.parent.mkdir(mode=0o700, exist_ok=True)
        self.directory.mkdir(mode=0o700, exist_ok=True)

    def _write(self, segment: SegmentWriter, now: float, until: int | None) -> None:
        """Write up to `until` recorded events, so that waiters are served under constant load."""
        queue = self._queue
        while (queue and (until is None or self._taken < until)) or (
            self._refused != self._refused_seen
        ):
            # Before the queue is read: refused events come after those in it.
            refused = self._refused - self._refused_seen
            events: list[Recorded | RecordedColumns] = []
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
            self._record_lost(segment, now)
            if self._is_due(segment, time.monotonic()):
                self._seal(segment)

    def _record_lost(self, segment: SegmentWriter, now: float) -> None:
        if self._unreported:
            count, self._unreported = self._unreported, 0
            event = JournalLost(count=count, reason="overflow")
            self._append(segment, [(event, time.time(), time.monotonic_ns())], now)

    def _append(
        self, segment: SegmentWriter, events: list[Recorded | RecordedColumns], now: float
    ) -> None:
        assert self._origin is not None  # noqa: S101
        first_seq = self._next_seq
        self._next_seq += sum(map(size_of, events))
        try:
            batch = table_of(events, self._origin, first_seq, self._hasher)
        except Exception:
            first = events[0]
            if len(events) == 1 and not isinstance(first, RecordedColumns):
                name = type(first[0]).__name__
                logger.exception("an event %s could not be put into columns", name)
                self._lose(1)
                return
            self._next_seq = first_seq
            for event in one_by_one(events):
                self._append(segment, [event], now)
            return
        if not segment.count:
            self._choose_age()
        self._appending = segment.count + len(batch)
        segment.append(batch, now)
        self._appending = 0

    def _choose_age(self) -> None:
        """Choose how old the new segment gets: less if a pipeline streams."""
        settings = self.settings
        self._seal_after = settings.seal_after
        if is_streamed(self.directory.parent, time.time()):
            self._seal_after = min(settings.seal_after, settings.stream_seal_after)

    def _is_due(self, segment: SegmentWriter, now: float) -> bool:
        return segment.count > 0 and (
            segment.bytes >= self.settings.seal_bytes or now >= segment.began_at + self._seal_after
        )

    def _seal(self, segment: SegmentWriter) -> None:
        count = segment.count
        path = segment.seal()
        if path is None:
            return
        self.written += count
        self._sealed_seq = self._next_seq - 1
        self._sealed.add(path)
        self._check_room()

    def _check_room(self) -> None:
        self._retention.enforce(time.monotonic(), time.time())

    # When it fails.

    def _failed(self, exc: OSError) -> None:
        self._retry_at = time.monotonic() + RETRY_INTERVAL
        if not self.is_failing:
            self.is_failing = True
            logger.error(
                "the journal in %s cannot be written; the router continues without it: %s",
                self.directory.parent,
                exc.strerror or type(exc).__name__,
            )

    def _recovered(self) -> None:
        self.is_failing = False
        logger.warning("the journal can be written again; %d events were lost", self.lost)

    def _lose(self, count: int) -> None:
        self.lost += count
        self._unreported += count

    def _abandon(self) -> None:
        """Drop a segment that cannot be written although the disk can, and begin another."""
        segment = self._segment
        if segment is not None:
            self._lose(max(segment.count, self._appending))
            self._appending = 0
            segment.abandon()
        self._durable = self._taken  # lost: do not let waiters wait for it

    def _end(self) -> None:
        segment = self._segment
        unnumbered = self.backlog + self._refused - self._refused_seen
        left = unnumbered + (0 if segment is None else segment.count_unsynced)
        if segment is not None:
            last = self._next_seq - 1 + unnumbered
            self._head.end(segment.sealed, last, time.time(), left + self._unreported)
        if left:
            self.lost += left
            logger.error("%d events could not be journaled", left)
