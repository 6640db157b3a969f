"""What one messaging router sent, on its way to the store.

The protocol has no acknowledgement: a messaging router of ours takes a notification for delivered
if the connection outlives its arrival by one second. So all must be durable by then, even if this
router is killed: no more is read than the store takes in a moment, and if the store stands still
the connection is to be cut, and no other made until all is stored.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

LET_GO_AFTER = 0.6
"""Seconds that a notification may wait for the store."""

QUEUE_SECONDS = 0.2
"""So much work for the store may be waiting; more is not read."""

MEASURED_SECONDS = 0.05
FIRST_LIMIT = 1_000
MIN_LIMIT, MAX_LIMIT = 100, 20_000


class _Batch(NamedTuple):
    at: float
    size: int


class Inbox:
    """`hold` stops and resumes reading from the messaging router; `let_go` cuts the connection."""

    def __init__(self, hold: Callable[[bool], None], let_go: Callable[[], None]) -> None:
        self.is_held = False
        self.limit = FIRST_LIMIT
        self.waiting = 0
        """How many notifications are not stored yet."""
        self._hold = hold
        self._let_go = let_go
        self._loop = asyncio.get_running_loop()
        self._batches: dict[asyncio.Future[None], _Batch] = {}
        self._stored = asyncio.Event()
        self._stored.set()
        self._timer: asyncio.TimerHandle | None = None
        self._measured_from = 0.0
        self._measured = 0

    async def all_stored(self) -> None:
        await self._stored.wait()

    def put(self, storing: asyncio.Future[None], size: int) -> None:
        """So many notifications arrived, which `storing` makes durable."""
        now = self._loop.time()
        if not self._batches:
            self._measured_from, self._measured = now, 0
            self._stored.clear()
        self._batches[storing] = _Batch(now, size)
        self.waiting += size
        storing.add_done_callback(self._done)
        self._watch()
        self._hold_or_not()

    def _done(self, storing: asyncio.Future[None]) -> None:
        size = self._batches.pop(storing).size
        self.waiting -= size
        self._measure(size)
        if not self._batches:
            self._stored.set()
        self._hold_or_not()

    def _measure(self, size: int) -> None:
        """How fast the store is while it has work to do."""
        self._measured += size
        seconds = self._loop.time() - self._measured_from
        if seconds >= MEASURED_SECONDS:
            wanted = int(self._measured / seconds * QUEUE_SECONDS)
            self.limit = min(max((self.limit + wanted) // 2, MIN_LIMIT), MAX_LIMIT)
            self._measured_from, self._measured = self._loop.time(), 0

    def _hold_or_not(self) -> None:
        held = self.waiting > self.limit
        if held != self.is_held:
            self.is_held = held
            self._hold(held)

    def _watch(self) -> None:
        if self._timer is None and self._batches:
            oldest = next(iter(self._batches.values()))
            self._timer = self._loop.call_at(oldest.at + LET_GO_AFTER, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._batches:
            oldest = next(iter(self._batches.values()))
            if self._loop.time() >= oldest.at + LET_GO_AFTER:
                self._let_go()
            else:
                self._watch()
