"""Notifications of one messaging router from their arrival until they are durable and confirmed.

No more is read than the store takes in a moment: a messaging router keeps what it cannot send, and
what was not confirmed. While the database is down, nothing is confirmed, and reading stops
at that limit.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from heliograph.transport.client import Client
from heliograph.transport.errors import ClientError, Disconnected, RequestRefused
from heliograph.wire import smp
from heliograph.wire.smp.confirmations import encode_confirmation

logger = logging.getLogger(__name__)

QUEUE_SECONDS = 0.2
"""Pause reading while the store needs longer than this for what is queued."""

MEASURE_SECONDS = 0.05
FIRST_LIMIT = 1_000
MIN_LIMIT, MAX_LIMIT = 100, 20_000

CONFIRM_DELAY = 0.05
"""Seconds to collect confirmations: each costs a block in both directions."""


@dataclass(slots=True)
class _Batch:
    size: int
    is_done: bool = False


class Inbox:
    """Bound the notifications that wait for the store, and count those stored.

    `pause` is called with True to pause reading from the messaging router, with False to resume.
    """

    def __init__(self, pause: Callable[[bool], None]) -> None:
        self.is_paused = False
        self.limit = FIRST_LIMIT
        self.waiting = 0
        """Notifications that are not durable yet."""
        self._pause = pause
        self._on_stored: Callable[[int], None] = lambda _: None
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

    def begin_connection(self, stored: Callable[[int], None]) -> None:
        """Count from 0; everything received on the last connection must be stored.

        `stored` is called with the number of notifications of the connection that are durable,
        counted from the first, whenever it grows.
        """
        self._on_stored = stored
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


class Confirmer:
    """Confirmations on one connection, at most one in flight.

    `on_answer` gets the seconds that each took.
    """

    def __init__(self, client: Client, on_answer: Callable[[float], None]) -> None:
        self.is_supported = False
        """The router waits for confirmations."""
        self._client = client
        self._on_answer = on_answer
        self._stored = 0
        self._changed = asyncio.Event()

    async def negotiate(self) -> None:
        """Find out whether the router waits for confirmations; call it before subscribing."""
        with contextlib.suppress(RequestRefused):
            await self._send(0)

    def stored(self, count: int) -> None:
        """Confirm the first `count` notifications of the connection."""
        self._stored = count
        self._changed.set()

    async def run(self) -> None:
        """Send confirmations until the connection ends."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(CONFIRM_DELAY)
            self._changed.clear()
            sent_at = time.monotonic()
            try:
                await self._send(self._stored)
                self._on_answer(time.monotonic() - sent_at)
            except Disconnected:
                return
            except ClientError as exc:
                logger.warning("a confirmation of notifications failed: %s", type(exc).__name__)

    async def _send(self, count: int) -> None:
        await self._client.request(smp.PING(), corr_id=encode_confirmation(count))
