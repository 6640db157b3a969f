"""Run single items in batches, so that many items cost one round trip.

Items submitted in one turn of the event loop, or while a batch runs, form the next batch. A single
item runs without delay.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from heliograph.db.errors import DatabaseLost
from heliograph.tasks import TaskScope

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_BATCH = 500


class Batcher(Generic[Item, Result]):
    """Call `work` with batches of items; it returns one result per item, in order."""

    def __init__(self, work: Callable[[list[Item]], Awaitable[list[Result]]]) -> None:
        self._work = work
        self._queued: list[tuple[Item, asyncio.Future[Result]]] = []
        self._tasks = TaskScope()
        self._is_running = False

    def submit(self, item: Item) -> "asyncio.Future[Result]":
        """Return the future result of `item`."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queued.append((item, future))
        if not self._is_running:
            self._is_running = True
            self._tasks.spawn(self._run(), name="batches")
        return future

    async def _run(self) -> None:
        try:
            while self._queued:
                batch = self._queued[:MAX_BATCH]
                del self._queued[:MAX_BATCH]
                if wanted := [entry for entry in batch if not entry[1].done()]:
                    await self._run_batch(wanted)
        finally:
            self._is_running = False

    async def _run_batch(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        """Run a batch; if it fails, run each item alone, so that only the bad one fails.

        A lost database fails the whole batch at once: each item would only wait for it again.
        """
        try:
            results = await self._work([item for item, _ in batch])
        except Exception as exc:
            if len(batch) > 1 and not isinstance(exc, DatabaseLost):
                for entry in batch:
                    await self._run_batch([entry])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(exc)
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
