"""Background tasks that have an owner: named, logged on failure, cancelled and awaited at close."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from typing import TypeVar

from heliograph.opening import Closing

__all__ = ["TaskScope"]

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

CANCEL_GRACE_SECONDS = 5.0
"""Seconds that `TaskScope.close` waits for cancelled tasks."""


class TaskScope(Closing):
    """The background tasks of one owner.

    Unlike `asyncio.TaskGroup`, a task that fails is logged and leaves its siblings running, and the
    end of the scope cancels what still runs. Await a spawned task only for its result: its failure
    is logged in any case.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of tasks that have not ended."""
        return len(self._tasks)

    def __bool__(self) -> bool:
        return True  # an idle scope is still a scope

    def __iter__(self) -> Iterator[asyncio.Task[object]]:
        return iter(tuple(self._tasks))

    def spawn(
        self, work: Coroutine[object, object, _Result], *, name: str
    ) -> "asyncio.Task[_Result]":
        """Run ``work`` in the background; once the scope is closed, cancel it at once."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if self._is_closed:
            task.cancel()
        return task

    async def wait(self) -> None:
        """Wait until every task has ended by itself."""
        while tasks := self._others():
            await asyncio.wait(tasks)

    async def close(self, grace: float = CANCEL_GRACE_SECONDS) -> None:
        """Cancel every task and wait up to ``grace`` seconds until they have ended.

        A task of the scope may call this: it is not cancelled itself.
        """
        self._is_closed = True
        deadline = asyncio.get_running_loop().time() + grace
        for task in self._others():
            task.cancel()
        while tasks := self._others():  # a cancelled task may spawn others while it ends
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                names = ", ".join(sorted(task.get_name() for task in tasks))
                logger.warning("tasks still run %g s after they were cancelled: %s", grace, names)
                return
            await asyncio.wait(tasks, timeout=left)

    def _others(self) -> "set[asyncio.Task[object]]":
        return self._tasks - {asyncio.current_task()}

    def _done(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            logger.error("task %s failed", task.get_name(), exc_info=failure)
