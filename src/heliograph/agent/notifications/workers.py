"""A worker: performs one router's work in batches, for as long as there is any.

The work and its progress are in the store; a worker keeps only its pace.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from heliograph.agent.notifications.pace import Pace
from heliograph.runtime.backoff import Backoff
from heliograph.tasks import TaskScope

logger = logging.getLogger(__name__)

LONGEST_NAP = 60.0
"""Maximum seconds to sleep before reading the clock again, which may have been set."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of one batch."""

    asked: int = 0
    unreachable: bool = False
    """Whether some requests got no answer."""
    next_in: float | None = None
    """Seconds until more is due, if nothing is now."""


Perform = Callable[[int], Awaitable[BatchReport]]
"""Perform up to this many due items."""


class Worker:
    def __init__(self, name: str, perform: Perform, batch: int, backoff: Backoff) -> None:
        """`name` is for logs: it must not contain an address."""
        self._name = name
        self._perform = perform
        self._backoff = backoff
        self._pace = Pace.start(batch)
        self._kicked = asyncio.Event()
        self._kicked.set()
        self._hurried = asyncio.Event()
        self._tasks = TaskScope()
        self._tasks.spawn(self._run(), name=name)

    @property
    def pace(self) -> Pace:
        return self._pace

    def wake(self) -> None:
        """Wake the worker: there may be work."""
        self._kicked.set()

    def retry_now(self) -> None:
        """Skip the current wait, because the network is back."""
        self._hurried.set()
        self._kicked.set()

    async def stop(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            self._kicked.clear()
            report = await self._attempt()
            if report.unreachable:
                self._pace = self._pace.failed()
                self._hurried.clear()
                jitter = random.random()  # noqa: S311
                await _wait(self._hurried, self._pace.delay(self._backoff, jitter))
            elif report.asked:
                self._pace = self._pace.succeeded()
            else:
                nap = LONGEST_NAP if report.next_in is None else report.next_in
                await _wait(self._kicked, min(max(nap, 0.0), LONGEST_NAP))

    async def _attempt(self) -> BatchReport:
        try:
            return await self._perform(self._pace.size)
        except Exception:
            # The work is still in the store, so retry after any error.
            logger.exception("%s failed", self._name)
            return BatchReport(unreachable=True)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
