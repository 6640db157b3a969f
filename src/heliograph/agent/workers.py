"""A worker: does one router's share of work in batches, for as long as there is any.

What is to be done, and whether it was, is in the store; a worker keeps nothing but its pace.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from heliograph.agent.ntf_pace import Pace
from heliograph.runtime.backoff import Backoff

logger = logging.getLogger(__name__)

LONGEST_NAP = 60.0
"""Seconds after which a worker looks at the clock again, which may have been set."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one batch."""

    asked: int = 0
    unreachable: bool = False
    """Whether some got no answer."""
    next_in: float | None = None
    """Seconds until more is due, if nothing is now."""


Perform = Callable[[int], Awaitable[Report]]
"""Do up to so many of what is due."""


class Worker:
    def __init__(self, name: str, perform: Perform, batch: int, backoff: Backoff) -> None:
        """`name` is for logs: it may hold no address."""
        self._name = name
        self._perform = perform
        self._backoff = backoff
        self._pace = Pace.start(batch)
        self._kicked = asyncio.Event()
        self._kicked.set()
        self._hurried = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=name)

    @property
    def pace(self) -> Pace:
        return self._pace

    def kick(self) -> None:
        """There may be work."""
        self._kicked.set()

    def hurry(self) -> None:
        """The network is back: do not wait for the end of an interval."""
        self._hurried.set()
        self._kicked.set()

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

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

    async def _attempt(self) -> Report:
        try:
            return await self._perform(self._pace.size)
        except Exception:
            # Whatever it is, what is stored is still to be done.
            logger.exception("%s failed", self._name)
            return Report(unreachable=True)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
