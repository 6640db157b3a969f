"""Notifications of one messaging router between the connection and the store.

No more is read than the store takes in a moment: a messaging router keeps what it cannot send.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

QUEUE_SECONDS = 0.2
"""Pause reading while the store needs longer than this for what is queued."""

MEASURE_SECONDS = 0.05
FIRST_LIMIT = 1_000
MIN_LIMIT, MAX_LIMIT = 100, 20_000


@dataclass(slots=True)
class _Batch:
    size: int
    is_done: bool = False


class Inbox:
    """Bound what waits for the store, and count what is stored.

    `pause` is called with True to pause reading from the messaging router, with False to resume;
    `stored` with the number of notifications of the connection that are durable, counted from the
    first, whenever it grows.
    """

    def __init__(self, pause: Callable[[bool], None], stored: Callable[[int], None]) -> None:
        self.is_paused = False
        self.limit = FIRST_LIMIT
        self.waiting = 0
        """Notifications that are not durable yet."""
        self._pause = pause
        self._on_stored = stored
        self._loop = asyncio.get_running_loop()
        self._batches: deque[_Batch] = deque()
        self._count = 0
        self._has_gap = False
        """A batch was abandoned: nothing after it can be counted."""
        self._all_stored = asyncio.Event()
        self._all_stored.set()
        self._measured_from = 0.0
        self._measured = 0

    async def all_stored(self) -> None:
        """Wait until everything received is durable."""
        await self._all_stored.wait()

    def begin_connection(self) -> None:
        """Count from 0; everything received on the last connection must be stored."""
        self._count = 0
        self._has_gap = False

    def put(self, storing: asyncio.Future[int], size: int) -> None:
        """Add `size` notifications that are durable once `storing` is done."""
        if not self._batches:
            self._measured_from, self._measured = self._loop.time(), 0
            self._all_stored.clear()
        batch = _Batch(size)
        self._batches.append(batch)
        self.waiting += size
        storing.add_done_callback(lambda future: self._done(batch, future))
        self._pause_or_resume()

    def _done(self, batch: _Batch, storing: asyncio.Future[int]) -> None:
        batch.is_done = True
        self.waiting -= batch.size
        self._measure(batch.size)
        before = self._count
        while self._batches and self._batches[0].is_done:
            self._count += self._batches.popleft().size
        if storing.cancelled() or storing.exception() is not None:
            self._has_gap = True
        if self._count > before and not self._has_gap:
            self._on_stored(self._count)
        if not self._batches:
            self._all_stored.set()
        self._pause_or_resume()

    def _measure(self, size: int) -> None:
        """Adapt the limit to the speed of the store while it is busy."""
        self._measured += size
        seconds = self._loop.time() - self._measured_from
        if seconds >= MEASURE_SECONDS:
            wanted = int(self._measured / seconds * QUEUE_SECONDS)
            self.limit = min(max((self.limit + wanted) // 2, MIN_LIMIT), MAX_LIMIT)
            self._measured_from, self._measured = self._loop.time(), 0

    def _pause_or_resume(self) -> None:
        paused = self.waiting > self.limit
        if paused != self.is_paused:
            self.is_paused = paused
            self._pause(paused)
