"""Work asked for piece by piece and done together, so that many pieces cost one round trip.

What is asked for in one turn of the event loop, or while earlier work is under way, goes together.
Alone it waits for nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from heliograph.db.errors import DatabaseLost

Asked = TypeVar("Asked")
Done = TypeVar("Done")

MAX_TOGETHER = 500


class Gathering(Generic[Asked, Done]):
    """`work` gives one result for each of what it was asked, in order."""

    def __init__(self, work: Callable[[list[Asked]], Awaitable[list[Done]]]) -> None:
        self._work = work
        self._waiting: list[tuple[Asked, asyncio.Future[Done]]] = []
        self._task: asyncio.Task[None] | None = None

    def ask(self, asked: Asked) -> "asyncio.Future[Done]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Done] = loop.create_future()
        self._waiting.append((asked, future))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return future

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = self._waiting[:MAX_TOGETHER]
                del self._waiting[:MAX_TOGETHER]
                if wanted := [item for item in batch if not item[1].done()]:
                    await self._do(wanted)
        finally:
            self._task = None

    async def _do(self, batch: list[tuple[Asked, asyncio.Future[Done]]]) -> None:
        """If it fails, each alone: one piece must not be another's undoing.

        But not while there is no database, which each would wait for.
        """
        try:
            results = await self._work([asked for asked, _ in batch])
        except Exception as exc:
            if len(batch) > 1 and not isinstance(exc, DatabaseLost):
                for item in batch:
                    await self._do([item])
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
